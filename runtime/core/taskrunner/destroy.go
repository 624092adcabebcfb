package taskrunner

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/core/record"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskdriver"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// destroyTimeout limits one DestroyTask call. It is long because a driver with a new plugin process may have to destroy all its
// tasks at the same time, and reads all processes on the machine to find them.
const destroyTimeout = time.Minute

// abandonedStartTimeout is the timeout for destroying a task after its start was abandoned.
const abandonedStartTimeout = 5 * time.Second

// endTaskTimeout limits one call to taskdriver.EndTaskWithoutDriverFunc.
const endTaskTimeout = 10 * time.Second

// processEnder stops the task's processes, and destroys its starts in their driver. While the driver is unavailable, it ends
// processes without the driver if canEndWithoutDriver allows it. It belongs to Run's goroutine and, before Run, to the callers
// that prepare it.
type processEnder struct {
	records              *taskRecords
	requests             *taskRequests
	driver               *taskdriver.Access
	endTaskWithoutDriver taskdriver.EndTaskWithoutDriverFunc // ends tasks without their driver; nil if only drivers may end tasks

	destroyPendingEventEmitted bool // the task has the event for the current pending destroy
}

// pendingDestroy returns the start that the driver must destroy, nil if there is none.
func (e *processEnder) pendingDestroy() *record.PendingDestroy {
	return e.records.fields().FirstPendingDestroy
}

// owe records a start that the driver must destroy. The change is stored with the next put; until then the stored record contains
// the start's id, so the next agent finds the start.
func (e *processEnder) owe(start record.Fact) {
	e.records.commit(start)
	e.destroyPendingEventEmitted = false
}

// destroyPendingStarts calls the driver once to destroy the first pending start, if there is one. After a success it destroys the
// start in the Next field.
func (e *processEnder) destroyPendingStarts(ctx context.Context) error {
	start := e.pendingDestroy()
	if start == nil {
		return nil
	}
	call, cancel := context.WithTimeout(ctx, destroyTimeout)
	defer cancel()
	var err error
	if start.Handle != nil {
		err = e.driver.NewProcess(start.Handle, nil).DestroyTaskOrErrNotFound(call)
	} else {
		err = e.driver.DestroyTaskByStartID(call, start.StartID)
	}
	switch {
	case err == nil:
		e.requests.recordProcessDestroyed()
	case errors.Is(err, driver.ErrTaskNotFound):
		e.endProcessesUnknownToDriver(ctx, start)
		if start.NotFoundIsInconclusive {
			e.reportUncertainDestroy("what is known of it is not enough for the driver to find it")
		}
		err = nil
	}
	if err != nil && ctx.Err() == nil {
		err = e.endWithoutDriverIfAllowed(ctx, start, err)
	}
	if err != nil {
		if ctx.Err() == nil {
			e.reportPendingDestroy(start, err)
		}
		return fmt.Errorf("destroy task: %w", err)
	}
	e.records.commit(record.Destroyed{})
	return e.destroyPendingStarts(ctx)
}

// endWithoutDriverIfAllowed ends a start's processes after its DestroyTask call has failed with destroyErr. It does so in two
// cases, and returns destroyErr in all others: if the driver's tasks are processes on this machine, and if the job is purged or
// the task force killed and no plugin serves its driver.
func (e *processEnder) endWithoutDriverIfAllowed(ctx context.Context, start *record.PendingDestroy, destroyErr error) error {
	var unavailableErr *driver.UnavailableError
	hostProcesses, allowed := e.canEndWithoutDriver(destroyErr)
	if !allowed || !hostProcesses && (!errors.As(destroyErr, &unavailableErr) || unavailableErr.Plugin != "") {
		return destroyErr
	}
	if _, endErr := e.callEndTaskWithoutDriver(ctx, start.Handle, hostProcesses); endErr != nil {
		return errors.Join(destroyErr, endErr)
	}
	if hostProcesses {
		e.requests.recordProcessDestroyed()
	} else {
		e.reportUncertainDestroy(fmt.Sprintf("its driver was not there to destroy it: %v", destroyErr))
	}
	return nil
}

