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

// The errors of requests. The HTTP API shows them as they are, and clients
// match on the texts.
var (
	ErrNotRunning = taskrunner.ErrNotRunning
	//lint:ignore ST1005 Nomad's clients match on the text
	ErrTaskNotFound   = errors.New("Task not found")
	ErrShouldNotRun   = errors.New("restart of an alloc that should not run")
	errDeadlinePassed = errors.New("a task did not end in time")
)

// UnknownTask is what a restart of a task says that the allocation does not have.
func UnknownTask(name string) error {
	//lint:ignore ST1005 Nomad's clients match on the text
	return fmt.Errorf("Could not find task runner for task: %s", name)
}

// awaitRestored waits until the tasks of an earlier agent are restored: a request that
// came earlier would find them without processes. It returns at once when Run has ended.
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

// RestartTask restarts one running task, and returns when its old process is
// gone.
func (r *Runner) RestartTask(ctx context.Context, name string) error {
	t, ok := r.task(name)
	if !ok {
		return UnknownTask(name)
	}
	if err := r.awaitRestored(ctx); err != nil {
		return err
	}
	if !isClosed(r.done) && !t.Running() {
		return ErrNotRunning // whatever becomes of the allocation
	}
	if err := r.mayRestart(); err != nil {
		return err
	}
	return t.Restart(ctx, model.EventRestartSignal(model.RestartTaskReason), false)
}

// RestartRunning restarts the running tasks, all at once, and returns when the
// old processes are gone.
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

// RestartAll runs all tasks again but the poststop tasks, also those that have
// ended: it stops them in the order of a kill, and they start in the order of
// the lifecycle. It returns when the old processes are gone. A task that does
// not end fails the allocation.
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

	// From here on, going back would leave the tasks in front of closed gates.
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), r.limits.RestartDeadline, errDeadlinePassed)
	defer cancel()
	if err := r.restartInKillOrder(ctx); err != nil {
		err = fmt.Errorf("restart all tasks: %w", err)
		r.failRestart(err)
		return err
	}
	return nil
}

// restartInKillOrder restarts what runs or is dead, wave by wave, until everything is
// down at the same time and the lifecycle begins anew.
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

// waitRestarted waits until the lifecycle has begun anew, or the allocation is
// over. It returns the tasks that have come up because they were about to start
// when their gates were closed: they have to go down as well, and nobody else,
// for with them the others may start again.
func (r *Runner) waitRestarted(ctx context.Context, looked <-chan struct{}) (again []*taskrunner.Runner, err error) {
	for len(again) == 0 {
		select {
		case <-looked:
		case <-r.stopping:
			return nil, nil // the stop does the rest
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
		// In this order: a gate that has opened since may have let them start.
		if r.lifecycle.Phase() != lifecycle.Init {
			return nil, nil
		}
	}
	return again, nil
}

// beginRestart takes turns with other restarts of several tasks.
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

// Signal sends a signal to one task, or with an empty task to all that run.
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

// Exec runs a command in the surroundings of a task, and collects its output.
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

// ExecStreaming runs a command in the surroundings of a task with live streams,
// and blocks until it has ended.
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

// TaskEvent adds what a driver says about a task to the task's events. It
// reports whether the event was for a task of this allocation.
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
