package taskrunner

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nomad-lite/nomad-lite/internal/failpoint"
	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskdriver"
	"github.com/nomad-lite/nomad-lite/runtime/core/tasksteps"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// stopRetryDelays are the delays after the failed attempts to stop a process. There is no attempt after the last delay.
var stopRetryDelays = [...]time.Duration{5 * time.Second, 20 * time.Second, 80 * time.Second, 120 * time.Second, 120 * time.Second}

// forcedStopTimeout is a force kill's timeout for StopTask, and the timeout for the DestroyTask call after it.
const forcedStopTimeout = 5 * time.Second

// processStop is the stop of one process, from the PreKilling hooks to the exit.
type processStop struct {
	firstAttemptTime   time.Time          // when StopTask was first called; zero before
	failedAttempts     int                // StopTask calls refused by the driver since the stop began, or since a kill has joined the stop
	err                error              // error from the last StopTask call
	exitReportDeadline time.Time          // when WaitTask must have returned; zero unless the last StopTask call has succeeded
	eventEmitted       bool               // the task has the event for this pending stop
	killed             bool               // a kill was requested when that event was emitted
	retryBackoff       taskdriver.Backoff // delay between attempts to end the task without its driver
}

// interruptedStopOr returns the matching result if a force kill or an agent shutdown has ended the stop, and r otherwise.
func (t *taskRun) interruptedStopOr(r tasksteps.Result) tasksteps.Result {
	switch {
	case t.forceKillCtx.Err() == nil:
		return r
	case context.Cause(t.forceKillCtx) == errForceKilled:
		return tasksteps.ForceKilled
	}
	return tasksteps.AgentShutdown
}

func (t *taskRun) callPreKillingHooks() tasksteps.Result {
	t.stop = processStop{retryBackoff: taskdriver.Backoff{InitialDelay: time.Second, MaxDelay: 30 * time.Second}}
	point := failpoint.EnterStep(failpoint.StepPreKill)
	t.hooks.callPreKillingHooks(t.forceKillCtx, t.process)
	point.Leave()
	return t.interruptedStopOr(tasksteps.Done)
}

// awaitShutdownDelay waits for the task's shutdown_delay, unless the delay is skipped or the process exits. The delay gives
// clients time to notice that the task's services are deregistered. A kill during a requested restart's delay has its own delay,
// because the task's services are deregistered again.
func (t *taskRun) awaitShutdownDelay() tasksteps.Result {
	killed := t.requests.killedUnlessAlready()
	switch delay := t.Task().ShutdownDelay; {
	case delay == 0 || t.forceKillCtx.Err() != nil:
	case wait.IsClosed(t.requests.shutdownDelaySkipped):
		t.records.emitEvent(model.EventSkippingShutdownDelay(delay))
	default:
		t.records.emitEvent(model.EventWaitingShutdownDelay(delay))
		select {
		case <-time.After(delay):
		case <-t.requests.shutdownDelaySkipped:
		case <-t.process.Exited():
		case <-killed:
		case <-t.forceKillCtx.Done():
		}
	}
	if killed != nil && t.requests.isKillRequested() {
		return t.interruptedStopOr(tasksteps.Killed)
	}
	return t.interruptedStopOr(tasksteps.Done)
}

// stopTask calls StopTask once, unless the process has exited.
func (t *taskRun) stopTask() tasksteps.Result {
	if t.stop.firstAttemptTime.IsZero() {
		t.stop.firstAttemptTime = time.Now()
	}
	t.stop.exitReportDeadline = time.Time{}
	if wait.IsClosed(t.process.Exited()) {
		return t.interruptedStopOr(tasksteps.Done)
	}
	select {
	case <-t.process.OutageStarted(): // that outage was before this call
	default:
	}
	task := t.Task()
	point := failpoint.EnterStep(failpoint.StepStopTask)
	t.stop.err = t.process.StopTask(t.forceKillCtx, task.KillTimeout, task.KillSignal)
	point.Leave()
	switch {
	case t.stop.err == nil:
		t.stop.exitReportDeadline = time.Now().Add(task.KillTimeout + exitReportTimeout)
		return t.interruptedStopOr(tasksteps.Done)
	case taskdriver.IsTaskStateUnknown(t.stop.err):
		return t.interruptedStopOr(tasksteps.NoAnswer)
	}
	return t.interruptedStopOr(tasksteps.Failed)
}

