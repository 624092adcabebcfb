package taskrunner

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/failpoint"
	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// stopRetryDelays are the delays after the failed attempts to stop a process. There is no attempt after the last delay.
var stopRetryDelays = [...]time.Duration{5 * time.Second, 20 * time.Second, 80 * time.Second, 120 * time.Second, 120 * time.Second}

// forcedStopTimeout is the timeout of a force kill for StopTask, and the timeout for the DestroyTask call that follows.
const forcedStopTimeout = 5 * time.Second

// stopper stops processes of the task. While the driver is unavailable, it ends them without the driver if
// canEndWithoutDriver allows it.
type stopper struct {
	killRequest          *killRequest
	task                 func() Task
	allocID              string
	endTaskWithoutDriver EndTaskFunc           // ends tasks without their driver; nil if only drivers may end tasks
	callPreKillingHooks  func(context.Context) // calls the PreKilling hooks
	emitEvent            func(*api.TaskEvent)
	logger               hclog.Logger
}

// killProcess calls the PreKilling hooks, waits for the shutdown delay and stops the process. It returns when the process
// has exited or ctx is done. If ForceKill has canceled ctx, killProcess first force kills the process.
func (s *stopper) killProcess(ctx context.Context, p *process) {
	point := failpoint.EnterStep(failpoint.StepPreKill)
	s.callPreKillingHooks(ctx)
	s.awaitShutdownDelay(ctx, p, nil)
	point.Leave()
	for ended := false; !ended; {
		point := failpoint.EnterStep(failpoint.StepStopTask)
		err := s.stopProcess(ctx, p)
		point.Leave()
		if err != nil && ctx.Err() == nil {
			s.logger.Error("task may have leaked", "task_id", p.id(), "error", err)
			s.killRequest.setLeakErr(err)
			s.emitEvent(model.EventDriverMessage(fmt.Sprintf("failed to kill task. Resources may have been leaked: %v", err), nil, time.Time{}))
		}
		var unreported <-chan time.Time // receives when the driver has reported no exit in time after StopTask; nil if StopTask has failed
		if err == nil {
			unreported = time.After(s.task().KillTimeout + exitReportTimeout)
		}
		select {
		case <-p.exited:
			ended = true
		case <-p.outageStarted: // StopTask may have had no effect, so it is called again
		case <-unreported:
			ended = s.destroyProcessWithoutExitReport(ctx, p)
		case <-ctx.Done():
			ended = true
		}
	}
	if context.Cause(ctx) == errForceKilled {
		s.forceKillProcess(context.WithoutCancel(ctx), p)
	}
}

// exitReportTimeout is how long WaitTask may take to return after StopTask and kill_timeout, and how long it may take
// after DestroyTask.
const exitReportTimeout = 10 * time.Second

// destroyProcessWithoutExitReport destroys a process that the driver has stopped while WaitTask has not returned. If WaitTask does not
// return after that either, the exit status is unknown. It returns false if the driver could not destroy the process.
func (s *stopper) destroyProcessWithoutExitReport(ctx context.Context, p *process) bool {
	if err := p.destroyTask(ctx); err != nil {
		if ctx.Err() == nil {
			s.logger.Warn("driver has stopped the task, reports no exit, and does not destroy the task", "task_id", p.id(), "error", err)
		}
		return false
	}
	select {
	case <-p.exited:
	case <-ctx.Done():
	case <-time.After(exitReportTimeout):
		err := errors.New("the driver has stopped and destroyed the task, and WaitTask does not return")
		p.recordResult(processResult{ExitResult: driver.ExitResult{Err: err}, exitUnknown: true, destroyed: true})
	}
	return true
}

// forceKillProcess kills the process with SIGKILL, and with DestroyTask if that fails. Each step has forcedStopTimeout. If
// both fail, it ends the process without the driver if that is allowed.
func (s *stopper) forceKillProcess(ctx context.Context, p *process) {
	steps := []func(context.Context) error{
		func(ctx context.Context) error { return p.stopTask(ctx, 0, "SIGKILL") },
		p.destroyTask,
	}
	var err error
	for _, step := range steps {
		ctx, cancel := context.WithTimeout(ctx, forcedStopTimeout)
		err = step(ctx)
		if err == nil {
			select {
			case <-p.exited:
			case <-ctx.Done():
				err = ctx.Err()
			}
		}
		cancel()
		if err == nil {
			return
		}
		s.logger.Error("task may have leaked", "task_id", p.id(), "error", err)
		s.killRequest.setLeakErr(fmt.Errorf("kill task: %w", err))
	}
	if hostProcesses, may := s.canEndWithoutDriver(err); may {
		if err := s.endProcessWithoutDriver(ctx, p, hostProcesses); err != nil {
			s.logger.Error("task may have leaked", "task_id", p.id(), "error", err)
		}
	}
}

