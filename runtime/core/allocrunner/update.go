package allocrunner

import (
	"context"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/failpoint"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskrunner"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// applyVersionUnlessOlder applies an allocation version to the tasks, unless it is older than the current one.
func (a *allocTasks) applyVersionUnlessOlder(ctx context.Context, alloc *api.Allocation, limits Limits) {
	old := a.state.currentAlloc()
	if alloc.AllocModifyIndex < old.AllocModifyIndex {
		return
	}
	group := alloc.GetTaskGroup()
	if group == nil {
		a.logger.Error("update ignored: its job lacks the group", "group", alloc.TaskGroup)
		return
	}
	step := failpoint.StepUpdateInPlace
	if alloc.ServerTerminalStatus() {
		step = failpoint.StepUpdateStop
	}
	failpoint.Hit(step, failpoint.PhaseBefore)
	a.state.setAlloc(alloc)
	tasks := make([]taskrunner.Task, len(a.taskSet))
	missing := make([]error, len(a.taskSet))
	for i, t := range a.taskSet {
		if tasks[i], missing[i] = toTaskRunnerTask(alloc, group, t.Name(), limits); missing[i] == nil {
			a.rebuildTaskEnv(alloc, t.Name())
		}
	}
	callHooks := !alloc.ServerTerminalStatus() // if the version stops the allocation, the stop's hooks are called instead
	if callHooks {
		callUpdateHooks(ctx, a) // the hooks read the environments set above
	}
	failpoint.Hit(step, failpoint.PhaseDuring)
	for i, t := range a.taskSet {
		if err := missing[i]; err != nil {
			a.logger.Error("task killed", "task", t.Name(), "error", err)
			t.Kill(model.EventKillingReason("update missing task", true))
			continue
		}
		t.Update(tasks[i], callHooks)
	}
	if alloc.ServerTerminalStatus() && !old.ServerTerminalStatus() {
		a.state.requestStop(stopReason{})
	}
	failpoint.Hit(step, failpoint.PhaseAfter)
}
