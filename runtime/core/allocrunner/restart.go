package allocrunner

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/runtime/core"
	"github.com/nomad-lite/nomad-lite/runtime/core/lifecycle"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskrunner"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// RestartTask restarts one running task. It returns when the old process has exited.
func (r *Runner) RestartTask(ctx context.Context, name string) error {
	t, ok := r.tasks.findByName(name)
	if !ok {
		return UnknownTaskError(name)
	}
	if err := r.tasks.awaitRestored(ctx); err != nil {
		return err
	}
	if !wait.IsClosed(r.done) && !hasRunningProcess(t) {
		return ErrNotRunning // this error has precedence over ErrShouldNotRun
	}
	if err := r.tasks.checkRestartAllowed(); err != nil {
		return err
	}
	if err := r.checkRestartCanBeStored(ctx); err != nil {
		return err
	}
	return t.Restart(ctx, model.EventRestartSignal(model.RestartTaskReason), false)
}

// checkRestartCanBeStored returns an error if starts cannot be stored, because then no restarted process could be
// started again. Each restart request calls it before it has an effect.
func (r *Runner) checkRestartCanBeStored(ctx context.Context) error {
	if r.config.CheckStateWrite == nil {
		return nil
	}
	if err := r.config.CheckStateWrite(ctx); err != nil {
		return fmt.Errorf("nothing is restarted, because the agent could not store the new start: %w", err)
	}
	return nil
}

// RestartRunning restarts the running tasks concurrently. It returns when the old
// processes have exited.
func (r *Runner) RestartRunning(ctx context.Context) error {
	return r.restartRunning(ctx, model.RestartRunningReason)
}

// restartRunning is RestartRunning with a reason for the task events.
func (r *Runner) restartRunning(ctx context.Context, reason string) error {
	if err := r.tasks.acquireMultiTaskRestartSemaphore(ctx); err != nil {
		return err
	}
	defer r.tasks.releaseMultiTaskRestartSemaphore()
	if err := r.checkRestartCanBeStored(ctx); err != nil {
		return err
	}
	defer r.tasks.registerGroupServicesAgain()
	if err := r.tasks.prepareMultiTaskRestart(ctx); err != nil {
		return err
	}
	return r.tasks.forEachParallel(func(t *taskrunner.Runner) error {
		return core.IgnoreNotRunning(t.Restart(ctx, model.EventRestartSignal(reason), false))
	})
}

// RestartAll runs all tasks except poststop tasks again, including tasks that have ended. It stops them in kill order,
// and they start in lifecycle order. It returns when the old processes have exited. If a task does not exit, RestartAll
// fails the allocation.
func (r *Runner) RestartAll(ctx context.Context) error {
	if err := r.tasks.acquireMultiTaskRestartSemaphore(ctx); err != nil {
		return err
	}
	defer r.tasks.releaseMultiTaskRestartSemaphore()
	if err := r.checkRestartCanBeStored(ctx); err != nil {
		return err
	}
	r.tasks.coordinator.ReturnToInit()
	defer r.tasks.registerGroupServicesAgain()
	if err := r.tasks.prepareMultiTaskRestart(ctx); err != nil {
		return err
	}
	// ctx must not be canceled from here on, because a cancellation would leave the tasks blocked at closed gates.
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), r.config.Limits.RestartAllTasksDownTimeout, errDeadlinePassed)
	defer cancel()
	if err := r.tasks.restartAndRerunInKillOrder(ctx, r.done); err != nil {
		err = fmt.Errorf("restart all tasks: %w", err)
		r.state.failAndStop(err, stopReason{}) // tasks are left blocked at closed gates
		return err
	}
	return nil
}

// prepareMultiTaskRestart calls the PreTaskRestart hooks and waits for the shutdown delay. It returns ErrShouldNotRun
// if the allocation is being stopped.
func (a *allocTasks) prepareMultiTaskRestart(ctx context.Context) error {
	callPreTaskRestartHooks(ctx, a.state)
	a.state.waitForShutdownDelay(ctx)
	if a.state.isStopRequested() {
		return ErrShouldNotRun
	}
	return nil
}

// restartAndRerunInKillOrder restarts running tasks and reruns dead tasks in kill order, until no task runs and the
// lifecycle starts from its first phase.
func (a *allocTasks) restartAndRerunInKillOrder(ctx context.Context, runReturned <-chan struct{}) error {
	for tasks := a.taskSet; ; {
		reconciled := a.state.nextReconcileDone()
		// Dead tasks are rerun first. Otherwise a running task's restart could cause a dead task's rerun, and the event
		// would name the running task as the reason.
		order := tasks.killWaves()
		for i := range order {
			order[i] = slices.DeleteFunc(order[i], func(t *taskrunner.Runner) bool {
				return t.RequestRerunIfSucceeded(model.EventRestartSignal(model.RestartAllReason))
			})
		}
		for _, wave := range order {
			err := wave.forEachParallel(func(t *taskrunner.Runner) error {
				event := model.EventRestartSignal(model.RestartAllReason)
				if t.RequestRerunIfSucceeded(event) {
					return nil // the task had ended, and runs again
				}
				return core.IgnoreNotRunning(t.Restart(ctx, event, false))
			})
			if err != nil {
				return err
			}
		}
		a.state.requestReconcile()
		var err error
		if tasks, err = a.awaitTasksDown(ctx, reconciled, runReturned); len(tasks) == 0 {
			return err
		}
	}
}

