package taskrunner

import (
	"context"
	"errors"

	"github.com/nomad-lite/nomad-lite/internal/failpoint"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// startQuery asks a driver what became of a start whose StartTask has not returned to the agent.
type startQuery struct {
	dispense dispenseFunc
	calls    callRecorder
}

// foundTask is the task of a start.
type foundTask struct {
	handle *driver.Handle // handle of the task; without DriverState for answerTaskWithoutHandle
	driver driver.Driver  // plugin process that has the task
	status *driver.TaskStatus
}

var (
	errStartPending  = errors.New("the driver is still starting the task")
	errStartNotFound = errors.New("the driver exited while it started the task")
	errStartUnknown  = errors.New("the agent or the driver exited during the start, and the driver does not know the task")
)

// queryStart returns the answer and, if the driver has the task, the task. With answerNone and answerUnknown, the error is the
// reason. config is the config of the start, with which a plugin process searches for a task that it has not started;
// without it, the answer for such a start is answerNone.
func (q startQuery) queryStart(ctx context.Context, id string, config *driver.TaskConfig) (startQueryAnswer, *foundTask, error) {
	d, err := q.dispense(ctx)
	if err != nil {
		return answerNone, nil, err
	}
	if failpoint.RepeatStarts {
		_ = destroyByID(ctx, q.dispense, q.calls, id) // the planted defect of tests
		return answerNotExecuted, nil, nil
	}
	status, err := d.InspectTask(ctx, id)
	if err == nil && status.Start != nil && status.Start.Phase == driver.StartNotFound {
		if config == nil {
			return answerNone, nil, errStartNotFound
		}
		search := *config
		search.ID = id
		if err := q.calls.recordCallsOf(d).RecoverTask(ctx, &driver.Handle{Config: &search}); err != nil {
			answer := classifySearchError(ctx, err)
			if driver.IsRecoverable(err) {
				err = &inconclusiveRecoveryError{err} // the task gets an event, and the calls are not repeated every second
			}
			return answer, nil, err
		}
		status, err = d.InspectTask(ctx, id)
	}
	switch {
	case err == nil && status.Start != nil && status.Start.Phase == driver.StartReturned:
		return answerTask, &foundTask{status.Start.Handle, d, status}, nil
	case err == nil && status.Start != nil:
		return answerNone, nil, errStartPending
	case err == nil && status.State != driver.TaskUnknown:
		return answerTaskWithoutHandle, &foundTask{&driver.Handle{State: status.State}, d, status}, nil
	case err != nil && isInconclusive(ctx, err):
		return answerNone, nil, err
	}
	return answerUnknown, nil, errStartUnknown
}

// classifySearchError returns the answer of a driver that has searched for the task of a start, see [driver.StartNotFound].
func classifySearchError(ctx context.Context, err error) startQueryAnswer {
	switch {
	case isInconclusive(ctx, err):
		return answerNone
	case errors.Is(err, driver.ErrTaskNotFound):
		return answerNotExecuted
	}
	return answerUnknown
}

// isInconclusive reports whether an error leaves open what became of a start.
func isInconclusive(ctx context.Context, err error) bool {
	return isTaskStateUnknown(err) || driver.IsRecoverable(err) || ctx.Err() != nil
}