// endProcessesUnknownToDriver ends a start's processes when the driver does not know the start: the driver has lost the task, or
// has failed to recover it. Processes continue to run if neither the cgroup nor the environment identifies them.
func (e *processEnder) endProcessesUnknownToDriver(ctx context.Context, start *record.PendingDestroy) {
	if e.endTaskWithoutDriver == nil {
		return
	}
	result, err := e.callEndTaskWithoutDriver(ctx, start.Handle, false)
	if err != nil && ctx.Err() == nil {
		e.records.logger.Warn("task may have leaked: its driver does not have it", "task_id", start.StartID, "error", err)
	}
	if result.FoundProcesses {
		e.records.emitEvent(model.EventDriverMessage("the driver does not have the task any longer, the agent has ended its processes", nil, time.Time{}))
	}
}

// reportUncertainDestroy logs an error and emits an event: processes from an earlier start may still run.
func (e *processEnder) reportUncertainDestroy(why string) {
	text := "an earlier start of the task may still run: " + why
	e.records.logger.Error(text)
	e.records.emitEvent(model.EventDriverMessage(text, nil, time.Time{}))
}

// reportPendingDestroy logs each failed attempt to destroy a start. It emits an event only for the first one.
func (e *processEnder) reportPendingDestroy(start *record.PendingDestroy, err error) {
	e.records.logger.Warn("destroying the task is pending", "task_id", start.StartID, "error", err)
	if !e.destroyPendingEventEmitted {
		e.destroyPendingEventEmitted = true
		e.records.emitEvent(model.EventDriverMessage(fmt.Sprintf("destroying the task is pending: %v", err), nil, time.Time{}))
	}
}

// destroyFailedStart destroys a start after StartTask has returned an error. The driver may have started the task nevertheless,
// for example if the agent could not read the response. Otherwise the driver does not find the task.
func (e *processEnder) destroyFailedStart(ctx context.Context, startID string) {
	ctx, cancel := context.WithTimeout(ctx, abandonedStartTimeout)
	defer cancel()
	err := e.driver.DestroyTaskByStartID(ctx, startID)
	switch {
	case err == nil:
		e.records.logger.Warn("a task whose start failed was destroyed", "task_id", startID)
	case !errors.Is(err, driver.ErrTaskNotFound):
		e.records.logger.Warn("task may have leaked: its start failed, and it was not destroyed", "task_id", startID, "error", err)
	}
}

// retryUntilDestroyed calls destroyPendingStarts until it succeeds or ctx is done. It retries without delay when an
// unavailable driver becomes available or the job is purged.
func (e *processEnder) retryUntilDestroyed(ctx context.Context) {
	retry := taskdriver.Backoff{InitialDelay: time.Second, MaxDelay: 5 * time.Minute}
	for e.pendingDestroy() != nil && ctx.Err() == nil {
		err := e.destroyPendingStarts(ctx)
		if err == nil {
			e.records.commit(record.AllDestroyed{})
			return
		}
		if ctx.Err() != nil {
			return
		}
		var driverChanged <-chan struct{}
		var unavailableErr *driver.UnavailableError
		if errors.As(err, &unavailableErr) && unavailableErr.RetryOnClose != nil {
			driverChanged = unavailableErr.RetryOnClose
		}
		timer := time.NewTimer(retry.NextDelay())
		select {
		case <-timer.C:
		case <-driverChanged:
		case <-e.requests.jobPurgedUnlessAlready():
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// retryDestroyWhileWaiting calls wait, and retries the pending destroy while wait runs.
func (e *processEnder) retryDestroyWhileWaiting(ctx context.Context, wait func()) {
	if e.pendingDestroy() == nil {
		wait()
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	var destroyWG sync.WaitGroup
	destroyWG.Go(func() { e.retryUntilDestroyed(ctx) })
	wait()
	cancel()
	destroyWG.Wait()
}
