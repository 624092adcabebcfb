package allocrunner

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/core"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskrunner"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// Runner's methods in this file are the requests from users and from plugin hooks.

// These are the request errors. The HTTP API returns them unchanged, and clients compare the texts.
var (
	ErrNotRunning = core.ErrNotRunning
	//lint:ignore ST1005 Nomad's clients match on the text
	ErrTaskNotFound   = errors.New("Task not found")
	ErrShouldNotRun   = errors.New("restart of an alloc that should not run")
	errDeadlinePassed = errors.New("a task did not end in time")
)

// UnknownTaskError returns the error for restarting a task that the allocation does not have.
func UnknownTaskError(name string) error {
	//lint:ignore ST1005 Nomad's clients match on the text
	return fmt.Errorf("Could not find task runner for task: %s", name)
}

// RestartAsyncWithReason restarts the named task, or all running tasks if task is empty. The task events show the
// reason. It does not wait for the restarts, and refuses them while the state cannot be written. If countsAsFailure is
// set, the restarts count as failures for the restart policy.
func (r *Runner) RestartAsyncWithReason(ctx context.Context, task, reason string, countsAsFailure bool) error {
	tasks, err := r.tasks.namedOrAllRunningTasks(task)
	if err == nil {
		err = r.checkRestartCanBeStored(ctx)
	}
	if err != nil {
		return err
	}
	accepted := r.state.goInRun(&r.backgroundWG, func(ctx context.Context) {
		err := tasks.forEachParallel(func(t *taskrunner.Runner) error {
			if err := core.IgnoreNotRunning(t.Restart(ctx, model.EventRestartSignal(reason), countsAsFailure)); err != nil {
				return fmt.Errorf("task %q: %w", t.Name(), err)
			}
			return nil
		})
		if err != nil && ctx.Err() == nil {
			r.logger.Error("restart that a hook has asked for", "error", err)
		}
	})
	if !accepted {
		return ErrNotRunning // Run has returned, or is about to return
	}
	return nil
}

// Signal sends a signal to one task, or to all running tasks if task is empty.
func (r *Runner) Signal(ctx context.Context, task, signal string) error {
	if err := r.tasks.awaitRestored(ctx); err != nil {
		return err
	}
	if task != "" {
		t, ok := r.tasks.findByName(task)
		if !ok {
			return ErrTaskNotFound
		}
		return t.Signal(ctx, model.EventSignaling(signal), signal)
	}
	var errs []error
	reached := 0
	for _, t := range r.tasks.taskSet {
		err := t.Signal(ctx, model.EventSignaling(signal), signal)
		switch {
		case err == nil:
			reached++
		case !errors.Is(err, ErrNotRunning):
			//lint:ignore ST1005 Nomad's clients match on the text
			errs = append(errs, fmt.Errorf("Failed to signal task: %s, err: %w", t.Name(), err))
		}
	}
	if reached == 0 && len(errs) == 0 {
		return ErrNotRunning
	}
	return errors.Join(errs...)
}

// SignalWithReason sends a signal to the named task, or to all running tasks if task is empty. The task events show the
// reason.
func (r *Runner) SignalWithReason(ctx context.Context, task, signal, reason string) error {
	tasks, err := r.tasks.namedOrAllRunningTasks(task)
	if err != nil {
		return err
	}
	return tasks.forEachParallel(func(t *taskrunner.Runner) error {
		return t.Signal(ctx, model.EventSignalingReason(signal, reason), signal)
	})
}

// KillAsFailedWithReason kills the named task, or all tasks if task is empty. A killed task counts as failed. The task
// events show the reason.
func (r *Runner) KillAsFailedWithReason(task, reason string) error {
	found := task == ""
	for _, t := range r.tasks.taskSet {
		if task == "" || t.Name() == task {
			found = true
			t.Kill(model.EventKillingReason(reason, true))
		}
	}
	if !found {
		return ErrTaskNotFound
	}
	return nil
}

// Exec runs a command in a task's context, and collects its output.
func (r *Runner) Exec(ctx context.Context, task string, command []string, timeout time.Duration) (*driver.ExecResult, error) {
	return r.tasks.exec(ctx, task, command, timeout)
}

// ExecStreaming runs a command in a task's context with streamed input and output, and blocks until the command has
// exited.
func (r *Runner) ExecStreaming(ctx context.Context, task string, exec driver.Exec) (*driver.ExitResult, error) {
	t, ok := r.tasks.findByName(task)
	if !ok {
		return nil, ErrTaskNotFound
	}
	if err := r.tasks.awaitRestored(ctx); err != nil {
		return nil, err
	}
	return t.ExecStreaming(ctx, exec)
}

// FSIsolation returns how a task's driver isolates the file system: not at all if the allocation does not have the task,
// or if its driver is not known yet.
func (r *Runner) FSIsolation(task string) driver.FSIsolation {
	if t, ok := r.tasks.findByName(task); ok {
		return t.DriverCapabilities().FSIsolation
	}
	return driver.FSIsolationNone
}

