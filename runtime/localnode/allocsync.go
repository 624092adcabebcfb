package localnode

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/allocrunner"
	"github.com/nomad-lite/nomad-lite/runtime/model"
	"github.com/nomad-lite/nomad-lite/runtime/noderunner"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// AllocSync connects the node runner with the store: it lists the node's
// allocations and writes their reports through the scheduler.
//
// Reports are written as fast as the disk allows. A report that arrives during a
// write is part of the next write, and only the latest report of an allocation is
// written. A report that only adds events, without a change of state, is written
// with the next urgent report of its allocation or after batchInterval.
type AllocSync struct {
	store   *store.Store
	started map[string]bool // allocations that an earlier agent has started
	logger  hclog.Logger

	wake chan struct{} // the channel has a value when there are reports to write

	mu                      sync.Mutex
	changed                 chan struct{} // channel, closed and replaced when the desired allocations change
	reports                 map[string]scheduler.AllocReport
	writing                 map[string]scheduler.AllocReport // reports that are being written
	order                   []string                         // keys of the map reports, oldest first
	urgent                  map[string]bool                  // reports that must be written at once
	flushTimer              *time.Timer                      // timer that calls flush; nil if it is not set
	removed                 []string
	collected               map[string]string // reasons for removed directories, by allocation id; see Collected
	pendingRemovalsAssigned bool              // the deleted allocations (see store.Reader.PendingRemovals) were assigned
}

var _ noderunner.Source = (*AllocSync)(nil)

// reporter is the part of the scheduler that an AllocSync needs.
type reporter interface {
	Report(context.Context, ...scheduler.AllocReport) (index uint64, err error)
}

// NewAllocSync returns an AllocSync. Allocations of whose tasks the store s has records
// count as started by an earlier agent.
func NewAllocSync(s *store.Store, logger hclog.Logger) *AllocSync {
	started := make(map[string]bool)
	for _, id := range s.Snapshot().LocalAllocations() {
		started[id] = true
	}
	return &AllocSync{
		store:   s,
		started: started,
		logger:  logger.Named("allocsync"),
		wake:    make(chan struct{}, 1),
		changed: make(chan struct{}),
		reports: make(map[string]scheduler.AllocReport),
		urgent:  make(map[string]bool),
	}
}

// Allocs implements noderunner.Source. An allocation that was deleted before the
// first call, and is still on the disk, is assigned in the first call and missing
// in the next one, so that the node removes it.
func (r *AllocSync) Allocs() ([]noderunner.Assignment, <-chan struct{}) {
	r.mu.Lock()
	changed, first := r.changed, !r.pendingRemovalsAssigned
	r.pendingRemovalsAssigned = true
	r.mu.Unlock()
	s := r.store.Snapshot()
	var removals []*api.Allocation
	if first { // removals include allocations that were deleted after Open, which the node has not seen either
		removals = s.PendingRemovals()
	}
	var assignments []noderunner.Assignment
	for _, a := range scheduler.DesiredAllocs(s.Reader) {
		assignments = append(assignments, noderunner.Assignment{
			Alloc: a, Ended: s.AllocationEnded(a.ID), Started: r.started[a.ID],
			Purged:  a.ServerTerminalStatus() && s.Job(nil, a.Namespace, a.JobID) == nil,
			Collect: s.CollectedAtEnd(a.ID),
		})
	}
	for _, a := range removals {
		assignments = append(assignments, noderunner.Assignment{Alloc: a, Ended: true})
	}
	if len(removals) > 0 {
		r.AllocsChanged()
	}
	return assignments, changed
}

// AllocsChanged wakes the node runner, which lists the allocations again. It must be
// called when the desired allocations have changed.
func (r *AllocSync) AllocsChanged() {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.changed)
	r.changed = make(chan struct{})
}

// Report implements noderunner.Source.
func (r *AllocSync) Report(u allocrunner.Update) {
	r.add(u.AllocID, func() bool { return r.isUrgentLocked(u) }, func(report *scheduler.AllocReport) {
		report.ClientStatus, report.ClientDescription = u.ClientStatus, u.ClientDescription
		report.TaskStates, report.NetworkStatus = u.TaskStates, u.NetworkStatus
		if h := u.Health; h != nil {
			report.Healthy, report.HealthyTime, report.DeploymentID = &h.Healthy, h.Time, h.DeploymentID
		}
	})
}

// Ended implements noderunner.Source.
func (r *AllocSync) Ended(allocID string, err error) {
	r.add(allocID, func() bool { return true }, func(report *scheduler.AllocReport) {
		report.Ended = true
		if err != nil {
			report.ClientStatus = api.AllocClientStatusFailed
			report.ClientDescription = "Unable to add allocation due to error: " + err.Error()
		}
	})
}

// CollectAtEnd implements noderunner.Source.
func (r *AllocSync) CollectAtEnd(ctx context.Context, allocID string) error {
	_, err := r.store.Update(ctx, func(tx *store.Txn) error {
		tx.CollectAtEnd(allocID)
		return nil
	})
	return err
}

// Collected implements noderunner.Source.
func (r *AllocSync) Collected(allocID, reason string) {
	r.mu.Lock()
	if r.collected == nil {
		r.collected = make(map[string]string)
	}
	r.collected[allocID] = reason
	r.mu.Unlock()
	r.tick()
}

// Removed implements noderunner.Source.
func (r *AllocSync) Removed(allocID string) {
	r.mu.Lock()
	r.removed = append(r.removed, allocID)
	r.mu.Unlock()
	r.tick()
}

