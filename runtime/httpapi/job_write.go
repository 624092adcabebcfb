package httpapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/model"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
)

// jobWritten is the reply to a change of a job.
type jobWritten struct {
	EvalID          string
	EvalCreateIndex uint64
	JobModifyIndex  uint64
	Warnings        string
	meta
}

func (r *request) written(o scheduler.Outcome) jobWritten {
	return jobWritten{
		EvalID: o.EvalID, EvalCreateIndex: o.EvalCreateIndex, JobModifyIndex: o.JobModifyIndex,
		Warnings: model.FormatWarnings(o.Warnings), meta: r.meta(o.Index),
	}
}

// sentJob is a job in the body of a request, with its namespace and region.
type sentJob struct {
	Job       *api.Job
	Region    string
	Namespace string
}

// take reads the body of a request, of which sent is a part, and returns the canonical form of its
// job.
func (a *API) take(r *request, body any, sent *sentJob) (*api.Job, error) {
	if err := r.body(body, maxJob, false); err != nil {
		return nil, err
	}
	job := sent.Job
	switch {
	case job == nil:
		return nil, bad("Job must be specified")
	case val(job.ID) == "":
		return nil, bad("Job ID hasn't been provided")
	case r.id != "" && r.id != *job.ID:
		return nil, bad("Job ID does not match name")
	}
	if namespace := cmp.Or(r.query.Get("namespace"), sent.Namespace); namespace != "" {
		job.Namespace = &namespace
	}
	region := cmp.Or(r.query.Get("region"), sent.Region, val(job.Region), api.GlobalRegion)
	if region == api.GlobalRegion {
		region = a.config.Region // this region may have another name
	}
	if region != a.config.Region {
		return nil, errNoRegion
	}
	job.Region = &region
	model.Canonicalize(job)
	return job, nil
}

// hookTimeout is how long a registration waits for hook plugins that are starting.
const hookTimeout = 10 * time.Second

// checkJob returns an error for an invalid job or for a feature that this build does not support.
// A missing driver may be installed later; a missing hook would be noticed only when the job runs.
// The warnings are about hooks that cannot start at present.
func (a *API) checkJob(ctx context.Context, job *api.Job) (warnings []string, err error) {
	scales := func(g *api.TaskGroup) bool { return g.Scaling != nil }
	if val(job.Type) == api.JobTypeSystem && slices.ContainsFunc(job.TaskGroups, scales) {
		return nil, bad("Task groups with job type system do not support scaling blocks")
	}
	if err := model.Validate(job, a.namespaceNames()...); err != nil {
		return nil, err
	}
	var lines []string
	ctx, cancel := context.WithTimeout(ctx, hookTimeout)
	defer cancel()
	attachments, trouble := a.config.Node.CheckAttachments(ctx, job)
	for _, err := range trouble {
		warnings = append(warnings, fmt.Sprintf("What the job says to a hook was not checked: %v.", err))
	}
	for _, refusal := range append(model.UnsupportedParts(job, func(string) bool { return true }), attachments...) {
		if !refusal.Foreground {
			lines = append(lines, strings.Join(refusal.Path, ".")+": "+refusal.Reason)
		}
	}
	if len(lines) == 0 {
		return warnings, nil
	}
	return warnings, bad("This job cannot run here:\n" + strings.Join(lines, "\n"))
}

// maxSource is the maximum length of a job source that is stored.
const maxSource = 1_000_000

// limitSubmission returns the submission to store, or nil and a warning if it is too large.
func limitSubmission(s *api.JobSubmission) (*api.JobSubmission, []string) {
	if s == nil {
		return nil, nil
	}
	size := len(s.Source) + len(s.Variables)
	for name, value := range s.VariableFlags {
		size += len(name) + len(value)
	}
	if size <= maxSource {
		return s, nil
	}
	megabytes := func(n int) string { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }
	return nil, []string{fmt.Sprintf("job source size of %s exceeds maximum of %s and will be discarded", megabytes(size), megabytes(maxSource))}
}

// registration is the body of a registration.
type registration struct {
	sentJob
	Submission        *api.JobSubmission
	EnforceIndex      bool
	JobModifyIndex    uint64
	PreserveCounts    bool
	PreserveResources bool
	EvalPriority      int
}

func (a *API) registerJob(r *request) (any, error) {
	var body registration
	job, err := a.take(r, &body, &body.sentJob)
	if err != nil {
		return nil, err
	}
	hookWarnings, err := a.checkJob(r.Context(), job)
	if err != nil {
		return nil, err
	}
	submission, warnings := limitSubmission(body.Submission)
	out, err := a.config.Scheduler.Register(r.Context(), job, scheduler.RegisterOptions{
		EnforceIndex: body.EnforceIndex, JobModifyIndex: body.JobModifyIndex, PreserveCounts: body.PreserveCounts,
		PreserveResources: body.PreserveResources, EvalPriority: body.EvalPriority, Submission: submission,
	})
	if err != nil {
		return nil, err
	}
	out.Warnings = slices.Concat(out.Warnings, warnings, hookWarnings, a.configWarnings(r.Context(), job))
	return r.written(out), nil
}

func (a *API) validateJob(r *request) (any, error) {
	var body sentJob
	job, err := a.take(r, &body, &body)
	if err != nil {
		return nil, err
	}
	hookWarnings, err := a.checkJob(r.Context(), job)
	answer := api.JobValidateResponse{Warnings: model.FormatWarnings(append(model.Warnings(job), hookWarnings...))}
	if err != nil {
		answer.Error = err.Error()
		answer.ValidationErrors = sentences(err)
	}
	faults, all := a.configFaults(r.Context(), job)
	answer.DriverConfigValidated = all
	if len(faults) > 0 {
		answer.ValidationErrors = append(answer.ValidationErrors, faults...)
		answer.Error = model.ListText(answer.ValidationErrors)
	}
	return answer, nil
}

// sentences returns the parts of a joined error.
func sentences(err error) []string {
	var list interface{ Unwrap() []error }
	if !errors.As(err, &list) || len(list.Unwrap()) == 0 {
		return []string{err.Error()}
	}
	var all []string
	for _, e := range list.Unwrap() {
		all = append(all, e.Error())
	}
	return all
}

func (a *API) deregisterJob(r *request) (any, error) {
	purge, err := r.flag("purge")
	if err != nil {
		return nil, err
	}
	skipDelay, err := r.flag("no_shutdown_delay")
	if err != nil {
		return nil, err
	}
	if _, err := r.flag("global"); err != nil {
		return nil, err
	}
	priority := 0
	if text := r.query.Get("eval_priority"); text != "" {
		if priority, err = strconv.Atoi(text); err != nil {
			return nil, unparsed("eval_priority", text, "an int", err)
		}
	}
	out, err := a.config.Scheduler.Deregister(r.Context(), r.key(), scheduler.DeregisterOptions{
		Purge: purge, EvalPriority: priority, NoShutdownDelay: skipDelay,
	})
	if err != nil {
		return nil, err
	}
	return struct {
		EvalID          string
		EvalCreateIndex uint64
		JobModifyIndex  uint64
		VolumeEvalID    string
		VolumeEvalIndex uint64
		meta
	}{EvalID: out.EvalID, EvalCreateIndex: out.EvalCreateIndex, JobModifyIndex: out.JobModifyIndex, meta: r.meta(out.Index)}, nil
}