// awaitStopRetry waits after a StopTask call that has failed.
//
// While the driver is unavailable the stop is pending:
//
//	the driver is available again          the stop is repeated
//	kill_timeout passes, host processes    the agent ends the task
//	kill_timeout passes, other driver      the stop stays pending; if the job is purged, the agent ends the task
//	the agent shuts down                   the process is left as it is
func (t *taskRun) awaitStopRetry() tasksteps.Result {
	if taskdriver.IsTaskStateUnknown(t.stop.err) {
		t.ender.awaitStopRetryOrEndProcess(t.forceKillCtx, t.process, &t.stop)
		return t.interruptedStopOr(tasksteps.Done)
	}
	delay := stopRetryDelays[t.stop.failedAttempts]
	t.stop.failedAttempts++
	if t.forceKillCtx.Err() == nil {
		t.logger.Warn("stop failed", "task_id", t.process.ID(), "error", t.stop.err, "delay", delay)
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-t.process.Exited():
		return t.interruptedStopOr(tasksteps.Done)
	case <-t.requests.killedUnlessAlready():
		t.stop.failedAttempts = 0 // the failed attempts belonged to a requested restart
	case <-t.forceKillCtx.Done():
	case <-timer.C:
	}
	if t.forceKillCtx.Err() != nil || t.stop.failedAttempts < len(stopRetryDelays) {
		return t.interruptedStopOr(tasksteps.Done)
	}
	t.stop.failedAttempts = 0
	err := fmt.Errorf("stop task: %w", t.stop.err)
	if !t.requests.isKillRequested() {
		t.logger.Error("task not restarted", "task_id", t.process.ID(), "error", err)
		t.requests.failRestart(err)
		return tasksteps.RestartFailed
	}
	t.logger.Error("task may have leaked", "task_id", t.process.ID(), "error", err)
	t.requests.setLeakErr(err)
	t.records.emitEvent(model.EventDriverMessage(fmt.Sprintf("failed to kill task. Resources may have been leaked: %v", err), nil, time.Time{}))
	return tasksteps.AttemptsUsedUp
}

// awaitExitAfterStop waits until the process has exited, or until the stop must be repeated.
func (t *taskRun) awaitExitAfterStop() tasksteps.Result {
	var unreported <-chan time.Time
	if !t.stop.exitReportDeadline.IsZero() {
		timer := time.NewTimer(time.Until(t.stop.exitReportDeadline))
		defer timer.Stop()
		unreported = timer.C
	}
	select {
	case <-t.process.Exited():
		return t.interruptedStopOr(tasksteps.Done)
	case <-t.process.OutageStarted():
		return t.interruptedStopOr(tasksteps.DriverUnavailable)
	case <-unreported:
		return t.interruptedStopOr(tasksteps.ExitNotReported)
	case <-t.forceKillCtx.Done():
	}
	return t.interruptedStopOr(tasksteps.Done)
}

// exitReportTimeout is how long WaitTask may take to return after StopTask and kill_timeout, and how long it may take after
// DestroyTask.
const exitReportTimeout = 10 * time.Second

// destroyWithoutExit destroys a process that the driver has stopped while WaitTask has not returned. If WaitTask does not return
// after that either, the exit status is unknown.
func (t *taskRun) destroyWithoutExit() tasksteps.Result {
	if err := t.process.DestroyTask(t.forceKillCtx); err != nil {
		if t.forceKillCtx.Err() == nil {
			t.logger.Warn("driver has stopped the task, reports no exit, and does not destroy the task", "task_id", t.process.ID(), "error", err)
		}
		return t.interruptedStopOr(tasksteps.Failed)
	}
	select {
	case <-t.process.Exited():
	case <-t.forceKillCtx.Done():
	case <-time.After(exitReportTimeout):
		err := errors.New("the driver has stopped and destroyed the task, and WaitTask does not return")
		t.process.RecordExit(taskdriver.Exit{ExitResult: driver.ExitResult{Err: err}, StatusUnknown: true, NeedsNoDestroy: true})
	}
	return t.interruptedStopOr(tasksteps.Done)
}

// forceKillProcess kills the process with SIGKILL, and with DestroyTask if that fails. Each step has forcedStopTimeout. If both
// fail, it ends the process without the driver if allowed.
func (e *processEnder) forceKillProcess(ctx context.Context, p *taskdriver.Process) {
	steps := []func(context.Context) error{
		func(ctx context.Context) error { return p.StopTask(ctx, 0, "SIGKILL") },
		p.DestroyTask,
	}
	var err error
	for _, step := range steps {
		ctx, cancel := context.WithTimeout(ctx, forcedStopTimeout)
		err = step(ctx)
		if err == nil {
			select {
			case <-p.Exited():
			case <-ctx.Done():
				err = ctx.Err()
			}
		}
		cancel()
		if err == nil {
			return
		}
		e.records.logger.Warn("force kill failed", "task_id", p.ID(), "error", err)
	}
	if hostProcesses, may := e.canEndWithoutDriver(err); may {
		if err = e.endProcessWithoutDriver(ctx, p, hostProcesses); err == nil {
			return
		}
	}
	e.records.logger.Error("task may have leaked", "task_id", p.ID(), "error", err)
	e.requests.setLeakErr(fmt.Errorf("kill task: %w", err))
}

