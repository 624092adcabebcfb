package httpapi

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/model"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// meta is what is at the end of many answers.
type meta struct {
	Index       uint64
	LastContact int64
	KnownLeader bool
	NextToken   string
}

func (r *request) meta(index uint64) meta {
	r.index = index
	return meta{Index: index}
}

// jobWritten is the answer to a change of a job.
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

// jobStub is a job in a list.
type jobStub struct {
	ID, ParentID, Name, Namespace, NodePool, Type, Status, StatusDescription string
	Datacenters                                                              []string
	Multiregion                                                              *api.Multiregion
	Priority                                                                 int
	Periodic, ParameterizedJob, Stop                                         bool
	JobSummary                                                               *api.JobSummary
	CreateIndex, ModifyIndex, JobModifyIndex                                 uint64
	SubmitTime                                                               int64
	Meta                                                                     map[string]string `json:",omitempty"`
}

func val[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

func (a *API) listJobs(r *request) (any, error) {
	return r.state(a, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		byName := func(j *api.Job) place { return named(val(j.Namespace), val(j.ID)) }
		stubs, err := page(r, s.Jobs(ws, r.namespace, r.query.Get("prefix")), byName, func(j *api.Job) jobStub {
			stub := jobStub{
				ID: val(j.ID), ParentID: val(j.ParentID), Name: val(j.Name), Namespace: val(j.Namespace), NodePool: val(j.NodePool),
				Type: val(j.Type), Status: val(j.Status), StatusDescription: val(j.StatusDescription), Datacenters: j.Datacenters,
				Multiregion: j.Multiregion, Priority: val(j.Priority), Periodic: j.Periodic != nil, ParameterizedJob: j.IsParameterized(),
				Stop: val(j.Stop), JobSummary: summarize(s, ws, j), CreateIndex: val(j.CreateIndex), ModifyIndex: val(j.ModifyIndex),
				JobModifyIndex: val(j.JobModifyIndex), SubmitTime: val(j.SubmitTime),
			}
			if r.query.Get("meta") == "true" {
				stub.Meta = j.Meta
			}
			return stub
		})
		return stubs, s.TableIndex(ws, store.Jobs, store.Allocations), err
	})
}

// summarize counts the allocations of a job, or the children of one that makes
// jobs.
func summarize(s *store.Snapshot, ws store.WatchSet, j *api.Job) *api.JobSummary {
	namespace, id := val(j.Namespace), val(j.ID)
	sum := &api.JobSummary{
		JobID: id, Namespace: namespace, Summary: make(map[string]api.TaskGroupSummary), Children: &api.JobChildrenSummary{},
		CreateIndex: val(j.CreateIndex), ModifyIndex: val(j.ModifyIndex),
	}
	if j.Periodic != nil || j.IsParameterized() {
		for _, child := range s.JobChildren(ws, namespace, id) {
			switch val(child.Status) {
			case model.JobPending:
				sum.Children.Pending++
			case model.JobRunning:
				sum.Children.Running++
			default:
				sum.Children.Dead++
			}
		}
		return sum
	}
	for _, g := range j.TaskGroups {
		sum.Summary[val(g.Name)] = api.TaskGroupSummary{}
	}
	if evals := s.EvaluationsByJob(ws, namespace, id); len(evals) > 0 {
		newest := slices.MaxFunc(evals, func(a, b *api.Evaluation) int { return int(int64(a.ModifyIndex) - int64(b.ModifyIndex)) })
		for group, queued := range newest.QueuedAllocations {
			counts := sum.Summary[group]
			counts.Queued = queued
			sum.Summary[group] = counts
		}
	}
	for _, alloc := range s.AllocationsByJob(ws, namespace, id) {
		if val(alloc.Job.CreateIndex) != val(j.CreateIndex) {
			continue // of a job of the same name, before
		}
		counts := sum.Summary[alloc.TaskGroup]
		switch alloc.ClientStatus {
		case api.AllocClientStatusPending:
			counts.Starting++
		case api.AllocClientStatusRunning:
			counts.Running++
		case api.AllocClientStatusComplete:
			counts.Complete++
		case api.AllocClientStatusFailed:
			counts.Failed++
		case api.AllocClientStatusLost:
			counts.Lost++
		default:
			counts.Unknown++
		}
		sum.Summary[alloc.TaskGroup] = counts
		sum.ModifyIndex = max(sum.ModifyIndex, alloc.ModifyIndex)
	}
	return sum
}

