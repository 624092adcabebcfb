package lifecycle

import "slices"

// Group is a task group that uses the extensions of the lifecycle: tasks that
// wait for others, that run again, or that restart together. Its methods are
// pure functions of what the tasks are at one moment, so that the next agent
// comes to the same answers from the states that this one has stored. A task
// without a fact counts as pending.
type Group struct {
	Tasks   []Task
	Restart RestartGroup

	index  map[string]int
	before [][]bool // by task: whether another comes before it; nil in OneForOne
}

// NewGroup returns nil if nothing distinguishes the group from one without
// extensions. The tasks are those of a graph that Check has found nothing wrong
// with; NewGroup keeps them.
func NewGroup(tasks []Task, restart RestartGroup) *Group {
	extended := func(t Task) bool { return len(t.After) > 0 || t.Rerun != Rerun{} }
	if restart == OneForOne && !slices.ContainsFunc(tasks, extended) {
		return nil
	}
	g := &Group{Tasks: tasks, Restart: restart, index: indexOf(tasks)}
	if restart != OneForOne {
		order := newOrder(tasks)
		for i := range tasks {
			g.before = append(g.before, order.reach(i))
		}
	}
	return g
}

// WaitsForHealth reports whether a task waits for another to be healthy.
func (g *Group) WaitsForHealth() bool {
	return slices.ContainsFunc(g.Tasks, func(t Task) bool {
		return slices.ContainsFunc(t.After, func(a After) bool { return a.Condition == Healthy })
	})
}

// MayStart reports whether a task may start in phase p. It is asked before each
// start, restarts included.
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

// runsFirst reports whether task i has to wait for what lite_rerun asks of task
// j, or of itself.
func (g *Group) runsFirst(j, i int, facts map[string]Fact) bool {
	t, other := g.Tasks[i], g.Tasks[j]
	state := facts[other.Name].State
	switch {
	case t.Stage == MainTask && other.Stage == PrestartEphemeral && other.Rerun.Restart:
		return state != Succeeded
	case t.Stage == PoststartEphemeral && t.Rerun.Restart && other.Stage == MainTask:
		return state == Pending
	case t.Stage == PrestartEphemeral && t.Rerun.Restart:
		_, follows := g.leaderOf(j, facts) // it would have to run once more
		return follows
	}
	return false
}

// restartsFirst reports whether task i has to wait for task j because of the
// restart group: those that restart together are down together, and come up in
// their order.
func (g *Group) restartsFirst(j, i int, facts map[string]Fact) bool {
	if g.Restart == OneForOne || !g.together(i, j) {
		return false
	}
	of := facts[g.Tasks[j].Name]
	return of.up() && g.follows(j, i, facts) || of.State == Pending && g.before[i][j]
}

// reopens reports whether the task may run again in a phase that has left its
// stage behind.
func (t Task) reopens(p Phase) bool {
	switch {
	case !t.Rerun.Restart || p == Poststop:
		return false
	case t.Stage == PrestartEphemeral:
		return p >= Prestart
	}
	return t.Stage == PoststartEphemeral && p >= Poststart
}

// Lost returns a condition that the task waits for though it cannot hold any
// more: the other task is dead.
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

// RerunsAfterReboot reports whether a task that has done its work does it again
// after a reboot. A nil group has no such task.
func (g *Group) RerunsAfterReboot(task string) bool {
	return g != nil && slices.ContainsFunc(g.Tasks, func(t Task) bool { return t.Name == task && t.Rerun.Reboot })
}

// Rerun returns the tasks that have done their work, and have to do it again
// because a main task starts again, each with one such main task. They count as
// pending from then on, whatever their own states say: the other functions want
// to be told so.
func (g *Group) Rerun(facts map[string]Fact) map[string]string {
	var names map[string]string
	for _, t := range g.Tasks {
		if f := facts[t.Name]; !t.Rerun.Restart || f.State != Succeeded || f.Started.IsZero() {
			continue
		}
		for _, main := range g.Tasks {
			// A run that had begun before that does not count: it may have been too early.
			if main.Stage == MainTask && facts[main.Name].Restarted.After(facts[t.Name].Started) {
				names = add(names, t.Name, main.Name)
				break
			}
		}
	}
	return names
}

// Follow returns the tasks that run and have to start again because another
// does, each with one such task.
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

// leaderOf finds a task with which task i, which runs, has to start again.
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

// follows reports whether task i has to start again with task first: it was
// started before first was to start again. Once it has, it was not.
func (g *Group) follows(i, first int, facts map[string]Fact) bool {
	if i == first || g.Restart == OneForOne || !g.together(i, first) {
		return false
	}
	if g.Restart == RestForOne && !g.before[i][first] {
		return false
	}
	return facts[g.Tasks[first].Name].Restarted.After(facts[g.Tasks[i].Name].Started)
}

// together leaves out what does its work once.
func (g *Group) together(i, j int) bool {
	lasting := func(s Stage) bool { return s == MainTask || s.Sidecar() }
	return lasting(g.Tasks[i].Stage) && lasting(g.Tasks[j].Stage)
}
