package taskdriver

import (
	"context"
	"errors"
	"fmt"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/internal/failpoint"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/core/timeline"
)

// DispenseFunc returns the task's driver. It blocks while the driver's plugin is starting. All
// calls return the same value for one plugin process, and another value for the next process.
type DispenseFunc func(context.Context) (driver.Driver, error)

// Answer says what is known about a start with an unanswered StartTask call.
type Answer int

const (
	// AnswerNone means the driver is unavailable, could not find out whether the start was executed, or is still
	// starting the task.
	AnswerNone Answer = iota
	// AnswerTask means the driver has the task, which runs or has exited, and returns its handle.
	AnswerTask
	// AnswerTaskWithoutHandle means the driver has the task and returns no handle, because the driver is not made with
	// package sdk.
	AnswerTaskWithoutHandle
	// AnswerNotExecuted means the driver is sure the start has executed nothing.
	AnswerNotExecuted
	// AnswerUnknown means the start may have been executed, but the driver has neither a process nor an exit status.
	AnswerUnknown
	// AnswerReboot means the machine has rebooted since the start, so no process is left.
	AnswerReboot

	AnswerCount // number of answers
)

// EndTaskRequest identifies the task for EndTaskWithoutDriverFunc.
type EndTaskRequest struct {
	Driver                string
	AllocID               string
	Task                  string
	Handle                *driver.Handle // the process's handle; nil if the task has none
	TasksAreHostProcesses bool           // as in driver.UnavailableError
}

// EndTaskResult is the result of EndTaskWithoutDriverFunc.
type EndTaskResult struct {
	FoundProcesses bool               // task processes were found
	ExitResult     *driver.ExitResult // nil if the exit status is unknown
}

// EndTaskWithoutDriverFunc ends a task's processes without its driver: the processes in the task's cgroup, and those
// with the allocation's and the task's ids in their environment. It returns when these processes have exited.
type EndTaskWithoutDriverFunc func(context.Context, EndTaskRequest) (EndTaskResult, error)

// AwaitExitWithoutDriverFunc blocks until a task's main process has exited, and returns its exit status without
// the driver. The driver's tasks must be processes on this machine. It returns an error if the exit status is
// unknown, or when ctx is done.
type AwaitExitWithoutDriverFunc func(ctx context.Context, driverName string, handle *driver.Handle) (*driver.ExitResult, error)

// Access is how a task runner reaches its driver. The fields are set once, before the first call. The methods may be
// called concurrently.
type Access struct {
	DriverName string
	Dispense   DispenseFunc      // each error is a *driver.UnavailableError, see WithUnavailableErrors
	Timeline   timeline.Recorder // records the calls; the zero value records nothing
	// CompleteHandle returns a start's handle with its environment, which [Process.Handle] may lack; nil if it is unknown. The field
	// may be nil.
	CompleteHandle func(startID string) *driver.Handle
	Plugins        *Plugins                   // records which plugin process has each of the driver's tasks; may be nil
	AwaitExit      AwaitExitWithoutDriverFunc // used during outages of drivers with host processes as tasks; may be nil
	ReportOutage   func(error)                // called once per outage that delays a start; may be nil
}

// AwaitDriver returns the driver, or an error that is not temporary. It blocks while the driver is unavailable.
func (a *Access) AwaitDriver(ctx context.Context) (driver.Driver, error) {
	var outage Outage
	for {
		d, err := a.Dispense(ctx)
		if !IsTemporarilyUnavailable(err) {
			return d, err
		}
		if !outage.AwaitRetryUnlessDone(ctx, err, a.ReportOutage) {
			return nil, context.Cause(ctx)
		}
	}
}

// FetchDescription returns the driver's task config schema and capabilities. If the plugin exits during the call,
// FetchDescription calls the next plugin process, which returns the same description.
func (a *Access) FetchDescription(ctx context.Context) (*hclspec.Spec, *driver.Capabilities, error) {
	schema, capabilities, err := a.fetchDescriptionOnce(ctx)
	if errors.Is(err, driver.ErrPluginDown) && ctx.Err() == nil {
		return a.fetchDescriptionOnce(ctx)
	}
	return schema, capabilities, err
}

