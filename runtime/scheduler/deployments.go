package scheduler

import (
	"context"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/model"
)

// deadlineDue judges a deployment whose deadline has passed.
func (c *change) deadlineDue(id string) {
	c.operation(opDeployment)
	if d := c.tx.Deployment(nil, id); d != nil {
		c.markDirty(JobKey{d.Namespace, d.JobID})
	}
	c.later(func() { c.s.deadlines.set(id, noTime) })
}

// verb applies a user's edit to an active deployment.
func (s *Scheduler) verb(ctx context.Context, id, name string, edit func(c *change, d *api.Deployment, job *api.Job) (Verdict, error)) (out Outcome, err error) {
	out.Index, err = s.update(ctx, func(c *change) error {
		out = Outcome{}
		d := c.tx.Deployment(nil, id)
		if d == nil {
			return refuse(NotFound, "deployment not found")
		}
		if !model.DeploymentActive(d) {
			return refuse(Refused, "can't %s terminal deployment", name)
		}
		key := JobKey{d.Namespace, d.JobID}
		job := c.tx.Job(nil, key.Namespace, key.ID)
		if job == nil {
			return refuse(NotFound, "job not found")
		}
		c.operation(opDeployment)
		v, err := edit(c, d, job)
		if err != nil {
			return err
		}
		before := *job.Version
		if evalID := c.applyVerdict(job, d, v, v.Evaluate); evalID != "" {
			out.EvalID, out.EvalCreateIndex = evalID, c.tx.Index()
		}
		if after := c.tx.Job(nil, key.Namespace, key.ID); *after.Version != before {
			out.RevertedJobVersion = c.revertedFrom(key, before)
		}
		out.DeploymentModifyIndex = c.tx.Index()
		c.markDirty(key)
		return nil
	})
	return out, err
}

// revertedFrom returns the stable version to which a job was reverted from the
// given version, or nil.
func (c *change) revertedFrom(key JobKey, version uint64) *uint64 {
	if bad := c.tx.JobVersion(nil, key.Namespace, key.ID, version); bad != nil {
		if stable := c.stableBefore(bad); stable != nil {
			return stable.Version
		}
	}
	return nil
}

// PromoteDeployment promotes the canaries of the given groups of a deployment; nil
// means all groups.
func (s *Scheduler) PromoteDeployment(ctx context.Context, id string, groups []string) (Outcome, error) {
	return s.verb(ctx, id, "promote", func(c *change, d *api.Deployment, job *api.Job) (Verdict, error) {
		c.operation(opPromotion)
		v, err := Promote(d, job, c.tx.AllocationsByJob(nil, *job.Namespace, *job.ID), groups, c.now)
		if err != nil {
			return Verdict{}, refuse(Refused, "%v", err)
		}
		return v, nil
	})
}

// FailDeployment ends a deployment as failed, which may revert the job.
func (s *Scheduler) FailDeployment(ctx context.Context, id string) (Outcome, error) {
	return s.verb(ctx, id, "fail", func(c *change, d *api.Deployment, _ *api.Job) (Verdict, error) {
		failed := copyDeployment(d)
		failed.Status, failed.StatusDescription = api.DeploymentStatusFailed, model.DeploymentMarkedAsFailed
		failed.ModifyTime = c.now.UnixNano()
		return Verdict{Deployment: failed, Evaluate: true}, nil
	})
}

// PauseDeployment pauses or resumes the placements of a deployment.
func (s *Scheduler) PauseDeployment(ctx context.Context, id string, pause bool) (Outcome, error) {
	name := "resume"
	if pause {
		name = "pause"
	}
	return s.verb(ctx, id, name, func(c *change, d *api.Deployment, _ *api.Job) (Verdict, error) {
		next := copyDeployment(d)
		next.ModifyTime = c.now.UnixNano()
		if pause {
			next.Status, next.StatusDescription = api.DeploymentStatusPaused, model.DeploymentPaused
			return Verdict{Deployment: next}, nil
		}
		next.Status, next.StatusDescription = api.DeploymentStatusRunning, model.DeploymentRunning
		for _, state := range next.TaskGroups {
			if !state.RequireProgressBy.IsZero() {
				state.RequireProgressBy = c.now.Add(state.ProgressDeadline)
			}
		}
		return Verdict{Deployment: next, Evaluate: true}, nil
	})
}

// UnblockDeployment has no effect: only multi-region deployments block.
func (s *Scheduler) UnblockDeployment(ctx context.Context, id string) (Outcome, error) {
	return s.verb(ctx, id, "unblock", func(*change, *api.Deployment, *api.Job) (Verdict, error) { return Verdict{}, nil })
}

// SetAllocHealth sets the health of allocations of a deployment, whatever its
// health_check is.
func (s *Scheduler) SetAllocHealth(ctx context.Context, id string, healthy, unhealthy []string) (Outcome, error) {
	return s.verb(ctx, id, "set health of allocations for a", func(c *change, d *api.Deployment, job *api.Job) (Verdict, error) {
		c.operation(opAllocHealth)
		for _, set := range []struct {
			ids     []string
			healthy bool
		}{{healthy, true}, {unhealthy, false}} {
			for _, allocID := range set.ids {
				old := c.tx.Allocation(nil, allocID)
				if old == nil || old.DeploymentID != d.ID {
					return Verdict{}, refuse(Refused, "allocation %q is not part of deployment %q", allocID, d.ID)
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
			return Verdict{}, refuse(Invalid, "must specify at least one healthy/unhealthy allocation ID")
		}
		return Verdict{}, nil
	})
}