// stopProcess calls StopTask, and repeats the call after an error. It returns nil without a call if the process has
// exited.
//
// While the driver is unavailable the stop is pending:
//
//	the driver is available again          the stop is repeated
//	kill_timeout passes, host processes    the agent ends the task
//	kill_timeout passes, other driver      the stop stays pending; if the job is purged, the agent ends the task
//	ctx ends                               the process is left as it is
func (s *stopper) stopProcess(ctx context.Context, p *process) error {
	pending := pendingStop{firstAttemptTime: time.Now(), retryBackoff: backoff{initialDelay: time.Second, maxDelay: 30 * time.Second}}
	for attempt := 0; ; {
		select {
		case <-p.exited:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		default:
		}
		task := s.task()
		err := p.stopTask(ctx, task.KillTimeout, task.KillSignal)
		switch {
		case err == nil:
			return nil
		case isTaskStateUnknown(err) && ctx.Err() == nil:
			s.awaitStopRetry(ctx, p, &pending, err)
			continue
		}
		wait := stopRetryDelays[attempt]
		attempt++
		if ctx.Err() == nil {
			s.logger.Warn("stop failed", "task_id", p.id(), "error", err, "delay", wait)
		}
		select {
		case <-p.exited:
			return nil
		case <-time.After(wait):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if attempt == len(stopRetryDelays) {
			return fmt.Errorf("stop task: %w", err)
		}
	}
}

// pendingStop is a stop that waits for an unavailable driver.
type pendingStop struct {
	firstAttemptTime        time.Time
	stopPendingEventEmitted bool    // the task has the event for this pending stop
	retryBackoff            backoff // delay between attempts to end the task without its driver
}

// awaitStopRetry waits until a stop that failed with cause should be retried. If a kill is requested, kill_timeout has passed
// since the first attempt and canEndWithoutDriver allows it, awaitStopRetry ends the process without the driver.
func (s *stopper) awaitStopRetry(ctx context.Context, p *process, pending *pendingStop, cause error) {
	var unavailableErr *driver.UnavailableError
	if !errors.As(cause, &unavailableErr) {
		_ = wait.Sleep(ctx, pending.retryBackoff.nextDelay()) // the plugin died during the call, or could not find out whether it has the task
		return
	}
	if !pending.stopPendingEventEmitted {
		pending.stopPendingEventEmitted = true
		s.emitEvent(model.EventDriverMessage(s.pendingStopMessage(cause), nil, time.Time{}))
	}
	limit := pending.retryBackoff.maxDelay // the wait is limited, because the channel Changed is not closed for every change
	if unavailableErr.Changed == nil {
		limit = pending.retryBackoff.nextDelay()
	}
	if left := time.Until(pending.firstAttemptTime.Add(s.task().KillTimeout)); left > 0 {
		limit = min(limit, left)
	} else if hostProcesses, may := s.canEndWithoutDriver(cause); may && s.killRequest.isRequested() {
		err := s.endProcessWithoutDriver(ctx, p, hostProcesses)
		if err == nil || ctx.Err() != nil {
			return
		}
		s.logger.Error("task not ended", "task_id", p.id(), "error", err)
		limit = pending.retryBackoff.nextDelay()
	}
	purged := s.killRequest.jobPurged
	if wait.IsClosed(purged) {
		purged = nil // an earlier purge must not end the wait
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-p.exited:
	case <-unavailableErr.Changed:
	case <-purged:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// pendingStopMessage returns the event text for a stop whose driver is unavailable.
func (s *stopper) pendingStopMessage(cause error) string {
	what, then := "stop", "the task may still run; \"job stop -purge\" ends the processes that its cgroup or environment identifies"
	var unavailableErr *driver.UnavailableError
	switch {
	case !s.killRequest.isRequested():
		what, then = "restart", "the task may still run"
	case errors.As(cause, &unavailableErr) && unavailableErr.TasksAreHostProcesses && s.endTaskWithoutDriver != nil:
		then = fmt.Sprintf("the agent kills the task without its driver after kill_timeout (%s)", s.task().KillTimeout)
	case wait.IsClosed(s.killRequest.jobPurged):
		then = fmt.Sprintf("the agent ends the processes that the task's cgroup or environment identifies after kill_timeout (%s)", s.task().KillTimeout)
	}
	return fmt.Sprintf("%s is pending, driver unavailable: %v; %s", what, cause, then)
}

// endProcessWithoutDriver ends the process without its driver.
func (s *stopper) endProcessWithoutDriver(ctx context.Context, p *process, hostProcesses bool) error {
	result, err := s.callEndTaskWithoutDriver(ctx, p.handle, hostProcesses)
	if err != nil {
		return err
	}
	text := "the agent has ended the task's processes without the driver"
	if !result.FoundProcesses {
		text = "driver unavailable, and neither cgroup nor environment identifies a process of the task"
		if !hostProcesses {
			text += ": it may still run"
		}
	}
	s.emitEvent(model.EventDriverMessage(text, nil, time.Time{}))
	end := processResult{exitUnknown: true, destroyed: hostProcesses}
	if result.ExitResult != nil {
		end.ExitResult, end.exitUnknown = *result.ExitResult, false
	}
	p.recordResult(end)
	return nil
}

// awaitShutdownDelay waits for the shutdown_delay of the task, which gives its clients time to notice the deregistration
// of its services. It returns early when the delay is skipped, when the process exits, when ctx is done, or when killed,
// which may be nil, is closed.
func (s *stopper) awaitShutdownDelay(ctx context.Context, p *process, killed <-chan struct{}) {
	delay := s.task().ShutdownDelay
	if delay == 0 || ctx.Err() != nil {
		return
	}
	select {
	case <-s.killRequest.shutdownDelaySkipped:
		s.emitEvent(model.EventSkippingShutdownDelay(delay))
		return
	default:
	}
	s.emitEvent(model.EventWaitingShutdownDelay(delay))
	select {
	case <-time.After(delay):
	case <-s.killRequest.shutdownDelaySkipped:
	case <-p.exited:
	case <-killed:
	case <-ctx.Done():
	}
}

// stopForRestart calls the PreKilling hooks, waits for the shutdown delay and stops the process for a requested restart. It
// does not stop the process if the task is killed in the meantime, because the kill stops it.
func (s *stopper) stopForRestart(ctx context.Context, p *process) error {
	s.callPreKillingHooks(ctx)
	s.awaitShutdownDelay(ctx, p, s.killRequest.killed)
	if s.killRequest.isRequested() {
		return nil // killProcess stops the process
	}
	return s.stopProcess(ctx, p)
}

// canEndWithoutDriver reports whether the agent is allowed to end the task without its driver after a driver call has
// failed with err: the driver must be unavailable, and its tasks must be processes of this machine, or the job purged, or the task force killed.
// hostProcesses reports whether they are.
func (s *stopper) canEndWithoutDriver(err error) (hostProcesses, allowed bool) {
	var unavailableErr *driver.UnavailableError
	if s.endTaskWithoutDriver == nil || !errors.As(err, &unavailableErr) {
		return false, false
	}
	return unavailableErr.TasksAreHostProcesses, unavailableErr.TasksAreHostProcesses || wait.IsClosed(s.killRequest.jobPurged) || wait.IsClosed(s.killRequest.forceKilled)
}

// callEndTaskWithoutDriver calls EndTaskFunc for the start with the given handle, which may be nil.
func (s *stopper) callEndTaskWithoutDriver(ctx context.Context, handle *driver.Handle, hostProcesses bool) (EndTaskResult, error) {
	ctx, cancel := context.WithTimeout(ctx, endTaskTimeout)
	defer cancel()
	result, err := s.endTaskWithoutDriver(ctx, EndTaskRequest{
		Driver: s.task().Driver, AllocID: s.allocID, Task: s.task().Name, Handle: handle, TasksAreHostProcesses: hostProcesses,
	})
	if err != nil {
		return result, fmt.Errorf("end the task without its driver: %w", err)
	}
	return result, nil
}
