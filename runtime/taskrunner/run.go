package taskrunner

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/failpoint"
	"github.com/nomad-lite/nomad-lite/runtime/lifecycle"
	"github.com/nomad-lite/nomad-lite/runtime/model"
	"github.com/nomad-lite/nomad-lite/runtime/restart"
	"github.com/nomad-lite/nomad-lite/runtime/state"
)

// Run blocks until the task will never run again, or until ctx is done, which means
// that the agent shuts down and the process is left as it is. For a task that is killed
// before its start, Run calls only the Stop hooks.
func (r *Runner) Run(ctx context.Context) {
	defer close(r.done)
	var updates sync.WaitGroup
	defer updates.Wait()
	forceKillCtx, killCtx := r.kill.contexts(ctx)
	defer r.kill.endContexts()
	r.updates.setCallHooks(func() { updates.Go(func() { r.runUpdateHooks(killCtx) }) })
	defer r.updates.setCallHooks(nil)

	r.noteAttachments()
	dead := r.State().State == model.TaskDead // under an earlier agent
	for again := !r.local.RunComplete; again && ctx.Err() == nil; dead = false {
		if !dead {
			r.runLoop(killCtx, forceKillCtx)
		}
		if ctx.Err() == nil {
			r.records.transition(state.Async, model.TaskDead, nil)
			r.destroyer.during(killCtx, func() { again = r.isRevived(killCtx) })
			again = again && r.restarts.revive()
		}
	}
	if r.local.Destroy != nil {
		close(r.destroying)
		r.destroyer.finish(forceKillCtx)
	}
	if ctx.Err() != nil {
		r.shutdownHooks(ctx)
	} else {
		r.complete(context.WithoutCancel(ctx))
	}
}

// complete handles the end of a task that will never run again.
func (r *Runner) complete(ctx context.Context) {
	if !r.local.RunComplete {
		r.local.RunComplete = true
		r.records.putLocal(state.Async)
	}
	point := failpoint.Enter(failpoint.StopHooks)
	r.stopHooks(ctx)
	point.Leave()
}

// runLoop starts the task repeatedly, until the restart policy, a kill or a shutdown
// ends the loop.
func (r *Runner) runLoop(killCtx, forceKillCtx context.Context) {
	defer r.dropUnusedID()
	next, ok := r.resume(forceKillCtx)
	for ok && next.Action == restart.Restart {
		// A recovered process runs already, whatever the gate.
		if r.currentProcess() == nil {
			started := false
			r.destroyer.during(killCtx, func() { started = r.awaitStart(killCtx, next.Delay) })
			if !started {
				return
			}
		}
		outcome, ended := r.runOnce(killCtx, forceKillCtx)
		if !ended {
			return
		}
		next = r.restarts.decide(outcome)
	}
}

// awaitStart waits for a delay, and then for the gate. It returns false if killCtx is
// done.
func (r *Runner) awaitStart(killCtx context.Context, delay time.Duration) bool {
	if delay > 0 {
		select {
		case <-time.After(delay):
		case <-killCtx.Done():
			return false
		}
	}
	return r.gate.Wait(killCtx) == nil
}

// runOnce starts the task and waits for its end. It returns false if the restart policy
// has no outcome to decide about: the task was killed before it started, or the agent
// shuts down.
func (r *Runner) runOnce(killCtx, forceKillCtx context.Context) (restart.Outcome, bool) {
	p := r.currentProcess()
	recovered := p != nil
	if recovered {
		r.takeOver(killCtx, p)
	} else {
		if err := r.prepareStart(killCtx); err != nil {
			return startError(err), killCtx.Err() == nil
		}
		if err := r.prestart(killCtx, false); err != nil {
			return startError(err), killCtx.Err() == nil
		}
		var err error
		if p, err = r.start(killCtx, forceKillCtx); err != nil {
			return startError(err), killCtx.Err() == nil
		}
	}

	var watch sync.WaitGroup
	defer watch.Wait()
	watched, stopWatch := context.WithCancel(context.WithoutCancel(killCtx))
	defer stopWatch()
	p.onAway = func(err error) { r.EmitEvent(model.EventDriverUnavailable(err.Error())) }
	p.onBack = func() {
		r.EmitEvent(model.EventDriver("driver available again, the task was recovered", nil, time.Time{}))
	}
	watch.Go(func() { p.watch(watched) })

	r.finishRestart(watched, &watch, p)
	r.poststart(killCtx, p, recovered)
	// Poststart must not run after the hooks of a kill or of the exit.
	var repeating sync.WaitGroup
	running, stopRepeating := context.WithCancel(killCtx)
	r.repeatPoststart(running, &repeating, p)
	failpoint.Hit(failpoint.Running, failpoint.Before)
	select {
	case <-p.exited:
	case <-killCtx.Done():
	}
	stopRepeating()
	repeating.Wait()
	if r.kill.requested() {
		r.stopper.kill(forceKillCtx, p)
	}
	if isShutdown(killCtx, forceKillCtx) {
		return restart.Outcome{}, false
	}
	return r.ended(killCtx, forceKillCtx, p)
}