// awaitTasksDown blocks until all tasks are down and the lifecycle has left its first phase, or until the allocation is
// stopped. It returns the tasks that must be restarted once more. Some run because they were starting when their gates
// were closed. Others have become dead since: between process exit and the state dead, a task can neither be restarted
// nor rerun.
func (a *allocTasks) awaitTasksDown(ctx context.Context, reconciled, runReturned <-chan struct{}) (tasksToRestart taskSet, err error) {
	for len(tasksToRestart) == 0 {
		select {
		case <-reconciled:
		case <-a.state.stopRequested:
			return nil, nil // the stop ends the remaining tasks
		case <-runReturned:
			return nil, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		reconciled = a.state.nextReconcileDone()
		for _, t := range a.taskSet {
			if hasRunningProcess(t) || t.IsRerunnable() {
				tasksToRestart = append(tasksToRestart, t)
			}
		}
		// Phase is called after the loop, because a gate that opened during the loop may have let tasks start and end.
		if a.coordinator.Phase() != lifecycle.PhaseInit {
			return nil, nil
		}
	}
	return tasksToRestart, nil
}

// restartDependentTasks restarts the tasks from restartCauseByTask in kill order. Their gates stay closed until all
// these tasks are down. A task that does not exit fails the allocation, because the other tasks would wait forever.
func (a *allocTasks) restartDependentTasks(ctx context.Context, downTimeout time.Duration) {
	if a.acquireMultiTaskRestartSemaphore(ctx) != nil {
		return
	}
	defer a.releaseMultiTaskRestartSemaphore()
	names := a.restartCauseByTask() // computed after waiting for the semaphore, because another restart may have included some tasks
	members := slices.DeleteFunc(slices.Clone(a.taskSet), func(t *taskrunner.Runner) bool { return names[t.Name()] == "" })
	limited, cancel := context.WithTimeoutCause(ctx, downTimeout, errDeadlinePassed)
	defer cancel()
	kind := a.lifecycleGroup.RestartGroup
	for _, wave := range members.killWaves() {
		err := wave.forEachParallel(func(t *taskrunner.Runner) error {
			reason := fmt.Sprintf("Task %q restarts, and with it the tasks of its restart group (%v)", names[t.Name()], kind)
			return core.IgnoreNotRunning(t.Restart(limited, model.EventRestartSignal(reason), false))
		})
		if err != nil && ctx.Err() == nil && !a.state.isStopRequested() {
			a.state.failAndStop(fmt.Errorf("restart group %v: %w", kind, err), stopReason{})
			return
		}
	}
}

// restartForFailedCheck restarts the failed check's task, or all running tasks for a group check. The restart counts as
// a failure.
func (a *allocTasks) restartForFailedCheck(ctx context.Context, task, reason string) error {
	tasks := a.taskSet
	if task != core.GroupWorkload {
		t, ok := a.findByName(task)
		if !ok {
			return ErrTaskNotFound
		}
		tasks = taskSet{t}
	}
	return tasks.forEachParallel(func(t *taskrunner.Runner) error {
		return core.IgnoreNotRunning(t.Restart(ctx, model.EventRestartSignal(reason), true))
	})
}

// registerGroupServicesAgain registers the group's services after a restart, because the PreTaskRestart hook has
// deregistered them.
func (a *allocTasks) registerGroupServicesAgain() {
	if err := a.services.RegisterGroupServicesAgain(); err != nil {
		a.logger.Error("services of the group not registered again", "error", err)
	}
}

// acquireMultiTaskRestartSemaphore blocks until no other caller restarts several tasks. If it returns nil, the caller
// must call releaseMultiTaskRestartSemaphore.
func (a *allocTasks) acquireMultiTaskRestartSemaphore(ctx context.Context) error {
	if err := a.awaitRestored(ctx); err != nil {
		return err
	}
	select {
	case a.multiTaskRestartSemaphore <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := a.checkRestartAllowed(); err != nil {
		a.releaseMultiTaskRestartSemaphore()
		return err
	}
	return nil
}

func (a *allocTasks) releaseMultiTaskRestartSemaphore() { <-a.multiTaskRestartSemaphore }

// checkRestartAllowed returns ErrShouldNotRun if the allocation has ended or is being stopped.
func (a *allocTasks) checkRestartAllowed() error {
	status := a.currentStatus()
	_, finished := evaluateSiblingStop(a.siblingStates(status.TaskStates))
	if finished || status.Terminal() || a.state.isStopRequested() || a.state.currentAlloc().ServerTerminalStatus() {
		return ErrShouldNotRun
	}
	return nil
}
