package taskrunner

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/model"
	"github.com/nomad-lite/nomad-lite/runtime/state"
)

// EndRequest identifies the task for EndTask.
type EndRequest struct {
	Driver  string
	AllocID string
	Task    string
	Handle  *driver.Handle // nil if the task has none
	Builtin bool           // whether the driver is builtin
}

// EndResult is the result of EndTask.
type EndResult struct {
	Found bool               // processes of the task were found
	Exit  *driver.ExitResult // nil if the exit status is unknown
}

// EndTask ends the processes of a task without its driver: those in the task's
// cgroup and those that carry its names in their environment. It returns when they
// have exited.
type EndTask func(context.Context, EndRequest) (EndResult, error)

// endTaskTimeout limits one call of EndTask.
const endTaskTimeout = 10 * time.Second

// mayEndTask reports whether the agent may end the task without its driver, which
// is unavailable for the reason in err.
func (r *Runner) mayEndTask(err error) (builtin, may bool) {
	var unavailable *driver.UnavailableError
	if r.endTask == nil || !errors.As(err, &unavailable) {
		return false, false
	}
	return unavailable.Builtin, unavailable.Builtin || isClosed(r.purged) || isClosed(r.forceKilled)
}

// callEndTask calls EndTask for one start.
func (r *Runner) callEndTask(ctx context.Context, handle *driver.Handle, builtin bool) (EndResult, error) {
	ctx, cancel := context.WithTimeout(ctx, endTaskTimeout)
	defer cancel()
	result, err := r.endTask(ctx, EndRequest{
		Driver: r.Task().Driver, AllocID: r.alloc.ID, Task: r.name, Handle: handle, Builtin: builtin,
	})
	if err != nil {
		return result, fmt.Errorf("end the task without its driver: %w", err)
	}
	return result, nil
}

// setPendingDestroy records a start that the driver must destroy. It is stored with the
// next record of the task; until then the stored record contains the id of the start.
func (r *Runner) setPendingDestroy(d state.PendingDestroy) {
	r.local.Destroy = &d
	r.destroyReported = false
}

// destroyPending tries once to destroy the pending start, if there is one, and its Next.
func (r *Runner) destroyPending(ctx context.Context) error {
	d := r.local.Destroy
	if d == nil {
		return nil
	}
	call, cancel := context.WithTimeout(ctx, r.deadlines.Others)
	defer cancel()
	var err error
	if d.Handle != nil {
		err = newProcess(d.Handle, nil, r.dispense).destroyKnown(call)
	} else {
		err = destroyKnown(call, r.dispense, d.ID)
	}
	switch {
	case err == nil:
		r.noteDestroyed()
	case errors.Is(err, driver.ErrTaskNotFound):
		if d.Uncertain {
			r.reportUncertain("what is known of it is not enough for the driver to find it")
		}
		err = nil
	}
	if err != nil && ctx.Err() == nil {
		err = r.destroyWithoutDriver(ctx, d, err)
	}
	if err != nil {
		if ctx.Err() == nil {
			r.reportDestroy(d, err)
		}
		return fmt.Errorf("destroy task: %w", err)
	}
	r.local.Destroy = d.Next // stored with the next record
	return r.destroyPending(ctx)
}

// destroyWithoutDriver destroys a start after the driver's error err. It handles two
// cases: a builtin driver, whose tasks are only processes, and a purged job whose
// driver no plugin serves, for which nothing else can be done.
func (r *Runner) destroyWithoutDriver(ctx context.Context, d *state.PendingDestroy, err error) error {
	var unavailable *driver.UnavailableError
	builtin, may := r.mayEndTask(err)
	if !may || !builtin && (!errors.As(err, &unavailable) || unavailable.Plugin != "") {
		return err
	}
	if _, endErr := r.callEndTask(ctx, d.Handle, builtin); endErr != nil {
		return errors.Join(err, endErr)
	}
	if builtin {
		r.noteDestroyed()
	} else {
		r.reportUncertain(fmt.Sprintf("its driver was not there to destroy it: %v", err))
	}
	return nil
}

// reportUncertain emits the event for processes that may still run.
func (r *Runner) reportUncertain(why string) {
	text := "an earlier start of the task may still run: " + why
	r.logger.Error(text)
	r.EmitEvent(model.EventDriver(text, nil, time.Time{}))
}

// reportDestroy emits the event for a pending destroy, once.
func (r *Runner) reportDestroy(d *state.PendingDestroy, err error) {
	r.logger.Warn("destroying the task is pending", "task_id", d.ID, "error", err)
	if !r.destroyReported {
		r.destroyReported = true
		r.EmitEvent(model.EventDriver(fmt.Sprintf("destroying the task is pending: %v", err), nil, time.Time{}))
	}
}

// finishDestroy retries the pending destroy until it succeeds or ctx is done. It
// retries without delay when an unavailable driver becomes available or the job is
// purged.
func (r *Runner) finishDestroy(ctx context.Context) {
	retry := pause{first: time.Second, most: 5 * time.Minute}
	for r.local.Destroy != nil && ctx.Err() == nil {
		err := r.destroyPending(ctx)
		if err == nil {
			r.putLocal(state.Async)
			return
		}
		if ctx.Err() != nil {
			return
		}
		var changed <-chan struct{}
		var unavailable *driver.UnavailableError
		if errors.As(err, &unavailable) && unavailable.Changed != nil {
			changed = unavailable.Changed
		}
		purged := r.purged
		if isClosed(purged) {
			purged = nil // the job was purged before this attempt
		}
		timer := time.NewTimer(retry.take())
		select {
		case <-timer.C:
		case <-changed:
		case <-purged:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// whileDestroying calls wait, and retries the pending destroy concurrently. wait must
// not use the local state.
func (r *Runner) whileDestroying(ctx context.Context, wait func()) {
	if r.local.Destroy == nil {
		wait()
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	var destroying sync.WaitGroup
	destroying.Go(func() { r.finishDestroy(ctx) })
	wait()
	cancel()
	destroying.Wait()
}
