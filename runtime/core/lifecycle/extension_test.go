package lifecycle

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	for _, c := range []struct{ parser, text, want string }{
		{"after", "a:started", "[a:started]"},
		{"after", " a : healthy,\n b:c:exited , d:success", "[a:healthy b:c:exited d:success]"},
		{"after", ":started", `":started" is no condition of a task: write TASK:CONDITION, like db:healthy`},
		{"after", "a:Started", `there is no condition "Started": write started, healthy, success or exited`},
		{"rerun", "restart", "{true false}"},
		{"rerun", "reboot , restart,reboot", "{true true}"},
		{"rerun", "", `there is no occasion "": write restart or reboot`},
		{"group", " one_for_all ", "one_for_all"},
		{"group", "one_for_one", "one_for_one"},
		{"group", "rest", `there is no restart group "rest": write one_for_one, one_for_all or rest_for_one`},
	} {
		var got any
		var err error
		switch c.parser {
		case "after":
			got, err = ParseDependencies(c.text)
		case "rerun":
			got, err = ParseRerunPolicy(c.text)
		case "group":
			got, err = ParseRestartGroup(c.text)
		}
		if err != nil {
			got = err
		}
		if text := fmt.Sprint(got); text != c.want {
			t.Errorf("%s %q: got %s, want %s", c.parser, c.text, text, c.want)
		}
	}
}

func FuzzParseDependencies(f *testing.F) {
	f.Add("migrate:success, db:healthy")
	f.Fuzz(func(t *testing.T, text string) {
		list, err := ParseDependencies(text)
		if err != nil {
			return
		}
		var formatted []string
		for _, a := range list {
			formatted = append(formatted, a.String())
		}
		if same, err := ParseDependencies(strings.Join(formatted, ",")); err != nil || !slices.Equal(same, list) {
			t.Errorf("%q is read as %v, and that as %v, %v", text, list, same, err)
		}
	})
}

// timeAt converts seconds to a time.
func timeAt(n int) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return time.Unix(1_700_000_000+int64(n), 0)
}

func TestConditions(t *testing.T) {
	at := timeAt(1)
	for _, c := range []struct {
		name string
		fact TaskFacts
		want string // conditions that hold
	}{
		{"has not begun", TaskFacts{}, ""},
		{"waits for its restart", TaskFacts{StartedAt: at, RestartDecidedAt: at}, ""},
		{"runs", TaskFacts{State: Running, StartedAt: at}, "started"},
		{"runs well", TaskFacts{State: Running, StartedAt: at, Healthy: true}, "started healthy"},
		{"was well, and has ended", TaskFacts{State: Succeeded, StartedAt: at, Healthy: true}, "started success exited"},
		{"was killed", TaskFacts{State: Succeeded, StartedAt: at, KilledSinceStart: true}, "started exited"},
		{"was killed before it began", TaskFacts{State: Succeeded, KilledSinceStart: true}, "exited"},
		{"will never begin", TaskFacts{State: Succeeded}, "exited"},
		{"has failed", TaskFacts{State: Failed, StartedAt: at}, "started exited"},
	} {
		var got []string
		for _, condition := range conditions {
			if condition.holds(c.fact) {
				got = append(got, condition.word)
			}
		}
		if text := strings.Join(got, " "); text != c.want {
			t.Errorf("a task that %s: %q hold, want %q", c.name, text, c.want)
		}
	}
}

// newTestGroup creates a task group, each task written as in "web main db:started rerun".
func newTestGroup(t *testing.T, restart RestartGroup, lines ...string) *ExtendedGroup {
	t.Helper()
	var tasks []Task
	for _, line := range lines {
		words := strings.Fields(line)
		hook, sidecar := strings.CutSuffix(words[1], "+")
		task := Task{Name: words[0], Stage: StageOf(strings.TrimPrefix(hook, "main"), sidecar)}
		for _, word := range words[2:] {
			if word == "rerun" {
				task.Rerun.OnMainTaskRestart = true
				continue
			}
			after, err := ParseDependencies(word)
			if err != nil {
				t.Fatal(err)
			}
			task.Dependencies = append(task.Dependencies, after...)
		}
		tasks = append(tasks, task)
	}
	return NewGroupIfExtended(tasks, restart)
}

