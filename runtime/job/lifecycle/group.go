package lifecycle

import "slices"

// Group is a task group that uses the lifecycle extensions: tasks that wait for other
// tasks, run again, or restart together. Its methods are pure functions of the current
// facts about the tasks, so that the next agent gets the same results from the stored
// task states. A task without a fact counts as pending.
type Group struct {
	Tasks        []Task
	RestartGroup RestartGroup

	indexByTaskName map[string]int
	predecessors    [][]bool // predecessors has for each task whether each other task starts before it; nil in OneForOne
}

// NewGroup returns nil if the group uses no extension. The tasks must have passed
// CheckGraph; NewGroup keeps them.
func NewGroup(tasks []Task, restart RestartGroup) *Group {
	extended := func(t Task) bool { return len(t.Dependencies) > 0 || t.Rerun != RerunPolicy{} }
	if restart == OneForOne && !slices.ContainsFunc(tasks, extended) {
		return nil
	}
	g := &Group{Tasks: tasks, RestartGroup: restart, indexByTaskName: indexTasksByName(tasks)}
	if restart != OneForOne {
		order := newStartGraph(tasks)
		for i := range tasks {
			g.predecessors = append(g.predecessors, order.ancestors(i))
		}
	}
	return g
}

// WaitsForHealth reports whether a task waits until another task is healthy.
func (g *Group) WaitsForHealth() bool {
	return slices.ContainsFunc(g.Tasks, func(t Task) bool {
		return slices.ContainsFunc(t.Dependencies, func(a Dependency) bool { return a.Condition == ConditionHealthy })
	})
}

// MayStart reports whether a task may start in phase p. Callers must check it before
// each start, restarts included.
func (g *Group) MayStart(p Phase, task string, facts map[string]TaskFacts) bool {
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

// isBlockedByRerunOf reports whether task i must wait because of the lite_rerun of task j or of
// task i itself.
func (g *Group) isBlockedByRerunOf(j, i int, facts map[string]TaskFacts) bool {
	t, other := g.Tasks[i], g.Tasks[j]
	state := facts[other.Name].State
	switch {
	case t.Stage == MainTask && other.Stage == PrestartEphemeral && other.Rerun.OnMainTaskRestart:
		return state != Succeeded
	case t.Stage == PoststartEphemeral && t.Rerun.OnMainTaskRestart && other.Stage == MainTask:
		return state == Pending
	case t.Stage == PrestartEphemeral && t.Rerun.OnMainTaskRestart:
		// Task i would have to run again if it ran before a restart of task j.
		_, follows := g.restartCause(j, facts)
		return follows
	}
	return false
}

// isBlockedByRestartOf reports whether task i must wait for task j because of the restart
// group: tasks that restart together are all down before one starts, and start in
// order.
func (g *Group) isBlockedByRestartOf(j, i int, facts map[string]TaskFacts) bool {
	if g.RestartGroup == OneForOne || !g.areBothLongRunning(i, j) {
		return false
	}
	of := facts[g.Tasks[j].Name]
	return of.isRunning() && g.mustRestartWith(j, i, facts) || of.State == Pending && g.predecessors[i][j]
}

// mayRerunIn reports whether the task may run again in a phase after the phase of its
// stage.
func (t Task) mayRerunIn(p Phase) bool {
	switch {
	case !t.Rerun.OnMainTaskRestart || p == PhasePoststop:
		return false
	case t.Stage == PrestartEphemeral:
		return p >= PhasePrestart
	}
	return t.Stage == PoststartEphemeral && p >= PhasePoststart
}

// UnsatisfiableDependency returns a dependency of the task whose condition can no longer hold, because the task that it names
// is dead. It returns false if there is none.
func (g *Group) UnsatisfiableDependency(p Phase, task string, facts map[string]TaskFacts) (Dependency, bool) {
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

// RerunsAfterReboot reports whether a task that has completed runs again after a
// reboot. A nil group has no such task.
func (g *Group) RerunsAfterReboot(task string) bool {
	return g != nil && slices.ContainsFunc(g.Tasks, func(t Task) bool { return t.Name == task && t.Rerun.OnReboot })
}

// TasksToRerun returns the completed tasks that must run again because a main task restarts: task name -> name
// of such a main task. Afterwards, the caller must treat these tasks as pending, also in the facts that it passes to
// the other methods.
func (g *Group) TasksToRerun(facts map[string]TaskFacts) map[string]string {
	var names map[string]string
	for _, t := range g.Tasks {
		if f := facts[t.Name]; !t.Rerun.OnMainTaskRestart || f.State != Succeeded || f.StartedAt.IsZero() {
			continue
		}
		for _, main := range g.Tasks {
			// A run that started before the restart of the main task does not count: it
			// may have been too early.
			if main.Stage == MainTask && facts[main.Name].RestartDecidedAt.After(facts[t.Name].StartedAt) {
				names = addCausingTask(names, t.Name, main.Name)
				break
			}
		}
	}
	return names
}

// TasksToRestart returns the running tasks that must restart because another task restarts: task name -> name
// of such another task.
func (g *Group) TasksToRestart(facts map[string]TaskFacts) map[string]string {
	var names map[string]string
	for i, t := range g.Tasks {
		if first, ok := g.restartCause(i, facts); ok {
			names = addCausingTask(names, t.Name, g.Tasks[first].Name)
		}
	}
	return names
}

func addCausingTask(names map[string]string, name, cause string) map[string]string {
	if names == nil {
		names = make(map[string]string)
	}
	names[name] = cause
	return names
}

// restartCause returns a task with which the running task i must restart.
func (g *Group) restartCause(i int, facts map[string]TaskFacts) (first int, ok bool) {
	if g.RestartGroup != OneForOne && facts[g.Tasks[i].Name].isRunning() {
		for first := range g.Tasks {
			if g.mustRestartWith(i, first, facts) {
				return first, true
			}
		}
	}
	return 0, false
}

// mustRestartWith reports whether task i must restart with task first: task i was last started
// before the restart of first was decided. It is false after task i has restarted.
func (g *Group) mustRestartWith(i, first int, facts map[string]TaskFacts) bool {
	if i == first || g.RestartGroup == OneForOne || !g.areBothLongRunning(i, first) {
		return false
	}
	if g.RestartGroup == RestForOne && !g.predecessors[i][first] {
		return false
	}
	return facts[g.Tasks[first].Name].RestartDecidedAt.After(facts[g.Tasks[i].Name].StartedAt)
}

// areBothLongRunning reports whether i and j are both main tasks or sidecars, which restart
// groups apply to.
func (g *Group) areBothLongRunning(i, j int) bool {
	lasting := func(s Stage) bool { return s == MainTask || s.Sidecar() }
	return lasting(g.Tasks[i].Stage) && lasting(g.Tasks[j].Stage)
}