func (a *Access) fetchDescriptionOnce(ctx context.Context) (*hclspec.Spec, *driver.Capabilities, error) {
	d, err := a.Dispense(ctx)
	if err != nil {
		return nil, nil, err
	}
	schema, err := d.TaskConfigSchema(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("task config schema: %w", err)
	}
	capabilities, err := d.Capabilities(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("capabilities: %w", err)
	}
	return schema, capabilities, nil
}

// NewProcess returns a start's process in the driver. network is nil unless the driver has returned an address.
func (a *Access) NewProcess(handle *driver.Handle, network *driver.NetworkOverride) *Process {
	return &Process{Handle: handle, Network: network, access: a, outageStarted: make(chan struct{}, 1), exited: make(chan struct{})}
}

// DestroyTaskByStartID destroys a start by its id. It returns ErrTaskNotFound if the driver does
// not have the task.
func (a *Access) DestroyTaskByStartID(ctx context.Context, startID string) error {
	d, err := a.Dispense(ctx)
	if err != nil {
		return err
	}
	return a.recordCallsOf(d).DestroyTask(ctx, startID, true)
}

// FoundTask is a task found in the driver by QueryStartOrSearchTask.
type FoundTask struct {
	Handle *driver.Handle // the task's handle; for AnswerTaskWithoutHandle it has only the state
	Driver driver.Driver  // plugin process that has the task
	Status *driver.TaskStatus
}

var (
	errStartPending  = errors.New("the driver is still starting the task")
	ErrStartNotFound = errors.New("the driver exited while it started the task")
	ErrStartUnknown  = errors.New("the agent or the driver exited during the start, and the driver does not know the task")
)

// QueryStartOrSearchTask asks the driver about the start with an id. It returns the task if the driver has it. With
// AnswerNone and AnswerUnknown, the error is the reason. config is the start's config. A plugin process needs it to
// search for a task started by another process; if config is nil, the answer for such a start is AnswerNone with
// ErrStartNotFound.
func (a *Access) QueryStartOrSearchTask(ctx context.Context, startID string, config *driver.TaskConfig) (Answer, *FoundTask, error) {
	d, err := a.Dispense(ctx)
	if err != nil {
		return AnswerNone, nil, err
	}
	if failpoint.RepeatStarts {
		_ = a.DestroyTaskByStartID(ctx, startID) // a defect on purpose: tests check that they detect a start that is executed twice
		return AnswerNotExecuted, nil, nil
	}
	status, err := d.InspectTask(ctx, startID)
	if err == nil && status.StartStatus != nil && status.StartStatus.Phase == driver.StartNotFound {
		if config == nil {
			return AnswerNone, nil, ErrStartNotFound
		}
		search := *config
		search.ID = startID
		if err := a.recordCallsOf(d).RecoverTask(ctx, &driver.Handle{Config: &search}); err != nil {
			answer := classifySearchError(ctx, err)
			if driver.IsRecoverable(err) {
				err = &inconclusiveRecoveryError{err} // with this type, the task gets an event, and the delay between the attempts grows
			}
			return answer, nil, err
		}
		status, err = d.InspectTask(ctx, startID)
	}
	switch {
	case err == nil && status.StartStatus != nil && status.StartStatus.Phase == driver.StartReturned:
		return AnswerTask, &FoundTask{status.StartStatus.Handle, d, status}, nil
	case err == nil && status.StartStatus != nil:
		return AnswerNone, nil, errStartPending
	case err == nil && status.State != driver.TaskUnknown:
		return AnswerTaskWithoutHandle, &FoundTask{&driver.Handle{State: status.State}, d, status}, nil
	case err != nil && isStartQueryInconclusive(ctx, err):
		return AnswerNone, nil, err
	}
	return AnswerUnknown, nil, ErrStartUnknown
}

// classifySearchError returns the answer when a driver's search for a start's task has failed, see
// [driver.StartNotFound].
func classifySearchError(ctx context.Context, err error) Answer {
	switch {
	case isStartQueryInconclusive(ctx, err):
		return AnswerNone
	case errors.Is(err, driver.ErrTaskNotFound):
		return AnswerNotExecuted
	}
	return AnswerUnknown
}

// isStartQueryInconclusive reports whether an error leaves open whether a start was executed, so the driver must be
// asked again.
func isStartQueryInconclusive(ctx context.Context, err error) bool {
	return IsTaskStateUnknown(err) || driver.IsRecoverable(err) || ctx.Err() != nil
}
