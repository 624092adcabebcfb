package scheduler

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// deploymentUpdater is a schedulerTxn for updating deployments.
type deploymentUpdater struct{ *schedulerTxn }

// reconcileDeploymentAfterDeadline is called when a deployment's timer has expired. It removes the timer and makes
// reconcileQueuedJobs check the deployment.
func (u deploymentUpdater) reconcileDeploymentAfterDeadline(id string) {
	u.setEventOperation(opDeployment)
	if d := u.tx.Deployment(nil, id); d != nil {
		u.reconcileJobAtTxnEnd(JobKey{d.Namespace, d.JobID})
	}
	u.tx.OnCommit(func() { u.scheduler.progressDeadlineTimers.setOrClearDueTime(id, zeroTime) })
}

// setProgressDeadlineTimer sets a running deployment's timer to the earliest progress deadline of its groups.
func (u deploymentUpdater) setProgressDeadlineTimer(d *api.Deployment) {
	id, first := d.ID, time.Time{}
	if d.Status == api.DeploymentStatusRunning {
		for _, state := range d.TaskGroups {
			if at := state.RequireProgressBy; !at.IsZero() && (first.IsZero() || at.Before(first)) {
				first = at
			}
		}
	}
	u.tx.OnCommit(func() { u.scheduler.progressDeadlineTimers.setOrClearDueTime(id, first) })
}

// checkAndUpdateDeployment applies ComputeDeploymentChanges to the active deployment, if any, of a job's current version.
func (u deploymentUpdater) checkAndUpdateDeployment(job *api.Job) {
	key := JobKeyOf(job)
	d := u.tx.LatestDeployment(nil, key.Namespace, key.ID)
	if d == nil || !model.DeploymentActive(d) || d.JobCreateIndex != *job.CreateIndex || d.JobVersion != *job.Version {
		return
	}
	v := ComputeDeploymentChanges(d, job, u.tx.AllocationsByJob(nil, key.Namespace, key.ID), u.now)
	u.applyDeploymentChanges(job, d, v, v.Deployment != nil && v.Deployment.Status != d.Status)
}

// applyDeploymentChanges stores changes of a deployment, reverts the job if the deployment has failed, and evaluates the
// job. With alwaysEvaluate it stores an evaluation in any case and returns its id. Otherwise it evaluates the job only if
// the changes need it, and stores no evaluation if the plan has no changes.
func (u deploymentUpdater) applyDeploymentChanges(job *api.Job, d *api.Deployment, changes DeploymentChanges, alwaysEvaluate bool) (evalID string) {
	for _, a := range changes.ChangedAllocs {
		u.putAllocAndUpdateNodeUsage(a)
		// A promotion can complete the deployment without a plan: when no older allocation is left.
		u.reconcileJobAtTxnEnd(JobKeyOf(job))
	}
	if next := changes.Deployment; next != nil {
		if next.Status == api.DeploymentStatusFailed && d.Status != next.Status {
			if reverted := u.autoRevertJobIfEnabled(job, next); reverted != nil {
				job = reverted
			}
		}
		u.tx.PutDeployment(next)
		if next.Status == api.DeploymentStatusSuccessful {
			jobVersions(u).setStableIfVersionExists(JobKey{d.Namespace, d.JobID}, d.JobVersion, true)
		}
	}
	id := d.ID
	u.tx.OnCommit(func() { u.scheduler.progressDeadlineTimers.setOrClearDueTime(id, changes.NextCheckTime) })
	if !alwaysEvaluate && !changes.NeedsEvaluation {
		return ""
	}
	eval := u.newPendingEval(job, triggerDeployment)
	eval.Priority = model.DeploymentEvalPriority(d, job, u.tx.EvaluationsByJob(nil, *job.Namespace, *job.ID))
	if !alwaysEvaluate {
		u.processEvalIfPlanHasChanges(eval)
		return ""
	}
	eval.DeploymentID = d.ID
	u.processEval(eval)
	return eval.ID
}

// autoRevertJobIfEnabled reverts the job of the failed deployment d if a group has auto_revert: it stores the latest
// stable version before the current one as a new version, and returns it. It adds the result to d.StatusDescription. It
// returns nil if the job is not reverted.
func (u deploymentUpdater) autoRevertJobIfEnabled(job *api.Job, d *api.Deployment) *api.Job {
	revert := false
	for _, state := range d.TaskGroups {
		revert = revert || state.AutoRevert
	}
	if !revert {
		return nil
	}
	stable := jobVersions(u).previousStableVersion(job)
	switch {
	case stable == nil:
		d.StatusDescription = fmt.Sprintf(model.DeploymentNoStableVersion, d.StatusDescription)
		return nil
	case sameSpecExceptStop(stable, job):
		d.StatusDescription = fmt.Sprintf(model.DeploymentRollbackSameSpec, d.StatusDescription, *stable.Version)
		return nil
	}
	d.StatusDescription = fmt.Sprintf(model.DeploymentRollback, d.StatusDescription, *stable.Version)
	return jobVersions(u).putOldVersionAsNewest(stable, job)
}

func sameSpecExceptStop(a, b *api.Job) bool {
	c := *a
	c.Stop = b.Stop
	return model.SameSpec(&c, b)
}