func TestGroupWithoutExtensions(t *testing.T) {
	if g := newTestGroup(t, OneForOne, "web main", "db prestart+"); g != nil {
		t.Errorf("got %+v", g)
	}
	if (*ExtendedGroup)(nil).RerunsAfterReboot("web") {
		t.Error("it runs a task again")
	}
}

func TestUnknownRestartGroup(t *testing.T) {
	if g, err := ParseRestartGroup("all"); err == nil || g != OneForOne {
		t.Errorf("%v, %v", g, err)
	}
}

func TestAnyTaskWaitsForHealth(t *testing.T) {
	for condition, want := range map[string]bool{"healthy": true, "started": false, "success": false} {
		if got := newTestGroup(t, OneForOne, "web main", "log main web:"+condition).AnyTaskWaitsForHealth(); got != want {
			t.Errorf("%s: %v", condition, got)
		}
	}
}

func TestRerunsAfterReboot(t *testing.T) {
	g := NewGroupIfExtended([]Task{{Name: "web", Stage: MainTask}, {Name: "init", Stage: PrestartEphemeral, Rerun: RerunPolicy{OnReboot: true}}}, OneForOne)
	if g.RerunsAfterReboot("web") || !g.RerunsAfterReboot("init") || g.RerunsAfterReboot("log") {
		t.Error("another task than init runs again, or init does not")
	}
}

// A task without lite_rerun that runs before the main tasks does not run again with them, so it waits for no restart; one that
// runs after their start is not started before it.
func TestOnlyRerunsWaitForRestarts(t *testing.T) {
	restarts := map[string]TaskFacts{"db": {State: Running, StartedAt: timeAt(1)}, "web": {StartedAt: timeAt(1), RestartDecidedAt: timeAt(5)}}
	if !newTestGroup(t, OneForAll, "init prestart", "db main", "web main").MayStart(PhasePrestart, "init", restarts) {
		t.Error("init waits")
	}
	if newTestGroup(t, OneForAll, "init prestart rerun", "db main", "web main").MayStart(PhasePrestart, "init", restarts) {
		t.Error("init, which would have to run again, does not wait")
	}
	if newTestGroup(t, OneForOne, "web main", "warm poststart rerun").MayStart(PhaseMain, "warm", map[string]TaskFacts{"web": {State: Running}}) {
		t.Error("warm starts before its phase")
	}
}

