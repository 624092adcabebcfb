package scheduler

import (
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// maxReconciliations limits how often one transaction reconciles the same job. In simulations three times are enough. The limit
// protects against a job with plans that always cause another reconciliation: it would block all other transactions.
const maxReconciliations = 20

// reconcileQueuedJobs reconciles the jobsToReconcile, including jobs added meanwhile.
func (t *schedulerTxn) reconcileQueuedJobs() {
	rounds := make(map[JobKey]int)
	for len(t.jobsToReconcile) > 0 {
		key := t.jobsToReconcile[0]
		t.jobsToReconcile = t.jobsToReconcile[1:]
		if rounds[key]++; rounds[key] > maxReconciliations {
			t.scheduler.logger.Error("job does not settle", "job_id", key.ID)
			continue
		}
		t.reconcileJob(key)
	}
}

// reconcileJob updates a job's deployment, replaces failed allocations, and sets the job's status. With plansIncompleteJobs it
// also plans a job with allocations that do not match its counts. For a purged job, it deletes the records of ended
// allocations.
func (t *schedulerTxn) reconcileJob(key JobKey) {
	job := t.tx.Job(nil, key.Namespace, key.ID)
	if job == nil {
		t.deleteEndedAllocsOfPurgedJob(key)
		return
	}
	deploymentUpdater{t}.checkAndUpdateDeployment(job)
	switch job = t.tx.Job(nil, key.Namespace, key.ID); {
	case t.hasFailedAllocWithoutFollowUp(job):
		t.processEvalIfPlanHasChanges(t.newPendingEval(job, triggerAllocFailed))
	case t.plansIncompleteJobs && t.isCountUnmatched(job):
		t.processEvalIfPlanHasChanges(t.newPendingEval(job, triggerNodeUpdate))
	}
	t.updateJobStatus(key)
}

// deleteEndedAllocsOfPurgedJob deletes a purged job's ended allocations.
func (t *schedulerTxn) deleteEndedAllocsOfPurgedJob(key JobKey) {
	for _, a := range t.tx.AllocationsByJob(nil, key.Namespace, key.ID) {
		if t.tx.AllocationEnded(a.ID) {
			t.deleteAlloc(a)
		}
	}
}

func (t *schedulerTxn) deleteAlloc(a *api.Allocation) {
	t.wroteAllocs, t.desiredAllocsChanged = true, true
	t.nodeUsage.RemoveAlloc(a)
	t.tx.DeleteAllocationAndQueueRemoval(a.ID)
}

// hasFailedAllocWithoutFollowUp reports whether the job has a failed allocation without a replacement
// and without an active follow-up evaluation.
func (t *schedulerTxn) hasFailedAllocWithoutFollowUp(job *api.Job) bool {
	if terminalAllocActions[*job.Type][api.AllocClientStatusFailed] != followReschedulePolicy || *job.Stop {
		return false
	}
	for _, a := range t.tx.AllocationsByJob(nil, *job.Namespace, *job.ID) {
		if a.ClientStatus != api.AllocClientStatusFailed || !isDesiredRunAndUnreplaced(a) {
			continue
		}
		if e := t.tx.Evaluation(nil, a.FollowupEvalID); a.FollowupEvalID == "" || e == nil || !model.IsEvalPendingOrBlocked(e) {
			return true
		}
	}
	return false
}

// isCountUnmatched reports whether a job's allocations do not match the counts of its groups, although the job has not ended: a
// damaged state has lost some, or has got adopted allocations and their replacements.
func (t *schedulerTxn) isCountUnmatched(job *api.Job) bool {
	if *job.Stop || model.CanHaveChildren(job) || pointer.Value(job.Status) == model.JobDead {
		return false
	}
	missingByGroup := make(map[string]int)
	for _, g := range job.TaskGroups {
		missingByGroup[*g.Name] = *g.Count
	}
	for _, a := range t.tx.AllocationsByJob(nil, *job.Namespace, *job.ID) {
		if isDesiredRunAndUnreplaced(a) {
			missingByGroup[a.TaskGroup]--
		}
	}
	for _, missing := range missingByGroup {
		if missing != 0 {
			return true
		}
	}
	return false
}

// updateJobStatus computes a job's status from its allocations, evaluations and deployments, and stores it.
func (t *schedulerTxn) updateJobStatus(key JobKey) {
	job := t.tx.Job(nil, key.Namespace, key.ID)
	evals := t.tx.EvaluationsByJob(nil, key.Namespace, key.ID)
	status := model.JobStatus(job, t.tx.AllocationsByJob(nil, key.Namespace, key.ID), evals, t.tx.DeploymentsByJob(nil, key.Namespace, key.ID))
	if status == model.JobPending && len(evals) == 0 && pointer.Value(job.Status) != model.JobPending {
		status = model.JobDead // the job's evaluations and allocations were garbage collected
	}
	if pointer.Value(job.Status) == status {
		return
	}
	copied := *job
	copied.Status = &status
	t.tx.PutJobAndVersion(&copied)
}
