package allocrunner

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/core"
	"github.com/nomad-lite/nomad-lite/runtime/core/lifecycle"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskrunner"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// gateOf returns the gate where a task waits before each start.
func (a *allocTasks) gateOf(task taskrunner.Task) taskrunner.StartGate {
	if a.lifecycleGroup == nil {
		return a.coordinator.Gate(task.Stage())
	}
	return startGate{a, task.Name}
}

// startGate is a task's gate in a group that uses lifecycle extensions. Wait evaluates the group's rules itself, with
// the latest task states. Otherwise a task restarting without delay would start before reconcile found that other tasks
// must run first.
type startGate struct {
	tasks    *allocTasks
	taskName string
}

func (g startGate) Wait(ctx context.Context) error {
	for {
		reconciled := g.tasks.state.nextReconcileDone()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if g.tasks.mayStart(g.taskName) {
			return nil
		}
		select {
		case <-reconciled:
		case <-ctx.Done():
		}
	}
}

func (a *allocTasks) mayStart(task string) bool {
	facts := a.snapshot().facts
	phase := a.coordinator.Phase()
	// After a stop request only poststop tasks may start.
	return (!a.state.isStopRequested() || phase == lifecycle.PhasePoststop) && a.lifecycleGroup.MayStart(phase, task, facts)
}

// tasksSnapshot contains all task states, read one after the other. The fields after taskStates are set only for a group
// that uses lifecycle extensions.
type tasksSnapshot struct {
	taskStates       map[string]*api.TaskState
	facts            map[string]lifecycle.TaskFacts // facts for the group's rules, by task name
	rerunCauseByTask map[string]string              // task that must run again -> task that causes this by restarting
	checksChanged    <-chan struct{}                // closed when a check result changes that the rules use; nil if they use none
}

// snapshot returns the current task states. A dead task that must run again has the state pending: otherwise a group
// would seem complete just after its main task has ended. The caller owns the result.
func (a *allocTasks) snapshot() tasksSnapshot {
	now := tasksSnapshot{taskStates: make(map[string]*api.TaskState, len(a.taskSet))}
	killedSinceStart := make(map[string]bool, len(a.taskSet))
	for _, t := range a.taskSet {
		now.taskStates[t.Name()], killedSinceStart[t.Name()] = t.Snapshot()
	}
	if a.lifecycleGroup == nil {
		return now
	}
	now.facts = make(map[string]lifecycle.TaskFacts, len(a.taskSet))
	for name, s := range now.taskStates {
		now.facts[name] = lifecycleFacts(s, killedSinceStart[name])
	}
	if !a.state.isStopRequested() {
		now.rerunCauseByTask = a.lifecycleGroup.RerunCauseByTask(now.facts)
	}
	for name := range now.rerunCauseByTask {
		s := now.taskStates[name]
		model.ResetTaskForRerun(s)
		s.State = model.TaskPending
		now.facts[name] = lifecycleFacts(s, killedSinceStart[name])
	}
	if a.lifecycleGroup.AnyTaskWaitsForHealth() {
		var results []core.CheckResult
		results, _, now.checksChanged = a.services.CheckResults()
		for name, f := range now.facts {
			f.Healthy = hasPassedAllChecksSince(results, name, startTimeNotInFuture(now.taskStates[name], a.runnerCreateTime))
			now.facts[name] = f
		}
	}
	return now
}

func lifecycleFacts(s *api.TaskState, killed bool) lifecycle.TaskFacts {
	return lifecycle.TaskFacts{State: lifecycle.StateOf(s.State, s.Failed), StartedAt: s.StartedAt, RestartDecidedAt: s.LastRestart, KilledSinceStart: killed}
}

// hasPassedAllChecksSince reports whether the task has health checks and all have passed since the task was started.
func hasPassedAllChecksSince(results []core.CheckResult, task string, since time.Time) bool {
	hasCheck := false
	for _, c := range results {
		if c.AffectsHealthOfTask != task || c.IsReadiness() {
			continue
		}
		if c.Status != model.CheckSuccess || c.LastRunStartedAt.Before(since) {
			return false
		}
		hasCheck = true
	}
	return hasCheck
}

func lifecycleStates(tasks map[string]*api.TaskState) map[string]lifecycle.State {
	states := make(map[string]lifecycle.State, len(tasks))
	for name, s := range tasks {
		states[name] = lifecycle.StateOf(s.State, s.Failed)
	}
	return states
}

// openGatesAndEndUnstartable opens the gates of tasks that may start, given the other tasks' states. It ends the tasks
// that can no longer start: a poststop task is skipped, any other task fails.
func (a *allocTasks) openGatesAndEndUnstartable(now tasksSnapshot) {
	a.coordinator.ObserveTaskStates(lifecycleStates(now.taskStates))
	if a.lifecycleGroup == nil {
		return
	}
	phase := a.coordinator.Phase()
	for _, t := range a.taskSet {
		if after, lost := a.lifecycleGroup.UnsatisfiableDependency(phase, t.Name(), now.facts); lost {
			reason := fmt.Sprintf("Not started: lite_after asks for %v, and task %q has ended without that", after, after.Task)
			t.Kill(model.EventKillingReason(reason, t.Task().Stage() != lifecycle.PoststopTask))
		}
	}
}

// rerunTasks runs ended tasks again; causeByTask maps each to the restarting task that causes the rerun. While
// RestartAll restarts all tasks, rerunTasks does nothing, because the restart includes these tasks.
func (a *allocTasks) rerunTasks(causeByTask map[string]string) {
	if a.coordinator.Phase() == lifecycle.PhaseInit {
		return
	}
	for _, t := range a.taskSet {
		if main, ok := causeByTask[t.Name()]; ok {
			t.RequestRerunIfSucceeded(model.EventRestartSignal(fmt.Sprintf("Task %q restarts, and lite_rerun asks for this one to run again", main)))
		}
	}
}

// restartCauseByTask returns the running tasks that must restart because of another task: task name -> name of the other
// task.
func (a *allocTasks) restartCauseByTask() map[string]string {
	if a.lifecycleGroup == nil || a.lifecycleGroup.RestartGroup == lifecycle.OneForOne || a.state.isStopRequested() {
		return nil
	}
	names := a.lifecycleGroup.RestartCauseByTask(a.snapshot().facts)
	for _, t := range a.taskSet {
		if !t.IsRestartable() {
			delete(names, t.Name()) // the task is being stopped already, or the agent is shutting down
		}
	}
	return names
}
