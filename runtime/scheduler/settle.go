package scheduler

import (
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/model"
)

// maxRounds limits how often a change reconciles a job. Each round leaves less to
// do; simulations need at most three. The limit keeps a plan that never settles
// from blocking all other changes.
const maxRounds = 20

func (c *change) settleAll() {
	rounds := make(map[JobKey]int)
	for len(c.touched) > 0 {
		key := c.touched[0]
		c.touched = c.touched[1:]
		if rounds[key]++; rounds[key] > maxRounds {
			c.s.logger.Error("job does not settle", "job_id", key.ID)
			continue
		}
		c.reconcileJob(key)
	}
}

// reconcileJob updates the deployment of a job, replaces failed allocations, and
// sets the status of the job.
func (c *change) reconcileJob(key JobKey) {
	job := c.tx.Job(nil, key.Namespace, key.ID)
	if job == nil {
		c.settlePurged(key)
		return
	}
	rollout{c}.judge(job)
	if job = c.tx.Job(nil, key.Namespace, key.ID); c.failureOpen(job) {
		c.evaluateQuietly(c.newEval(job, triggerAllocFailed))
	}
	c.setStatus(key)
}

// settlePurged deletes the ended allocations of a purged job.
func (c *change) settlePurged(key JobKey) {
	for _, a := range c.tx.AllocationsByJob(nil, key.Namespace, key.ID) {
		if c.tx.AllocationEnded(a.ID) {
			c.deleteAlloc(a)
		}
	}
}

func (c *change) deleteAlloc(a *api.Allocation) {
	c.wroteAllocs, c.nodeActs = true, true
	c.room.Remove(a)
	c.tx.DeleteAllocation(a.ID)
}

// failureOpen reports whether the job has a failed allocation without a replacement
// and without an active follow-up evaluation.
func (c *change) failureOpen(job *api.Job) bool {
	if terminalActions[*job.Type][api.AllocClientStatusFailed] != retry || *job.Stop {
		return false
	}
	for _, a := range c.tx.AllocationsByJob(nil, *job.Namespace, *job.ID) {
		if a.ClientStatus != api.AllocClientStatusFailed || !hasPlace(a) {
			continue
		}
		if e := c.tx.Evaluation(nil, a.FollowupEvalID); a.FollowupEvalID == "" || e == nil || !model.EvalActive(e) {
			return true
		}
	}
	return false
}

// setStatus updates the status of a job.
func (c *change) setStatus(key JobKey) {
	job := c.tx.Job(nil, key.Namespace, key.ID)
	evals := c.tx.EvaluationsByJob(nil, key.Namespace, key.ID)
	status := model.JobStatus(job, c.tx.AllocationsByJob(nil, key.Namespace, key.ID), evals, c.tx.DeploymentsByJob(nil, key.Namespace, key.ID))
	if status == model.JobPending && len(evals) == 0 && deref(job.Status) != model.JobPending {
		status = model.JobDead // the allocations were garbage collected
	}
	if deref(job.Status) == status {
		return
	}
	copied := *job
	copied.Status = &status
	c.tx.PutJob(&copied)
}
