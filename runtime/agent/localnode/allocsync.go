package localnode

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/allocrunner"
	"github.com/nomad-lite/nomad-lite/runtime/node/noderunner"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// AllocSync connects the node runner with the store: it lists the node's
// allocations and writes their reports through the scheduler.
//
// Reports are written as fast as the disk allows. A report that arrives during a
// write is part of the next write, and only the latest report of an allocation is
// written. A report that only adds events, without a change of state, is written
// with the next urgent report of its allocation or after maxReportDelay.
type AllocSync struct {
	store         *store.Store
	startedAllocs map[string]bool // allocations that an earlier agent has started
	logger        hclog.Logger

	reportsAvailable chan struct{} // the channel has a value when there are reports to write

	mu                      sync.Mutex
	allocsChanged           chan struct{} // channel, closed and replaced when the desired allocations change
	pendingReports          map[string]scheduler.AllocReport
	currentWrite            map[string]scheduler.AllocReport // reports that are being written
	reportOrder             []string                         // keys of the map reports, oldest first
	urgentReports           map[string]bool                  // reports that must be written at once
	flushTimer              *time.Timer                      // timer that calls flush; nil if it is not set
	removedAllocs           []string
	collectReasons          map[string]string // reasons for removed directories, by allocation id; see ReportCollected
	pendingRemovalsAssigned bool              // the deleted allocations (see store.Reader.PendingRemovals) were assigned
}

var _ noderunner.AssignmentSource = (*AllocSync)(nil)

// allocReporter is the part of the scheduler that an AllocSync needs.
type allocReporter interface {
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
		store:            s,
		startedAllocs:    started,
		logger:           logger.Named("allocsync"),
		reportsAvailable: make(chan struct{}, 1),
		allocsChanged:    make(chan struct{}),
		pendingReports:   make(map[string]scheduler.AllocReport),
		urgentReports:    make(map[string]bool),
	}
}

// Allocs implements noderunner.Source. An allocation that was deleted before the
// first call, and is still on the disk, is assigned in the first call and missing
// in the next one, so that the node removes it.
func (r *AllocSync) Allocs() ([]noderunner.Assignment, <-chan struct{}) {
	r.mu.Lock()
	changed, first := r.allocsChanged, !r.pendingRemovalsAssigned
	r.pendingRemovalsAssigned = true
	r.mu.Unlock()
	s := r.store.Snapshot()
	var pendingRemovals []*api.Allocation
	if first { // removals include allocations that were deleted after Open, which the node has not seen either
		pendingRemovals = s.PendingRemovals()
	}
	var assignments []noderunner.Assignment
	for _, a := range scheduler.DesiredAllocs(s.Reader) {
		assignments = append(assignments, noderunner.Assignment{
			Alloc: a, TasksEnded: s.AllocationEnded(a.ID), StartedEarlier: r.startedAllocs[a.ID],
			JobPurged:        a.ServerTerminalStatus() && s.Job(nil, a.Namespace, a.JobID) == nil,
			CollectWhenEnded: s.IsAllocationCollectedAtEnd(a.ID),
		})
	}
	for _, a := range pendingRemovals {
		assignments = append(assignments, noderunner.Assignment{Alloc: a, TasksEnded: true})
	}
	if len(pendingRemovals) > 0 {
		r.AllocsChanged()
	}
	return assignments, changed
}

// AllocsChanged wakes the node runner, which lists the allocations again. It must be
// called when the desired allocations have changed.
func (r *AllocSync) AllocsChanged() {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.allocsChanged)
	r.allocsChanged = make(chan struct{})
}

// Report implements noderunner.Source.
func (r *AllocSync) Report(u allocrunner.StatusUpdate) {
	r.add(u.AllocID, func() bool { return r.isUrgentLocked(u) }, func(report *scheduler.AllocReport) {
		report.ClientStatus, report.ClientDescription = u.ClientStatus, u.ClientDescription
		report.TaskStates, report.NetworkStatus = u.TaskStates, u.NetworkStatus
		if h := u.Health; h != nil {
			report.Healthy, report.HealthyTime, report.DeploymentID = &h.Healthy, h.Time, h.DeploymentID
		}
	})
}

// ReportEnded implements noderunner.Source.
func (r *AllocSync) ReportEnded(allocID string, err error) {
	r.add(allocID, func() bool { return true }, func(report *scheduler.AllocReport) {
		report.TasksEnded = true
		if err != nil {
			report.ClientStatus = api.AllocClientStatusFailed
			report.ClientDescription = "Unable to add allocation due to error: " + err.Error()
		}
	})
}

// CollectAtEnd implements noderunner.Source.
func (r *AllocSync) CollectAtEnd(ctx context.Context, allocID string) error {
	_, err := r.store.Update(ctx, func(tx *store.Txn) error {
		tx.CollectAllocationAtEnd(allocID)
		return nil
	})
	return err
}

// ReportCollected implements noderunner.Source.
func (r *AllocSync) ReportCollected(allocID, reason string) {
	r.mu.Lock()
	if r.collectReasons == nil {
		r.collectReasons = make(map[string]string)
	}
	r.collectReasons[allocID] = reason
	r.mu.Unlock()
	r.wakeWriter()
}

