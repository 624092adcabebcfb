package taskrunner

import (
	"context"
	"errors"

	"github.com/nomad-lite/nomad-lite/internal/failpoint"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// startQuery asks a driver whether a start was executed whose StartTask call has not returned to the agent.
type startQuery struct {
	dispense     dispenseDriverFunc
	callRecorder driverCallRecorder
}

// foundTask is a task that startQuery has found in the driver.
type foundTask struct {
	handle *driver.Handle // handle of the task; for answerTaskWithoutHandle it has only the state
	driver driver.Driver  // plugin process that has the task
	status *driver.TaskStatus
}

var (
	errStartPending  = errors.New("the driver is still starting the task")
	errStartNotFound = errors.New("the driver exited while it started the task")
	errStartUnknown  = errors.New("the agent or the driver exited during the start, and the driver does not know the task")
)

// queryStart asks the driver about the start with an id. It returns the task if the driver has it. With answerNone and
// answerUnknown, the error is the reason. config is the config of the start, which a plugin process needs to search for a
// task that it has not started; if config is nil, the answer for such a start is answerNone with errStartNotFound.
func (q startQuery) queryStart(ctx context.Context, id string, config *driver.TaskConfig) (startQueryAnswer, *foundTask, error) {
	d, err := q.dispense(ctx)
	if err != nil {
		return answerNone, nil, err
	}
	if failpoint.RepeatStarts {
		_ = destroyByID(ctx, q.dispense, q.callRecorder, id) // a defect on purpose: tests check that they detect a start that is executed twice
		return answerNotExecuted, nil, nil
	}
	status, err := d.InspectTask(ctx, id)
	if err == nil && status.Start != nil && status.Start.Phase == driver.StartNotFound {
		if config == nil {
			return answerNone, nil, errStartNotFound
		}
		search := *config
		search.ID = id
		if err := q.callRecorder.recordCallsOf(d).RecoverTask(ctx, &driver.Handle{Config: &search}); err != nil {
			answer := classifySearchError(ctx, err)
			if driver.IsRecoverable(err) {
				err = &inconclusiveRecoveryError{err} // with this type, the task gets an event, and the delay between the attempts grows
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
	case err != nil && isStartQueryInconclusive(ctx, err):
		return answerNone, nil, err
	}
	return answerUnknown, nil, errStartUnknown
}

// classifySearchError returns the answer of a driver that has searched for the task of a start, see [driver.StartNotFound].
func classifySearchError(ctx context.Context, err error) startQueryAnswer {
	switch {
	case isStartQueryInconclusive(ctx, err):
		return answerNone
	case errors.Is(err, driver.ErrTaskNotFound):
		return answerNotExecuted
	}
	return answerUnknown
}

// isStartQueryInconclusive reports whether an error does not tell whether a start was executed, so the driver must be asked again.
func isStartQueryInconclusive(ctx context.Context, err error) bool {
	return isTaskStateUnknown(err) || driver.IsRecoverable(err) || ctx.Err() != nil
}