func TestMayStart(t *testing.T) {
	run := func(since int) TaskFacts { return TaskFacts{State: Running, StartedAt: timeAt(since)} }
	done := func(since int) TaskFacts { return TaskFacts{State: Succeeded, StartedAt: timeAt(since)} }
	pending := func(since, restarted int) TaskFacts {
		return TaskFacts{StartedAt: timeAt(since), RestartDecidedAt: timeAt(restarted)}
	}

	after := newTestGroup(t, OneForOne, "db prestart+", "init prestart db:started", "one main", "two main one:success", "tidy poststop two:success")
	again := newTestGroup(t, OneForOne, "init prestart rerun", "web main", "other main", "warm poststart rerun", "once poststart")
	all := newTestGroup(t, OneForAll, "db prestart+", "web main", "log poststart+")
	both := newTestGroup(t, OneForAll, "db prestart+", "web main", "init prestart rerun")
	rest := newTestGroup(t, RestForOne, "db prestart+", "web main", "log main web:started")
	for _, c := range []struct {
		name  string
		g     *ExtendedGroup
		phase Phase
		task  string
		facts map[string]TaskFacts
		want  bool
	}{
		{"the stage counts", after, PhaseInit, "db", nil, false},
		{"no condition", after, PhasePrestart, "db", nil, true},
		{"a condition that does not hold yet", after, PhasePrestart, "init", nil, false},
		{"a condition that holds", after, PhasePrestart, "init", map[string]TaskFacts{"db": run(1)}, true},
		{"a condition that does not hold any more", after, PhasePrestart, "init", map[string]TaskFacts{"db": pending(1, 2)}, false},
		{"inside a stage", after, PhaseMain, "two", map[string]TaskFacts{"one": run(1)}, false},
		{"inside a stage, later", after, PhaseMain, "two", map[string]TaskFacts{"one": done(1)}, true},
		{"the condition alone is not enough", after, PhasePrestart, "two", map[string]TaskFacts{"one": done(1)}, false},
		{"poststop", after, PhasePoststop, "tidy", map[string]TaskFacts{"two": done(1)}, true},
		{"a stranger", after, PhaseMain, "three", nil, false},

		{"prestart again", again, PhaseWaitAlloc, "init", map[string]TaskFacts{"web": pending(1, 2)}, true},
		{"not when all is over", again, PhasePoststop, "init", nil, false},
		{"not while all tasks go down", again, PhaseInit, "init", nil, false},
		{"main waits for prestart", again, PhaseWaitAlloc, "web", map[string]TaskFacts{"init": {}, "web": pending(1, 2)}, false},
		{"main waits for its end", again, PhaseWaitAlloc, "web", map[string]TaskFacts{"init": run(3), "web": pending(1, 2)}, false},
		{"main after prestart", again, PhaseWaitAlloc, "web", map[string]TaskFacts{"init": done(3), "web": pending(1, 2)}, true},
		{"poststart again waits for main", again, PhaseWaitAlloc, "warm", map[string]TaskFacts{"web": pending(1, 2), "other": run(1)}, false},
		{"poststart again", again, PhaseWaitAlloc, "warm", map[string]TaskFacts{"web": run(3), "other": done(1)}, true},
		{"others do not run again", again, PhaseWaitAlloc, "once", map[string]TaskFacts{"web": run(3), "other": run(1)}, false},

		{"who is to go down holds the first", all, PhaseMain, "web", map[string]TaskFacts{"db": run(1), "web": pending(2, 5)}, false},
		{"who is down does not, unless it comes before", all, PhaseMain, "web", map[string]TaskFacts{"db": pending(1, 6), "web": pending(2, 5)}, false},
		{"who comes after does not", all, PhaseMain, "web", map[string]TaskFacts{"db": run(6), "web": pending(2, 5), "log": pending(1, 6)}, true},
		{"who has come up again does not", all, PhaseMain, "web", map[string]TaskFacts{"db": run(7), "web": pending(2, 5)}, true},
		{"the others wait as well", all, PhaseMain, "db", map[string]TaskFacts{"db": pending(1, 6), "web": pending(2, 5), "log": run(3)}, false},
		{"prestart again waits until all are down", both, PhaseWaitAlloc, "init", map[string]TaskFacts{"db": run(1), "web": pending(2, 5)}, false},
		{"and runs then", both, PhaseWaitAlloc, "init", map[string]TaskFacts{"db": pending(1, 6), "web": pending(2, 5)}, true},
		{"what comes before stays up", rest, PhaseMain, "web", map[string]TaskFacts{"db": run(1), "web": pending(2, 5)}, true},
		{"what comes after does not", rest, PhaseMain, "web", map[string]TaskFacts{"db": run(1), "web": pending(2, 5), "log": run(3)}, false},
	} {
		if got := c.g.MayStart(c.phase, c.task, c.facts); got != c.want {
			t.Errorf("%s: MayStart(%v, %s) = %v", c.name, c.phase, c.task, got)
		}
	}
}

func TestTasksToRestart(t *testing.T) {
	facts := func(restarted string) map[string]TaskFacts {
		facts := make(map[string]TaskFacts)
		for _, name := range []string{"init", "db", "web", "log", "worker", "tidy"} {
			facts[name] = TaskFacts{State: Running, StartedAt: timeAt(1)}
		}
		facts[restarted] = TaskFacts{StartedAt: timeAt(1), RestartDecidedAt: timeAt(5)}
		return facts
	}
	tasks := []string{"init prestart", "db prestart+", "web main", "worker main web:started", "log poststart+", "tidy poststop"}
	for _, c := range []struct {
		group     RestartGroup
		restarted string
		want      string
	}{
		{OneForAll, "web", "db log worker"},
		{OneForAll, "init", ""},
		{OneForAll, "tidy", ""},
		{RestForOne, "db", "log web worker"},
		{RestForOne, "web", "log worker"},
		{RestForOne, "worker", "log"},
		{RestForOne, "log", ""},
		{RestForOne, "init", ""},
	} {
		g := newTestGroup(t, c.group, tasks...)
		follow := g.RestartCauseByTask(facts(c.restarted))
		var got []string
		for name, first := range follow {
			got = append(got, name)
			if first != c.restarted {
				t.Errorf("%v: %s restarts with %s, want %s", c.group, name, first, c.restarted)
			}
		}
		slices.Sort(got)
		if text := strings.Join(got, " "); text != c.want {
			t.Errorf("%v: with %s restart %q, want %q", c.group, c.restarted, text, c.want)
		}
	}
}