// updateActiveDeployment applies a user's change to an active deployment. verb names the change in error texts.
func (s *Scheduler) updateActiveDeployment(ctx context.Context, deploymentID, verb string, edit func(c *schedulerTxn, d *api.Deployment, job *api.Job) (DeploymentChanges, error)) (out RequestOutcome, err error) {
	out.Index, err = s.updateAndReconcile(ctx, func(c *schedulerTxn) error {
		out = RequestOutcome{}
		d := c.tx.Deployment(nil, deploymentID)
		if d == nil {
			return requestErrorf(RequestNotFound, "deployment not found")
		}
		if !model.DeploymentActive(d) {
			return requestErrorf(RequestRefused, "can't %s terminal deployment", verb)
		}
		key := JobKey{d.Namespace, d.JobID}
		job := c.tx.Job(nil, key.Namespace, key.ID)
		if job == nil {
			return requestErrorf(RequestNotFound, "job not found")
		}
		c.setEventOperation(opDeployment)
		v, err := edit(c, d, job)
		if err != nil {
			return err
		}
		before := *job.Version
		if evalID := (deploymentUpdater{c}).applyDeploymentChanges(job, d, v, v.NeedsEvaluation); evalID != "" {
			out.EvalID, out.EvalCreateIndex = evalID, c.tx.Index()
		}
		if after := c.tx.Job(nil, key.Namespace, key.ID); *after.Version != before {
			out.RevertedToJobVersion = deploymentUpdater{c}.latestStableVersionBefore(key, before)
		}
		out.DeploymentModifyIndex = c.tx.Index()
		c.reconcileJobAtTxnEnd(key)
		return nil
	})
	return out, err
}

// latestStableVersionBefore returns the number of the latest stable version before the given one, or nil. If the given
// version's deployment fails, the job reverts to this stable version.
func (u deploymentUpdater) latestStableVersionBefore(key JobKey, version uint64) *uint64 {
	if bad := u.tx.JobVersion(nil, key.Namespace, key.ID, version); bad != nil {
		if stable := jobVersions(u).previousStableVersion(bad); stable != nil {
			return stable.Version
		}
	}
	return nil
}

// PromoteDeployment promotes the canaries in a deployment's given groups; nil means all groups.
func (s *Scheduler) PromoteDeployment(ctx context.Context, id string, groups []string) (RequestOutcome, error) {
	return s.updateActiveDeployment(ctx, id, "promote", func(c *schedulerTxn, d *api.Deployment, job *api.Job) (DeploymentChanges, error) {
		c.setEventOperation(opPromotion)
		v, err := PromoteCanaries(d, job, c.tx.AllocationsByJob(nil, *job.Namespace, *job.ID), groups, c.now)
		if err != nil {
			return DeploymentChanges{}, requestErrorf(RequestRefused, "%v", err)
		}
		return v, nil
	})
}

// FailDeployment sets an active deployment's status to failed. This reverts the job if a group has auto_revert.
func (s *Scheduler) FailDeployment(ctx context.Context, id string) (RequestOutcome, error) {
	return s.updateActiveDeployment(ctx, id, "fail", func(c *schedulerTxn, d *api.Deployment, _ *api.Job) (DeploymentChanges, error) {
		failed := copyDeployment(d)
		failed.Status, failed.StatusDescription = api.DeploymentStatusFailed, model.DeploymentMarkedAsFailed
		failed.ModifyTime = c.now.UnixNano()
		return DeploymentChanges{Deployment: failed, NeedsEvaluation: true}, nil
	})
}

// PauseOrResumeDeployment pauses an active deployment, or resumes it if pause is false.
func (s *Scheduler) PauseOrResumeDeployment(ctx context.Context, id string, pause bool) (RequestOutcome, error) {
	verb := "resume"
	if pause {
		verb = "pause"
	}
	return s.updateActiveDeployment(ctx, id, verb, func(c *schedulerTxn, d *api.Deployment, _ *api.Job) (DeploymentChanges, error) {
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

// CheckDeploymentForUnblock returns an error if the deployment is not active. It changes nothing: only multi-region
// deployments can be blocked.
func (s *Scheduler) CheckDeploymentForUnblock(ctx context.Context, id string) (RequestOutcome, error) {
	return s.updateActiveDeployment(ctx, id, "unblock", func(*schedulerTxn, *api.Deployment, *api.Job) (DeploymentChanges, error) {
		return DeploymentChanges{}, nil
	})
}

// SetAllocHealth sets the health of a deployment's allocations with the given ids, whatever health_check their groups have.
func (s *Scheduler) SetAllocHealth(ctx context.Context, deploymentID string, healthyAllocIDs, unhealthyAllocIDs []string) (RequestOutcome, error) {
	return s.updateActiveDeployment(ctx, deploymentID, "set health of allocations for a", func(c *schedulerTxn, d *api.Deployment, job *api.Job) (DeploymentChanges, error) {
		c.setEventOperation(opAllocHealth)
		for _, set := range []struct {
			ids     []string
			healthy bool
		}{{healthyAllocIDs, true}, {unhealthyAllocIDs, false}} {
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
				c.putAllocAndUpdateNodeUsage(&a)
			}
		}
		if len(healthyAllocIDs)+len(unhealthyAllocIDs) == 0 {
			return DeploymentChanges{}, requestErrorf(RequestInvalid, "must specify at least one healthy/unhealthy allocation ID")
		}
		return DeploymentChanges{}, nil
	})
}