// isUrgentLocked reports whether an update must be written at once: the status of
// the allocation, the state of a task or the first health differs from the stored
// one. Other updates only add events. A report that is being written counts as
// stored.
func (r *AllocSync) isUrgentLocked(u allocrunner.Update) bool {
	known := r.store.Snapshot().Allocation(nil, u.AllocID)
	if w, found := r.writing[u.AllocID]; found && known != nil && w.ClientStatus != "" {
		stored := *known
		stored.ClientStatus, stored.TaskStates = w.ClientStatus, w.TaskStates
		known = &stored
	}
	if known == nil || u.ClientStatus != known.ClientStatus {
		return true
	}
	if u.Health != nil && (known.DeploymentStatus == nil || known.DeploymentStatus.Healthy == nil) {
		return true
	}
	for name, task := range u.TaskStates {
		was := known.TaskStates[name]
		if was == nil {
			was = &api.TaskState{State: model.TaskPending}
		}
		if task.State != was.State || task.Failed != was.Failed {
			return true
		}
	}
	return false
}

func (r *AllocSync) add(allocID string, urgent func() bool, edit func(*scheduler.AllocReport)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	report, waits := r.reports[allocID]
	if !waits {
		report.AllocID = allocID
		r.order = append(r.order, allocID)
	}
	edit(&report)
	r.reports[allocID] = report
	switch {
	case urgent():
		r.urgent[allocID] = true
		r.tick()
	case r.flushTimer == nil:
		r.flushTimer = time.AfterFunc(batchInterval, r.flush)
	}
}

// flush makes all reports urgent.
func (r *AllocSync) flush() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.flushTimer = nil
	for _, id := range r.order {
		r.urgent[id] = true
	}
	r.tick()
}

// batchInterval is the maximum delay of a report that is not urgent.
const batchInterval = 100 * time.Millisecond

func (r *AllocSync) tick() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// retryDelay is the time between two attempts to write updates that the store has refused.
const retryDelay = time.Second

// Run passes the reports to the scheduler until ctx ends, and then the remaining ones
// once.
func (r *AllocSync) Run(ctx context.Context, to reporter) {
	for {
		select {
		case <-r.wake:
		case <-ctx.Done():
			r.flush()
			if err := r.write(context.WithoutCancel(ctx), to); err != nil {
				r.logger.Error("last states of allocations not stored", "error", err)
			}
			return
		}
		for {
			err := r.write(ctx, to)
			if err == nil || ctx.Err() != nil {
				break
			}
			r.logger.Error("states of allocations not stored", "error", err)
			select {
			case <-time.After(retryDelay):
			case <-ctx.Done():
			}
		}
	}
}

// take returns the urgent reports and the removed allocations. Reports that are not
// urgent stay queued, so that they do not delay the urgent ones.
func (r *AllocSync) take() (reports []scheduler.AllocReport, removed []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var rest []string
	r.writing = make(map[string]scheduler.AllocReport)
	for _, id := range r.order {
		if r.urgent[id] {
			reports = append(reports, r.reports[id])
			r.writing[id] = r.reports[id]
			delete(r.reports, id)
		} else {
			rest = append(rest, id)
		}
	}
	removed = r.removed
	r.order, r.removed = rest, nil
	clear(r.urgent)
	return reports, removed
}

// write stores the urgent reports. Reports that cannot be stored are queued again,
// unless a newer report of the allocation has arrived.
func (r *AllocSync) write(ctx context.Context, to reporter) error {
	reports, removed := r.take()
	if len(reports) > 0 {
		_, err := to.Report(ctx, reports...)
		r.mu.Lock()
		r.writing = nil
		r.mu.Unlock()
		if err != nil {
			r.putBack(reports, removed)
			return err
		}
	}
	if len(removed) > 0 {
		_, err := r.store.Update(ctx, func(tx *store.Txn) error {
			for _, id := range removed {
				if tx.Allocation(nil, id) == nil {
					tx.FinishRemoval(id)
				}
			}
			return nil
		})
		if err != nil {
			r.putBack(nil, removed)
			return err
		}
	}
	return r.writeCollected(ctx)
}

// writeCollected adds events to allocations whose directories were removed. It must
// follow the reports, because the last report of an allocation replaces its events.
func (r *AllocSync) writeCollected(ctx context.Context) error {
	r.mu.Lock()
	collected := r.collected
	r.collected = nil
	r.mu.Unlock()
	if len(collected) == 0 {
		return nil
	}
	_, err := r.store.Update(ctx, func(tx *store.Txn) error {
		for id, reason := range collected {
			if old := tx.Allocation(nil, id); old != nil {
				tx.ReportAllocation(withCollectedEvent(old, reason, time.Now()))
			}
		}
		return nil
	})
	if err != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		for id, reason := range r.collected {
			collected[id] = reason
		}
		r.collected = collected
	}
	return err
}

// withCollectedEvent returns a copy of an allocation with an event on each task.
func withCollectedEvent(old *api.Allocation, reason string, now time.Time) *api.Allocation {
	alloc := *old
	alloc.TaskStates = make(map[string]*api.TaskState, len(old.TaskStates))
	for name, state := range old.TaskStates {
		state = model.CopyTaskState(state)
		model.AppendTaskEvent(state, model.EventAllocDirRemoved(reason), now)
		alloc.TaskStates[name] = state
	}
	return &alloc
}

func (r *AllocSync) putBack(reports []scheduler.AllocReport, removed []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.removed = append(removed, r.removed...)
	var order []string
	for _, old := range reports {
		id := old.AllocID
		newer, waits := r.reports[id]
		if !waits {
			order = append(order, id)
		}
		ended := old.Ended || newer.Ended
		if newer.ClientStatus == "" { // the newer report is missing, or has only the field Ended
			newer = old
		}
		newer.Ended = ended
		r.reports[id], r.urgent[id] = newer, true
	}
	r.order = append(order, r.order...)
}