// registration is the body of a registration.
type registration struct {
	Job               *api.Job
	Submission        *api.JobSubmission
	EnforceIndex      bool
	JobModifyIndex    uint64
	PreserveCounts    bool
	PreserveResources bool
	EvalPriority      int
	Namespace         string
}

func (a *API) registerJob(r *request) (any, error) {
	var body registration
	if err := r.body(&body, maxJob, false); err != nil {
		return nil, err
	}
	job := body.Job
	switch {
	case job == nil:
		return nil, bad("Job must be specified")
	case val(job.ID) == "":
		return nil, bad("Job ID hasn't been provided")
	case r.id != "" && r.id != *job.ID:
		return nil, bad("Job ID does not match name")
	}
	if namespace := r.query.Get("namespace"); namespace != "" {
		job.Namespace = &namespace
	} else if body.Namespace != "" && job.Namespace == nil {
		job.Namespace = &body.Namespace
	}
	model.Canonicalize(job)
	if err := model.Validate(job, a.namespaceNames()...); err != nil {
		return nil, err
	}
	if err := a.supported(job); err != nil {
		return nil, err
	}
	out, err := a.config.Scheduler.Register(r.Context(), job, scheduler.RegisterOptions{
		EnforceIndex: body.EnforceIndex, JobModifyIndex: body.JobModifyIndex, PreserveCounts: body.PreserveCounts,
		PreserveResources: body.PreserveResources, EvalPriority: body.EvalPriority, Submission: body.Submission,
	})
	if err != nil {
		return nil, err
	}
	return r.written(out), nil
}

// supported refuses what this build cannot run at all. A driver that is not there
// may come; a job that waits for the clock or for a dispatch is at home here.
func (a *API) supported(job *api.Job) error {
	var lines []string
	for _, refusal := range model.Refusals(job, func(string) bool { return true }) {
		switch refusal.Path[0] {
		case "periodic", "parameterized", "region":
			continue
		}
		lines = append(lines, strings.Join(refusal.Path, ".")+": "+refusal.Reason)
	}
	if len(lines) == 0 {
		return nil
	}
	return bad("This job cannot run here:\n" + strings.Join(lines, "\n"))
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
			//lint:ignore ST1005 the text is Nomad's
			return nil, fmt.Errorf("Failed to parse value of %q (%v) as an int: %v", "eval_priority", text, err)
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

// job reads one that must be there.
func (a *API) job(r *request, missing string, read func(s *store.Snapshot, ws store.WatchSet, j *api.Job) (any, uint64)) (any, error) {
	return r.state(a, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		j := s.Job(ws, r.namespace, r.id)
		if j == nil {
			return nil, s.TableIndex(ws, store.Jobs), notFound(missing)
		}
		value, index := read(s, ws, j)
		return value, index, nil
	})
}

func (a *API) readJob(r *request) (any, error) {
	return a.job(r, "job not found", func(_ *store.Snapshot, _ store.WatchSet, j *api.Job) (any, uint64) {
		return j, val(j.ModifyIndex)
	})
}

func (a *API) jobSummary(r *request) (any, error) {
	return a.job(r, "job not found", func(s *store.Snapshot, ws store.WatchSet, j *api.Job) (any, uint64) {
		sum := summarize(s, ws, j)
		return sum, sum.ModifyIndex
	})
}

func (a *API) jobVersions(r *request) (any, error) {
	return a.job(r, "job versions not found", func(s *store.Snapshot, ws store.WatchSet, j *api.Job) (any, uint64) {
		index := val(j.ModifyIndex)
		return struct {
			Versions []*api.Job
			Diffs    []*api.JobDiff
			meta
		}{Versions: s.JobVersions(ws, r.namespace, r.id), meta: meta{Index: index, KnownLeader: true}}, index
	})
}

func (a *API) jobSubmission(r *request) (any, error) {
	version, err := strconv.ParseUint(r.query.Get("version"), 10, 64)
	if err != nil {
		return nil, bad("Unable to parse job submission version parameter")
	}
	return r.state(a, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		index := s.TableIndex(ws, store.JobSubmissions)
		submission := s.JobSubmission(ws, r.namespace, r.id, version)
		if submission == nil {
			return nil, index, notFound("job source not found")
		}
		return submission, index, nil
	})
}

