package allocrunner

import (
	"context"
	"sync"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/failpoint"
	"github.com/nomad-lite/nomad-lite/runtime/model"
	"github.com/nomad-lite/nomad-lite/runtime/taskrunner"
)

// updates holds the newest version of the allocation that is not applied yet.
type updates struct {
	ready chan struct{} // holds a tick when next is set
	last  chan struct{} // closed when put receives a version that stops the allocation

	mu   sync.Mutex
	next *api.Allocation
}

// put replaces a waiting version unless the waiting version is newer.
func (u *updates) put(alloc *api.Allocation) {
	u.mu.Lock()
	if u.next == nil || u.next.AllocModifyIndex <= alloc.AllocModifyIndex {
		u.next = alloc
	}
	if alloc.ServerTerminalStatus() {
		closeOnce(u.last)
	}
	u.mu.Unlock()
	select {
	case u.ready <- struct{}{}:
	default:
	}
}

func (u *updates) take() *api.Allocation {
	u.mu.Lock()
	defer u.mu.Unlock()
	alloc := u.next
	u.next = nil
	return alloc
}

// Update passes a newer version of the allocation. It does not block. A version that is
// desired to stop stops the tasks. Versions may be skipped, but none is applied after a
// newer version. The caller must not change the version afterwards.
func (r *Runner) Update(alloc *api.Allocation) {
	if alloc.DesiredTransition.ShouldIgnoreShutdownDelay() {
		r.skipShutdownDelay()
	}
	r.updates.put(alloc)
}

func (r *Runner) applyUpdate(ctx context.Context) {
	if alloc := r.updates.take(); alloc != nil {
		r.apply(ctx, alloc)
	}
}

func (r *Runner) apply(ctx context.Context, alloc *api.Allocation) {
	old := r.Alloc()
	if alloc.AllocModifyIndex < old.AllocModifyIndex {
		return
	}
	group := alloc.GetTaskGroup()
	if group == nil {
		r.logger.Error("update ignored: its job lacks the group", "group", alloc.TaskGroup)
		return
	}
	step := failpoint.UpdateInPlace
	if alloc.ServerTerminalStatus() {
		step = failpoint.UpdateStop
	}
	failpoint.Hit(step, failpoint.Before)
	r.mu.Lock()
	r.alloc = alloc
	r.mu.Unlock()
	tasks := make([]taskrunner.Task, len(r.tasks))
	missing := make([]error, len(r.tasks))
	for i, t := range r.tasks {
		if tasks[i], missing[i] = taskOf(alloc, group, t.Name(), r.limits); missing[i] == nil {
			r.envs[t.Name()].SetAlloc(envAlloc(alloc), envTask(alloc, group, t.Name()))
		}
	}
	update := (*taskrunner.Runner).SetTask // a stop calls its own hooks, so Update hooks are not called
	if !alloc.ServerTerminalStatus() {
		update = (*taskrunner.Runner).Update
		r.updateHooks(ctx) // after the environments are set
	}
	failpoint.Hit(step, failpoint.During)
	for i, t := range r.tasks {
		if err := missing[i]; err != nil {
			r.logger.Error("task killed", "task", t.Name(), "error", err)
			t.Kill(model.EventKillingReason("update missing task", true))
			continue
		}
		update(t, tasks[i])
	}
	if alloc.ServerTerminalStatus() && !old.ServerTerminalStatus() {
		r.Stop()
	}
	failpoint.Hit(step, failpoint.After)
}
