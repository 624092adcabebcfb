package allocrunner

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/core"
	"github.com/nomad-lite/nomad-lite/runtime/core/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/core/lifecycle"
	"github.com/nomad-lite/nomad-lite/runtime/core/record"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskrunner"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// newLifecycle returns the coordinator for the tasks, which are given in job order, and the group's lifecycle
// extensions, nil if it uses none.
func newLifecycle(alloc *api.Allocation, tasks []taskrunner.Task, logger hclog.Logger) (*lifecycle.Coordinator, *lifecycle.ExtendedGroup) {
	stages := make([]lifecycle.Task, len(tasks))
	for i, task := range tasks {
		stages[i] = lifecycle.Task{Name: task.Name, Stage: task.Stage()}
	}
	extensions, err := model.LifecycleExtensions(alloc.Job, alloc.GetTaskGroup())
	if err != nil {
		// The job uses an unsupported extension: an earlier version, which did not know the key, has accepted the job.
		logger.Error("extensions of the lifecycle are ignored", "error", err)
	}
	return lifecycle.NewCoordinator(logger, stages), extensions
}

// setUpAllocOrKill prepares the allocation so that its tasks can run. If that fails, all tasks are killed before they
// start. Poststop tasks are killed too: no task has run, so they have nothing to clean up. restored means that an
// earlier agent started the allocation.
func (a *allocTasks) setUpAllocOrKill(untilStop context.Context, restored bool) {
	if restored && (a.state.isStopRequested() || a.onlyPoststopTasksRemain()) {
		return // no task needs the setup: killInOrder kills the tasks, or only poststop tasks remain
	}
	kill := func(reason stopReason) {
		for _, t := range a.taskSet {
			t.Kill(reason.killingEvent(t.Task()))
		}
	}
	noEvents := stopReason{omitEvents: true}
	if a.state.currentAlloc().ServerTerminalStatus() {
		kill(noEvents)
		return
	}
	if !restored {
		if err := a.fetchDriverDescriptions(untilStop); err != nil && untilStop.Err() == nil {
			a.logger.Error("alloc not added", "error", err)
			a.state.setPermanentOverride(statusOverride{api.AllocClientStatusFailed, fmt.Sprintf("Unable to add allocation due to error: %v", err)})
			kill(noEvents)
			return
		}
	}
	err := callPrerunHooks(untilStop, a, restored)
	switch {
	case a.state.isStopRequested() && restored:
	case a.state.isStopRequested():
		reason, _ := a.state.currentStop()
		kill(reason)
	case err != nil && untilStop.Err() == nil:
		a.logger.Error("alloc not set up", "error", err)
		a.emitEvent(model.EventSetupFailure(fmt.Sprintf("failed to setup alloc: %v", err)))
		kill(noEvents)
	}
}

// awaitAndAttachHooks blocks until the HookFactory knows all hooks or untilStop is done, and attaches the hooks. It does
// nothing if New has attached them.
func (r *Runner) awaitAndAttachHooks(untilStop context.Context) {
	if wait.IsClosed(r.hooksAttached) {
		return
	}
	awaitLaunches, emitEvent := r.config.HookFactory.PluginLaunchWaiterOrNil(r.config.Alloc), r.tasks.emitEvent
	if r.startedByEarlierAgent {
		limited, cancel := context.WithTimeout(untilStop, restoredHooksTimeout)
		defer cancel()
		untilStop, emitEvent = limited, func(*api.TaskEvent) {}
	}
	if awaitLaunches != nil && (r.startedByEarlierAgent || !r.Alloc().ServerTerminalStatus()) {
		awaitLaunches(untilStop, emitEvent)
	}
	r.attachHooks()
}

// restoredHooksTimeout is how long a restored allocation waits until the HookFactory knows all hooks. A longer wait is
// not necessary, because its tasks run already and the records contain their hooks.
const restoredHooksTimeout = 2 * time.Second

// attachHooks creates the hooks for the allocation and its tasks, and sets them in their runners. It is called once,
// before any hook is called.
func (r *Runner) attachHooks() {
	lists := make([][]hooks.OrderedHook, len(r.tasks.taskSet))
	for i, t := range r.tasks.taskSet {
		lists[i] = newTaskHooks(r, t, r.config.Alloc.GetTaskGroup().Tasks[i])
	}
	chain := hooks.NewChain(hooks.ChainConfig{
		Limits: r.config.Limits.hookCallLimits(), EmitEvent: r.tasks.emitEvent, Timeline: r.timeline.Recorder("", r.secrets), Observer: r.config.Metrics, Logger: r.logger,
	}, newAllocHooks(r))
	r.state.setHooks(chain)
	for i, t := range r.tasks.taskSet {
		t.SetHooks(lists[i], chain.AttachmentByHookName())
	}
	close(r.hooksAttached)
}

