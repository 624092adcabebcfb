package scheduler

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/model"
)

// Report is what the node says about an allocation.
type Report struct {
	AllocID           string
	ClientStatus      string
	ClientDescription string
	TaskStates        map[string]*api.TaskState
	NetworkStatus     *api.AllocNetworkStatus
	// Healthy is the health of the allocation in its deployment, nil while it is
	// undecided. Once it is known it does not change.
	Healthy     *bool
	HealthyTime time.Time
	// DeploymentID is the deployment that Healthy is about.
	DeploymentID string
	// Ended says that nothing of the allocation runs any more, and that nothing
	// will.
	Ended bool
}

// Report stores what the node says about allocations, and what follows from it.
// An allocation that is not there any more is passed over.
func (s *Scheduler) Report(ctx context.Context, reports ...Report) (index uint64, err error) {
	return s.update(ctx, func(c *change) error {
		c.Operation(opAllocReport)
		for _, r := range reports {
			c.report(r)
		}
		return nil
	})
}

func (c *change) report(r Report) {
	old := c.Alloc(r.AllocID)
	if old == nil {
		return
	}
	a := *old
	// A terminal state never goes back, whatever arrives late.
	if r.ClientStatus != "" && !(model.ClientTerminal(old) && r.ClientStatus != old.ClientStatus) {
		a.ClientStatus, a.ClientDescription = r.ClientStatus, r.ClientDescription
	}
	if r.TaskStates != nil {
		a.TaskStates = r.TaskStates
	}
	if r.NetworkStatus != nil {
		a.NetworkStatus = r.NetworkStatus
	}
	c.reportHealth(&a, r)
	a.ModifyTime = c.now.UnixNano()
	c.wroteAllocs = true
	c.ReportAlloc(&a)
	switch {
	case r.Ended:
		c.PutEnded(a.ID)
		c.room.Remove(&a)
		c.freed = true
	case !c.Ended(a.ID):
		c.room.Put(&a)
	}
	c.touch(JobKey{a.Namespace, a.JobID})
}

// reportHealth notes the health of an allocation. One that is through without
// having been healthy is not healthy.
func (c *change) reportHealth(a *api.Allocation, r Report) {
	healthy, at := r.Healthy, r.HealthyTime
	if r.DeploymentID != a.DeploymentID {
		healthy = nil
	}
	status := a.DeploymentStatus
	if status != nil && status.Healthy != nil || a.DeploymentID == "" && healthy == nil {
		return
	}
	if healthy == nil && a.ClientStatus == api.AllocClientStatusFailed {
		healthy, at = new(false), c.now
	}
	if healthy == nil {
		return
	}
	next := api.AllocDeploymentStatus{}
	if status != nil {
		next = *status
	}
	if at.IsZero() {
		at = c.now
	}
	next.Healthy, next.Timestamp, next.ModifyIndex = healthy, at, c.Index()
	a.DeploymentStatus = &next
}

// StopOptions are the parts of the stop of an allocation.
type StopOptions struct {
	Reschedule, NoShutdownDelay bool
}

// StopAlloc stops an allocation. Another takes its place, unless it belongs to a
// batch job and is not to be rescheduled: what it had to do is given up.
func (s *Scheduler) StopAlloc(ctx context.Context, id string, o StopOptions) (out Outcome, err error) {
	out.Index, err = s.update(ctx, func(c *change) error {
		old := c.Alloc(id)
		if old == nil {
			return refuse(NotFound, "allocation not found")
		}
		c.Operation(opAllocStop)
		a := *old
		if o.Reschedule {
			a.DesiredTransition.Reschedule = new(true)
		} else {
			a.DesiredTransition.Migrate = new(true)
			a.DesiredTransition.MigrateDisablePlacement = new(batchLike(a.Job))
		}
		if o.NoShutdownDelay {
			a.DesiredTransition.NoShutdownDelay = new(true)
		}
		c.putAlloc(&a)
		job := c.Job(JobKey{a.Namespace, a.JobID})
		if job == nil {
			job = a.Job // purged, and the allocation is on its way out
		}
		eval := c.newEval(job, triggerAllocStop)
		c.evaluate(eval)
		out.EvalID, out.EvalCreateIndex = eval.ID, c.Index()
		return nil
	})
	return out, err
}