// ended records the end of the process and calls the Exited hooks. The exit status is
// stored before the driver destroys the task, because no driver can report it
// afterwards. ended returns false if a shutdown of the agent has cut the hooks short:
// the next agent calls them again.
func (r *Runner) ended(killCtx, forceKillCtx context.Context, p *process) (restart.Outcome, bool) {
	var result exit
	select {
	case <-p.exited:
		result = p.result
	default:
		result.lost = true // ForceKill has failed to end the process
	}
	r.runs.noteExit(!result.lost && result.Err == nil)
	r.local.Exit = &state.Exit{
		Lost: result.lost, Success: !result.lost && result.Successful(),
		Code: result.ExitCode, Signal: result.Signal, OOMKilled: result.OOMKilled,
	}
	if result.Err != nil {
		r.local.Exit.Error = result.Err.Error()
	} else if result.lost {
		r.local.Exit.Error = exitUnknown
	}
	point := failpoint.Enter(failpoint.ExitObserved)
	err := r.records.put(state.Sync, func(s *api.TaskState) bool {
		if request := r.records.restartReq; request != nil {
			r.local.Exit.Asked, r.local.Exit.Failure = true, request.Failure
		}
		event := terminatedEvent(result.ExitResult)
		if result.lost {
			event = model.EventDriver(unknownText(result.Err), nil, time.Time{})
		}
		// With the id in this record, a start that follows at once needs no write before it.
		if next := r.restarts.predict(r.local.Exit.Outcome()); !result.lost && next.Action == restart.Restart && next.Delay == 0 {
			r.local.NextStartID = newStartID(r.alloc.ID, r.name)
		}
		model.AppendTaskEvent(s, event, time.Now())
		return true
	})
	point.Leave()
	if err != nil {
		r.local.NextStartID = "" // not stored
	}
	// Until the store takes the exit status, only the driver can tell it to the next agent.
	if err != nil && !r.records.awaitStored(killCtx) && isShutdown(killCtx, forceKillCtx) {
		return restart.Outcome{}, false
	}
	// killCtx may be done; the driver must destroy the task all the same.
	if result.destroyed {
		r.runs.noteDestroyed()
	} else {
		r.destroyer.set(state.PendingDestroy{ID: p.id(), Handle: storedHandle(p.handle)})
		point := failpoint.Enter(failpoint.DestroyTask)
		_ = r.destroyer.try(context.WithoutCancel(killCtx)) // errors are reported as an event already
		point.Leave()
	}
	r.clearProcess()
	told := r.exitedHooks(forceKillCtx)
	return r.local.Exit.Outcome(), told
}

// dropUnusedID removes the stored id of a start that was not attempted, so that the next
// agent does not search for its processes.
func (r *Runner) dropUnusedID() {
	switch {
	case r.local.NextStartID != "":
		r.local.NextStartID = ""
	case r.local.StartID != "" && r.local.Handle == nil && r.local.Exit == nil:
		r.local.StartID = ""
	default:
		return
	}
	r.records.putLocal(state.Async)
}

// isRevived blocks while a task is dead, until a restart of all tasks is requested or
// the allocation no longer needs the task, and reports whether a restart was requested.
// A poststop task runs once.
func (r *Runner) isRevived(killCtx context.Context) bool {
	if r.Task().Stage() == lifecycle.PoststopTask {
		return false
	}
	select {
	case <-r.rerunCh:
	case <-killCtx.Done():
	}
	return killCtx.Err() == nil
}

// exitUnknown is the error text of an exit whose status no process could report.
const exitUnknown = "exit status unknown"

func unknownText(err error) string {
	if err == nil {
		return exitUnknown
	}
	return fmt.Sprintf("%s: %v", exitUnknown, err)
}

func startError(err error) restart.Outcome {
	return restart.Outcome{Unrecoverable: !driver.IsRecoverable(err)}
}
