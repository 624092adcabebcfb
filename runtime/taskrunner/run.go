package taskrunner

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/lifecycle"
	"github.com/nomad-lite/nomad-lite/runtime/model"
	"github.com/nomad-lite/nomad-lite/runtime/taskrunner/restart"
)

// Run blocks until the task will never run again, or until ctx ends, which means
// that the agent shuts down: the process is then left as it is. A killed task
// runs nothing but its Stop hooks.
func (r *Runner) Run(ctx context.Context) {
	defer close(r.done)
	var updates sync.WaitGroup
	defer updates.Wait()
	grace, live := r.contexts(ctx)
	defer r.endContexts()
	if r.hasUpdateHooks() {
		updates.Go(func() { r.runUpdateHooks(live) })
	}

	for again := true; again && ctx.Err() == nil; {
		r.runToDeath(live, grace)
		if ctx.Err() == nil {
			r.transition(model.TaskDead, nil)
			again = r.awaitRevival(live)
		}
	}
	if ctx.Err() != nil {
		r.shutdownHooks(ctx)
		return
	}
	r.local.RunComplete = true
	r.keepLocal()
	r.stopHooks(context.WithoutCancel(ctx))
}

// contexts returns two contexts for the life of the task. Both end with ctx;
// live also with the first Kill, and grace only with KillNow. The cause says
// which it was.
func (r *Runner) contexts(ctx context.Context) (grace, live context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	grace, r.endGrace = context.WithCancelCause(ctx)
	live, r.endLive = context.WithCancelCause(grace)
	if isClosed(r.hurried) {
		r.endGrace(errHurry)
	}
	if r.isKilled() {
		r.endLive(ErrKilled)
	}
	return grace, live
}

func (r *Runner) endContexts() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.endLive(nil)
	r.endGrace(nil)
	r.endLive, r.endGrace = nil, nil
}

// runToDeath starts the task again and again, until the restart policy, a kill
// or a shutdown has the last word.
func (r *Runner) runToDeath(live, grace context.Context) {
	for {
		if r.gate.Wait(live) != nil {
			return
		}
		outcome, ended := r.runOnce(live, grace)
		if !ended {
			return
		}
		decision := r.decide(outcome)
		if decision.Action != restart.Restart {
			return
		}
		select {
		case <-time.After(decision.Delay):
		case <-live.Done():
			return
		}
	}
}

// runOnce starts the task and waits for its end. It returns false when there is
// no outcome to ask the restart policy about: the task was killed before it
// started, or the agent shuts down.
func (r *Runner) runOnce(live, grace context.Context) (restart.Outcome, bool) {
	if err := r.prestart(live); err != nil {
		return startError(err), live.Err() == nil
	}
	p, err := r.start(live, grace)
	if err != nil {
		return startError(err), live.Err() == nil
	}

	var watch sync.WaitGroup
	defer watch.Wait()
	watched, stopWatch := context.WithCancel(context.WithoutCancel(live))
	defer stopWatch()
	watch.Go(func() { p.watch(watched) })

	r.poststart(live, p)
	select {
	case <-p.exited:
	case <-live.Done():
	}
	if r.isKilled() {
		r.kill(grace, p)
	}
	if isShutdown(live, grace) {
		return restart.Outcome{}, false
	}
	return r.ended(live, p), true
}

// isShutdown reports whether the agent shuts down, before or after a kill.
func isShutdown(live, grace context.Context) bool {
	if grace.Err() != nil {
		return context.Cause(grace) != errHurry
	}
	return live.Err() != nil && !errors.Is(context.Cause(live), ErrKilled)
}

// ended tells everybody that the process is gone, and what it was worth.
func (r *Runner) ended(live context.Context, p *process) restart.Outcome {
	var result exit
	select {
	case <-p.exited:
		result = p.result
	default:
		result.lost = true // it was killed in a hurry, and nobody knows
	}
	if !result.lost {
		r.EmitEvent(terminated(result.ExitResult))
	}
	// live may be over; the driver must forget the task all the same.
	if err := r.destroy(context.WithoutCancel(live), p); err != nil {
		r.logger.Warn("driver did not forget the task", "task_id", p.id(), "error", err)
	}
	asked := r.clearProcess()
	r.exitedHooks(live)

	return restart.Outcome{
		Requested: asked != nil && !asked.failure,
		Unhealthy: asked != nil && asked.failure,
		Success:   !result.lost && result.Successful(),
	}
}

// decide asks the restart policy and makes its decision known.
func (r *Runner) decide(outcome restart.Outcome) restart.Decision {
	outcome.Killed = r.isKilled()
	r.tracker.SetPolicy(r.Task().Restart)
	decision := r.tracker.Next(time.Now(), outcome)
	r.local.Restart = r.tracker.State()
	r.keepLocal()

	switch decision.Action {
	case restart.Kill:
		r.transition(model.TaskDead, model.EventKilled(r.killErrorText()))
	case restart.GiveUp:
		r.logger.Info("not restarting", "reason", decision.Reason)
		r.transition(model.TaskDead, model.EventNotRestarting(decision.Reason))
	case restart.Restart:
		r.logger.Info("restarting", "reason", decision.Reason, "delay", decision.Delay)
		r.transition(model.TaskPending, model.EventRestarting(decision.Reason, decision.Delay))
	}
	return decision
}

// awaitRevival waits, with a task that is dead, until somebody wants all tasks
// to run again, or until the allocation has no more use for it. A poststop task
// runs once.
func (r *Runner) awaitRevival(live context.Context) bool {
	if r.Task().Stage() == lifecycle.PoststopTask {
		return false
	}
	select {
	case <-r.again:
	case <-live.Done():
	}
	if live.Err() != nil {
		return false
	}
	r.revive()
	return r.decide(restart.Outcome{Requested: true}).Action == restart.Restart
}

func startError(err error) restart.Outcome {
	return restart.Outcome{Unrecoverable: !driver.IsRecoverable(err)}
}