func (a *API) jobAllocations(r *request) (any, error) {
	return r.state(a, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		j := s.Job(ws, r.namespace, r.id)
		stubs := []*api.AllocationListStub{}
		for _, alloc := range s.AllocationsByJob(ws, r.namespace, r.id) {
			if r.query.Get("all") == "true" || j != nil && val(alloc.Job.CreateIndex) == val(j.CreateIndex) {
				stubs = append(stubs, stubOf(alloc, true, false))
			}
		}
		return stubs, s.TableIndex(ws, store.Allocations), nil
	})
}

func (a *API) jobEvaluations(r *request) (any, error) {
	return r.state(a, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		return list(s.EvaluationsByJob(ws, r.namespace, r.id)), s.TableIndex(ws, store.Evaluations), nil
	})
}

func (a *API) jobDeployments(r *request) (any, error) {
	return r.state(a, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		j := s.Job(ws, r.namespace, r.id)
		found := slices.DeleteFunc(s.DeploymentsByJob(ws, r.namespace, r.id), func(d *api.Deployment) bool {
			return r.query.Get("all") != "true" && (j == nil || d.JobCreateIndex != val(j.CreateIndex))
		})
		return list(found), s.TableIndex(ws, store.Deployments), nil
	})
}

func (a *API) jobDeployment(r *request) (any, error) {
	return r.state(a, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		d := s.LatestDeployment(ws, r.namespace, r.id)
		if d == nil {
			return nil, s.TableIndex(ws, store.Deployments), nil
		}
		return d, d.ModifyIndex, nil
	})
}

// list is never null.
func list[T any](found []T) []T {
	if found == nil {
		return []T{}
	}
	return found
}

func (a *API) dispatchJob(r *request) (any, error) {
	var body struct {
		JobID            string
		Payload          []byte
		Meta             map[string]string
		IdPrefixTemplate string
		Priority         int
	}
	if err := r.body(&body, maxBody, true); err != nil {
		return nil, err
	}
	if body.JobID != "" && body.JobID != r.id {
		return nil, bad("Job ID does not match")
	}
	out, err := a.config.Scheduler.Dispatch(r.Context(), r.key(), scheduler.DispatchRequest{
		Payload: body.Payload, Meta: body.Meta, IDPrefix: body.IdPrefixTemplate, Priority: body.Priority,
		IdempotencyToken: r.query.Get("idempotency_token"),
	})
	if err != nil {
		return nil, err
	}
	return struct {
		DispatchedJobID string
		EvalID          string
		EvalCreateIndex uint64
		JobCreateIndex  uint64
		meta
	}{out.JobID, out.EvalID, out.EvalCreateIndex, out.JobCreateIndex, r.meta(out.Index)}, nil
}

func (a *API) evaluateJob(r *request) (any, error) {
	var body struct{ EvalOptions api.EvalOptions }
	if err := r.body(&body, maxBody, true); err != nil {
		return nil, err
	}
	out, err := a.config.Scheduler.Evaluate(r.Context(), r.key(), body.EvalOptions.ForceReschedule)
	if err != nil {
		return nil, err
	}
	return r.written(out), nil
}

func (a *API) forceJob(r *request) (any, error) {
	_, _ = io.Copy(io.Discard, http.MaxBytesReader(r.w, r.Body, maxBody)) // it says nothing
	out, err := a.config.Scheduler.ForceLaunch(r.Context(), r.key())
	if err != nil {
		return nil, err
	}
	return struct {
		EvalID          string
		EvalCreateIndex uint64
		meta
	}{out.EvalID, out.EvalCreateIndex, r.meta(out.Index)}, nil
}

func (a *API) revertJob(r *request) (any, error) {
	var body struct {
		JobVersion          uint64
		EnforcePriorVersion *uint64
	}
	if err := r.body(&body, maxBody, false); err != nil {
		return nil, err
	}
	out, err := a.config.Scheduler.Revert(r.Context(), r.key(), body.JobVersion, body.EnforcePriorVersion)
	if err != nil {
		return nil, err
	}
	return r.written(out), nil
}

func (a *API) stableJob(r *request) (any, error) {
	var body struct {
		JobVersion uint64
		Stable     bool
	}
	if err := r.body(&body, maxBody, false); err != nil {
		return nil, err
	}
	index, err := a.config.Scheduler.SetStable(r.Context(), r.key(), body.JobVersion, body.Stable)
	if err != nil {
		return nil, err
	}
	return r.meta(index), nil
}
