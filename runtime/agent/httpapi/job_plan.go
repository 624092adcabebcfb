package httpapi

import (
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/runtime/acl"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// planRequest is the body of a plan request.
type planRequest struct {
	submittedJob
	Diff bool
}

// plan returns what the registration of a job would change. It changes nothing.
func (j *jobWriteHandler) plan(r *request) (any, error) {
	var body planRequest
	job, err := j.checker.decodeCanonicalJob(r, &body, &body.submittedJob)
	if err != nil {
		return nil, err
	}
	admitted, err := j.checker.checkAdmission(r.Context(), job)
	if err != nil {
		return nil, err
	}
	index := max(j.store.Snapshot().LatestTableIndex(nil, store.Jobs), 1)
	plan, current, err := j.scheduler.DryRunRegister(r.Context(), job)
	if err != nil {
		return nil, err
	}
	answer := struct {
		Annotations        *api.PlanAnnotations
		FailedTGAllocs     map[string]*api.AllocationMetric
		JobModifyIndex     uint64
		CreatedEvals       []*api.Evaluation
		Diff               *api.JobDiff
		NextPeriodicLaunch time.Time
		Warnings           string
		replyMeta
	}{
		Annotations: plan.ProcessedEval.PlanAnnotations, FailedTGAllocs: plan.ProcessedEval.FailedTGAllocs, CreatedEvals: plan.CreatedAndCancelledEvals,
		replyMeta: r.replyMetaOfWrite(index),
	}
	warnings := admitted.Warnings
	if len(answer.FailedTGAllocs) > 0 { // the metrics of Nomad's API have only "missing devices"
		if nodes := j.store.Snapshot().Nodes(nil, ""); len(nodes) == 1 {
			warnings = append(warnings, scheduler.MissingDeviceReasons(job, nodes[0])...)
		}
	}
	if current != nil {
		answer.JobModifyIndex = pointer.Value(current.JobModifyIndex)
		if fault := model.ValidateJobUpdate(current, job); fault != nil {
			warnings = append(warnings, "This job will be refused when it is submitted: "+fault.Error())
		}
	}
	if body.Diff && current != nil && !r.rights.acl.Namespace(*job.Namespace, acl.ReadJob) {
		body.Diff = false
		warnings = append(warnings, "The diff is left out: it shows the registered job, which needs the capability read-job")
	}
	if body.Diff {
		answer.Diff = model.Diff(current, job)
		model.AnnotateDiff(answer.Diff, current, job, answer.Annotations.DesiredTGUpdates)
	}
	if job.Periodic != nil && pointer.Value(job.Periodic.Enabled) {
		answer.NextPeriodicLaunch = model.NextPeriodicLaunch(job, time.Now())
	}
	answer.Warnings = model.FormatWarnings(slices.Concat(warnings, driverFaultWarnings(admitted)))
	return answer, nil
}
