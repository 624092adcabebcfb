package httpapi

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/acl"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// jobWriteHandler serves the routes that register, plan and change jobs.
type jobWriteHandler struct {
	store     *store.Store
	scheduler *scheduler.Scheduler
	jobParser jobParser
	checker   *jobChecker
}

// jobWriteReply is the reply to a change of a job.
type jobWriteReply struct {
	EvalID          string
	EvalCreateIndex uint64
	JobModifyIndex  uint64
	Warnings        string
	replyMeta
}

func (r *request) newJobWriteReply(o scheduler.RequestOutcome, warnings ...string) jobWriteReply {
	return jobWriteReply{
		EvalID: o.EvalID, EvalCreateIndex: o.EvalCreateIndex, JobModifyIndex: o.JobModifyIndex,
		Warnings: model.FormatWarnings(warnings), replyMeta: r.replyMetaOfWrite(o.Index),
	}
}

// submissionOrSizeWarning returns the submission to store, or nil and a warning if it is larger than maxBytes. If maxBytes is
// negative, no submission is stored.
func submissionOrSizeWarning(s *api.JobSubmission, maxBytes int) (stored *api.JobSubmission, warnings []string) {
	if s == nil || maxBytes < 0 {
		return nil, nil
	}
	size := len(s.Source) + len(s.Variables)
	for name, value := range s.VariableFlags {
		size += len(name) + len(value)
	}
	if size <= maxBytes {
		return s, nil
	}
	megabytes := func(n int) string { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }
	return nil, []string{fmt.Sprintf("job source size of %s exceeds maximum of %s and will be discarded", megabytes(size), megabytes(maxBytes))}
}

// registerRequest is the body of a request that registers a job.
type registerRequest struct {
	submittedJob
	Submission        *api.JobSubmission
	EnforceIndex      bool
	JobModifyIndex    uint64
	PreserveCounts    bool
	PreserveResources bool
	EvalPriority      int
	PolicyOverride    bool // has no effect, but needs a right
}

// errRegistrationRejected is the error of requests that would start jobs or change their counts, while the operator rejects them.
var errRegistrationRejected = &statusError{http.StatusForbidden, "job registration, dispatch, and scale are disabled by the scheduler configuration"}

// checkRegistrationAccepted returns errRegistrationRejected if the scheduler configuration rejects registrations.
func checkRegistrationAccepted(s *store.Store) error {
	if s.Snapshot().SchedulerConfig(nil).RejectJobRegistration {
		return errRegistrationRejected
	}
	return nil
}

func (j *jobWriteHandler) register(r *request) (any, error) {
	if err := checkRegistrationAccepted(j.store); err != nil {
		return nil, err
	}
	var body registerRequest
	job, err := j.checker.decodeCanonicalJob(r, &body, &body.submittedJob)
	if err != nil {
		return nil, err
	}
	r.auditObject = *job.ID
	if body.PolicyOverride {
		if err := r.require(*job.Namespace, acl.SentinelOverride); err != nil {
			return nil, err
		}
	}
	if err := r.requireRightsOfJob(job); err != nil {
		return nil, err
	}
	answer, err := j.checker.checkAdmission(r.Context(), job)
	if err != nil {
		return nil, err
	}
	submission, warnings := submissionOrSizeWarning(body.Submission, j.checker.limits.WithDefaults().MaxSourceBytes)
	out, err := j.scheduler.RegisterAndEvaluateJob(r.Context(), job, scheduler.RegisterOptions{
		EnforceIndex: body.EnforceIndex, JobModifyIndex: body.JobModifyIndex, PreserveCounts: body.PreserveCounts,
		PreserveResources: body.PreserveResources, EvalPriority: body.EvalPriority, Submission: submission,
	})
	if err != nil {
		return nil, err
	}
	return r.newJobWriteReply(out, slices.Concat(answer.Warnings, warnings, driverFaultWarnings(answer))...), nil
}

func (j *jobWriteHandler) validate(r *request) (any, error) {
	var body submittedJob
	job, err := j.checker.decodeCanonicalJob(r, &body, &body)
	if err != nil {
		return nil, err
	}
	answer, err := j.checker.checkAdmission(r.Context(), job)
	reply := api.JobValidateResponse{Warnings: model.FormatWarnings(answer.Warnings), DriverConfigValidated: answer.AllConfigsChecked}
	if err != nil {
		reply.Error = err.Error()
		reply.ValidationErrors = joinedErrorMessages(err)
	}
	if lines := driverFaultLines(answer); len(lines) > 0 {
		reply.ValidationErrors = append(reply.ValidationErrors, lines...)
		reply.Error = model.FormatErrorList(reply.ValidationErrors)
	}
	return reply, nil
}

// joinedErrorMessages returns the messages of the errors that were joined.
func joinedErrorMessages(err error) []string {
	var joinedErr interface{ Unwrap() []error }
	if !errors.As(err, &joinedErr) || len(joinedErr.Unwrap()) == 0 {
		return []string{err.Error()}
	}
	var all []string
	for _, e := range joinedErr.Unwrap() {
		all = append(all, e.Error())
	}
	return all
}

func (j *jobWriteHandler) deregister(r *request) (any, error) {
	purge, err := r.boolParam("purge")
	if err != nil {
		return nil, err
	}
	skipDelay, err := r.boolParam("no_shutdown_delay")
	if err != nil {
		return nil, err
	}
	if _, err := r.boolParam("global"); err != nil {
		return nil, err
	}
	priority := 0
	if text := r.query.Get("eval_priority"); text != "" {
		if priority, err = strconv.Atoi(text); err != nil {
			return nil, parameterError("eval_priority", text, "an int", err)
		}
	}
	out, err := j.scheduler.DeregisterJob(r.Context(), r.jobKey(), scheduler.DeregisterOptions{
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
		replyMeta
	}{EvalID: out.EvalID, EvalCreateIndex: out.EvalCreateIndex, JobModifyIndex: out.JobModifyIndex, replyMeta: r.replyMetaOfWrite(out.Index)}, nil
}
