package taskrunner

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// EndTaskRequest identifies the task for EndTaskFunc.
type EndTaskRequest struct {
	Driver                string
	AllocID               string
	Task                  string
	Handle                *driver.Handle // handle of the process; nil if the task has none
	TasksAreHostProcesses bool           // as in driver.UnavailableError
}

// EndTaskResult is the result of EndTaskFunc.
type EndTaskResult struct {
	FoundProcesses bool               // processes of the task were found
	ExitResult     *driver.ExitResult // nil if the exit status is unknown
}

// EndTaskFunc ends the processes of a task without its driver: the processes in the task's cgroup, and the processes
// whose environment contains the ids of the allocation and the task. It returns when these processes have exited.
type EndTaskFunc func(context.Context, EndTaskRequest) (EndTaskResult, error)

// AwaitExitFunc blocks until the main process of a task of a driver whose tasks are processes of this machine has exited, and returns its exit
// status without the driver. It returns an error if the exit status is unknown, or when ctx is done.
type AwaitExitFunc func(ctx context.Context, driver string, handle *driver.Handle) (*driver.ExitResult, error)

// destroyTimeout limits one call of DestroyTask. It is long because a driver whose plugin process was replaced can have
// to destroy all of its tasks at the same time, and reads the processes of the machine to find them.
const destroyTimeout = time.Minute

// endTaskTimeout limits one call of EndTaskFunc.
const endTaskTimeout = 10 * time.Second

// destroyer destroys starts of the task in their driver. It belongs to the goroutine of
// Run and, before Run, to the callers that prepare it.
type destroyer struct {
	records        *taskRecords
	processTracker *processTracker
	dispense       dispenseDriverFunc
	callRecorder   driverCallRecorder
	stopper        *stopper
	logger         hclog.Logger

	destroyPendingEventEmitted bool // the task has the event for the current pending destroy
}

// pendingDestroy returns the start that the driver must destroy, nil if there is none.
func (d *destroyer) pendingDestroy() *state.PendingDestroy {
	return d.records.localState.FirstPendingDestroy
}

// setPendingDestroy records a start that the driver must destroy. The change is stored with the next put of the local
// state; until then the stored local state contains the id of the start, so the next agent finds the start.
func (d *destroyer) setPendingDestroy(start state.PendingDestroy) {
	d.records.localState.FirstPendingDestroy = &start
	d.destroyPendingEventEmitted = false
}

// destroyPendingStart calls the driver once to destroy the start in localState.FirstPendingDestroy, if there is one. After a success
// it destroys the start in the Next field.
func (d *destroyer) destroyPendingStart(ctx context.Context) error {
	start := d.pendingDestroy()
	if start == nil {
		return nil
	}
	call, cancel := context.WithTimeout(ctx, destroyTimeout)
	defer cancel()
	var err error
	if start.Handle != nil {
		err = newProcess(start.Handle, nil, d.dispense, d.callRecorder).destroyTaskIfFound(call)
	} else {
		err = destroyByID(call, d.dispense, d.callRecorder, start.StartID)
	}
	switch {
	case err == nil:
		d.processTracker.recordProcessDestroyed()
	case errors.Is(err, driver.ErrTaskNotFound):
		d.endLostProcesses(ctx, start)
		if start.NotFoundIsInconclusive {
			d.reportUncertainDestroy("what is known of it is not enough for the driver to find it")
		}
		err = nil
	}
	if err != nil && ctx.Err() == nil {
		err = d.destroyWithoutDriver(ctx, start, err)
	}
	if err != nil {
		if ctx.Err() == nil {
			d.reportPendingDestroy(start, err)
		}
		return fmt.Errorf("destroy task: %w", err)
	}
	d.records.localState.FirstPendingDestroy = start.Next // stored with the next put of the local state
	return d.destroyPendingStart(ctx)
}

