package scheduler

import (
	"fmt"

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
	c.judge(job)
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

// judge applies the Verdict about the deployment of a job.
func (c *change) judge(job *api.Job) {
	key := KeyOf(job)
	d := c.tx.LatestDeployment(nil, key.Namespace, key.ID)
	if d == nil || !model.DeploymentActive(d) || d.JobCreateIndex != *job.CreateIndex || d.JobVersion != *job.Version {
		return
	}
	v := Judge(d, job, c.tx.AllocationsByJob(nil, key.Namespace, key.ID), c.now)
	c.applyVerdict(job, d, v, v.Deployment != nil && v.Deployment.Status != d.Status)
}

// applyVerdict stores a Verdict about a deployment and evaluates the job. With loud
// it always creates and stores an evaluation and returns its id; otherwise it
// evaluates quietly, and only if the Verdict requires it.
func (c *change) applyVerdict(job *api.Job, d *api.Deployment, v Verdict, loud bool) (evalID string) {
	for _, a := range v.Allocs {
		c.putAlloc(a)
	}
	if next := v.Deployment; next != nil {
		if next.Status == api.DeploymentStatusFailed && d.Status != next.Status {
			if reverted := c.rollBack(job, next); reverted != nil {
				job = reverted
			}
		}
		c.tx.PutDeployment(next)
		if next.Status == api.DeploymentStatusSuccessful {
			c.markStable(JobKey{d.Namespace, d.JobID}, d.JobVersion, true)
		}
	}
	id := d.ID
	c.later(func() { c.s.deadlines.set(id, v.Deadline) })
	if !loud && !v.Evaluate {
		return ""
	}
	eval := c.newEval(job, triggerDeployment)
	eval.Priority = model.DeploymentPriority(d, job, c.tx.EvaluationsByJob(nil, *job.Namespace, *job.ID))
	if !loud {
		c.evaluateQuietly(eval)
		return ""
	}
	eval.DeploymentID = d.ID
	c.evaluate(eval)
	return eval.ID
}

// rollBack completes the description of a failed deployment. If a group has
// auto_revert, it stores the latest stable version as a new version and returns
// that.
func (c *change) rollBack(job *api.Job, d *api.Deployment) *api.Job {
	revert := false
	for _, state := range d.TaskGroups {
		revert = revert || state.AutoRevert
	}
	if !revert {
		return nil
	}
	stable := c.stableBefore(job)
	switch {
	case stable == nil:
		d.StatusDescription = fmt.Sprintf(model.DeploymentNothingToRevert, d.StatusDescription)
		return nil
	case sameButStop(stable, job):
		d.StatusDescription = fmt.Sprintf(model.DeploymentSameSpec, d.StatusDescription, *stable.Version)
		return nil
	}
	d.StatusDescription = fmt.Sprintf(model.DeploymentRollsBack, d.StatusDescription, *stable.Version)
	return c.putVersionAgain(stable, job)
}

func sameButStop(a, b *api.Job) bool {
	c := *a
	c.Stop = b.Stop
	return model.SameSpec(&c, b)
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
