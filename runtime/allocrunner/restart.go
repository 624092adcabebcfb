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

	"github.com/nomad-lite/nomad-lite/runtime/lifecycle"
	"github.com/nomad-lite/nomad-lite/runtime/model"
	"github.com/nomad-lite/nomad-lite/runtime/taskrunner"
)

// restarts restarts tasks on request and in restart groups. Several tasks are restarted
// by one caller at a time. Its methods may be called concurrently.
type restarts struct {
	tasks              taskSet
	gates              *gates
	status             *clientStatus
	stop               *stopSequence
	changes            *changes
	restored           func(context.Context) error // waits until the tasks of an earlier agent are restored
	removed            func() bool                 // reports whether the current version is desired to stop
	done               <-chan struct{}             // closed by Run
	prepare            func(context.Context)       // calls the PreTaskRestart hooks
	reregisterServices func()                      // registers services again that the hooks have deregistered
	timeout            time.Duration               // until all tasks are down in a restart of several tasks

	semaphore chan struct{} // held while several tasks are restarted
}

// restartTask implements [Runner.RestartTask].
func (r *restarts) restartTask(ctx context.Context, name string) error {
	t, ok := r.tasks.named(name)
	if !ok {
		return UnknownTask(name)
	}
	if err := r.restored(ctx); err != nil {
		return err
	}
	if !isClosed(r.done) && !t.Running() {
		return ErrNotRunning // returned whatever the state of the allocation
	}
	if err := r.allowed(); err != nil {
		return err
	}
	return t.Restart(ctx, model.EventRestartSignal(model.RestartTaskReason), false)
}

// restartRunning implements [Runner.RestartRunning].
func (r *restarts) restartRunning(ctx context.Context) error {
	if err := r.begin(ctx); err != nil {
		return err
	}
	defer r.end()
	defer r.reregisterServices()
	r.prepare(ctx)
	r.stop.delay.wait(ctx)
	if r.stop.isRequested() {
		return ErrShouldNotRun
	}
	return r.tasks.forEachParallel(func(t *taskrunner.Runner) error {
		return ignoreNotRunning(t.Restart(ctx, model.EventRestartSignal(model.RestartRunningReason), false))
	})
}

// restartAll implements [Runner.RestartAll].
func (r *restarts) restartAll(ctx context.Context) error {
	if err := r.begin(ctx); err != nil {
		return err
	}
	defer r.end()
	r.gates.coordinator.Restart()
	defer r.reregisterServices()
	r.prepare(ctx)
	r.stop.delay.wait(ctx)
	if r.stop.isRequested() {
		return ErrShouldNotRun
	}

	// From here on, cancellation would leave the tasks blocked at closed gates.
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), r.timeout, errDeadlinePassed)
	defer cancel()
	if err := r.inKillOrder(ctx); err != nil {
		err = fmt.Errorf("restart all tasks: %w", err)
		r.failAlloc(err)
		return err
	}
	return nil
}

// inKillOrder restarts running and dead tasks, wave by wave, until all tasks are down at
// the same time and the lifecycle starts again.
func (r *restarts) inKillOrder(ctx context.Context) error {
	for tasks := r.tasks; ; {
		reconciled := r.changes.reconciled()
		// Dead tasks come first: the restart of another one could make them run again,
		// with an event that names that task as the reason.
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
					return nil // the task has ended in the meantime
				}
				return ignoreNotRunning(t.Restart(ctx, event, false))
			})
			if err != nil {
				return err
			}
		}
		r.changes.notify()
		var err error
		if tasks, err = r.waitRestarted(ctx, reconciled); len(tasks) == 0 {
			return err
		}
	}
}

