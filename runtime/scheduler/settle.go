package scheduler

import (
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// maxReconciliations limits how often one transaction reconciles the same job. In simulations three times are enough. The
// limit protects against a job whose plans always cause another reconciliation: it would block all other transactions.
const maxReconciliations = 20

// reconcileJobs reconciles the jobsToReconcile, including those that are added meanwhile.
func (c *txn) reconcileJobs() {
	rounds := make(map[JobKey]int)
	for len(c.jobsToReconcile) > 0 {
		key := c.jobsToReconcile[0]
		c.jobsToReconcile = c.jobsToReconcile[1:]
		if rounds[key]++; rounds[key] > maxReconciliations {
			c.scheduler.logger.Error("job does not settle", "job_id", key.ID)
			continue
		}
		c.reconcileJob(key)
	}
}

// reconcileJob updates the deployment of a job, replaces failed allocations, and sets the status of
// the job. For a purged job, it deletes the records of its ended allocations.
func (c *txn) reconcileJob(key JobKey) {
	job := c.tx.Job(nil, key.Namespace, key.ID)
	if job == nil {
		c.deleteEndedAllocsOfPurgedJob(key)
		return
	}
	deploymentUpdater{c}.checkDeployment(job)
	if job = c.tx.Job(nil, key.Namespace, key.ID); c.hasUnhandledFailure(job) {
		c.processEvalIfChanged(c.newEval(job, triggerAllocFailed))
	}
	c.updateJobStatus(key)
}

// deleteEndedAllocsOfPurgedJob deletes the ended allocations of a purged job.
func (c *txn) deleteEndedAllocsOfPurgedJob(key JobKey) {
	for _, a := range c.tx.AllocationsByJob(nil, key.Namespace, key.ID) {
		if c.tx.AllocationEnded(a.ID) {
			c.deleteAlloc(a)
		}
	}
}

func (c *txn) deleteAlloc(a *api.Allocation) {
	c.wroteAllocs, c.desiredAllocsChanged = true, true
	c.nodeUsage.RemoveAlloc(a)
	c.tx.DeleteAllocation(a.ID)
}

// hasUnhandledFailure reports whether the job has a failed allocation without a replacement
// and without an active follow-up evaluation.
func (c *txn) hasUnhandledFailure(job *api.Job) bool {
	if terminalAllocActions[*job.Type][api.AllocClientStatusFailed] != followReschedulePolicy || *job.Stop {
		return false
	}
	for _, a := range c.tx.AllocationsByJob(nil, *job.Namespace, *job.ID) {
		if a.ClientStatus != api.AllocClientStatusFailed || !isUnreplaced(a) {
			continue
		}
		if e := c.tx.Evaluation(nil, a.FollowupEvalID); a.FollowupEvalID == "" || e == nil || !model.EvalPending(e) {
			return true
		}
	}
	return false
}

// updateJobStatus computes the status of a job from its allocations, evaluations and deployments, and stores it.
func (c *txn) updateJobStatus(key JobKey) {
	job := c.tx.Job(nil, key.Namespace, key.ID)
	evals := c.tx.EvaluationsByJob(nil, key.Namespace, key.ID)
	status := model.JobStatus(job, c.tx.AllocationsByJob(nil, key.Namespace, key.ID), evals, c.tx.DeploymentsByJob(nil, key.Namespace, key.ID))
	if status == model.JobPending && len(evals) == 0 && pointer.Value(job.Status) != model.JobPending {
		status = model.JobDead // the job's evaluations and allocations were garbage collected
	}
	if pointer.Value(job.Status) == status {
		return
	}
	copied := *job
	copied.Status = &status
	c.tx.PutJob(&copied)
}
