package taskrunner

import (
	"context"
	"fmt"
	"time"

	"github.com/nomad-lite/nomad-lite/runtime/failpoint"
	"github.com/nomad-lite/nomad-lite/runtime/model"
)

// stopWaits are the pauses after each attempt to stop a process that the driver
// answered with an error. There is no attempt after the last one.
var stopWaits = [...]time.Duration{5 * time.Second, 20 * time.Second, 80 * time.Second, 120 * time.Second, 120 * time.Second}

// A process that a user wants dead at once gets this long to die, and then
// again this long to be destroyed.
const hurriedStop = 5 * time.Second

// kill ends the process for good and returns when it has exited, or when ctx
// has ended. When ctx ended because of KillNow, the process is killed without
// any further delay first.
func (r *Runner) kill(ctx context.Context, p *process) {
	failpoint.Around(failpoint.PreKill, func() {
		r.preKilling(ctx)
		r.awaitShutdownDelay(ctx, p, nil)
	})
	var err error
	failpoint.Around(failpoint.StopTask, func() { err = r.stop(ctx, p) })
	if err != nil && ctx.Err() == nil {
		r.logger.Error("task may have leaked", "task_id", p.id(), "error", err)
		r.setKillError(err)
		r.EmitEvent(model.EventDriver(fmt.Sprintf("failed to kill task. Resources may have been leaked: %v", err), nil, time.Time{}))
	}
	select {
	case <-p.exited:
		return
	case <-ctx.Done():
	}
	if context.Cause(ctx) == errHurry {
		r.killNow(context.WithoutCancel(ctx), p)
	}
}

// killNow kills the process without asking it, and gives up after a while.
func (r *Runner) killNow(ctx context.Context, p *process) {
	steps := []func(context.Context) error{
		func(ctx context.Context) error { return p.stop(ctx, 0, "SIGKILL") },
		p.destroy,
	}
	for _, step := range steps {
		ctx, cancel := context.WithTimeout(ctx, hurriedStop)
		err := step(ctx)
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
}

// stop asks the driver to stop the process, again and again if that fails. A
// process that has exited needs no stop.
func (r *Runner) stop(ctx context.Context, p *process) error {
	var err error
	for _, wait := range stopWaits {
		select {
		case <-p.exited:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		default:
		}
		task := r.Task()
		if err = p.stop(ctx, task.KillTimeout, task.KillSignal); err == nil {
			return nil
		}
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
	}
	return fmt.Errorf("stop task: %w", err)
}

// awaitShutdownDelay gives those who use the task time to notice that it goes.
// The task counts as running meanwhile. The delay ends early with the process,
// with ctx, or when cut closes.
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
