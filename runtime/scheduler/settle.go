package scheduler

import (
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// maxReconciliations limits how often one change reconciles a job. Each round leaves less to do; in simulations three
// rounds are enough. The limit ends the rounds of a job whose plans always cause another change, which would block all
// other changes.
const maxReconciliations = 20

func (c *txn) reconcileDirtyJobs() {
	rounds := make(map[JobKey]int)
	for len(c.jobsToReconcile) > 0 {
		key := c.jobsToReconcile[0]
		c.jobsToReconcile = c.jobsToReconcile[1:]
		if rounds[key]++; rounds[key] > maxReconciliations {
			c.s.logger.Error("job does not settle", "job_id", key.ID)
			continue
		}
		c.reconcileJob(key)
	}
}

// reconcileJob updates the deployment of a job, replaces failed allocations, and
// sets the status of the job.
func (c *txn) reconcileJob(key JobKey) {
	job := c.tx.Job(nil, key.Namespace, key.ID)
	if job == nil {
		c.deletePurgedAllocs(key)
		return
	}
	deploymentUpdater{c}.checkDeployment(job)
	if job = c.tx.Job(nil, key.Namespace, key.ID); c.hasUnhandledFailure(job) {
		c.processEvalIfChanged(c.newEval(job, triggerAllocFailed))
	}
	c.updateJobStatus(key)
}

// deletePurgedAllocs deletes the ended allocations of a purged job.
func (c *txn) deletePurgedAllocs(key JobKey) {
	for _, a := range c.tx.AllocationsByJob(nil, key.Namespace, key.ID) {
		if c.tx.AllocationEnded(a.ID) {
			c.deleteAlloc(a)
		}
	}
}

func (c *txn) deleteAlloc(a *api.Allocation) {
	c.wroteAllocs, c.desiredAllocsChanged = true, true
	c.nodeUsage.Remove(a)
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

// updateJobStatus updates the status of a job.
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
