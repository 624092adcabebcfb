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

// AllocReport is the state of one allocation, as the node reports it.
type AllocReport struct {
	AllocID           string
	ClientStatus      string
	ClientDescription string
	TaskStates        map[string]*api.TaskState
	NetworkStatus     *api.AllocNetworkStatus
	// Healthy is the health of the allocation in its deployment. Nil means that the health
	// is undecided. A health that is set never changes.
	Healthy     *bool
	HealthyTime time.Time
	// DeploymentID is the deployment to which Healthy applies.
	DeploymentID string
	// TasksAndHooksEnded means that all tasks and hooks of the allocation have ended and will not start again.
	TasksAndHooksEnded bool
}

// ApplyAllocReports stores reports about allocations and makes the changes that follow from the reports, such as
// replacements of failed allocations. It ignores allocations that are not stored.
func (s *Scheduler) ApplyAllocReports(ctx context.Context, reports ...AllocReport) (index uint64, err error) {
	env := s.newPreparedEnv()
	env.plansWithoutStartingPlugins = true // reports of other allocations must not wait
	env.expectPlacementsAfterReports(reports)
	return s.updateAndReconcileWithEnv(ctx, env, func(c *schedulerTxn) error {
		c.setEventOperation(opAllocReport)
		changed := false
		for _, r := range reports {
			changed = c.applyReport(r) || changed
		}
		if changed {
			c.tx.AddUnchangedNodeEvent(c.scheduler.nodeID) // notifies clients of the event stream that the node's allocations have changed
		}
		return nil
	})
}

// applyReport stores a report about one allocation, and reports whether the stored allocation has changed.
func (t *schedulerTxn) applyReport(r AllocReport) (changed bool) {
	old := t.tx.Allocation(nil, r.AllocID)
	if old == nil {
		return false
	}
	a := r.ApplyTo(old, t.now, t.tx.Index())
	if a == nil {
		return false
	}
	t.wroteAllocs = true
	t.tx.PutReportedAllocation(a)
	if old.ClientStatus == api.AllocClientStatusPending && a.ClientStatus == api.AllocClientStatusRunning {
		duration := t.now.Sub(time.Unix(0, a.CreateTime))
		t.tx.OnCommit(func() { metrics.AllocationStarts.Observe(duration) })
	}
	switch {
	case r.TasksAndHooksEnded:
		t.tx.MarkAllocationEnded(a.ID)
		t.nodeUsage.RemoveAlloc(a)
		if t.nodeUsage.hasUnstartedAllocOfName(a) {
			t.desiredAllocsChanged = true // the allocation can start now if it waited for the end of this one
		}
		t.resourcesFreed = true
	case !t.tx.AllocationEnded(a.ID):
		t.nodeUsage.PutAlloc(a)
	}
	t.reconcileJobAtTxnEnd(JobKey{a.Namespace, a.JobID})
	return true
}

// ApplyTo returns the allocation old with the reported states, or nil if the report changes nothing. index is the index of
// the transaction.
func (r AllocReport) ApplyTo(old *api.Allocation, now time.Time, index uint64) *api.Allocation {
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
	r.applyHealthTo(&a, now, index)
	if !r.TasksAndHooksEnded && reflect.DeepEqual(&a, old) {
		return nil // a restarted agent repeats the last report that the previous agent sent
	}
	a.ModifyTime = now.UnixNano()
	return &a
}

// applyHealthTo sets the health of an allocation in its deployment. An allocation that fails before its health is decided
// becomes unhealthy.
func (r AllocReport) applyHealthTo(a *api.Allocation, now time.Time, index uint64) {
	healthy, at := r.Healthy, r.HealthyTime
	if r.DeploymentID != a.DeploymentID {
		healthy = nil
	}
	status := a.DeploymentStatus
	if status != nil && status.Healthy != nil || a.DeploymentID == "" && healthy == nil {
		return
	}
	if healthy == nil && a.ClientStatus == api.AllocClientStatusFailed {
		healthy, at = new(false), now
	}
	if healthy == nil {
		return
	}
	next := api.AllocDeploymentStatus{}
	if status != nil {
		next = *status
	}
	if at.IsZero() || at.After(now) {
		at = now
	}
	next.Healthy, next.Timestamp, next.ModifyIndex = healthy, at, index
	a.DeploymentStatus = &next
}

// StopOptions are the options of StopAndReplaceAlloc.
type StopOptions struct {
	Reschedule, NoShutdownDelay bool
}

// StopAndReplaceAlloc stops an allocation and replaces it. An allocation of a batch or sysbatch job is
// replaced only if StopOptions.Reschedule is set.
func (s *Scheduler) StopAndReplaceAlloc(ctx context.Context, id string, o StopOptions) (out RequestOutcome, err error) {
	env := s.newPreparedEnv()
	if a := s.store.Snapshot().Allocation(nil, id); a != nil {
		env.expectReplacement(a)
	}
	out.Index, err = s.updateAndReconcileWithEnv(ctx, env, func(c *schedulerTxn) error {
		out = RequestOutcome{}
		old := c.tx.Allocation(nil, id)
		if old == nil {
			return requestErrorf(RequestNotFound, "allocation not found")
		}
		c.setEventOperation(opAllocStop)
		a := *old
		if o.Reschedule {
			a.DesiredTransition.Reschedule = new(true)
		} else {
			a.DesiredTransition.Migrate = new(true)
			a.DesiredTransition.MigrateDisablePlacement = new(isBatchOrSysbatch(a.Job))
		}
		if o.NoShutdownDelay {
			a.DesiredTransition.NoShutdownDelay = new(true)
		}
		c.putAllocAndUpdateNodeUsage(&a)
		job := c.tx.Job(nil, a.Namespace, a.JobID)
		if job == nil {
			job = a.Job // the job was purged, and the allocation is stopping
		}
		eval := c.newPendingEval(job, triggerAllocStop)
		c.processEval(eval)
		out.EvalID, out.EvalCreateIndex = eval.ID, c.tx.Index()
		return nil
	})
	return out, err
}

// DesiredAllocs returns the allocations that the node must run or keep, oldest first. It leaves out an allocation that
// has not started while an earlier allocation of the same name is terminal and has not ended: the two would use the same
// resources. All other stored allocations are included, also the ended ones.
func DesiredAllocs(state store.Reader) []*api.Allocation {
	all := state.Allocations(nil, "")
	// stoppingSince maps each allocation name to the lowest CreateIndex of its terminal allocations that have not ended.
	stoppingSince := make(map[allocNameKey]uint64)
	for _, a := range all {
		if !model.AllocTerminal(a) || state.AllocationEnded(a.ID) {
			continue
		}
		if first, some := stoppingSince[allocNameKeyOf(a)]; !some || a.CreateIndex < first {
			stoppingSince[allocNameKeyOf(a)] = a.CreateIndex
		}
	}
	desired := slices.DeleteFunc(all, func(a *api.Allocation) bool {
		first, some := stoppingSince[allocNameKeyOf(a)]
		return some && first <= a.CreateIndex && !model.AllocTerminal(a) && !hasStarted(a)
	})
	slices.SortStableFunc(desired, func(a, b *api.Allocation) int {
		return cmp.Or(cmp.Compare(a.CreateIndex, b.CreateIndex), cmp.Compare(allocIndex(a), allocIndex(b)))
	})
	return desired
}