// newTaskHooks returns a task's hooks.
func newTaskHooks(r *Runner, runner *taskrunner.Runner, t *api.Task) []hooks.OrderedHook {
	list := []hooks.OrderedHook{{Order: hooks.OrderLast, Hook: r.statsHooks[t.Name]}}
	list = append(list, r.workspace.TaskHooks(taskAccess{runner}, t)...)
	if r.config.HookFactory != nil {
		pluginHooks := r.config.HookFactory.NewTaskHooks(r.config.Alloc, t, newAttachTarget(r, t.Name, runner.EmitEvent, r.attachmentsByTaskAndHook[t.Name]))
		r.state.addPluginHooks(t, pluginHooks)
		list = append(list, pluginHooks...)
	}
	return list
}

// newAttachTarget returns the target for the HookFactory's hooks: the allocation if task is empty, otherwise one task.
// previousConfigByHook has the configurations that the target's hooks had under an earlier agent, by hook name.
func newAttachTarget(r *Runner, task string, emit func(*api.TaskEvent), previousConfigByHook map[string]string) hooks.AttachTarget {
	return hooks.AttachTarget{
		AllocID: r.config.Alloc.ID, TaskName: task, EmitEvent: emit, Secrets: r.secrets, PreviousAttachmentJSONByHook: previousConfigByHook,
		AllocJSON: func() ([]byte, error) { return json.Marshal(r.Alloc()) },
		TasksRun: func() bool {
			_, err := r.tasks.namedOrAllRunningTasks(task)
			return err == nil
		},
	}
}

// newAllocHooks returns the allocation's hooks.
func newAllocHooks(r *Runner) []hooks.OrderedHook {
	c := &r.config
	maxRun := hooks.NewMaxRunDurationHook(func() time.Time { return maxRunDeadline(r.Alloc()) }, r.tasks.completeForMaxRunDuration)
	health := r.tasks.newHealthHook(r.timeline.Recorder("", r.secrets))
	list := []hooks.OrderedHook{{Order: hooks.OrderFirst, Hook: maxRun}}
	list = append(list, r.workspace.AllocHooks(r.tasks.coreTasks())...)
	list = append(list, hooks.OrderedHook{Order: hooks.OrderFirst, Hook: health}, hooks.OrderedHook{Order: hooks.OrderLast, Hook: health.WatchRestartHook()})
	if c.HookFactory != nil {
		var earlierConfigByHook map[string]string
		if c.EarlierRecords != nil {
			earlierConfigByHook = c.EarlierRecords.AttachmentConfigByHook(c.Alloc.ID)
		}
		pluginHooks := c.HookFactory.NewAllocHooks(c.Alloc, newAttachTarget(r, "", r.tasks.emitEvent, earlierConfigByHook))
		r.state.addPluginHooks(nil, pluginHooks)
		list = append(list, pluginHooks...)
	}
	return list
}

// maxRunDeadline returns when max_run_duration has passed since the allocation was created. It returns the zero time if
// the allocation has no such limit, which only batch and sysbatch jobs have.
func maxRunDeadline(a *api.Allocation) time.Time {
	limit := a.GetTaskGroup().MaxRunDuration
	if jobType := pointer.Value(a.Job.Type); limit == nil || *limit <= 0 || jobType != "batch" && jobType != "sysbatch" {
		return time.Time{}
	}
	created := time.Unix(0, a.CreateTime)
	if now := time.Now(); created.After(now) {
		created = now // the clock was ahead when the allocation was created
	}
	return created.Add(*limit)
}

// taskStore implements taskrunner.TaskRecordStore for one task.
type taskStore struct {
	store         core.Store
	allocID, task string
}

func (s taskStore) PutTaskState(state *api.TaskState, durability state.Durability) state.WaitDurableFunc {
	return s.store.PutTaskState(s.allocID, s.task, state, durability)
}

func (s taskStore) TaskHandle(startID string) (*driver.Handle, error) {
	return s.store.TaskHandle(s.allocID, s.task, startID)
}

func (s taskStore) PutBothRecords(fields record.Fields, state *api.TaskState, durability state.Durability) state.WaitDurableFunc {
	return s.store.PutTask(s.allocID, s.task, fields, state, durability)
}
