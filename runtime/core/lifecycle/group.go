package lifecycle

import "slices"

// ExtendedGroup is a task group with lifecycle extensions: tasks that wait for other tasks, run
// again, or restart together. Its methods are pure functions of the current task facts, so the next
// agent gets the same results from the stored task states. A task without a fact counts as pending.
type ExtendedGroup struct {
	Tasks        []Task
	RestartGroup RestartGroup

	indexByTaskName         map[string]int
	predecessorsByTaskIndex [][]bool // predecessorsByTaskIndex has for each task whether each other task starts before it; nil in OneForOne
}

// NewGroupIfExtended returns nil if the group uses no extension. The tasks must have passed
// CheckGraph; NewGroupIfExtended keeps them.
func NewGroupIfExtended(tasks []Task, restartGroup RestartGroup) *ExtendedGroup {
	extended := func(t Task) bool { return len(t.Dependencies) > 0 || t.Rerun != RerunPolicy{} }
	if restartGroup == OneForOne && !slices.ContainsFunc(tasks, extended) {
		return nil
	}
	g := &ExtendedGroup{Tasks: tasks, RestartGroup: restartGroup, indexByTaskName: indexTasksByName(tasks)}
	if restartGroup != OneForOne {
		order := newStartGraph(tasks)
		for i := range tasks {
			g.predecessorsByTaskIndex = append(g.predecessorsByTaskIndex, order.ancestorsOrSelf(i))
		}
	}
	return g
}

// AnyTaskWaitsForHealth reports whether a task waits until another task is healthy.
func (g *ExtendedGroup) AnyTaskWaitsForHealth() bool {
	return slices.ContainsFunc(g.Tasks, func(t Task) bool {
		return slices.ContainsFunc(t.Dependencies, func(a Dependency) bool { return a.Condition == ConditionHealthy })
	})
}

// MayStart reports whether a task may start in phase p. Callers must check it before
// each start, restarts included.
func (g *ExtendedGroup) MayStart(p Phase, task string, facts map[string]TaskFacts) bool {
	i, ok := g.indexByTaskName[task]
	if !ok {
		return false
	}
	t := g.Tasks[i]
	if !p.OpensStage(t.Stage) && !t.mayRerunIn(p) {
		return false
	}
	for _, a := range t.Dependencies {
		if !conditions[a.Condition].holds(facts[a.Task]) {
			return false
		}
	}
	for j := range g.Tasks {
		if j != i && (g.isBlockedByRerunOf(j, i, facts) || g.isBlockedByRestartOf(j, i, facts)) {
			return false
		}
	}
	return true
}

// isBlockedByRerunOf reports whether the task at taskIndex must wait because of lite_rerun on the task at
// otherIndex, or on itself.
func (g *ExtendedGroup) isBlockedByRerunOf(otherIndex, taskIndex int, facts map[string]TaskFacts) bool {
	t, other := g.Tasks[taskIndex], g.Tasks[otherIndex]
	state := facts[other.Name].State
	switch {
	case t.Stage == MainTask && other.Stage == PrestartEphemeral && other.Rerun.OnMainTaskRestart:
		return state != Succeeded
	case t.Stage == PoststartEphemeral && t.Rerun.OnMainTaskRestart && other.Stage == MainTask:
		return state == Pending
	case t.Stage == PrestartEphemeral && t.Rerun.OnMainTaskRestart:
		// The task would have to run again if it ran before a restart of the other task.
		_, follows := g.restartCause(otherIndex, facts)
		return follows
	}
	return false
}

// isBlockedByRestartOf reports whether the task at taskIndex must wait for the task at otherIndex because of the
// restart group: tasks that restart together are all down before one starts, and start in order.
func (g *ExtendedGroup) isBlockedByRestartOf(otherIndex, taskIndex int, facts map[string]TaskFacts) bool {
	if g.RestartGroup == OneForOne || !g.areBothMainOrSidecar(taskIndex, otherIndex) {
		return false
	}
	of := facts[g.Tasks[otherIndex].Name]
	return of.isRunning() && g.mustRestartWith(otherIndex, taskIndex, facts) || of.State == Pending && g.predecessorsByTaskIndex[taskIndex][otherIndex]
}

