package agent

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

// allocSync is where the node gets its allocations from, and where their states go:
// the store, by way of the scheduler.
//
// Reports are written as fast as the disk takes them. What comes while a write is
// under way goes with the next one, and of one allocation only the latest state.
// One that tells of no other state, but only what has happened, goes with the next
// one of its allocation that does, or after a while.
type allocSync struct {
	store     *store.Store
	scheduler *scheduler.Scheduler
	nodeID    string
	started   map[string]bool // allocations that an earlier agent has begun to run
	logger    hclog.Logger

	wake chan struct{} // holds a tick when there are reports

	mu        sync.Mutex
	changed   chan struct{} // closed and replaced when other allocations are desired
	reports   map[string]scheduler.Report
	writing   map[string]scheduler.Report // what is being stored now
	order     []string                    // of the reports
	urgent    map[string]bool             // which of them somebody may wait for
	idle      *time.Timer                 // makes the others urgent; nil if it is not set
	removed   []string
	collected map[string]string // reasons by allocation; see Collected
	assigned  bool              // what leaving returns was assigned
}

var _ noderunner.Source = (*allocSync)(nil)

// Allocs implements noderunner.Source. What was deleted before the first call, and is not
// off the disk, is assigned once more, and then missing, as everything that is removed.
func (r *allocSync) Allocs() ([]noderunner.Assignment, <-chan struct{}) {
	r.mu.Lock()
	changed, first := r.changed, !r.assigned
	r.assigned = true
	r.mu.Unlock()
	s := state{r.store.Snapshot().Reader, r.nodeID}
	var gone []*api.Allocation
	if first { // the node has not had what was deleted since the agent was opened, either
		gone = leaving(s.r)
	}
	var assignments []noderunner.Assignment
	for _, a := range scheduler.Desired(s) {
		assignments = append(assignments, noderunner.Assignment{
			Alloc: a, Ended: s.Ended(a.ID), Started: r.started[a.ID],
			Purged:  a.ServerTerminalStatus() && s.Job(scheduler.JobKey{Namespace: a.Namespace, ID: a.JobID}) == nil,
			Collect: s.r.HasFact(collectKey + a.ID),
		})
	}
	for _, a := range gone {
		assignments = append(assignments, noderunner.Assignment{Alloc: a, Ended: true})
	}
	if len(gone) > 0 {
		r.desired()
	}
	return assignments, changed
}

// desired tells the node that it has to look again.
func (r *allocSync) desired() {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.changed)
	r.changed = make(chan struct{})
}

// Report implements noderunner.Source.
func (r *allocSync) Report(u allocrunner.Update) {
	r.add(u.AllocID, func() bool { return r.isUrgentLocked(u) }, func(report *scheduler.Report) {
		report.ClientStatus, report.ClientDescription = u.ClientStatus, u.ClientDescription
		report.TaskStates, report.NetworkStatus = u.TaskStates, u.NetworkStatus
		if h := u.Health; h != nil {
			report.Healthy, report.HealthyTime, report.DeploymentID = &h.Healthy, h.Time, h.DeploymentID
		}
	})
}

// Ended implements noderunner.Source.
func (r *allocSync) Ended(allocID string, err error) {
	r.add(allocID, func() bool { return true }, func(report *scheduler.Report) {
		report.Ended = true
		if err != nil {
			report.ClientStatus = api.AllocClientStatusFailed
			report.ClientDescription = "Unable to add allocation due to error: " + err.Error()
		}
	})
}

// CollectAtEnd implements noderunner.Source.
func (r *allocSync) CollectAtEnd(ctx context.Context, allocID string) error {
	_, err := r.store.Update(ctx, func(tx *store.Txn) error {
		if tx.Allocation(nil, allocID) != nil {
			tx.PutMeta(collectKey+allocID, true)
		}
		return nil
	})
	return err
}

// Collected implements noderunner.Source.
func (r *allocSync) Collected(allocID, reason string) {
	r.mu.Lock()
	if r.collected == nil {
		r.collected = make(map[string]string)
	}
	r.collected[allocID] = reason
	r.mu.Unlock()
	r.tick()
}

// Removed implements noderunner.Source.
func (r *allocSync) Removed(allocID string) {
	r.mu.Lock()
	r.removed = append(r.removed, allocID)
	r.mu.Unlock()
	r.tick()
}

// isUrgentLocked reports whether somebody may wait for what a report says: that an
// allocation or a task is not in the state that is known, or that its health is.
// What else has happened to it is for those who look. A report that is being stored
// counts as known.
func (r *allocSync) isUrgentLocked(u allocrunner.Update) bool {
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

func (r *allocSync) add(allocID string, urgent func() bool, edit func(*scheduler.Report)) {
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
	case r.idle == nil:
		r.idle = time.AfterFunc(batchInterval, r.flush)
	}
}

// flush has all reports written.
func (r *allocSync) flush() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.idle = nil
	for _, id := range r.order {
		r.urgent[id] = true
	}
	r.tick()
}

// batchInterval is how long a report may wait that nobody waits for.
const batchInterval = 100 * time.Millisecond

func (r *allocSync) tick() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// pause between two tries to write what the disk has refused.
const pause = time.Second

// run writes reports until ctx ends, and those that are there then.
func (r *allocSync) run(ctx context.Context) {
	for {
		select {
		case <-r.wake:
		case <-ctx.Done():
			r.flush()
			if err := r.write(context.WithoutCancel(ctx)); err != nil {
				r.logger.Error("last states of allocations not stored", "error", err)
			}
			return
		}
		for {
			err := r.write(ctx)
			if err == nil || ctx.Err() != nil {
				break
			}
			r.logger.Error("states of allocations not stored", "error", err)
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
		}
	}
}

// take returns what is to be written now. Who is to be told at once does not wait
// for what nobody is to be told of.
func (r *allocSync) take() (reports []scheduler.Report, removed []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var rest []string
	r.writing = make(map[string]scheduler.Report)
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

// write stores the urgent reports. Those that cannot be stored are kept, unless newer
// ones have come.
func (r *allocSync) write(ctx context.Context) error {
	reports, removed := r.take()
	if len(reports) > 0 {
		_, err := r.scheduler.Report(ctx, reports...)
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
					forget(tx, id)
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

// writeCollected adds events to allocations whose directories were removed. It comes
// after the reports, of which the last one would replace the events.
func (r *allocSync) writeCollected(ctx context.Context) error {
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
		model.AppendTaskEvent(state, model.EventDirCollected(reason), now)
		alloc.TaskStates[name] = state
	}
	return &alloc
}

func (r *allocSync) putBack(reports []scheduler.Report, removed []string) {
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
		if newer.ClientStatus == "" { // there is none, or it says nothing but the end
			newer = old
		}
		newer.Ended = ended
		r.reports[id], r.urgent[id] = newer, true
	}
	r.order = append(order, r.order...)
}