// A task's own restart does not restart it.
func TestNoTaskRestartsWithItself(t *testing.T) {
	g := newTestGroup(t, OneForAll, "web main", "db main")
	facts := map[string]TaskFacts{"web": {State: Running, StartedAt: timeAt(1), RestartDecidedAt: timeAt(5)}, "db": {State: Running, StartedAt: timeAt(6)}}
	if got := g.RestartCauseByTask(facts); len(got) > 0 {
		t.Errorf("%v", got)
	}
}

func TestTasksToRerunAndFailedDependency(t *testing.T) {
	g := newTestGroup(t, OneForOne, "init prestart rerun", "web main", "warm poststart rerun", "once poststart web:healthy", "tidy poststop web:success")
	facts := map[string]TaskFacts{
		"init": {State: Succeeded, StartedAt: timeAt(1)},
		"web":  {StartedAt: timeAt(2), RestartDecidedAt: timeAt(5)},
		"warm": {State: Running, StartedAt: timeAt(3)},
		"once": {State: Succeeded, StartedAt: timeAt(3)},
	}
	if got := fmt.Sprint(g.RerunCauseByTask(facts)); got != "map[init:web]" {
		t.Errorf("Rerun = %s: what runs is asked when it has ended", got)
	}
	facts["warm"] = TaskFacts{State: Succeeded, StartedAt: timeAt(3)}
	facts["init"] = TaskFacts{State: Succeeded, StartedAt: timeAt(6)}
	if got := fmt.Sprint(g.RerunCauseByTask(facts)); got != "map[warm:web]" {
		t.Errorf("Rerun = %s: what has run since is done", got)
	}
	lost := func(p Phase, task string, web TaskFacts) bool {
		_, lost := g.UnsatisfiableDependency(p, task, map[string]TaskFacts{"web": web})
		return lost
	}
	for _, c := range []struct {
		name string
		got  bool
		want bool
	}{
		{"health may come", lost(PhasePoststart, "once", TaskFacts{State: Running}), false},
		{"the dead have none", lost(PhasePoststart, "once", TaskFacts{State: Succeeded, StartedAt: timeAt(1)}), true},
		{"a restart of all begins anew", lost(PhaseInit, "once", TaskFacts{State: Succeeded, StartedAt: timeAt(1)}), false},
		{"success", lost(PhasePoststop, "tidy", TaskFacts{State: Succeeded, StartedAt: timeAt(1)}), false},
		{"failure", lost(PhasePoststop, "tidy", TaskFacts{State: Failed, StartedAt: timeAt(1)}), true},
		{"a kill", lost(PhasePoststop, "tidy", TaskFacts{State: Succeeded, StartedAt: timeAt(1), KilledSinceStart: true}), true},
		{"nothing is decided before its time", lost(PhaseWaitAlloc, "tidy", TaskFacts{State: Failed, StartedAt: timeAt(1)}), false},
	} {
		if c.got != c.want {
			t.Errorf("%s: lost = %v", c.name, c.got)
		}
	}
}

// An error lists at most twelve tasks.
func TestMissingTaskOfALargeGroup(t *testing.T) {
	for count, want := range map[int]string{2: "only 0, 1", 12: "only 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11", 13: "only 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, …"} {
		nodes := make([]GraphTask, count)
		for i := range nodes {
			nodes[i].Task = Task{Name: fmt.Sprint(i), Stage: MainTask}
		}
		nodes[0].Dependencies = []Dependency{{"web", ConditionStarted}}
		if problems := CheckGraph(nodes); len(problems) != 1 || !strings.HasSuffix(problems[0].Text, want) {
			t.Errorf("%d tasks: %v", count, problems)
		}
	}
}

