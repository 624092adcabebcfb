package localnode

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/runtime/core/noderunner"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// AllocSync connects the node runner with the store: it lists the node's
// allocations and writes their reports through the scheduler.
//
// Reports are written as fast as the disk allows. A report that arrives during a write is part of the next write, and only an
// allocation's latest report is written. A report that only adds events, without a state change, is written with its allocation's
// next urgent report or after maxReportDelay.
type AllocSync struct {
	store                *store.Store
	allocsOfEarlierAgent map[string]bool // allocations started by an earlier agent
	// jobsAreStored means that the store has all allocations' jobs, so a missing job was purged.
	jobsAreStored bool
	logger        hclog.Logger

	reportsAvailable chan struct{} // wakeWriter sends a value when there are reports to write

	mu                           sync.Mutex
	allocsChanged                chan struct{}                // closed and replaced when the desired allocations change
	pendingReportByAllocID       map[string]model.AllocReport // reports not written yet, by allocation id
	writingReportByAllocID       map[string]model.AllocReport // reports being written by writeReports, by allocation id
	pendingReportAllocIDs        []string                     // keys of pendingReportByAllocID, oldest report first
	urgentReportAllocIDs         map[string]bool              // keys in pendingReportByAllocID to be written at once
	flushTimer                   *time.Timer                  // calls markAllReportsUrgent after maxReportDelay; nil if it is not set
	endedTimer                   *time.Timer                  // calls notifyOfEndedAllocs after endedNotifyDelay; nil if it is not set
	removedAllocIDs              []string                     // removed allocations not yet recorded in the store
	unstoredGCReasonByAllocID    map[string]string            // allocation id -> why its directory was removed; not stored yet
	allocsPendingRemovalReturned bool                         // Assignments has returned the allocations from store.Reader.AllocationsPendingRemoval
	withheldAllocs               map[string]bool              // allocations left out by Assignments
}

var _ noderunner.AssignmentSource = (*AllocSync)(nil)

// allocReporter is the part of the scheduler used by an AllocSync.
type allocReporter interface {
	ApplyAllocReports(context.Context, ...model.AllocReport) (index uint64, err error)
}

// NewAllocSync returns an AllocSync. An allocation counts as started by an earlier agent if the store s has records of its tasks.
// jobsAreStored means that s has all allocations' jobs: a cluster's jobs are at its servers.
func NewAllocSync(s *store.Store, jobsAreStored bool, logger hclog.Logger) *AllocSync {
	started := make(map[string]bool)
	for _, id := range s.Snapshot().AllocIDsWithLocalRecords() {
		started[id] = true
	}
	return &AllocSync{
		store:                  s,
		allocsOfEarlierAgent:   started,
		jobsAreStored:          jobsAreStored,
		logger:                 logger.Named("allocsync"),
		reportsAvailable:       make(chan struct{}, 1),
		allocsChanged:          make(chan struct{}),
		pendingReportByAllocID: make(map[string]model.AllocReport),
		urgentReportAllocIDs:   make(map[string]bool),
	}
}

// Assignments implements noderunner.AssignmentSource. If an allocation was deleted before the first call, and is still on the
// disk, it is assigned in the first call and missing in the second call, so that the node runner removes its directory.
func (al *AllocSync) Assignments() (assignments []noderunner.Assignment, changed <-chan struct{}) {
	al.mu.Lock()
	changed, first, withheld := al.allocsChanged, !al.allocsPendingRemovalReturned, al.withheldAllocs
	al.allocsPendingRemovalReturned = true
	al.mu.Unlock()
	s := al.store.Snapshot()
	var pendingRemovals []*api.Allocation
	if first { // AllocationsPendingRemoval also has allocations deleted since Open, which the node runner has not seen either
		pendingRemovals = s.AllocationsPendingRemoval()
	}
	ended, dirsMarkedForRemoval := s.EndedAllocations(), s.AllocationDirsMarkedForRemoval()
	for _, a := range scheduler.DesiredAllocs(s.Reader) {
		if withheld[a.ID] {
			continue
		}
		assignments = append(assignments, noderunner.Assignment{
			Alloc: a, AllocEnded: ended[a.ID], StartedByEarlierAgent: al.allocsOfEarlierAgent[a.ID],
			JobPurged:          al.jobsAreStored && a.ServerTerminalStatus() && s.Job(nil, a.Namespace, a.JobID) == nil,
			RemoveDirWhenEnded: dirsMarkedForRemoval[a.ID],
		})
	}
	for _, a := range pendingRemovals {
		assignments = append(assignments, noderunner.Assignment{Alloc: a, AllocEnded: true})
	}
	if len(pendingRemovals) > 0 {
		al.NotifyAllocsChanged()
	}
	return assignments, changed
}

