package taskrunner

import (
	"context"
	"time"

	"github.com/nomad-lite/nomad-lite/runtime/core/tasksteps"
)

// Run blocks until the task will never run again, or until ctx is done: then the agent shuts down, and Run leaves the
// process running. For a task that is killed before its start, Run calls only the Stop hooks. When untilAllocStop is done,
// the task will be killed, and Run no longer calls Poststart hooks; untilAllocStop must be derived from ctx.
func (r *Runner) Run(ctx, untilAllocStop context.Context) {
	run, end := newTaskRun(ctx, untilAllocStop, r)
	defer end()
	for step := r.firstStep; step != tasksteps.None; {
		step = run.recordResult(step, run.execute(step))
	}
}

// newTaskRun starts a run. The caller calls end after the last step.
func newTaskRun(ctx, untilAllocStop context.Context, r *Runner) (run *taskRun, end func()) {
	forceKillCtx, killCtx, release := r.requests.newKillContexts(ctx)
	r.hooks.startUpdateHooksIfPending()
	r.hooks.recordAttachments()
	run = &taskRun{recoverer: recoverer{Runner: r}, ctx: ctx, untilAllocStop: untilAllocStop, killCtx: killCtx, forceKillCtx: forceKillCtx}
	return run, func() {
		release()
		r.hooks.updateWG.Wait()
		close(r.done)
	}
}

// recordResult records a step's result, and returns the next step.
func (t *taskRun) recordResult(step tasksteps.Step, result tasksteps.Result) tasksteps.Step {
	next, ok := tasksteps.Next(step, result)
	if !ok {
		t.killAfterUnknownResult(step, result)
	}
	t.records.mu.Lock()
	defer t.records.mu.Unlock()
	t.transitions.add(tasksteps.Transition{Time: time.Now(), Step: step, Result: result, Next: next})
	return next
}
