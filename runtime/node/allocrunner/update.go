package allocrunner

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/failpoint"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/taskrunner"
)

// allocUpdater applies newer versions of the allocation to the tasks, one version after the other.
type allocUpdater struct {
	currentAlloc    *atomic.Pointer[api.Allocation] // current version of the allocation; only applyVersion replaces it
	tasks           taskSet
	envBuilders     *envBuilders
	limits          Limits
	callUpdateHooks func(context.Context) // calls the Update hooks
	requestStop     func()                // requests the stop of the allocation
	logger          hclog.Logger

	nextAllocReceived   chan struct{} // receives a value when nextAlloc is set; capacity 1
	stopVersionReceived chan struct{} // closed when putNextAlloc receives a version that stops the allocation

	mu        sync.Mutex
	nextAlloc *api.Allocation // newest version that is not applied yet; nil if there is none
}

// putNextAlloc makes alloc the next version to apply, unless a newer version waits already. It does not block.
func (u *allocUpdater) putNextAlloc(alloc *api.Allocation) {
	u.mu.Lock()
	if u.nextAlloc == nil || u.nextAlloc.AllocModifyIndex <= alloc.AllocModifyIndex {
		u.nextAlloc = alloc
	}
	if alloc.ServerTerminalStatus() {
		closeOnce(u.stopVersionReceived)
	}
	u.mu.Unlock()
	select {
	case u.nextAllocReceived <- struct{}{}:
	default:
	}
}

func (u *allocUpdater) takeNextAlloc() *api.Allocation {
	u.mu.Lock()
	defer u.mu.Unlock()
	alloc := u.nextAlloc
	u.nextAlloc = nil
	return alloc
}

// applyNextAlloc applies the newest version, if it is not applied yet.
func (u *allocUpdater) applyNextAlloc(ctx context.Context) {
	if alloc := u.takeNextAlloc(); alloc != nil {
		u.applyVersion(ctx, alloc)
	}
}

func (u *allocUpdater) applyVersion(ctx context.Context, alloc *api.Allocation) {
	old := u.currentAlloc.Load()
	if alloc.AllocModifyIndex < old.AllocModifyIndex {
		return
	}
	group := alloc.GetTaskGroup()
	if group == nil {
		u.logger.Error("update ignored: its job lacks the group", "group", alloc.TaskGroup)
		return
	}
	step := failpoint.StepUpdateInPlace
	if alloc.ServerTerminalStatus() {
		step = failpoint.StepUpdateStop
	}
	failpoint.Hit(step, failpoint.PhaseBefore)
	u.currentAlloc.Store(alloc)
	tasks := make([]taskrunner.Task, len(u.tasks))
	missing := make([]error, len(u.tasks))
	for i, t := range u.tasks {
		if tasks[i], missing[i] = toTaskRunnerTask(alloc, group, t.Name(), u.limits); missing[i] == nil {
			u.envBuilders.setAllocOfTaskEnv(alloc, t.Name())
		}
	}
	callHooks := !alloc.ServerTerminalStatus() // for a version that stops the allocation, the hooks of the stop are called instead
	if callHooks {
		u.callUpdateHooks(ctx) // the hooks read the environments that were set above
	}
	failpoint.Hit(step, failpoint.PhaseDuring)
	for i, t := range u.tasks {
		if err := missing[i]; err != nil {
			u.logger.Error("task killed", "task", t.Name(), "error", err)
			t.Kill(model.EventKillingReason("update missing task", true))
			continue
		}
		t.Update(tasks[i], callHooks)
	}
	if alloc.ServerTerminalStatus() && !old.ServerTerminalStatus() {
		u.requestStop()
	}
	failpoint.Hit(step, failpoint.PhaseAfter)
}