// WithholdAllocs makes Assignments leave out allocations until ReleaseAllocs. It must be called before Assignments, and the
// caller must not modify ids after the call.
func (al *AllocSync) WithholdAllocs(ids map[string]bool) {
	al.mu.Lock()
	defer al.mu.Unlock()
	al.withheldAllocs = ids
}

// ReleaseAllocs makes Assignments return the withheld allocations, if they still exist.
func (al *AllocSync) ReleaseAllocs() {
	al.mu.Lock()
	withheld := al.withheldAllocs
	al.withheldAllocs = nil
	al.mu.Unlock()
	if len(withheld) > 0 { // otherwise the node runner would compare all allocations at each start
		al.NotifyAllocsChanged()
	}
}

// NotifyAllocsChanged wakes the node runner, which then calls Assignments again. The scheduler must call it when the
// desired allocations have changed.
func (al *AllocSync) NotifyAllocsChanged() {
	al.mu.Lock()
	defer al.mu.Unlock()
	close(al.allocsChanged)
	al.allocsChanged = make(chan struct{})
}

// endedNotifyDelay is the time after which the node runner gets the last versions of ended allocations. The node runner compares
// all allocations each time, which must not happen for each of thousands that end one after the other.
const endedNotifyDelay = time.Second

// notifyOfEndedAllocsLater makes the node runner replace its versions of ended allocations by those in the store, so that the
// memory has one version each.
func (al *AllocSync) notifyOfEndedAllocsLater() {
	al.mu.Lock()
	defer al.mu.Unlock()
	if al.endedTimer == nil {
		al.endedTimer = time.AfterFunc(endedNotifyDelay, al.notifyOfEndedAllocs)
	}
}

func (al *AllocSync) notifyOfEndedAllocs() {
	al.mu.Lock()
	al.endedTimer = nil
	al.mu.Unlock()
	al.NotifyAllocsChanged()
}

// ReportStatus implements noderunner.AssignmentSource. It does not wait for the write.
func (al *AllocSync) ReportStatus(u model.AllocReport) {
	al.editPendingReport(u.AllocID, func() bool { return al.isUrgentLocked(u) }, func(report *model.AllocReport) {
		u.TasksAndHooksEnded, u.Health = report.TasksAndHooksEnded, cmp.Or(u.Health, report.Health)
		*report = u
	})
}

// ReportEnded implements noderunner.AssignmentSource. It does not wait for the write.
func (al *AllocSync) ReportEnded(allocID string, err error) {
	al.editPendingReport(allocID, func() bool { return true }, func(report *model.AllocReport) {
		report.TasksAndHooksEnded = true
		if err != nil {
			report.ClientStatus = api.AllocClientStatusFailed
			report.ClientDescription = "Unable to add allocation due to error: " + err.Error()
		}
	})
}

// StoreRemoveDirAtEnd implements noderunner.AssignmentSource. It returns when the request is stored.
func (al *AllocSync) StoreRemoveDirAtEnd(ctx context.Context, allocID string) error {
	_, err := al.store.Update(ctx, func(tx *store.Txn) error {
		tx.MarkAllocationDirForRemovalAtEnd(allocID)
		return nil
	})
	return err
}

