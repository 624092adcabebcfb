package taskrunner

import (
	"context"
	"time"

	"github.com/nomad-lite/nomad-lite/runtime/node/taskrunner/tasksteps"
)

// Run blocks until the task will never run again, or until ctx is done: then the agent shuts down, and Run leaves the
// process running. For a task that is killed before its start, Run calls only the Stop hooks.
func (r *Runner) Run(ctx context.Context) {
	defer close(r.done)
	defer r.hooks.updateWG.Wait()
	forceKillCtx, killCtx, release := r.requests.newKillContexts(ctx)
	defer release()
	r.hooks.startUpdateHooksIfPending()
	r.hooks.recordAttachments()
	run := &taskRun{recoverer: recoverer{Runner: r}, ctx: ctx, killCtx: killCtx, forceKillCtx: forceKillCtx}
	step := r.firstStep
	for step != tasksteps.None {
		result := run.execute(step)
		next := tasksteps.Next(step, result)
		r.records.mu.Lock()
		r.transitions.add(tasksteps.Transition{Time: time.Now(), Step: step, Result: result, Next: next})
		r.records.mu.Unlock()
		step = next
	}
}