// waitRestarted waits until the lifecycle has started again or the allocation has
// ended. It returns the tasks that came up because they were about to start when their
// gates were closed. Only these tasks must go down again; the other tasks can start
// when they have.
func (r *restarts) waitRestarted(ctx context.Context, reconciled <-chan struct{}) (again taskSet, err error) {
	for len(again) == 0 {
		select {
		case <-reconciled:
		case <-r.stop.requested:
			return nil, nil // the stop handles the remaining tasks
		case <-r.done:
			return nil, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		reconciled = r.changes.reconciled()
		for _, t := range r.tasks {
			if t.Running() {
				again = append(again, t)
			}
		}
		// Check Running before Phase: a gate that opened in between may have let the
		// tasks start.
		if r.gates.coordinator.Phase() != lifecycle.Init {
			return nil, nil
		}
	}
	return again, nil
}

// restartGroup restarts the tasks that must restart together with other tasks, in kill order.
// Their gates keep each of them down until all are down. A task that does not exit fails
// the allocation, because the others would wait for ever.
func (r *restarts) restartGroup(ctx context.Context) {
	if r.begin(ctx) != nil {
		return
	}
	defer r.end()
	names := r.gates.restartDependents() // another restart may have included them
	members := slices.DeleteFunc(slices.Clone(r.tasks), func(t *taskrunner.Runner) bool { return names[t.Name()] == "" })
	limited, cancel := context.WithTimeoutCause(ctx, r.timeout, errDeadlinePassed)
	defer cancel()
	kind := r.gates.group.Restart
	for _, wave := range members.killOrder() {
		err := wave.forEachParallel(func(t *taskrunner.Runner) error {
			reason := fmt.Sprintf("Task %q restarts, and with it the tasks of its restart group (%v)", names[t.Name()], kind)
			return ignoreNotRunning(t.Restart(limited, model.EventRestartSignal(reason), false))
		})
		if err != nil && ctx.Err() == nil && !r.stop.isRequested() {
			r.failAlloc(fmt.Errorf("restart group %v: %w", kind, err))
			return
		}
	}
}

// failAlloc fails the allocation after a failed restart that leaves tasks blocked at closed
// gates.
func (r *restarts) failAlloc(err error) {
	r.status.force(statusOverride{api.AllocClientStatusFailed, err.Error()})
	r.stop.request(stopReason{})
}

// begin waits for other restarts of several tasks to finish; end must follow.
func (r *restarts) begin(ctx context.Context) error {
	if err := r.restored(ctx); err != nil {
		return err
	}
	select {
	case r.semaphore <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := r.allowed(); err != nil {
		r.end()
		return err
	}
	return nil
}

func (r *restarts) end() { <-r.semaphore }

// allowed returns ErrShouldNotRun if the allocation has ended or is ending.
func (r *restarts) allowed() error {
	status := r.status.current()
	_, finished := evaluateTasks(r.tasks.views(status.TaskStates))
	if finished || status.Terminal() || r.stop.isRequested() || r.removed() {
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

// asyncRestarts holds the restarts whose requesters do not wait for them: Run does.
// They start only between begin and end. The context is a field because it belongs to
// Run and not to the requesters.
type asyncRestarts struct {
	logger hclog.Logger

	mu           sync.Mutex
	untilRunEnds context.Context // nil outside Run
	cancel       context.CancelFunc
	running      sync.WaitGroup
}

// begin lets restarts start. They are canceled with ctx.
func (d *asyncRestarts) begin(ctx context.Context) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.untilRunEnds, d.cancel = context.WithCancel(ctx)
}

// end cancels the running restarts and waits for them.
func (d *asyncRestarts) end() {
	d.mu.Lock()
	d.cancel()
	d.untilRunEnds = nil
	d.mu.Unlock()
	d.running.Wait()
}

// start restarts tasks for a reason. It does not wait for the restarts. If failure is
// set, they count for the restart policy.
func (d *asyncRestarts) start(tasks taskSet, reason string, failure bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	ctx := d.untilRunEnds
	if ctx == nil {
		return ErrNotRunning // Run has returned, or is about to return
	}
	for _, t := range tasks {
		d.running.Go(func() {
			err := ignoreNotRunning(t.Restart(ctx, model.EventRestartSignal(reason), failure))
			if err != nil && ctx.Err() == nil {
				d.logger.Error("restart that a hook has asked for", "task", t.Name(), "error", err)
			}
		})
	}
	return nil
}
