package allocrunner

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/lifecycle"
	"github.com/nomad-lite/nomad-lite/runtime/model"
	"github.com/nomad-lite/nomad-lite/runtime/services"
	"github.com/nomad-lite/nomad-lite/runtime/taskrunner"
)

// The functions of this file are for groups that use the extensions of the
// lifecycle. Others have no r.group, and the gates of the coordinator.

// gate is the gate of one task of such a group. It is not told to open: the one
// who waits looks for himself, so that what he has just become counts. A task that
// starts again at once would else pass before anybody has seen that others have to
// run first.
type gate struct {
	runner *Runner
	task   string
}

func (g gate) Wait(ctx context.Context) error {
	for {
		looked := g.runner.reconciled()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if g.runner.mayStart(g.task) {
			return nil
		}
		select {
		case <-looked:
		case <-ctx.Done():
		}
	}
}

func (r *Runner) gateOf(task taskrunner.Task) taskrunner.Gate {
	if r.group == nil {
		return r.lifecycle.Gate(task.Stage())
	}
	return gate{r, task.Name}
}

func (r *Runner) mayStart(task string) bool {
	facts, _ := r.facts(r.Status())
	phase := r.lifecycle.Phase()
	// A stop opens no gate before it has come to the poststop tasks.
	return (!r.isStopping() || phase == lifecycle.Poststop) && r.group.MayStart(phase, task, facts)
}

// facts returns what the group must know of its tasks, and a channel that closes
// when checks on which that depends have news.
func (r *Runner) facts(status Update) (facts map[string]lifecycle.Fact, checks <-chan struct{}) {
	var results []services.Result
	if r.group.WaitsForHealth() {
		results, _, checks = r.services.Checks()
	}
	facts = make(map[string]lifecycle.Fact, len(r.tasks))
	for _, t := range r.observe(status) {
		s := status.TaskStates[t.name]
		f := factOf(s, t.state, status.killed[t.name])
		f.Healthy = passes(results, t.name, r.startedAt(s))
		facts[t.name] = f
	}
	return facts, checks
}

func factOf(s *api.TaskState, state lifecycle.State, killed bool) lifecycle.Fact {
	return lifecycle.Fact{State: state, Started: s.StartedAt, Restarted: s.LastRestart, Killed: killed}
}

// passes tells whether all checks that tell the health of a task have passed
// since it was started, and there are any.
func passes(results []services.Result, task string, since time.Time) bool {
	one := false
	for _, c := range results {
		if c.For != task || c.Readiness() {
			continue
		}
		if c.Status != services.StatusSuccess || c.Began.Before(since) {
			return false
		}
		one = true
	}
	return one
}

// markReruns makes the tasks pending that have to do their work once more, in
// states that nobody else has, and returns them with the main tasks that are the
// reason. Without it a group whose main task has ended in the meantime would look
// as if nothing was left to do.
func (r *Runner) markReruns(states map[string]*api.TaskState, killed map[string]bool) map[string]string {
	if r.group == nil || r.isStopping() {
		return nil
	}
	facts := make(map[string]lifecycle.Fact, len(states))
	for name, s := range states {
		facts[name] = factOf(s, lifecycle.StateOf(s.State, s.Failed), killed[name])
	}
	reruns := r.group.Rerun(facts)
	for name := range reruns {
		model.ResetTask(states[name])
		states[name].State = model.TaskPending
	}
	return reruns
}

// rerun lets tasks do their work again. In a restart of all they do so anyway.
func (r *Runner) rerun(reruns map[string]string) {
	if r.lifecycle.Phase() == lifecycle.Init {
		return
	}
	for _, t := range r.tasks {
		if main, ok := reruns[t.Name()]; ok {
			t.Rerun(model.EventRestartSignal(fmt.Sprintf("Task %q restarts, and lite_rerun asks for this one to run again", main)))
		}
	}
}

// failUnreachable ends the tasks that wait for what cannot come any more: a poststop task
// is left out, any other has failed.
func (r *Runner) failUnreachable(facts map[string]lifecycle.Fact) {
	phase := r.lifecycle.Phase()
	for _, t := range r.tasks {
		if after, lost := r.group.Lost(phase, t.Name(), facts); lost {
			reason := fmt.Sprintf("Not started: lite_after asks for %v, and task %q has ended without that", after, after.Task)
			t.Kill(model.EventKillingReason(reason, t.Task().Stage() != lifecycle.PoststopTask))
		}
	}
}

// restartDependents returns the tasks that run and have to restart with others, with
// these.
func (r *Runner) restartDependents() map[string]string {
	if r.group == nil || r.group.Restart == lifecycle.OneForOne || r.isStopping() {
		return nil
	}
	facts, _ := r.facts(r.Status())
	names := r.group.Follow(facts)
	for _, t := range r.tasks {
		if !t.Restartable() {
			delete(names, t.Name()) // it is going down already, or the agent is
		}
	}
	return names
}

// restartFollowers restarts those that have to restart with others, in the order
// of a kill. All of them are down before one starts again: their gates see to
// that. One that does not go down fails the allocation, or the others would wait
// for ever.
func (r *Runner) restartFollowers(ctx context.Context) {
	if r.beginRestart(ctx) != nil {
		return
	}
	defer r.endRestart()
	names := r.restartDependents() // a restart of several may have been before
	members := slices.DeleteFunc(slices.Clone(r.tasks), func(t *taskrunner.Runner) bool { return names[t.Name()] == "" })
	limited, cancel := context.WithTimeoutCause(ctx, r.limits.RestartDeadline, errDeadlinePassed)
	defer cancel()
	for _, wave := range killOrder(members) {
		err := forEachParallel(wave, func(t *taskrunner.Runner) error {
			reason := fmt.Sprintf("Task %q restarts, and with it the tasks of its restart group (%v)", names[t.Name()], r.group.Restart)
			return ignoreNotRunning(t.Restart(limited, model.EventRestartSignal(reason), false))
		})
		if err != nil && ctx.Err() == nil && !r.isStopping() {
			r.failRestart(fmt.Errorf("restart group %v: %w", r.group.Restart, err))
			return
		}
	}
}

// failRestart fails the allocation after a restart that leaves tasks in front of
// closed gates.
func (r *Runner) failRestart(err error) {
	r.force(statusOverride{api.AllocClientStatusFailed, err.Error()})
	r.stop(stopReason{})
}
