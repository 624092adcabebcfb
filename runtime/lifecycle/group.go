package lifecycle

import "slices"

// Group is a task group that uses the lifecycle extensions: tasks that wait for other
// tasks, run again, or restart together. Its methods are pure functions of the current
// facts about the tasks, so that the next agent gets the same results from the stored
// task states. A task without a fact counts as pending.
type Group struct {
	Tasks   []Task
	Restart RestartGroup

	index  map[string]int
	before [][]bool // by task: the tasks that come before it; nil in OneForOne
}

// NewGroup returns nil if the group uses no extension. The tasks must have passed
// Check; NewGroup keeps them.
func NewGroup(tasks []Task, restart RestartGroup) *Group {
	extended := func(t Task) bool { return len(t.After) > 0 || t.Rerun != Rerun{} }
	if restart == OneForOne && !slices.ContainsFunc(tasks, extended) {
		return nil
	}
	g := &Group{Tasks: tasks, Restart: restart, index: indexOf(tasks)}
	if restart != OneForOne {
		order := newStartGraph(tasks)
		for i := range tasks {
			g.before = append(g.before, order.reach(i))
		}
	}
	return g
}

// WaitsForHealth reports whether a task waits until another task is healthy.
func (g *Group) WaitsForHealth() bool {
	return slices.ContainsFunc(g.Tasks, func(t Task) bool {
		return slices.ContainsFunc(t.After, func(a After) bool { return a.Condition == Healthy })
	})
}

// MayStart reports whether a task may start in phase p. Callers must check it before
// each start, restarts included.
func (g *Group) MayStart(p Phase, task string, facts map[string]Fact) bool {
	i, ok := g.index[task]
	if !ok {
		return false
	}
	t := g.Tasks[i]
	if !p.Open(t.Stage) && !t.reopens(p) {
		return false
	}
	for _, a := range t.After {
		if !conditions[a.Condition].holds(facts[a.Task]) {
			return false
		}
	}
	for j := range g.Tasks {
		if j != i && (g.runsFirst(j, i, facts) || g.restartsFirst(j, i, facts)) {
			return false
		}
	}
	return true
}

// runsFirst reports whether task i must wait because of the lite_rerun of task j or of
// task i itself.
func (g *Group) runsFirst(j, i int, facts map[string]Fact) bool {
	t, other := g.Tasks[i], g.Tasks[j]
	state := facts[other.Name].State
	switch {
	case t.Stage == MainTask && other.Stage == PrestartEphemeral && other.Rerun.Restart:
		return state != Succeeded
	case t.Stage == PoststartEphemeral && t.Rerun.Restart && other.Stage == MainTask:
		return state == Pending
	case t.Stage == PrestartEphemeral && t.Rerun.Restart:
		// Task i would have to run again if it ran before a restart of task j.
		_, follows := g.leaderOf(j, facts)
		return follows
	}
	return false
}

// restartsFirst reports whether task i must wait for task j because of the restart
// group: tasks that restart together are all down before one starts, and start in
// order.
func (g *Group) restartsFirst(j, i int, facts map[string]Fact) bool {
	if g.Restart == OneForOne || !g.together(i, j) {
		return false
	}
	of := facts[g.Tasks[j].Name]
	return of.up() && g.follows(j, i, facts) || of.State == Pending && g.before[i][j]
}

// reopens reports whether the task may run again in a phase after the phase of its
// stage.
func (t Task) reopens(p Phase) bool {
	switch {
	case !t.Rerun.Restart || p == Poststop:
		return false
	case t.Stage == PrestartEphemeral:
		return p >= Prestart
	}
	return t.Stage == PoststartEphemeral && p >= Poststart
}

// Lost returns a condition of the task that can no longer hold because the other task
// is dead.
func (g *Group) Lost(p Phase, task string, facts map[string]Fact) (After, bool) {
	i, ok := g.index[task]
	if !ok || !p.Open(g.Tasks[i].Stage) || facts[task].State != Pending {
		return After{}, false
	}
	for _, a := range g.Tasks[i].After {
		of := facts[a.Task]
		if of.State.Dead() && !conditions[a.Condition].holds(of) {
			return a, true
		}
	}
	return After{}, false
}

// RerunsAfterReboot reports whether a task that has completed runs again after a
// reboot. A nil group has no such task.
func (g *Group) RerunsAfterReboot(task string) bool {
	return g != nil && slices.ContainsFunc(g.Tasks, func(t Task) bool { return t.Name == task && t.Rerun.Reboot })
}

// Rerun returns the tasks that have completed and must run again because a main task
// restarts, each with one such main task. The caller must treat them as pending
// afterwards, also in the facts for the other methods.
func (g *Group) Rerun(facts map[string]Fact) map[string]string {
	var names map[string]string
	for _, t := range g.Tasks {
		if f := facts[t.Name]; !t.Rerun.Restart || f.State != Succeeded || f.Started.IsZero() {
			continue
		}
		for _, main := range g.Tasks {
			// A run that started before the restart of the main task does not count: it
			// may have been too early.
			if main.Stage == MainTask && facts[main.Name].Restarted.After(facts[t.Name].Started) {
				names = add(names, t.Name, main.Name)
				break
			}
		}
	}
	return names
}

// Follow returns the running tasks that must restart because another task does, each
// with one such task.
func (g *Group) Follow(facts map[string]Fact) map[string]string {
	var names map[string]string
	for i, t := range g.Tasks {
		if first, ok := g.leaderOf(i, facts); ok {
			names = add(names, t.Name, g.Tasks[first].Name)
		}
	}
	return names
}

func add(names map[string]string, name, cause string) map[string]string {
	if names == nil {
		names = make(map[string]string)
	}
	names[name] = cause
	return names
}

// leaderOf returns a task with which the running task i must restart.
func (g *Group) leaderOf(i int, facts map[string]Fact) (first int, ok bool) {
	if g.Restart != OneForOne && facts[g.Tasks[i].Name].up() {
		for first := range g.Tasks {
			if g.follows(i, first, facts) {
				return first, true
			}
		}
	}
	return 0, false
}

// follows reports whether task i must restart with task first: task i was last started
// before the restart of first was decided. It is false after task i has restarted.
func (g *Group) follows(i, first int, facts map[string]Fact) bool {
	if i == first || g.Restart == OneForOne || !g.together(i, first) {
		return false
	}
	if g.Restart == RestForOne && !g.before[i][first] {
		return false
	}
	return facts[g.Tasks[first].Name].Restarted.After(facts[g.Tasks[i].Name].Started)
}

// together reports whether i and j are both main tasks or sidecars, which restart
// groups apply to.
func (g *Group) together(i, j int) bool {
	lasting := func(s Stage) bool { return s == MainTask || s.Sidecar() }
	return lasting(g.Tasks[i].Stage) && lasting(g.Tasks[j].Stage)
}
