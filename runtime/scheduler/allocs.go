package scheduler

import (
	"cmp"
	"context"
	"reflect"
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
		changed := false
		for _, r := range reports {
			changed = c.report(r) || changed
		}
		if changed {
			c.AnnounceNode() // its allocations are others
		}
		return nil
	})
}

// report reports whether the report changes the allocation.
func (c *change) report(r Report) bool {
	old := c.Alloc(r.AllocID)
	if old == nil {
		return false
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
	if !r.Ended && reflect.DeepEqual(&a, old) {
		return false // a new agent says what the one before it has said
	}
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
	c.markDirty(JobKey{a.Namespace, a.JobID})
	return true
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
	if at.IsZero() || at.After(c.now) {
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
	leaving := make(map[slotKey]uint64)
	for _, a := range all {
		if !model.Terminal(a) || state.Ended(a.ID) {
			continue
		}
		if first, some := leaving[slotOf(a)]; !some || a.CreateIndex < first {
			leaving[slotOf(a)] = a.CreateIndex
		}
	}
	desired := slices.DeleteFunc(all, func(a *api.Allocation) bool {
		first, some := leaving[slotOf(a)]
		return some && first <= a.CreateIndex && !model.Terminal(a) && !started(a)
	})
	slices.SortStableFunc(desired, func(a, b *api.Allocation) int {
		return cmp.Or(cmp.Compare(a.CreateIndex, b.CreateIndex), cmp.Compare(indexOf(a), indexOf(b)))
	})
	return desired
}
