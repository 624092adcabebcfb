package allocrunner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/runtime/job/lifecycle"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/taskrunner"
)

// taskRestarter makes the restarts that users request, and the restarts of restart groups. Only one caller at a time restarts
// several tasks. Its methods may be called concurrently.
type taskRestarter struct {
	tasks                   taskSet
	startGates              *startGates
	clientStatus            *clientStatusTracker
	stopSequence            *stopSequence
	reconcileSignal         *reconcileSignal
	awaitRestored           func(context.Context) error // waits until the tasks of an earlier agent are restored
	isStopDesired           func() bool                 // reports whether the desired status of the current version is stop or evict
	runReturned             <-chan struct{}             // closed by Run
	callPreTaskRestartHooks func(context.Context)       // calls the PreTaskRestart hooks
	reregisterServices      func()                      // registers the group's services, which a PreTaskRestart hook has deregistered
	tasksDownTimeout        time.Duration               // how long a restart of several tasks may take until the processes have exited

	multiTaskRestartSemaphore chan struct{} // contains a value while a caller restarts several tasks; capacity 1
}

// restartTask implements [Runner.RestartTask].
func (r *taskRestarter) restartTask(ctx context.Context, name string) error {
	t, ok := r.tasks.findByName(name)
	if !ok {
		return UnknownTaskError(name)
	}
	if err := r.awaitRestored(ctx); err != nil {
		return err
	}
	if !wait.IsClosed(r.runReturned) && !t.Running() {
		return ErrNotRunning // this error has precedence over ErrShouldNotRun
	}
	if err := r.checkRestartAllowed(); err != nil {
		return err
	}
	return t.Restart(ctx, model.EventRestartSignal(model.RestartTaskReason), false)
}

// restartRunningTasks implements [Runner.RestartRunning].
func (r *taskRestarter) restartRunningTasks(ctx context.Context) error {
	if err := r.acquireMultiTaskRestartSemaphore(ctx); err != nil {
		return err
	}
	defer r.releaseMultiTaskRestartSemaphore()
	defer r.reregisterServices()
	r.callPreTaskRestartHooks(ctx)
	r.stopSequence.shutdownDelay.waitForDelay(ctx)
	if r.stopSequence.isRequested() {
		return ErrShouldNotRun
	}
	return r.tasks.forEachParallel(func(t *taskrunner.Runner) error {
		return ignoreNotRunning(t.Restart(ctx, model.EventRestartSignal(model.RestartRunningReason), false))
	})
}

// restartAllTasks implements [Runner.RestartAll].
func (r *taskRestarter) restartAllTasks(ctx context.Context) error {
	if err := r.acquireMultiTaskRestartSemaphore(ctx); err != nil {
		return err
	}
	defer r.releaseMultiTaskRestartSemaphore()
	r.startGates.coordinator.ReturnToInit()
	defer r.reregisterServices()
	r.callPreTaskRestartHooks(ctx)
	r.stopSequence.shutdownDelay.waitForDelay(ctx)
	if r.stopSequence.isRequested() {
		return ErrShouldNotRun
	}

	// ctx must not be canceled from here on, because a cancellation would leave the tasks blocked at closed gates.
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), r.tasksDownTimeout, errDeadlinePassed)
	defer cancel()
	if err := r.restartInKillOrder(ctx); err != nil {
		err = fmt.Errorf("restart all tasks: %w", err)
		r.failAlloc(err)
		return err
	}
	return nil
}

// restartInKillOrder restarts running tasks and reruns dead tasks in kill order, until no task runs and the lifecycle starts
// from its first phase.
func (r *taskRestarter) restartInKillOrder(ctx context.Context) error {
	for tasks := r.tasks; ; {
		reconciled := r.reconcileSignal.nextReconcile()
		// Dead tasks are rerun first. Otherwise the restart of a running task could cause the rerun of a dead one, whose event
		// would name the running task as the reason.
		order := tasks.killOrder()
		for i := range order {
			order[i] = slices.DeleteFunc(order[i], func(t *taskrunner.Runner) bool {
				return t.Rerun(model.EventRestartSignal(model.RestartAllReason))
			})
		}
		for _, wave := range order {
			err := wave.forEachParallel(func(t *taskrunner.Runner) error {
				event := model.EventRestartSignal(model.RestartAllReason)
				if t.Rerun(event) {
					return nil // the task had ended, and runs again
				}
				return ignoreNotRunning(t.Restart(ctx, event, false))
			})
			if err != nil {
				return err
			}
		}
		r.reconcileSignal.requestReconcile()
		var err error
		if tasks, err = r.awaitTasksDown(ctx, reconciled); len(tasks) == 0 {
			return err
		}
	}
}

