package scheduler

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// deploymentUpdater makes changes of deployments in a transaction.
type deploymentUpdater struct{ *txn }

// handleDeploymentDeadline checks a deployment whose deadline has passed.
func (c deploymentUpdater) handleDeploymentDeadline(id string) {
	c.setOperation(opDeployment)
	if d := c.tx.Deployment(nil, id); d != nil {
		c.markJobDirty(JobKey{d.Namespace, d.JobID})
	}
	c.tx.OnCommit(func() { c.s.deploymentTimers.set(id, zeroTime) })
}

// setDeploymentTimer sets the timer for the first progress deadline of a deployment.
func (c deploymentUpdater) setDeploymentTimer(d *api.Deployment) {
	id, first := d.ID, time.Time{}
	if d.Status == api.DeploymentStatusRunning {
		for _, state := range d.TaskGroups {
			if at := state.RequireProgressBy; !at.IsZero() && (first.IsZero() || at.Before(first)) {
				first = at
			}
		}
	}
	c.tx.OnCommit(func() { c.s.deploymentTimers.set(id, first) })
}

// checkDeployment checks the active deployment of a job and applies the changes that result.
func (c deploymentUpdater) checkDeployment(job *api.Job) {
	key := KeyOf(job)
	d := c.tx.LatestDeployment(nil, key.Namespace, key.ID)
	if d == nil || !model.DeploymentActive(d) || d.JobCreateIndex != *job.CreateIndex || d.JobVersion != *job.Version {
		return
	}
	v := CheckDeployment(d, job, c.tx.AllocationsByJob(nil, key.Namespace, key.ID), c.now)
	c.applyDeploymentChanges(job, d, v, v.Deployment != nil && v.Deployment.Status != d.Status)
}

// applyDeploymentChanges stores the changes of a deployment and evaluates the job. With alwaysEvaluate it creates an evaluation
// in any case and returns its id. Otherwise it evaluates only if the changes require it, and stores nothing if the plan
// changes nothing.
func (c deploymentUpdater) applyDeploymentChanges(job *api.Job, d *api.Deployment, v DeploymentChanges, alwaysEvaluate bool) (evalID string) {
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
			jobVersions(c).markStable(JobKey{d.Namespace, d.JobID}, d.JobVersion, true)
		}
	}
	id := d.ID
	c.tx.OnCommit(func() { c.s.deploymentTimers.set(id, v.NextCheck) })
	if !alwaysEvaluate && !v.NeedsEvaluation {
		return ""
	}
	eval := c.newEval(job, triggerDeployment)
	eval.Priority = model.DeploymentPriority(d, job, c.tx.EvaluationsByJob(nil, *job.Namespace, *job.ID))
	if !alwaysEvaluate {
		c.processEvalIfChanged(eval)
		return ""
	}
	eval.DeploymentID = d.ID
	c.processEval(eval)
	return eval.ID
}

// rollBack completes the status description of a failed deployment. If a group has auto_revert, it stores the latest
// stable job version as a new version and returns it.
func (c deploymentUpdater) rollBack(job *api.Job, d *api.Deployment) *api.Job {
	revert := false
	for _, state := range d.TaskGroups {
		revert = revert || state.AutoRevert
	}
	if !revert {
		return nil
	}
	stable := jobVersions(c).previousStableVersion(job)
	switch {
	case stable == nil:
		d.StatusDescription = fmt.Sprintf(model.DeploymentNoStableVersion, d.StatusDescription)
		return nil
	case sameExceptStop(stable, job):
		d.StatusDescription = fmt.Sprintf(model.DeploymentRollbackSameSpec, d.StatusDescription, *stable.Version)
		return nil
	}
	d.StatusDescription = fmt.Sprintf(model.DeploymentRollback, d.StatusDescription, *stable.Version)
	return jobVersions(c).putOldVersion(stable, job)
}

func sameExceptStop(a, b *api.Job) bool {
	c := *a
	c.Stop = b.Stop
	return model.SameSpec(&c, b)
}

// updateDeployment applies a user's change to an active deployment.
func (s *Scheduler) updateDeployment(ctx context.Context, id, name string, edit func(c *txn, d *api.Deployment, job *api.Job) (DeploymentChanges, error)) (out RequestOutcome, err error) {
	out.Index, err = s.update(ctx, func(c *txn) error {
		out = RequestOutcome{}
		d := c.tx.Deployment(nil, id)
		if d == nil {
			return requestErrorf(RequestNotFound, "deployment not found")
		}
		if !model.DeploymentActive(d) {
			return requestErrorf(RequestRefused, "can't %s terminal deployment", name)
		}
		key := JobKey{d.Namespace, d.JobID}
		job := c.tx.Job(nil, key.Namespace, key.ID)
		if job == nil {
			return requestErrorf(RequestNotFound, "job not found")
		}
		c.setOperation(opDeployment)
		v, err := edit(c, d, job)
		if err != nil {
			return err
		}
		before := *job.Version
		if evalID := (deploymentUpdater{c}).applyDeploymentChanges(job, d, v, v.NeedsEvaluation); evalID != "" {
			out.EvalID, out.EvalCreateIndex = evalID, c.tx.Index()
		}
		if after := c.tx.Job(nil, key.Namespace, key.ID); *after.Version != before {
			out.RevertedJobVersion = deploymentUpdater{c}.versionRevertedTo(key, before)
		}
		out.DeploymentModifyIndex = c.tx.Index()
		c.markJobDirty(key)
		return nil
	})
	return out, err
}