// EmitDriverEvent adds a driver's event to a task's events. It returns false if the allocation does not have the task.
func (r *Runner) EmitDriverEvent(e driver.TaskEvent) (taskFound bool) {
	t, ok := r.tasks.findByName(e.TaskName)
	if !ok || e.AllocID != r.Alloc().ID {
		return false
	}
	if e.Annotations[driver.OnceAnnotation] == "" {
		t.EmitEvent(model.EventDriverMessage(e.Message, e.Annotations, e.Timestamp))
		return true
	}
	annotations := maps.Clone(e.Annotations)
	delete(annotations, driver.OnceAnnotation)
	t.EmitEventOncePerMessage(model.EventDriverMessage(e.Message, annotations, e.Timestamp))
	return true
}

// EmitDeviceEvents adds an event to each task that uses one of the devices and has not ended. textByDevice has the event
// texts by model.DeviceInstanceName.
func (r *Runner) EmitDeviceEvents(textByDevice map[string]string) {
	alloc := r.Alloc()
	for _, t := range r.tasks.taskSet {
		for _, d := range model.AllocatedDevices(alloc, t.Task().Name) {
			for _, id := range d.DeviceIDs {
				text := textByDevice[model.DeviceInstanceName(d.Vendor, d.Type, d.Name, id)]
				if text != "" && t.State().State != model.TaskDead {
					t.EmitEvent(model.EventDeviceHealth(text))
				}
			}
		}
	}
}

// EmitEvent adds an event to a task, or to all tasks if task is empty.
func (r *Runner) EmitEvent(task string, event *api.TaskEvent) error {
	if task == "" {
		r.tasks.emitEvent(event)
		return nil
	}
	t, ok := r.tasks.findByName(task)
	if !ok {
		return ErrTaskNotFound
	}
	t.EmitEvent(event)
	return nil
}

// TaskDone returns a channel that is closed when the task has ended for good. It returns nil for an unknown task.
func (r *Runner) TaskDone(task string) <-chan struct{} {
	if t, ok := r.tasks.findByName(task); ok {
		return t.Done()
	}
	return nil
}

// Interpolate replaces variable references in a text by their values in the named task's environment, or in the
// allocation's if it has no such task.
func (r *Runner) Interpolate(task, text string) string {
	return r.tasks.envOfTaskOrAlloc(task).ReplaceReferences(text)
}

// Checks returns the allocation's check results, always in the same order.
func (r *Runner) Checks() []api.AllocCheckStatus {
	results, _, _ := r.tasks.services.CheckResults()
	list := make([]api.AllocCheckStatus, len(results))
	for i, result := range results {
		list[i] = result.AllocCheckStatus
	}
	return list
}

// CheckStatuses returns the allocation's check results, always in the same order, and a channel that is closed when one
// changes by more than its time.
func (r *Runner) CheckStatuses() (statuses []api.AllocCheckStatus, changed <-chan struct{}) {
	return r.tasks.services.CheckStatuses()
}

// SetHookHealth records a hook's report about the current version's health, for one task, or for all if task is empty. A
// later report cannot revoke unhealthy. It returns ErrTaskNotFound for an unknown task.
func (r *Runner) SetHookHealth(hook, task string, healthy bool, reason string) error {
	if _, ok := r.tasks.findByName(task); !ok && task != "" {
		return ErrTaskNotFound
	}
	r.state.setHookHealth(hookAttachment{hook, task}, healthy, reason)
	return nil
}

// StoreHookState stores a hook's state for a task. See [taskrunner.StoreHookState].
func (r *Runner) StoreHookState(ctx context.Context, hook, task string, data map[string]string) error {
	t, ok := r.tasks.findByName(task)
	if !ok {
		return ErrTaskNotFound
	}
	select {
	case <-r.hooksAttached:
		return taskrunner.StoreHookState(t, hook, data)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Stats returns the latest samples for one task, or for all if task is empty. For an unknown task the result is empty.
// Samples are taken only while Stats is called regularly, see [hooks.StatsHook]: the first call after a pause waits up
// to two seconds for the drivers.
func (r *Runner) Stats(ctx context.Context, task string) Stats {
	return latestStats(ctx, r.tasks.taskSet, r.statsHooks, task)
}

// SampleTaskStats is [taskrunner.Runner.OpenStatsWithExitChannel] for the named task.
func (r *Runner) SampleTaskStats(ctx context.Context, task string, interval time.Duration) (samples <-chan *driver.TaskStats, exited <-chan struct{}, err error) {
	t, ok := r.tasks.findByName(task)
	if !ok {
		return nil, nil, ErrTaskNotFound
	}
	return t.OpenStatsWithExitChannel(ctx, interval)
}
