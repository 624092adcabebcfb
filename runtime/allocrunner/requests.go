package allocrunner

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/lifecycle"
	"github.com/nomad-lite/nomad-lite/runtime/model"
	"github.com/nomad-lite/nomad-lite/runtime/taskrunner"
)

// The errors of requests. The HTTP API returns them unchanged, and clients match on the
// texts.
var (
	ErrNotRunning = taskrunner.ErrNotRunning
	//lint:ignore ST1005 Nomad's clients match on the text
	ErrTaskNotFound   = errors.New("Task not found")
	ErrShouldNotRun   = errors.New("restart of an alloc that should not run")
	errDeadlinePassed = errors.New("a task did not end in time")
)

// UnknownTask returns the error for a restart of a task that the allocation does not
// have.
func UnknownTask(name string) error {
	//lint:ignore ST1005 Nomad's clients match on the text
	return fmt.Errorf("Could not find task runner for task: %s", name)
}

// awaitRestored waits until the tasks of an earlier agent are restored: an earlier
// request would find them without processes. It returns immediately when Run has
// returned.
func (r *Runner) awaitRestored(ctx context.Context) error {
	select {
	case <-r.restored:
		return nil
	case <-r.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// RestartTask restarts one running task. It returns when the old process has exited.
func (r *Runner) RestartTask(ctx context.Context, name string) error {
	t, ok := r.task(name)
	if !ok {
		return UnknownTask(name)
	}
	if err := r.awaitRestored(ctx); err != nil {
		return err
	}
	if !isClosed(r.done) && !t.Running() {
		return ErrNotRunning // returned whatever the state of the allocation
	}
	if err := r.mayRestart(); err != nil {
		return err
	}
	return t.Restart(ctx, model.EventRestartSignal(model.RestartTaskReason), false)
}

// RestartRunning restarts the running tasks concurrently. It returns when the old
// processes have exited.
func (r *Runner) RestartRunning(ctx context.Context) error {
	if err := r.beginRestart(ctx); err != nil {
		return err
	}
	defer r.endRestart()
	defer r.reregisterServices()
	r.preTaskRestart(ctx)
	r.awaitShutdownDelay(ctx)
	if r.isStopping() {
		return ErrShouldNotRun
	}
	return forEachParallel(r.tasks, func(t *taskrunner.Runner) error {
		return ignoreNotRunning(t.Restart(ctx, model.EventRestartSignal(model.RestartRunningReason), false))
	})
}

// RestartAll runs all tasks again except poststop tasks, including tasks that have
// ended. It stops them in kill order, and they start in the order of the lifecycle. It
// returns when the old processes have exited. A task that does not exit fails the
// allocation.
func (r *Runner) RestartAll(ctx context.Context) error {
	if err := r.beginRestart(ctx); err != nil {
		return err
	}
	defer r.endRestart()
	r.lifecycle.Restart()
	defer r.reregisterServices()
	r.preTaskRestart(ctx)
	r.awaitShutdownDelay(ctx)
	if r.isStopping() {
		return ErrShouldNotRun
	}

	// From here on, cancellation would leave the tasks blocked at closed gates.
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), r.limits.RestartDeadline, errDeadlinePassed)
	defer cancel()
	if err := r.restartInKillOrder(ctx); err != nil {
		err = fmt.Errorf("restart all tasks: %w", err)
		r.failRestart(err)
		return err
	}
	return nil
}

// restartInKillOrder restarts running and dead tasks, wave by wave, until all tasks are
// down at the same time and the lifecycle starts again.
func (r *Runner) restartInKillOrder(ctx context.Context) error {
	for tasks := r.tasks; ; {
		looked := r.reconciled()
		for _, wave := range killOrder(tasks) {
			err := forEachParallel(wave, func(t *taskrunner.Runner) error {
				return ignoreNotRunning(t.ForceRestart(ctx, model.EventRestartSignal(model.RestartAllReason), false))
			})
			if err != nil {
				return err
			}
		}
		r.changed()
		var err error
		if tasks, err = r.waitRestarted(ctx, looked); len(tasks) == 0 {
			return err
		}
	}
}

// waitRestarted waits until the lifecycle has started again or the allocation has
// ended. It returns the tasks that came up because they were about to start when their
// gates were closed. Only these tasks must go down again; the other tasks can start
// when they have.
func (r *Runner) waitRestarted(ctx context.Context, looked <-chan struct{}) (again []*taskrunner.Runner, err error) {
	for len(again) == 0 {
		select {
		case <-looked:
		case <-r.stopping:
			return nil, nil // the stop handles the remaining tasks
		case <-r.done:
			return nil, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		looked = r.reconciled()
		for _, t := range r.tasks {
			if t.Running() {
				again = append(again, t)
			}
		}
		// Check Running before Phase: a gate that opened in between may have let the
		// tasks start.
		if r.lifecycle.Phase() != lifecycle.Init {
			return nil, nil
		}
	}
	return again, nil
}

// beginRestart waits for other restarts of several tasks to finish; endRestart must
// follow.
func (r *Runner) beginRestart(ctx context.Context) error {
	if err := r.awaitRestored(ctx); err != nil {
		return err
	}
	select {
	case r.restartTurn <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := r.mayRestart(); err != nil {
		r.endRestart()
		return err
	}
	return nil
}

func (r *Runner) endRestart() { <-r.restartTurn }

func (r *Runner) mayRestart() error {
	status := r.Status()
	_, finished := evaluateTasks(r.observe(status))
	if finished || status.Terminal() || r.isStopping() || r.Alloc().ServerTerminalStatus() {
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

// Signal sends a signal to one task, or to all running tasks if task is empty.
func (r *Runner) Signal(ctx context.Context, task, signal string) error {
	if err := r.awaitRestored(ctx); err != nil {
		return err
	}
	if task != "" {
		t, ok := r.task(task)
		if !ok {
			return ErrTaskNotFound
		}
		return t.Signal(ctx, model.EventSignaling(signal), signal)
	}
	var errs []error
	reached := 0
	for _, t := range r.tasks {
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

// Exec runs a command in the context of a task, and collects its output.
func (r *Runner) Exec(ctx context.Context, task string, command []string, timeout time.Duration) (*driver.ExecResult, error) {
	t, ok := r.task(task)
	if !ok {
		return nil, ErrTaskNotFound
	}
	if err := r.awaitRestored(ctx); err != nil {
		return nil, err
	}
	return t.Exec(ctx, command, timeout)
}

// ExecStreaming runs a command in the context of a task with streamed input and
// output, and blocks until the command has exited.
func (r *Runner) ExecStreaming(ctx context.Context, task string, exec driver.Exec) (*driver.ExitResult, error) {
	t, ok := r.task(task)
	if !ok {
		return nil, ErrTaskNotFound
	}
	if err := r.awaitRestored(ctx); err != nil {
		return nil, err
	}
	return t.ExecStreaming(ctx, exec)
}

// TaskEvent adds a driver's event to the events of a task. It reports whether the event
// was for a task of this allocation.
func (r *Runner) TaskEvent(e driver.TaskEvent) bool {
	t, ok := r.task(e.TaskName)
	if !ok || e.AllocID != r.id {
		return false
	}
	if e.Annotations[driver.OnceAnnotation] == "" {
		t.EmitEvent(model.EventDriver(e.Message, e.Annotations, e.Timestamp))
		return true
	}
	annotations := maps.Clone(e.Annotations)
	delete(annotations, driver.OnceAnnotation)
	t.EmitEventOnce(model.EventDriver(e.Message, annotations, e.Timestamp))
	return true
}