// destroyWithoutDriver ends the processes of a start whose DestroyTask call has failed with err. It does so in two cases,
// and returns err in all others: for a driver whose tasks are processes of this machine, and for a purged job whose driver
// no plugin serves.
func (d *destroyer) destroyWithoutDriver(ctx context.Context, start *state.PendingDestroy, err error) error {
	var unavailableErr *driver.UnavailableError
	hostProcesses, allowed := d.stopper.canEndWithoutDriver(err)
	if !allowed || !hostProcesses && (!errors.As(err, &unavailableErr) || unavailableErr.Plugin != "") {
		return err
	}
	if _, endErr := d.stopper.callEndTaskWithoutDriver(ctx, start.Handle, hostProcesses); endErr != nil {
		return errors.Join(err, endErr)
	}
	if hostProcesses {
		d.processTracker.recordProcessDestroyed()
	} else {
		d.reportUncertainDestroy(fmt.Sprintf("its driver was not there to destroy it: %v", err))
	}
	return nil
}

// endLostProcesses ends the processes of a start that the driver does not know: the driver has lost the task, or has
// failed to recover it. Processes that neither the cgroup nor the environment identifies continue to run.
func (d *destroyer) endLostProcesses(ctx context.Context, start *state.PendingDestroy) {
	if d.stopper.endTaskWithoutDriver == nil {
		return
	}
	result, err := d.stopper.callEndTaskWithoutDriver(ctx, start.Handle, false)
	if err != nil && ctx.Err() == nil {
		d.logger.Warn("task may have leaked: its driver does not have it", "task_id", start.StartID, "error", err)
	}
	if result.FoundProcesses {
		d.records.emitEvent(model.EventDriverMessage("the driver does not have the task any longer, the agent has ended its processes", nil, time.Time{}))
	}
}

// reportUncertainDestroy logs an error and emits an event: processes of an earlier start may still run.
func (d *destroyer) reportUncertainDestroy(why string) {
	text := "an earlier start of the task may still run: " + why
	d.logger.Error(text)
	d.records.emitEvent(model.EventDriverMessage(text, nil, time.Time{}))
}

// reportPendingDestroy logs each failed attempt to destroy a start. It emits an event only for the first one.
func (d *destroyer) reportPendingDestroy(start *state.PendingDestroy, err error) {
	d.logger.Warn("destroying the task is pending", "task_id", start.StartID, "error", err)
	if !d.destroyPendingEventEmitted {
		d.destroyPendingEventEmitted = true
		d.records.emitEvent(model.EventDriverMessage(fmt.Sprintf("destroying the task is pending: %v", err), nil, time.Time{}))
	}
}

// retryUntilDestroyed calls destroyPendingStart until it succeeds or ctx is done. It retries without delay when an
// unavailable driver becomes available or the job is purged.
func (d *destroyer) retryUntilDestroyed(ctx context.Context) {
	retry := backoff{initialDelay: time.Second, maxDelay: 5 * time.Minute}
	for d.pendingDestroy() != nil && ctx.Err() == nil {
		err := d.destroyPendingStart(ctx)
		if err == nil {
			d.records.putLocalState(state.DurabilityAsync)
			return
		}
		if ctx.Err() != nil {
			return
		}
		var driverChanged <-chan struct{}
		var unavailableErr *driver.UnavailableError
		if errors.As(err, &unavailableErr) && unavailableErr.Changed != nil {
			driverChanged = unavailableErr.Changed
		}
		purged := d.stopper.killRequest.jobPurged
		if wait.IsClosed(purged) {
			purged = nil // an earlier purge must not end the wait
		}
		timer := time.NewTimer(retry.nextDelay())
		select {
		case <-timer.C:
		case <-driverChanged:
		case <-purged:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// retryWhileWaiting calls wait, and retries the pending destroy while wait runs. wait must not use the local state of
// the task, because the retries change it.
func (d *destroyer) retryWhileWaiting(ctx context.Context, wait func()) {
	if d.pendingDestroy() == nil {
		wait()
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	var destroyWG sync.WaitGroup
	destroyWG.Go(func() { d.retryUntilDestroyed(ctx) })
	wait()
	cancel()
	destroyWG.Wait()
}