// awaitTasksDown blocks until all tasks are down and the lifecycle has left its first phase, or until the allocation is
// stopped. It returns the tasks that must be restarted once more: those that run because they were starting when their gates
// were closed, and those that have become dead since, because a task can neither be restarted nor rerun between the exit of
// its process and the state dead.
func (r *taskRestarter) awaitTasksDown(ctx context.Context, reconciled <-chan struct{}) (tasksToRestart taskSet, err error) {
	for len(tasksToRestart) == 0 {
		select {
		case <-reconciled:
		case <-r.stopSequence.stopRequested:
			return nil, nil // the stop ends the remaining tasks
		case <-r.runReturned:
			return nil, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		reconciled = r.reconcileSignal.nextReconcile()
		for _, t := range r.tasks {
			if t.Running() || t.IsRerunnable() {
				tasksToRestart = append(tasksToRestart, t)
			}
		}
		// Phase is called after the loop, because a gate that has opened during the loop may have let tasks start, and end.
		if r.startGates.coordinator.Phase() != lifecycle.PhaseInit {
			return nil, nil
		}
	}
	return tasksToRestart, nil
}

// restartDependentTasks restarts the tasks of restartCauseByTask in kill order. Their gates stay closed until all of these tasks are down. A
// task that does not exit fails the allocation, because the other tasks would wait forever.
func (r *taskRestarter) restartDependentTasks(ctx context.Context) {
	if r.acquireMultiTaskRestartSemaphore(ctx) != nil {
		return
	}
	defer r.releaseMultiTaskRestartSemaphore()
	names := r.startGates.restartCauseByTask() // computed after the wait for the semaphore, because another restart may have included some tasks
	members := slices.DeleteFunc(slices.Clone(r.tasks), func(t *taskrunner.Runner) bool { return names[t.Name()] == "" })
	limited, cancel := context.WithTimeoutCause(ctx, r.tasksDownTimeout, errDeadlinePassed)
	defer cancel()
	kind := r.startGates.lifecycleGroup.RestartGroup
	for _, wave := range members.killOrder() {
		err := wave.forEachParallel(func(t *taskrunner.Runner) error {
			reason := fmt.Sprintf("Task %q restarts, and with it the tasks of its restart group (%v)", names[t.Name()], kind)
			return ignoreNotRunning(t.Restart(limited, model.EventRestartSignal(reason), false))
		})
		if err != nil && ctx.Err() == nil && !r.stopSequence.isRequested() {
			r.failAlloc(fmt.Errorf("restart group %v: %w", kind, err))
			return
		}
	}
}

// failAlloc fails the allocation after a restart has failed and has left tasks blocked at closed gates.
func (r *taskRestarter) failAlloc(err error) {
	r.clientStatus.setOverride(statusOverride{api.AllocClientStatusFailed, err.Error()})
	r.stopSequence.requestStop(stopReason{})
}

// acquireMultiTaskRestartSemaphore blocks until no other caller restarts several tasks. If it returns nil, the caller must call
// releaseMultiTaskRestartSemaphore.
func (r *taskRestarter) acquireMultiTaskRestartSemaphore(ctx context.Context) error {
	if err := r.awaitRestored(ctx); err != nil {
		return err
	}
	select {
	case r.multiTaskRestartSemaphore <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := r.checkRestartAllowed(); err != nil {
		r.releaseMultiTaskRestartSemaphore()
		return err
	}
	return nil
}

func (r *taskRestarter) releaseMultiTaskRestartSemaphore() { <-r.multiTaskRestartSemaphore }

// checkRestartAllowed returns ErrShouldNotRun if the allocation has ended or is being stopped.
func (r *taskRestarter) checkRestartAllowed() error {
	status := r.clientStatus.currentStatus()
	_, finished := evaluateSiblingStop(r.tasks.siblingStates(status.TaskStates))
	if finished || status.Terminal() || r.stopSequence.isRequested() || r.isStopDesired() {
		return ErrShouldNotRun
	}
	return nil
}

func ignoreNotRunning(err error) error {
	if errors.Is(err, ErrNotRunning) {
		return nil
	}
	return err
}

// asyncRestarts runs restarts whose requesters do not wait for them; the end of Run cancels them and waits. Restarts are accepted
// only between acceptRestarts and cancelAndWait. The context is a field because it belongs to Run and not to the requesters.
type asyncRestarts struct {
	logger hclog.Logger

	mu         sync.Mutex
	runCtx     context.Context // context of Run; nil outside Run
	cancel     context.CancelFunc
	restartsWG sync.WaitGroup
}

// acceptRestarts makes startRestarts accept restarts, which are canceled with ctx.
func (a *asyncRestarts) acceptRestarts(ctx context.Context) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.runCtx, a.cancel = context.WithCancel(ctx)
}

// cancelAndWait cancels the running restarts and waits for them.
func (a *asyncRestarts) cancelAndWait() {
	a.mu.Lock()
	a.cancel()
	a.runCtx = nil
	a.mu.Unlock()
	a.restartsWG.Wait()
}

// startRestarts starts the restarts of tasks and does not wait for them. The task events show the reason. If failure is set, the
// restarts count as failures for the restart policy.
func (a *asyncRestarts) startRestarts(tasks taskSet, reason string, failure bool) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	ctx := a.runCtx
	if ctx == nil {
		return ErrNotRunning // Run has returned, or is about to return
	}
	for _, t := range tasks {
		a.restartsWG.Go(func() {
			err := ignoreNotRunning(t.Restart(ctx, model.EventRestartSignal(reason), failure))
			if err != nil && ctx.Err() == nil {
				a.logger.Error("restart that a hook has asked for", "task", t.Name(), "error", err)
			}
		})
	}
	return nil
}