// mayRerunIn reports whether the task may run again in a phase after its stage's phase.
func (t Task) mayRerunIn(p Phase) bool {
	switch {
	case !t.Rerun.OnMainTaskRestart || p == PhasePoststop:
		return false
	case t.Stage == PrestartEphemeral:
		return p >= PhasePrestart
	}
	return t.Stage == PoststartEphemeral && p >= PhasePoststart
}

// UnsatisfiableDependency returns a task's dependency on a dead task that can no longer satisfy the condition. It returns
// false if there is none.
func (g *ExtendedGroup) UnsatisfiableDependency(p Phase, task string, facts map[string]TaskFacts) (Dependency, bool) {
	i, ok := g.indexByTaskName[task]
	if !ok || !p.OpensStage(g.Tasks[i].Stage) || facts[task].State != Pending {
		return Dependency{}, false
	}
	for _, a := range g.Tasks[i].Dependencies {
		of := facts[a.Task]
		if of.State.Dead() && !conditions[a.Condition].holds(of) {
			return a, true
		}
	}
	return Dependency{}, false
}

// RerunsAfterReboot reports whether a completed task runs again after a reboot. A nil group has no
// such task.
func (g *ExtendedGroup) RerunsAfterReboot(task string) bool {
	return g != nil && slices.ContainsFunc(g.Tasks, func(t Task) bool { return t.Name == task && t.Rerun.OnReboot })
}

// RerunCauseByTask returns the completed tasks that must run again because a main task restarts: task name -> name
// of such a main task. Afterwards, the caller must treat these tasks as pending, also in the facts for the other
// methods.
func (g *ExtendedGroup) RerunCauseByTask(facts map[string]TaskFacts) map[string]string {
	var names map[string]string
	for _, t := range g.Tasks {
		if f := facts[t.Name]; !t.Rerun.OnMainTaskRestart || f.State != Succeeded || f.StartedAt.IsZero() {
			continue
		}
		for _, main := range g.Tasks {
			// A run from before the main task's restart does not count: it may have been too early.
			if main.Stage == MainTask && facts[main.Name].RestartDecidedAt.After(facts[t.Name].StartedAt) {
				names = addCausingTask(names, t.Name, main.Name)
				break
			}
		}
	}
	return names
}

// RestartCauseByTask returns the running tasks that must restart because another task restarts: task name -> name
// of such another task.
func (g *ExtendedGroup) RestartCauseByTask(facts map[string]TaskFacts) map[string]string {
	var names map[string]string
	for i, t := range g.Tasks {
		if first, ok := g.restartCause(i, facts); ok {
			names = addCausingTask(names, t.Name, g.Tasks[first].Name)
		}
	}
	return names
}

func addCausingTask(causeByTask map[string]string, task, cause string) map[string]string {
	if causeByTask == nil {
		causeByTask = make(map[string]string)
	}
	causeByTask[task] = cause
	return causeByTask
}

// restartCause returns the index of a task with which the running task at taskIndex must restart.
func (g *ExtendedGroup) restartCause(taskIndex int, facts map[string]TaskFacts) (causeIndex int, ok bool) {
	if g.RestartGroup != OneForOne && facts[g.Tasks[taskIndex].Name].isRunning() {
		for first := range g.Tasks {
			if g.mustRestartWith(taskIndex, first, facts) {
				return first, true
			}
		}
	}
	return 0, false
}

// mustRestartWith reports whether the task at taskIndex must restart with the task at causeIndex: it last started
// before the cause's restart was decided. The result is false after the task has restarted.
func (g *ExtendedGroup) mustRestartWith(taskIndex, causeIndex int, facts map[string]TaskFacts) bool {
	if taskIndex == causeIndex || g.RestartGroup == OneForOne || !g.areBothMainOrSidecar(taskIndex, causeIndex) {
		return false
	}
	if g.RestartGroup == RestForOne && !g.predecessorsByTaskIndex[taskIndex][causeIndex] {
		return false
	}
	return facts[g.Tasks[causeIndex].Name].RestartDecidedAt.After(facts[g.Tasks[taskIndex].Name].StartedAt)
}

// areBothMainOrSidecar reports whether the tasks at i and j are both main tasks or sidecars. Restart
// groups apply only to these.
func (g *ExtendedGroup) areBothMainOrSidecar(i, j int) bool {
	lasting := func(s Stage) bool { return s == MainTask || s.Sidecar() }
	return lasting(g.Tasks[i].Stage) && lasting(g.Tasks[j].Stage)
}