// A graph as large as a job file can define is checked without noticeable delay.
func TestCheckOfALargeGraph(t *testing.T) {
	var nodes []GraphTask
	for i := range 20_000 {
		n := GraphTask{Task: Task{Name: fmt.Sprint(i), Stage: Stage(1 << (i % 6))}}
		if i >= 6 {
			n.Dependencies = []Dependency{{fmt.Sprint(i - 6), ConditionStarted}}
		}
		nodes = append(nodes, n)
	}
	if problems := CheckGraph(nodes); len(problems) > 0 {
		t.Errorf("%d problems, such as %v", len(problems), problems[0])
	}
	nodes[2].Dependencies = []Dependency{{fmt.Sprint(20_000 - 6 + 2 - 2), ConditionStarted}} // the dependency is on its stage's last task
	if problems := CheckGraph(nodes); len(problems) != 1 || !strings.HasPrefix(problems[0].Text, "these tasks wait for each other") {
		t.Errorf("%d problems with a long circle", len(problems))
	}
}

// The error about a cycle names its tasks, without those that only wait for one of them.
func TestCheckNamesTheTasksOfACycle(t *testing.T) {
	after := func(name string, s Stage, dependency string) GraphTask {
		return GraphTask{Task: Task{Name: name, Stage: s, Dependencies: []Dependency{{dependency, ConditionStarted}}}}
	}
	for _, c := range []struct {
		name, want string
		nodes      []GraphTask
	}{
		{
			"a task waits for the cycle",
			`these tasks wait for each other: "b" waits for "c" (lite_after), "c" waits for "b" (lite_after)`,
			[]GraphTask{after("a", MainTask, "b"), after("b", MainTask, "c"), after("c", MainTask, "b")},
		},
		{
			"by a stage",
			`these tasks wait for each other: "p" waits for "b" (lite_after), "b" waits for "p" (prestart sidecar before main)`,
			[]GraphTask{after("a", MainTask, "b"), {Task: Task{Name: "b", Stage: MainTask}}, after("p", PrestartSidecar, "b")},
		},
	} {
		if problems := CheckGraph(c.nodes); len(problems) != 1 || problems[0].Text != c.want {
			t.Errorf("%s: %v, want %s", c.name, problems, c.want)
		}
	}
}

// A poststart sidecar cannot wait for the ends of all tasks beside which it should run.
func TestCheckFindsSidecarThatNeverStarts(t *testing.T) {
	task := func(name string, s Stage, dependencies ...Dependency) GraphTask {
		return GraphTask{Task: Task{Name: name, Stage: s, Dependencies: dependencies}}
	}
	for _, c := range []struct {
		name  string
		never bool
		nodes []GraphTask
	}{
		{"after the success of the only main task", true, []GraphTask{task("a", MainTask), task("s", PoststartSidecar, Dependency{"a", ConditionSuccess})}},
		{"after the exits of all", true, []GraphTask{
			task("a", MainTask), task("b", PoststartEphemeral), task("s", PoststartSidecar, Dependency{"a", ConditionExited}, Dependency{"b", ConditionSuccess}),
		}},
		{"after the exit of one of two", false, []GraphTask{task("a", MainTask), task("b", MainTask), task("s", PoststartSidecar, Dependency{"a", ConditionExited})}},
		{"after a start", false, []GraphTask{task("a", MainTask), task("s", PoststartSidecar, Dependency{"a", ConditionStarted})}},
		{"without a main task", false, []GraphTask{task("p", PrestartSidecar), task("s", PoststartSidecar, Dependency{"p", ConditionStarted})}},
	} {
		problems := CheckGraph(c.nodes)
		if found := len(problems) == 1 && problems[0].Task == "s"; found != c.never || !c.never && len(problems) > 0 {
			t.Errorf("%s: %v, want a problem: %v", c.name, problems, c.never)
		}
	}
}
