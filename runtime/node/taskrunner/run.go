package taskrunner

import (
	"context"
	"sync"
	"time"

	"github.com/nomad-lite/nomad-lite/internal/failpoint"
	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/job/restart"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// Run blocks until the task will never run again, or until ctx is done: then the agent shuts down, and Run leaves the
// process running. For a task that is killed before its start, Run calls only the Stop hooks.
func (r *Runner) Run(ctx context.Context) {
	defer close(r.done)
	var updateWG sync.WaitGroup
	defer updateWG.Wait()
	forceKillCtx, killCtx := r.killRequest.newKillContexts(ctx)
	defer r.killRequest.releaseKillContexts()
	r.taskUpdater.setUpdateHooksStarter(func() {
		updateWG.Go(func() {
			for killCtx.Err() == nil && r.taskUpdater.takePendingUpdateHooks() {
				r.hooks.callUpdateHooks(killCtx)
			}
		})
	})
	defer r.taskUpdater.setUpdateHooksStarter(nil)

	r.hooks.recordAttachments()
	dead := r.State().State == model.TaskDead // the task ended under an earlier agent
	for again := !r.records.localState.RunComplete; again && ctx.Err() == nil; dead = false {
		if !dead {
			r.runRestartLoop(killCtx, forceKillCtx)
		}
		if ctx.Err() == nil {
			r.records.setTaskState(state.DurabilityAsync, model.TaskDead, nil)
			r.destroyer.retryWhileWaiting(killCtx, func() { again = r.rerunRequests.awaitRerun(killCtx) })
			again = again && r.restartDecider.startRerun()
		}
	}
	if r.destroyer.pendingDestroy() != nil {
		close(r.onlyDestroyRemains)
		r.destroyer.retryUntilDestroyed(forceKillCtx)
	}
	if ctx.Err() != nil {
		r.hooks.callShutdownHooks(ctx)
	} else {
		r.finishRun(context.WithoutCancel(ctx))
	}
}

// finishRun records that the task will never run again, and calls the Stop hooks.
func (r *Runner) finishRun(ctx context.Context) {
	if !r.records.localState.RunComplete {
		r.records.localState.RunComplete = true
		r.records.putLocalState(state.DurabilityAsync)
	}
	point := failpoint.EnterStep(failpoint.StepStopHooks)
	r.hooks.callStopHooks(ctx)
	point.Leave()
}

// runRestartLoop runs one process of the task after the other, until the restart policy, a kill or a shutdown of the
// agent ends the loop.
func (r *Runner) runRestartLoop(killCtx, forceKillCtx context.Context) {
	if !r.interruptedStartAdopter.awaitStartDecision(killCtx, forceKillCtx) {
		return
	}
	defer r.restartDecider.dropUnusedStartID()
	next, ok := r.firstRestartDecision(forceKillCtx)
	for ok && next.Action == restart.ActionRestart {
		// A recovered process runs already, so it does not wait for the gate.
		if r.currentProcess.getProcess() == nil {
			started := false
			r.destroyer.retryWhileWaiting(killCtx, func() { started = r.awaitRestartDelayAndStartGate(killCtx, next.Delay) })
			if !started {
				return
			}
		}
		outcome, ended := r.processRunner.runOneProcess(killCtx, forceKillCtx)
		if !ended {
			return
		}
		next = r.restartDecider.decideAndRecord(outcome)
	}
}

// awaitRestartDelayAndStartGate waits for the restart delay, and then for the start gate of the task. It returns false if killCtx is
// done first.
func (r *Runner) awaitRestartDelayAndStartGate(killCtx context.Context, delay time.Duration) bool {
	if delay > 0 {
		span := r.timeline.StartWaitSpan("restart delay")
		slept := wait.Sleep(killCtx, delay) == nil
		span.End("", context.Cause(killCtx))
		if !slept {
			return false
		}
	}
	span := r.timeline.StartWaitSpan("other tasks")
	err := r.startGate.Wait(killCtx)
	span.End("", err)
	return err == nil
}

// firstRestartDecision returns how runRestartLoop continues: immediately for a new task or a recovered process,
// after the remaining restart delay, or as the restart policy decides about a stored
// exit of an earlier agent. It returns false if the agent shuts down.
func (r *Runner) firstRestartDecision(forceKillCtx context.Context) (restart.Decision, bool) {
	if exit := r.records.localState.Exit; exit != nil {
		if !r.hooks.callExitedHooks(forceKillCtx, exit, r.restartDecider.willRestart(exit.RestartOutcome())) {
			return restart.Decision{}, false
		}
		return r.restartDecider.decideAndRecord(exit.RestartOutcome()), true
	}
	return restart.Decision{Action: restart.ActionRestart, Delay: r.restartDecider.restartTracker.RemainingDelay(time.Now())}, true
}
