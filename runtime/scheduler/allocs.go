package scheduler

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/metrics"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// ApplyAllocReports stores allocation reports and makes the resulting changes, such as replacements for failed allocations. It
// ignores allocations that are not stored.
func (s *Scheduler) ApplyAllocReports(ctx context.Context, reports ...model.AllocReport) (index uint64, err error) {
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
			c.tx.AddUnchangedNodeEvent(c.scheduler.nodeID) // notifies event stream clients: the node's allocations have changed
		}
		return nil
	})
}

// applyReport stores a report about one allocation, and reports whether the stored allocation has changed.
func (t *schedulerTxn) applyReport(r model.AllocReport) (changed bool) {
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
			t.desiredAllocsChanged = true // the allocation can start now if it waited for this one to end
		}
		t.mayUnblockEvals = true
	case !t.tx.AllocationEnded(a.ID):
		t.nodeUsage.PutAlloc(a)
	}
	t.reconcileJobAtTxnEnd(JobKey{a.Namespace, a.JobID})
	return true
}

// StopOptions are StopAndReplaceAlloc's options.
type StopOptions struct {
	Reschedule, NoShutdownDelay bool
}

// StopAndReplaceAlloc stops an allocation and replaces it. A batch or sysbatch allocation is replaced only if
// StopOptions.Reschedule is set.
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

// DesiredAllocs returns the allocations that the node must run or keep, oldest first. It leaves out an unstarted allocation
// while an earlier one with its name is terminal and has not ended: the two would use the same resources. It includes all other
// stored allocations, also ended ones.
func DesiredAllocs(state store.Reader) []*api.Allocation {
	all := state.WithoutEndedEvents().Allocations(nil, "")
	// stoppingSince maps each allocation name to its lowest CreateIndex among terminal allocations that have not ended.
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