// versionRevertedTo returns the number of the latest stable version before the given version, to which a failed deployment
// reverts the job, or nil.
func (c deploymentUpdater) versionRevertedTo(key JobKey, version uint64) *uint64 {
	if bad := c.tx.JobVersion(nil, key.Namespace, key.ID, version); bad != nil {
		if stable := jobVersions(c).previousStableVersion(bad); stable != nil {
			return stable.Version
		}
	}
	return nil
}

// PromoteDeployment promotes the canaries of the given groups of a deployment; nil
// means all groups.
func (s *Scheduler) PromoteDeployment(ctx context.Context, id string, groups []string) (RequestOutcome, error) {
	return s.updateDeployment(ctx, id, "promote", func(c *txn, d *api.Deployment, job *api.Job) (DeploymentChanges, error) {
		c.setOperation(opPromotion)
		v, err := PromoteCanaries(d, job, c.tx.AllocationsByJob(nil, *job.Namespace, *job.ID), groups, c.now)
		if err != nil {
			return DeploymentChanges{}, requestErrorf(RequestRefused, "%v", err)
		}
		return v, nil
	})
}

// FailDeployment ends a deployment as failed, which may revert the job.
func (s *Scheduler) FailDeployment(ctx context.Context, id string) (RequestOutcome, error) {
	return s.updateDeployment(ctx, id, "fail", func(c *txn, d *api.Deployment, _ *api.Job) (DeploymentChanges, error) {
		failed := copyDeployment(d)
		failed.Status, failed.StatusDescription = api.DeploymentStatusFailed, model.DeploymentMarkedAsFailed
		failed.ModifyTime = c.now.UnixNano()
		return DeploymentChanges{Deployment: failed, NeedsEvaluation: true}, nil
	})
}

// PauseDeployment pauses or resumes the placements of a deployment.
func (s *Scheduler) PauseDeployment(ctx context.Context, id string, pause bool) (RequestOutcome, error) {
	name := "resume"
	if pause {
		name = "pause"
	}
	return s.updateDeployment(ctx, id, name, func(c *txn, d *api.Deployment, _ *api.Job) (DeploymentChanges, error) {
		next := copyDeployment(d)
		next.ModifyTime = c.now.UnixNano()
		if pause {
			next.Status, next.StatusDescription = api.DeploymentStatusPaused, model.DeploymentPaused
			return DeploymentChanges{Deployment: next}, nil
		}
		next.Status, next.StatusDescription = api.DeploymentStatusRunning, model.DeploymentRunning
		for _, state := range next.TaskGroups {
			if !state.RequireProgressBy.IsZero() {
				state.RequireProgressBy = c.now.Add(state.ProgressDeadline)
			}
		}
		return DeploymentChanges{Deployment: next, NeedsEvaluation: true}, nil
	})
}

// UnblockDeployment has no effect: only multi-region deployments block.
func (s *Scheduler) UnblockDeployment(ctx context.Context, id string) (RequestOutcome, error) {
	return s.updateDeployment(ctx, id, "unblock", func(*txn, *api.Deployment, *api.Job) (DeploymentChanges, error) { return DeploymentChanges{}, nil })
}

// SetAllocHealth sets the health of allocations of a deployment, whatever its
// health_check is.
func (s *Scheduler) SetAllocHealth(ctx context.Context, id string, healthy, unhealthy []string) (RequestOutcome, error) {
	return s.updateDeployment(ctx, id, "set health of allocations for a", func(c *txn, d *api.Deployment, job *api.Job) (DeploymentChanges, error) {
		c.setOperation(opAllocHealth)
		for _, set := range []struct {
			ids     []string
			healthy bool
		}{{healthy, true}, {unhealthy, false}} {
			for _, allocID := range set.ids {
				old := c.tx.Allocation(nil, allocID)
				if old == nil || old.DeploymentID != d.ID {
					return DeploymentChanges{}, requestErrorf(RequestRefused, "allocation %q is not part of deployment %q", allocID, d.ID)
				}
				a := *old
				status := api.AllocDeploymentStatus{}
				if old.DeploymentStatus != nil {
					status = *old.DeploymentStatus
				}
				status.Healthy, status.Timestamp, status.ModifyIndex = &set.healthy, c.now, c.tx.Index()
				a.DeploymentStatus = &status
				c.putAlloc(&a)
			}
		}
		if len(healthy)+len(unhealthy) == 0 {
			return DeploymentChanges{}, requestErrorf(RequestInvalid, "must specify at least one healthy/unhealthy allocation ID")
		}
		return DeploymentChanges{}, nil
	})
}