// Desired returns the allocations that shall be on the node, oldest first: all
// that are wanted and may be started, and all that have been started until they
// have ended and beyond, as long as their records are kept.
func Desired(state State) []*api.Allocation {
	all := slices.Collect(state.Allocs())
	// The oldest of each name that is at work though it is terminal.
	leaving := make(map[seatKey]uint64)
	for _, a := range all {
		if !model.Terminal(a) || state.Ended(a.ID) {
			continue
		}
		if first, some := leaving[seatOf(a)]; !some || a.CreateIndex < first {
			leaving[seatOf(a)] = a.CreateIndex
		}
	}
	desired := slices.DeleteFunc(all, func(a *api.Allocation) bool {
		first, some := leaving[seatOf(a)]
		return some && first <= a.CreateIndex && !model.Terminal(a) && !started(a)
	})
	slices.SortStableFunc(desired, func(a, b *api.Allocation) int {
		return cmp.Or(cmp.Compare(a.CreateIndex, b.CreateIndex), cmp.Compare(indexOf(a), indexOf(b)))
	})
	return desired
}

// verb is an edit of an active deployment by a person.
func (s *Scheduler) verb(ctx context.Context, id, name string, edit func(c *change, d *api.Deployment, job *api.Job) (Verdict, error)) (out Outcome, err error) {
	out.Index, err = s.update(ctx, func(c *change) error {
		d := c.Deployment(id)
		if d == nil {
			return refuse(NotFound, "deployment not found")
		}
		if !model.DeploymentActive(d) {
			return refuse(Refused, "can't %s terminal deployment", name)
		}
		key := JobKey{d.Namespace, d.JobID}
		job := c.Job(key)
		if job == nil {
			return refuse(NotFound, "job not found")
		}
		c.Operation(opDeployment)
		v, err := edit(c, d, job)
		if err != nil {
			return err
		}
		before := *job.Version
		if evalID := c.applyVerdict(job, d, v, v.Evaluate); evalID != "" {
			out.EvalID, out.EvalCreateIndex = evalID, c.Index()
		}
		if after := c.Job(key); *after.Version != before {
			out.RevertedJobVersion = c.revertedFrom(key, before)
		}
		out.DeploymentModifyIndex = c.Index()
		c.touch(key)
		return nil
	})
	return out, err
}

// revertedFrom returns the version that a job went back to from another.
func (c *change) revertedFrom(key JobKey, version uint64) *uint64 {
	if bad := c.version(key, version); bad != nil {
		if stable := c.stableBefore(bad); stable != nil {
			return stable.Version
		}
	}
	return nil
}

// PromoteDeployment promotes the canaries of the groups of a deployment; nil
// means all.
func (s *Scheduler) PromoteDeployment(ctx context.Context, id string, groups []string) (Outcome, error) {
	return s.verb(ctx, id, "promote", func(c *change, d *api.Deployment, job *api.Job) (Verdict, error) {
		c.Operation(opPromotion)
		v, err := Promote(d, job, c.AllocsOfJob(KeyOf(job)), groups, c.now)
		if err != nil {
			return Verdict{}, refuse(Refused, "%v", err)
		}
		return v, nil
	})
}

// FailDeployment ends a deployment as failed. The job may be rolled back.
func (s *Scheduler) FailDeployment(ctx context.Context, id string) (Outcome, error) {
	return s.verb(ctx, id, "fail", func(c *change, d *api.Deployment, _ *api.Job) (Verdict, error) {
		failed := copyDeployment(d)
		failed.Status, failed.StatusDescription = api.DeploymentStatusFailed, model.DeploymentMarkedAsFailed
		failed.ModifyTime = c.now.UnixNano()
		return Verdict{Deployment: failed, Evaluate: true}, nil
	})
}

// PauseDeployment keeps a deployment from placing anything, or lets it go on.
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

// UnblockDeployment lets a deployment go on that waits for those of other regions,
// which none does here.
func (s *Scheduler) UnblockDeployment(ctx context.Context, id string) (Outcome, error) {
	return s.verb(ctx, id, "unblock", func(*change, *api.Deployment, *api.Job) (Verdict, error) { return Verdict{}, nil })
}

// SetAllocHealth decides the health of allocations of a deployment, whose
// health_check is "manual" or not.
func (s *Scheduler) SetAllocHealth(ctx context.Context, id string, healthy, unhealthy []string) (Outcome, error) {
	return s.verb(ctx, id, "set health of allocations for a", func(c *change, d *api.Deployment, job *api.Job) (Verdict, error) {
		c.Operation(opAllocHealth)
		for _, set := range []struct {
			ids     []string
			healthy bool
		}{{healthy, true}, {unhealthy, false}} {
			for _, allocID := range set.ids {
				old := c.Alloc(allocID)
				if old == nil || old.DeploymentID != d.ID {
					return Verdict{}, refuse(Refused, "allocation %q is not part of deployment %q", allocID, d.ID)
				}
				a := *old
				status := api.AllocDeploymentStatus{}
				if old.DeploymentStatus != nil {
					status = *old.DeploymentStatus
				}
				status.Healthy, status.Timestamp, status.ModifyIndex = &set.healthy, c.now, c.Index()
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
