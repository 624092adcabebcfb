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

// The functions of this file are for groups that use lifecycle extensions. For other
// groups r.group is nil, and the coordinator's gates apply.

// gate is the gate of one task of such a group. Waiters re-evaluate the group
// themselves, so that a task's latest state is included. Otherwise a task that restarts
// without delay would pass before reconcile has found that other tasks must run first.
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
	// A stop opens no gate before it has reached the poststop tasks.
	return (!r.isStopping() || phase == lifecycle.Poststop) && r.group.MayStart(phase, task, facts)
}

// facts returns the facts about the tasks that the group's rules use, and a channel
// that is closed when the results of checks that matter to the rules change.
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

// passes reports whether the task has health checks and all of them have passed since
// the task was started.
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

// markReruns marks tasks that must run again as pending in states, which the caller
// owns, and returns them with the main tasks that cause the rerun. Without it, a group
// whose main task has ended in the meantime would look finished.
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

// rerun runs tasks again. A restart of all tasks includes them anyway.
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

// failUnreachable ends the tasks whose start condition can no longer become true: a
// poststop task is skipped, any other task fails.
func (r *Runner) failUnreachable(facts map[string]lifecycle.Fact) {
	phase := r.lifecycle.Phase()
	for _, t := range r.tasks {
		if after, lost := r.group.Lost(phase, t.Name(), facts); lost {
			reason := fmt.Sprintf("Not started: lite_after asks for %v, and task %q has ended without that", after, after.Task)
			t.Kill(model.EventKillingReason(reason, t.Task().Stage() != lifecycle.PoststopTask))
		}
	}
}

// restartDependents returns the running tasks that must restart together with other
// tasks, and the other task for each.
func (r *Runner) restartDependents() map[string]string {
	if r.group == nil || r.group.Restart == lifecycle.OneForOne || r.isStopping() {
		return nil
	}
	facts, _ := r.facts(r.Status())
	names := r.group.Follow(facts)
	for _, t := range r.tasks {
		if !t.Restartable() {
			delete(names, t.Name()) // the task is going down already, or the agent is shutting down
		}
	}
	return names
}

// restartFollowers restarts the tasks that restartDependents returns, in kill order.
// Their gates keep each of them down until all are down. A task that does not exit
// fails the allocation, because the others would wait for ever.
func (r *Runner) restartFollowers(ctx context.Context) {
	if r.beginRestart(ctx) != nil {
		return
	}
	defer r.endRestart()
	names := r.restartDependents() // another restart may have included them
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

// failRestart fails the allocation after a failed restart that leaves tasks blocked at
// closed gates.
func (r *Runner) failRestart(err error) {
	r.force(statusOverride{api.AllocClientStatusFailed, err.Error()})
	r.stop(stopReason{})
}