// ReportDirRemoved implements noderunner.AssignmentSource. It does not wait for the write.
func (al *AllocSync) ReportDirRemoved(allocID, reason string) {
	al.mu.Lock()
	if al.unstoredGCReasonByAllocID == nil {
		al.unstoredGCReasonByAllocID = make(map[string]string)
	}
	al.unstoredGCReasonByAllocID[allocID] = reason
	al.mu.Unlock()
	al.wakeWriter()
}

// ReportAllocRemoved implements noderunner.AssignmentSource. It does not wait for the write.
func (al *AllocSync) ReportAllocRemoved(allocID string) {
	al.mu.Lock()
	al.removedAllocIDs = append(al.removedAllocIDs, allocID)
	al.mu.Unlock()
	al.wakeWriter()
}

// isUrgentLocked reports whether an update must be written at once, because it changes the allocation's status or a task's state,
// or has the allocation's first health. Other updates only add events. A report being written by writeReports counts as stored.
func (al *AllocSync) isUrgentLocked(u model.AllocReport) bool {
	known := al.store.Snapshot().Allocation(nil, u.AllocID)
	if w, found := al.writingReportByAllocID[u.AllocID]; found && known != nil && w.ClientStatus != "" {
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

// editPendingReport calls edit with an allocation's pending report, or with a new report if none is pending.
func (al *AllocSync) editPendingReport(allocID string, isUrgent func() bool, edit func(*model.AllocReport)) {
	al.mu.Lock()
	defer al.mu.Unlock()
	report, waits := al.pendingReportByAllocID[allocID]
	if !waits {
		report.AllocID = allocID
		al.pendingReportAllocIDs = append(al.pendingReportAllocIDs, allocID)
	}
	edit(&report)
	al.pendingReportByAllocID[allocID] = report
	switch {
	case isUrgent():
		al.urgentReportAllocIDs[allocID] = true
		al.wakeWriter()
	case al.flushTimer == nil:
		al.flushTimer = time.AfterFunc(maxReportDelay, al.markAllReportsUrgent)
	}
}

// markAllReportsUrgent makes Run write all pending reports.
func (al *AllocSync) markAllReportsUrgent() {
	al.mu.Lock()
	defer al.mu.Unlock()
	al.flushTimer = nil
	for _, id := range al.pendingReportAllocIDs {
		al.urgentReportAllocIDs[id] = true
	}
	al.wakeWriter()
}

// maxReportDelay is a non-urgent report's maximum delay.
const maxReportDelay = 100 * time.Millisecond

func (al *AllocSync) wakeWriter() {
	wait.Notify(al.reportsAvailable)
}

// retryDelay is the delay before reports, or the node record, are written again after a store error.
const retryDelay = time.Second

// Run passes the reports to the scheduler until ctx ends. Then it tries once to pass the pending reports, and returns.
func (al *AllocSync) Run(ctx context.Context, reporter allocReporter) {
	for {
		select {
		case <-al.reportsAvailable:
		case <-ctx.Done():
			al.markAllReportsUrgent()
			if err := al.writeReports(context.WithoutCancel(ctx), reporter); err != nil {
				al.logger.Error("last states of allocations not stored", "error", err)
			}
			return
		}
		for {
			err := al.writeReports(ctx, reporter)
			if err == nil || ctx.Err() != nil {
				break
			}
			al.logger.Error("states of allocations not stored", "error", err)
			select {
			case <-time.After(retryDelay):
			case <-ctx.Done():
			}
		}
	}
}

// takeUrgentReports removes and returns the urgent reports and the removed allocations' ids. Other reports stay pending, so that
// they do not delay the urgent reports.
func (al *AllocSync) takeUrgentReports() (reports []model.AllocReport, removedAllocIDs []string) {
	al.mu.Lock()
	defer al.mu.Unlock()
	var notUrgent []string
	al.writingReportByAllocID = make(map[string]model.AllocReport)
	for _, id := range al.pendingReportAllocIDs {
		if al.urgentReportAllocIDs[id] {
			reports = append(reports, al.pendingReportByAllocID[id])
			al.writingReportByAllocID[id] = al.pendingReportByAllocID[id]
			delete(al.pendingReportByAllocID, id)
		} else {
			notUrgent = append(notUrgent, id)
		}
	}
	removedAllocIDs = al.removedAllocIDs
	al.pendingReportAllocIDs, al.removedAllocIDs = notUrgent, nil
	clear(al.urgentReportAllocIDs)
	return reports, removedAllocIDs
}

// writeReports stores the urgent reports. If they cannot be stored, it makes them pending again, except those with a newer report
// for the same allocation.
func (al *AllocSync) writeReports(ctx context.Context, to allocReporter) error {
	reports, removed := al.takeUrgentReports()
	if len(reports) > 0 {
		_, err := to.ApplyAllocReports(ctx, reports...)
		al.mu.Lock()
		al.writingReportByAllocID = nil
		al.mu.Unlock()
		if err != nil {
			al.requeueReports(reports, removed)
			return err
		}
		if slices.ContainsFunc(reports, func(r model.AllocReport) bool { return r.TasksAndHooksEnded }) {
			al.notifyOfEndedAllocsLater()
		}
	}
	if len(removed) > 0 {
		_, err := al.store.Update(ctx, func(tx *store.Txn) error {
			for _, id := range removed {
				if tx.Allocation(nil, id) == nil {
					tx.FinishAllocationRemoval(id)
				}
			}
			return nil
		})
		if err != nil {
			al.requeueReports(nil, removed)
			return err
		}
	}
	return al.writeGCEvents(ctx)
}

// writeGCEvents adds events to the tasks of allocations with removed directories. It must be called after the reports were
// stored, because an allocation's last report replaces its events.
func (al *AllocSync) writeGCEvents(ctx context.Context) error {
	al.mu.Lock()
	collected := al.unstoredGCReasonByAllocID
	al.unstoredGCReasonByAllocID = nil
	al.mu.Unlock()
	if len(collected) == 0 {
		return nil
	}
	_, err := al.store.Update(ctx, func(tx *store.Txn) error {
		for id, reason := range collected {
			if old := tx.Allocation(nil, id); old != nil {
				tx.PutReportedAllocation(withDirRemovedEvent(old, reason, time.Now()))
			}
		}
		return nil
	})
	if err != nil {
		al.mu.Lock()
		defer al.mu.Unlock()
		for id, reason := range al.unstoredGCReasonByAllocID {
			collected[id] = reason
		}
		al.unstoredGCReasonByAllocID = collected
	}
	return err
}

// withDirRemovedEvent returns a copy of an allocation in which each task has an event about the removed directory.
func withDirRemovedEvent(old *api.Allocation, reason string, now time.Time) *api.Allocation {
	alloc := *old
	alloc.TaskStates = make(map[string]*api.TaskState, len(old.TaskStates))
	for name, state := range old.TaskStates {
		state = model.CopyTaskState(state)
		model.AppendTaskEvent(state, model.EventAllocDirRemoved(reason), now)
		alloc.TaskStates[name] = state
	}
	return &alloc
}

// requeueReports makes unstored reports and removals pending and urgent again. An allocation's newer report wins.
func (al *AllocSync) requeueReports(reports []model.AllocReport, removedAllocIDs []string) {
	al.mu.Lock()
	defer al.mu.Unlock()
	al.removedAllocIDs = append(removedAllocIDs, al.removedAllocIDs...)
	var newOrder []string
	for _, old := range reports {
		id := old.AllocID
		newer, waits := al.pendingReportByAllocID[id]
		if !waits {
			newOrder = append(newOrder, id)
		}
		ended := old.TasksAndHooksEnded || newer.TasksAndHooksEnded
		if newer.ClientStatus == "" { // the newer report is missing, or has only the field TasksAndHooksEnded
			newer = old
		}
		newer.TasksAndHooksEnded = ended
		al.pendingReportByAllocID[id], al.urgentReportAllocIDs[id] = newer, true
	}
	al.pendingReportAllocIDs = append(newOrder, al.pendingReportAllocIDs...)
}
