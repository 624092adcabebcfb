package allocrunner

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/lifecycle"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/services"
	"github.com/nomad-lite/nomad-lite/runtime/node/taskrunner"
)

// startGates applies the rules of the task lifecycle and of its extensions. The rules determine which tasks may start, must
// run again, must restart because of other tasks, or can no longer start.
type startGates struct {
	coordinator      *lifecycle.Coordinator
	lifecycleGroup   *lifecycle.Group // lifecycle extensions of the group; nil if it uses none
	tasks            taskSet
	checkResults     func() (results []services.CheckResult, ready bool, changed <-chan struct{})
	stopRequested    func() bool // reports whether a stop was requested
	reconcileSignal  *reconcileSignal
	runnerCreateTime time.Time // when the runner was created; see startTimeNotInFuture
}

// gateOf returns the gate that blocks a task before each start.
func (g *startGates) gateOf(task taskrunner.Task) taskrunner.StartGate {
	if g.lifecycleGroup == nil {
		return g.coordinator.Gate(task.Stage())
	}
	return startGate{g, task.Name}
}

// startGate is the gate of one task of a group that uses lifecycle extensions. Wait evaluates the rules of the group itself,
// with the latest states of the tasks. Otherwise a task that restarts without delay would start before reconcile has found
// that other tasks must run first.
type startGate struct {
	gates    *startGates
	taskName string
}

func (g startGate) Wait(ctx context.Context) error {
	for {
		reconciled := g.gates.reconcileSignal.nextReconcile()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if g.gates.mayStart(g.taskName) {
			return nil
		}
		select {
		case <-reconciled:
		case <-ctx.Done():
		}
	}
}

func (g *startGates) mayStart(task string) bool {
	facts, _ := g.taskFacts(g.snapshotWithPendingReruns())
	phase := g.coordinator.Phase()
	// After a stop was requested, only poststop tasks may start.
	return (!g.stopRequested() || phase == lifecycle.PhasePoststop) && g.lifecycleGroup.MayStart(phase, task, facts)
}

// taskFacts returns, by task name, the facts to which the rules of the group apply. checksChanged is closed when check results
// change that the rules use; it is nil if they use none.
func (g *startGates) taskFacts(now tasksSnapshot) (facts map[string]lifecycle.TaskFacts, checksChanged <-chan struct{}) {
	var results []services.CheckResult
	if g.lifecycleGroup.WaitsForHealth() {
		results, _, checksChanged = g.checkResults()
	}
	facts = make(map[string]lifecycle.TaskFacts, len(now.taskStates))
	for name, s := range now.taskStates {
		f := lifecycleFacts(s, now.killedTasks[name])
		f.Healthy = passesChecks(results, name, startTimeNotInFuture(s, g.runnerCreateTime))
		facts[name] = f
	}
	return facts, checksChanged
}

func lifecycleFacts(s *api.TaskState, killed bool) lifecycle.TaskFacts {
	return lifecycle.TaskFacts{State: lifecycle.StateOf(s.State, s.Failed), StartedAt: s.StartedAt, RestartDecidedAt: s.LastRestart, Killed: killed}
}

// passesChecks reports whether the task has health checks and all of them have passed since
// the task was started.
func passesChecks(results []services.CheckResult, task string, since time.Time) bool {
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

// openReadyGates opens the gates of tasks that may start according to the states of the other tasks, and ends
// the tasks whose start condition can no longer become true. checksChanged is closed when check results change on which a
// gate depends.
func (g *startGates) openReadyGates(now tasksSnapshot) (checksChanged <-chan struct{}) {
	g.coordinator.ObserveTaskStates(lifecycleStates(now.taskStates))
	if g.lifecycleGroup == nil {
		return nil
	}
	facts, checksChanged := g.taskFacts(now)
	g.endUnstartableTasks(facts)
	return checksChanged
}

func lifecycleStates(tasks map[string]*api.TaskState) map[string]lifecycle.State {
	states := make(map[string]lifecycle.State, len(tasks))
	for name, s := range tasks {
		states[name] = lifecycle.StateOf(s.State, s.Failed)
	}
	return states
}

// endUnstartableTasks ends the tasks whose start condition can no longer become true: a
// poststop task is skipped, any other task fails.
func (g *startGates) endUnstartableTasks(facts map[string]lifecycle.TaskFacts) {
	phase := g.coordinator.Phase()
	for _, t := range g.tasks {
		if after, lost := g.lifecycleGroup.UnsatisfiableDependency(phase, t.Name(), facts); lost {
			reason := fmt.Sprintf("Not started: lite_after asks for %v, and task %q has ended without that", after, after.Task)
			t.Kill(model.EventKillingReason(reason, t.Task().Stage() != lifecycle.PoststopTask))
		}
	}
}

// snapshotWithPendingReruns returns the current states of the tasks. A dead task that must run again has the state pending, because otherwise a
// group whose main task has just ended would seem to be complete.
func (g *startGates) snapshotWithPendingReruns() tasksSnapshot {
	now := g.tasks.snapshot()
	if g.lifecycleGroup == nil || g.stopRequested() {
		return now
	}
	facts := make(map[string]lifecycle.TaskFacts, len(now.taskStates))
	for name, s := range now.taskStates {
		facts[name] = lifecycleFacts(s, now.killedTasks[name])
	}
	now.rerunCauseByTask = g.lifecycleGroup.TasksToRerun(facts)
	for name := range now.rerunCauseByTask {
		model.ResetTask(now.taskStates[name])
		now.taskStates[name].State = model.TaskPending
	}
	return now
}

// rerunTasks runs ended tasks again; causes has, for each of them, the task whose restart causes the rerun. While RestartAll
// restarts all tasks, rerunTasks does nothing, because the restart includes these tasks.
func (g *startGates) rerunTasks(causes map[string]string) {
	if g.coordinator.Phase() == lifecycle.PhaseInit {
		return
	}
	for _, t := range g.tasks {
		if main, ok := causes[t.Name()]; ok {
			t.Rerun(model.EventRestartSignal(fmt.Sprintf("Task %q restarts, and lite_rerun asks for this one to run again", main)))
		}
	}
}

// restartCauseByTask returns the running tasks that must restart because of another task: task name -> name of the other task.
func (g *startGates) restartCauseByTask() map[string]string {
	if g.lifecycleGroup == nil || g.lifecycleGroup.RestartGroup == lifecycle.OneForOne || g.stopRequested() {
		return nil
	}
	facts, _ := g.taskFacts(g.snapshotWithPendingReruns())
	names := g.lifecycleGroup.TasksToRestart(facts)
	for _, t := range g.tasks {
		if !t.IsRestartable() {
			delete(names, t.Name()) // the task is being stopped already, or the agent is shutting down
		}
	}
	return names
}
