package scheduler

import (
	"cmp"
	"context"
	"reflect"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/metrics"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// AllocReport has the state of an allocation that the node reports.
type AllocReport struct {
	AllocID           string
	ClientStatus      string
	ClientDescription string
	TaskStates        map[string]*api.TaskState
	NetworkStatus     *api.AllocNetworkStatus
	// Healthy is the health of the allocation in its deployment, nil while it is
	// undecided. Once it is set it does not change.
	Healthy     *bool
	HealthyTime time.Time
	// DeploymentID is the deployment to which Healthy applies.
	DeploymentID string
	// TasksEnded means that all tasks and hooks of the allocation have ended for good.
	TasksEnded bool
}

// Report stores reports about allocations and makes the changes that follow from them, such as replacements. It ignores
// allocations that no longer exist.
func (s *Scheduler) Report(ctx context.Context, reports ...AllocReport) (index uint64, err error) {
	env := s.newPreparedEnv()
	env.expectPlacementsAfterReports(reports)
	return s.updateWithEnv(ctx, env, func(c *txn) error {
		c.setOperation(opAllocReport)
		changed := false
		for _, r := range reports {
			changed = c.applyReport(r) || changed
		}
		if changed {
			c.tx.AddNodeEvent(c.s.nodeID) // notifies clients of the event stream that the node's allocations have changed
		}
		return nil
	})
}

// applyReport stores a report. It returns whether the allocation has changed.
func (c *txn) applyReport(r AllocReport) bool {
	old := c.tx.Allocation(nil, r.AllocID)
	if old == nil {
		return false
	}
	a := *old
	// A terminal status never changes, even if an older report arrives late.
	if r.ClientStatus != "" && !(old.ClientTerminalStatus() && r.ClientStatus != old.ClientStatus) {
		a.ClientStatus, a.ClientDescription = r.ClientStatus, r.ClientDescription
	}
	if r.TaskStates != nil {
		a.TaskStates = r.TaskStates
	}
	if r.NetworkStatus != nil {
		a.NetworkStatus = r.NetworkStatus
	}
	c.applyHealth(&a, r)
	if !r.TasksEnded && reflect.DeepEqual(&a, old) {
		return false // a restarted agent repeats the last report of the agent before it
	}
	a.ModifyTime = c.now.UnixNano()
	c.wroteAllocs = true
	c.tx.PutReportedAllocation(&a)
	if old.ClientStatus == api.AllocClientStatusPending && a.ClientStatus == api.AllocClientStatusRunning {
		duration := c.now.Sub(time.Unix(0, a.CreateTime))
		c.tx.OnCommit(func() { metrics.AllocationStarts.Observe(duration) })
	}
	switch {
	case r.TasksEnded:
		c.tx.EndAllocation(a.ID)
		c.desiredAllocsChanged = true // a replacement may have waited for the end of this allocation
		c.nodeUsage.Remove(&a)
		c.resourcesFreed = true
	case !c.tx.AllocationEnded(a.ID):
		c.nodeUsage.Put(&a)
	}
	c.markJobDirty(JobKey{a.Namespace, a.JobID})
	return true
}

// applyHealth sets the health of an allocation in its deployment. An allocation that fails before its health is known
// becomes unhealthy.
func (c *txn) applyHealth(a *api.Allocation, r AllocReport) {
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
	next.Healthy, next.Timestamp, next.ModifyIndex = healthy, at, c.tx.Index()
	a.DeploymentStatus = &next
}

// StopOptions are the options of StopAlloc.
type StopOptions struct {
	Reschedule, NoShutdownDelay bool
}

// StopAlloc stops an allocation and replaces it. An allocation of a batch or
// sysbatch job is replaced only with Reschedule, and an adopted one never.
func (s *Scheduler) StopAlloc(ctx context.Context, id string, o StopOptions) (out RequestOutcome, err error) {
	env := s.newPreparedEnv()
	if a := s.store.Snapshot().Allocation(nil, id); a != nil {
		env.expectReplacement(a)
	}
	out.Index, err = s.updateWithEnv(ctx, env, func(c *txn) error {
		out = RequestOutcome{}
		old := c.tx.Allocation(nil, id)
		if old == nil {
			return requestErrorf(RequestNotFound, "allocation not found")
		}
		c.setOperation(opAllocStop)
		a := *old
		if o.Reschedule && !model.IsAdoptedJob(a.Job) {
			a.DesiredTransition.Reschedule = new(true)
		} else {
			a.DesiredTransition.Migrate = new(true)
			a.DesiredTransition.MigrateDisablePlacement = new(isBatchLike(a.Job))
		}
		if o.NoShutdownDelay {
			a.DesiredTransition.NoShutdownDelay = new(true)
		}
		c.putAlloc(&a)
		job := c.tx.Job(nil, a.Namespace, a.JobID)
		if job == nil {
			job = a.Job // the job was purged, and the allocation is stopping
		}
		eval := c.newEval(job, triggerAllocStop)
		c.processEval(eval)
		out.EvalID, out.EvalCreateIndex = eval.ID, c.tx.Index()
		return nil
	})
	return out, err
}

// DesiredAllocs returns the allocations that the node must run or keep, oldest first. An allocation that has not
// started is left out while its name is still in use: while an allocation of the same name that was created no later is
// terminal and has not ended. Other allocations are included as long as their records are kept.
func DesiredAllocs(state store.Reader) []*api.Allocation {
	all := state.Allocations(nil, "")
	// leaving has, by name, the lowest CreateIndex of the terminal allocations that have not ended.
	leaving := make(map[allocNameKey]uint64)
	for _, a := range all {
		if !model.AllocTerminal(a) || state.AllocationEnded(a.ID) {
			continue
		}
		if first, some := leaving[allocNameKeyOf(a)]; !some || a.CreateIndex < first {
			leaving[allocNameKeyOf(a)] = a.CreateIndex
		}
	}
	desired := slices.DeleteFunc(all, func(a *api.Allocation) bool {
		first, some := leaving[allocNameKeyOf(a)]
		return some && first <= a.CreateIndex && !model.AllocTerminal(a) && !hasStarted(a)
	})
	slices.SortStableFunc(desired, func(a, b *api.Allocation) int {
		return cmp.Or(cmp.Compare(a.CreateIndex, b.CreateIndex), cmp.Compare(allocIndex(a), allocIndex(b)))
	})
	return desired
}