// ReportRemoved implements noderunner.Source.
func (r *AllocSync) ReportRemoved(allocID string) {
	r.mu.Lock()
	r.removedAllocs = append(r.removedAllocs, allocID)
	r.mu.Unlock()
	r.wakeWriter()
}

// isUrgentLocked reports whether an update must be written at once: the status of
// the allocation, the state of a task or the first health differs from the stored
// one. Other updates only add events. A report that is being written counts as
// stored.
func (r *AllocSync) isUrgentLocked(u allocrunner.StatusUpdate) bool {
	known := r.store.Snapshot().Allocation(nil, u.AllocID)
	if w, found := r.currentWrite[u.AllocID]; found && known != nil && w.ClientStatus != "" {
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
	report, waits := r.pendingReports[allocID]
	if !waits {
		report.AllocID = allocID
		r.reportOrder = append(r.reportOrder, allocID)
	}
	edit(&report)
	r.pendingReports[allocID] = report
	switch {
	case urgent():
		r.urgentReports[allocID] = true
		r.wakeWriter()
	case r.flushTimer == nil:
		r.flushTimer = time.AfterFunc(maxReportDelay, r.markAllReportsUrgent)
	}
}

// markAllReportsUrgent makes all reports urgent.
func (r *AllocSync) markAllReportsUrgent() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.flushTimer = nil
	for _, id := range r.reportOrder {
		r.urgentReports[id] = true
	}
	r.wakeWriter()
}

// maxReportDelay is the maximum delay of a report that is not urgent.
const maxReportDelay = 100 * time.Millisecond

func (r *AllocSync) wakeWriter() {
	select {
	case r.reportsAvailable <- struct{}{}:
	default:
	}
}

// retryDelay is the time between two attempts to write updates that the store has refused.
const retryDelay = time.Second

// Run passes the reports to the scheduler until ctx ends, and then the remaining ones
// once.
func (r *AllocSync) Run(ctx context.Context, to allocReporter) {
	for {
		select {
		case <-r.reportsAvailable:
		case <-ctx.Done():
			r.markAllReportsUrgent()
			if err := r.writeReports(context.WithoutCancel(ctx), to); err != nil {
				r.logger.Error("last states of allocations not stored", "error", err)
			}
			return
		}
		for {
			err := r.writeReports(ctx, to)
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

// takeUrgentReports returns the urgent reports and the removed allocations. Reports that are not
// urgent stay queued, so that they do not delay the urgent ones.
func (r *AllocSync) takeUrgentReports() (reports []scheduler.AllocReport, removed []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var notUrgent []string
	r.currentWrite = make(map[string]scheduler.AllocReport)
	for _, id := range r.reportOrder {
		if r.urgentReports[id] {
			reports = append(reports, r.pendingReports[id])
			r.currentWrite[id] = r.pendingReports[id]
			delete(r.pendingReports, id)
		} else {
			notUrgent = append(notUrgent, id)
		}
	}
	removed = r.removedAllocs
	r.reportOrder, r.removedAllocs = notUrgent, nil
	clear(r.urgentReports)
	return reports, removed
}

// writeReports stores the urgent reports. Reports that cannot be stored are queued again,
// unless a newer report of the allocation has arrived.
func (r *AllocSync) writeReports(ctx context.Context, to allocReporter) error {
	reports, removed := r.takeUrgentReports()
	if len(reports) > 0 {
		_, err := to.Report(ctx, reports...)
		r.mu.Lock()
		r.currentWrite = nil
		r.mu.Unlock()
		if err != nil {
			r.putBackReports(reports, removed)
			return err
		}
	}
	if len(removed) > 0 {
		_, err := r.store.Update(ctx, func(tx *store.Txn) error {
			for _, id := range removed {
				if tx.Allocation(nil, id) == nil {
					tx.FinishAllocationRemoval(id)
				}
			}
			return nil
		})
		if err != nil {
			r.putBackReports(nil, removed)
			return err
		}
	}
	return r.writeCollectedAllocs(ctx)
}

// writeCollectedAllocs adds events to allocations whose directories were removed. It must
// follow the reports, because the last report of an allocation replaces its events.
func (r *AllocSync) writeCollectedAllocs(ctx context.Context) error {
	r.mu.Lock()
	collected := r.collectReasons
	r.collectReasons = nil
	r.mu.Unlock()
	if len(collected) == 0 {
		return nil
	}
	_, err := r.store.Update(ctx, func(tx *store.Txn) error {
		for id, reason := range collected {
			if old := tx.Allocation(nil, id); old != nil {
				tx.PutReportedAllocation(withCollectedEvent(old, reason, time.Now()))
			}
		}
		return nil
	})
	if err != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		for id, reason := range r.collectReasons {
			collected[id] = reason
		}
		r.collectReasons = collected
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

func (r *AllocSync) putBackReports(reports []scheduler.AllocReport, removed []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.removedAllocs = append(removed, r.removedAllocs...)
	var newOrder []string
	for _, old := range reports {
		id := old.AllocID
		newer, waits := r.pendingReports[id]
		if !waits {
			newOrder = append(newOrder, id)
		}
		ended := old.TasksEnded || newer.TasksEnded
		if newer.ClientStatus == "" { // the newer report is missing, or has only the field TasksEnded
			newer = old
		}
		newer.TasksEnded = ended
		r.pendingReports[id], r.urgentReports[id] = newer, true
	}
	r.reportOrder = append(newOrder, r.reportOrder...)
}
