package taskrunner

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/failpoint"
	"github.com/nomad-lite/nomad-lite/runtime/model"
)

// stopWaits are the delays after each failed attempt to stop a process. There is no
// attempt after the last delay.
var stopWaits = [...]time.Duration{5 * time.Second, 20 * time.Second, 80 * time.Second, 120 * time.Second, 120 * time.Second}

// forcedStop is the timeout of a force kill for StopTask, and again for DestroyTask.
const forcedStop = 5 * time.Second

// kill ends the process for good. It returns when the process has exited or ctx is
// done. If ForceKill canceled ctx, kill first kills the process without further delay.
func (r *Runner) kill(ctx context.Context, p *process) {
	point := failpoint.Enter(failpoint.PreKill)
	r.preKilling(ctx)
	r.awaitShutdownDelay(ctx, p, nil)
	point.Leave()
	for ended := false; !ended; {
		point := failpoint.Enter(failpoint.StopTask)
		err := r.stop(ctx, p)
		point.Leave()
		if err != nil && ctx.Err() == nil {
			r.logger.Error("task may have leaked", "task_id", p.id(), "error", err)
			r.setKillError(err)
			r.EmitEvent(model.EventDriver(fmt.Sprintf("failed to kill task. Resources may have been leaked: %v", err), nil, time.Time{}))
		}
		select {
		case <-p.exited:
			return
		case <-p.away: // the driver may have stopped the process without reporting the exit, so stop again
		case <-ctx.Done():
			ended = true
		}
	}
	if context.Cause(ctx) == errHurry {
		r.killNow(context.WithoutCancel(ctx), p)
	}
}

// killNow kills the process with SIGKILL and DestroyTask, and gives up after forcedStop
// each.
func (r *Runner) killNow(ctx context.Context, p *process) {
	steps := []func(context.Context) error{
		func(ctx context.Context) error { return p.stop(ctx, 0, "SIGKILL") },
		p.destroy,
	}
	var err error
	for _, step := range steps {
		ctx, cancel := context.WithTimeout(ctx, forcedStop)
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
		r.logger.Error("task may have leaked", "task_id", p.id(), "error", err)
		r.setKillError(fmt.Errorf("kill task: %w", err))
	}
	if builtin, may := r.mayEndTask(err); may {
		if err := r.endProcess(ctx, p, builtin); err != nil {
			r.logger.Error("task may have leaked", "task_id", p.id(), "error", err)
		}
	}
}

// stop calls StopTask, repeatedly if that fails. A process that has exited needs no
// stop.
//
// While the driver is unavailable the stop is pending:
//
//	the driver is available again          the stop is repeated
//	kill_timeout passes, builtin driver    the agent ends the task
//	kill_timeout passes, other driver      nothing, unless the job is purged: then as above
//	ctx ends                               the process is left as it is
func (r *Runner) stop(ctx context.Context, p *process) error {
	pending := pendingStop{began: time.Now(), retry: pause{first: time.Second, most: 30 * time.Second}}
	for attempt := 0; ; {
		select {
		case <-p.exited:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		default:
		}
		task := r.Task()
		err := p.stop(ctx, task.KillTimeout, task.KillSignal)
		switch {
		case err == nil:
			return nil
		case isAway(err) && ctx.Err() == nil:
			r.awaitDriver(ctx, p, &pending, err)
			continue
		}
		wait := stopWaits[attempt]
		attempt++
		if ctx.Err() == nil {
			r.logger.Warn("stop failed", "task_id", p.id(), "error", err, "delay", wait)
		}
		select {
		case <-p.exited:
			return nil
		case <-time.After(wait):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if attempt == len(stopWaits) {
			return fmt.Errorf("stop task: %w", err)
		}
	}
}

// pendingStop is a stop that waits for an unavailable driver.
type pendingStop struct {
	began    time.Time
	reported bool  // the event was emitted
	retry    pause // between the attempts to end the task without its driver
}

// awaitDriver waits until a stop that failed with cause should be retried. It ends the
// process without the driver if kill_timeout has passed and that is allowed.
func (r *Runner) awaitDriver(ctx context.Context, p *process, s *pendingStop, cause error) {
	var unavailable *driver.UnavailableError
	if !errors.As(cause, &unavailable) {
		sleep(ctx, s.retry.take()) // the plugin died during the call, is about to die, or could not find out about the task
		return
	}
	if !s.reported {
		s.reported = true
		r.EmitEvent(model.EventDriver(r.pendingStopText(cause), nil, time.Time{}))
	}
	wait := s.retry.most // upper bound for changes that Changed does not announce
	if unavailable.Changed == nil {
		wait = s.retry.take()
	}
	if left := time.Until(s.began.Add(r.Task().KillTimeout)); left > 0 {
		wait = min(wait, left)
	} else if builtin, may := r.mayEndTask(cause); may && r.isKilled() {
		err := r.endProcess(ctx, p, builtin)
		if err == nil || ctx.Err() != nil {
			return
		}
		r.logger.Error("task not ended", "task_id", p.id(), "error", err)
		wait = s.retry.take()
	}
	purged := r.purged
	if isClosed(purged) {
		purged = nil // the job was purged before this attempt
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-p.exited:
	case <-unavailable.Changed:
	case <-purged:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// pendingStopText returns the event text for a stop whose driver is unavailable.
func (r *Runner) pendingStopText(cause error) string {
	what, then := "stop", "the task may still run; \"job stop -purge\" ends the processes that its cgroup or environment identifies"
	var unavailable *driver.UnavailableError
	switch {
	case !r.isKilled():
		what, then = "restart", "the task may still run"
	case errors.As(cause, &unavailable) && unavailable.Builtin && r.endTask != nil:
		then = fmt.Sprintf("the agent kills the task without its driver after kill_timeout (%s)", r.Task().KillTimeout)
	case isClosed(r.purged):
		then = fmt.Sprintf("the agent ends the processes that the task's cgroup or environment identifies after kill_timeout (%s)", r.Task().KillTimeout)
	}
	return fmt.Sprintf("%s is pending, driver unavailable: %v; %s", what, cause, then)
}

// endProcess ends the process without its driver.
func (r *Runner) endProcess(ctx context.Context, p *process, builtin bool) error {
	result, err := r.callEndTask(ctx, p.handle, builtin)
	if err != nil {
		return err
	}
	text := "the agent has ended the task's processes without the driver"
	if !result.Found {
		text = "driver unavailable, and neither cgroup nor environment identifies a process of the task"
		if !builtin {
			text += ": it may still run"
		}
	}
	r.EmitEvent(model.EventDriver(text, nil, time.Time{}))
	end := exit{lost: true, destroyed: builtin}
	if result.Exit != nil {
		end.ExitResult, end.lost = *result.Exit, false
	}
	p.finish(end)
	return nil
}

// awaitShutdownDelay gives clients of the task time to notice that it stops. The task
// counts as running during the delay. The delay ends early when the process exits, ctx
// is done, or cut is closed.
func (r *Runner) awaitShutdownDelay(ctx context.Context, p *process, cut <-chan struct{}) {
	delay := r.Task().ShutdownDelay
	if delay == 0 || ctx.Err() != nil {
		return
	}
	select {
	case <-r.skipDelay:
		r.EmitEvent(model.EventSkippingShutdownDelay(delay))
		return
	default:
	}
	r.EmitEvent(model.EventWaitingShutdownDelay(delay))
	select {
	case <-time.After(delay):
	case <-r.skipDelay:
	case <-p.exited:
	case <-cut:
	case <-ctx.Done():
	}
}