// awaitStopRetryOrEndProcess waits until a stop should be retried, after the driver has not answered. If a kill is requested,
// kill_timeout has passed since the first attempt and canEndWithoutDriver allows it, awaitStopRetryOrEndProcess ends the process
// without the driver.
func (e *processEnder) awaitStopRetryOrEndProcess(ctx context.Context, p *taskdriver.Process, pending *processStop) {
	cause := pending.err
	var unavailableErr *driver.UnavailableError
	if !errors.As(cause, &unavailableErr) {
		_ = wait.Sleep(ctx, pending.retryBackoff.NextDelay()) // the plugin died during the call, or could not find out whether it has the task
		return
	}
	if killed := e.requests.isKillRequested(); !pending.eventEmitted || killed != pending.killed {
		pending.eventEmitted, pending.killed = true, killed
		e.records.emitEvent(model.EventDriverMessage(e.pendingStopMessage(cause), nil, time.Time{}))
	}
	limit := pending.retryBackoff.MaxDelay // the wait is limited, because the channel RetryOnClose is not closed for every change
	if unavailableErr.RetryOnClose == nil {
		limit = pending.retryBackoff.NextDelay()
	}
	if left := time.Until(pending.firstAttemptTime.Add(e.requests.currentTask().KillTimeout)); left > 0 {
		limit = min(limit, left)
	} else if hostProcesses, may := e.canEndWithoutDriver(cause); may && e.requests.isKillRequested() {
		err := e.endProcessWithoutDriver(ctx, p, hostProcesses)
		if err == nil || ctx.Err() != nil {
			return
		}
		e.records.logger.Error("task not ended", "task_id", p.ID(), "error", err)
		limit = pending.retryBackoff.NextDelay()
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-p.Exited():
	case <-unavailableErr.RetryOnClose:
	case <-e.requests.jobPurgedUnlessAlready():
	case <-e.requests.killedUnlessAlready():
	case <-timer.C:
	case <-ctx.Done():
	}
}

// pendingStopMessage returns the event text for a stop while the driver is unavailable.
func (e *processEnder) pendingStopMessage(cause error) string {
	what, then := "stop", "the task may still run; \"job stop -purge\" ends the processes that its cgroup or environment identifies"
	var unavailableErr *driver.UnavailableError
	switch {
	case !e.requests.isKillRequested():
		what, then = "restart", "the task may still run"
	case errors.As(cause, &unavailableErr) && unavailableErr.TasksAreHostProcesses && e.endTaskWithoutDriver != nil:
		then = fmt.Sprintf("the agent kills the task without its driver after kill_timeout (%s)", e.requests.currentTask().KillTimeout)
	case wait.IsClosed(e.requests.jobPurged):
		then = fmt.Sprintf("the agent ends the processes that the task's cgroup or environment identifies after kill_timeout (%s)", e.requests.currentTask().KillTimeout)
	}
	return fmt.Sprintf("%s is pending, driver unavailable: %v; %s", what, cause, then)
}

// endProcessWithoutDriver ends the process without its driver.
func (e *processEnder) endProcessWithoutDriver(ctx context.Context, p *taskdriver.Process, tasksAreHostProcesses bool) error {
	result, err := e.callEndTaskWithoutDriver(ctx, p.Handle, tasksAreHostProcesses)
	if err != nil {
		return err
	}
	text := "the agent has ended the task's processes without the driver"
	if !result.FoundProcesses {
		text = "driver unavailable, and neither cgroup nor environment identifies a process of the task"
		if !tasksAreHostProcesses {
			text += ": it may still run"
		}
	}
	e.records.emitEvent(model.EventDriverMessage(text, nil, time.Time{}))
	end := taskdriver.Exit{StatusUnknown: true, NeedsNoDestroy: tasksAreHostProcesses}
	if result.ExitResult != nil {
		end.ExitResult, end.StatusUnknown = *result.ExitResult, false
	}
	p.RecordExit(end)
	return nil
}

// canEndWithoutDriver reports whether the agent is allowed to end the task without its driver after a driver call has failed with
// driverErr. The driver must be unavailable, and its tasks must be processes on this machine, or the job purged, or the task
// force killed.
func (e *processEnder) canEndWithoutDriver(driverErr error) (tasksAreHostProcesses, allowed bool) {
	var unavailableErr *driver.UnavailableError
	if e.endTaskWithoutDriver == nil || !errors.As(driverErr, &unavailableErr) {
		return false, false
	}
	return unavailableErr.TasksAreHostProcesses, unavailableErr.TasksAreHostProcesses || wait.IsClosed(e.requests.jobPurged) || wait.IsClosed(e.requests.forceKilled)
}

// callEndTaskWithoutDriver calls taskdriver.EndTaskWithoutDriverFunc for the start with the given handle, which may be
// nil.
func (e *processEnder) callEndTaskWithoutDriver(ctx context.Context, handle *driver.Handle, tasksAreHostProcesses bool) (taskdriver.EndTaskResult, error) {
	ctx, cancel := context.WithTimeout(ctx, endTaskTimeout)
	defer cancel()
	result, err := e.endTaskWithoutDriver(ctx, taskdriver.EndTaskRequest{
		Driver: e.driver.DriverName, AllocID: e.records.alloc.ID, Task: e.records.taskName, Handle: handle, TasksAreHostProcesses: tasksAreHostProcesses,
	})
	if err != nil {
		return result, fmt.Errorf("end the task without its driver: %w", err)
	}
	return result, nil
}
