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
			got, err = ParseAfter(c.text)
		case "rerun":
			got, err = ParseRerun(c.text)
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

func FuzzParseAfter(f *testing.F) {
	f.Add("migrate:success, db:healthy")
	f.Fuzz(func(t *testing.T, text string) {
		list, err := ParseAfter(text)
		if err != nil {
			return
		}
		var again []string
		for _, a := range list {
			again = append(again, a.String())
		}
		if same, err := ParseAfter(strings.Join(again, ",")); err != nil || !slices.Equal(same, list) {
			t.Errorf("%q is read as %v, and that as %v, %v", text, list, same, err)
		}
	})
}

// second converts a number of seconds to a time.
func second(n int) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return time.Unix(1_700_000_000+int64(n), 0)
}

func TestConditions(t *testing.T) {
	at := second(1)
	for _, c := range []struct {
		name string
		fact Fact
		want string // conditions that hold
	}{
		{"has not begun", Fact{}, ""},
		{"waits for its restart", Fact{Started: at, Restarted: at}, ""},
		{"runs", Fact{State: Running, Started: at}, "started"},
		{"runs well", Fact{State: Running, Started: at, Healthy: true}, "started healthy"},
		{"was well, and has ended", Fact{State: Succeeded, Started: at, Healthy: true}, "started success exited"},
		{"was killed", Fact{State: Succeeded, Started: at, Killed: true}, "started exited"},
		{"was killed before it began", Fact{State: Succeeded, Killed: true}, "exited"},
		{"will never begin", Fact{State: Succeeded}, "exited"},
		{"has failed", Fact{State: Failed, Started: at}, "started exited"},
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

// group creates a group of tasks, each written as in "web main db:started rerun".
func group(t *testing.T, restart RestartGroup, lines ...string) *Group {
	t.Helper()
	var tasks []Task
	for _, line := range lines {
		words := strings.Fields(line)
		hook, sidecar := strings.CutSuffix(words[1], "+")
		task := Task{Name: words[0], Stage: StageOf(strings.TrimPrefix(hook, "main"), sidecar)}
		for _, word := range words[2:] {
			if word == "rerun" {
				task.Rerun.Restart = true
				continue
			}
			after, err := ParseAfter(word)
			if err != nil {
				t.Fatal(err)
			}
			task.After = append(task.After, after...)
		}
		tasks = append(tasks, task)
	}
	return NewGroup(tasks, restart)
}

func TestGroupWithoutExtensions(t *testing.T) {
	if g := group(t, OneForOne, "web main", "db prestart+"); g != nil {
		t.Errorf("got %+v", g)
	}
	if (*Group)(nil).RerunsAfterReboot("web") {
		t.Error("it runs a task again")
	}
}

func TestMayStart(t *testing.T) {
	run := func(since int) Fact { return Fact{State: Running, Started: second(since)} }
	done := func(since int) Fact { return Fact{State: Succeeded, Started: second(since)} }
	pending := func(since, restarted int) Fact { return Fact{Started: second(since), Restarted: second(restarted)} }

	after := group(t, OneForOne, "db prestart+", "init prestart db:started", "one main", "two main one:success", "tidy poststop two:success")
	again := group(t, OneForOne, "init prestart rerun", "web main", "other main", "warm poststart rerun", "once poststart")
	all := group(t, OneForAll, "db prestart+", "web main", "log poststart+")
	both := group(t, OneForAll, "db prestart+", "web main", "init prestart rerun")
	rest := group(t, RestForOne, "db prestart+", "web main", "log main web:started")
	for _, c := range []struct {
		name  string
		g     *Group
		phase Phase
		task  string
		facts map[string]Fact
		want  bool
	}{
		{"the stage counts", after, Init, "db", nil, false},
		{"no condition", after, Prestart, "db", nil, true},
		{"a condition that does not hold yet", after, Prestart, "init", nil, false},
		{"a condition that holds", after, Prestart, "init", map[string]Fact{"db": run(1)}, true},
		{"a condition that does not hold any more", after, Prestart, "init", map[string]Fact{"db": pending(1, 2)}, false},
		{"inside a stage", after, Main, "two", map[string]Fact{"one": run(1)}, false},
		{"inside a stage, later", after, Main, "two", map[string]Fact{"one": done(1)}, true},
		{"the condition alone is not enough", after, Prestart, "two", map[string]Fact{"one": done(1)}, false},
		{"poststop", after, Poststop, "tidy", map[string]Fact{"two": done(1)}, true},
		{"a stranger", after, Main, "three", nil, false},

		{"prestart again", again, WaitAlloc, "init", map[string]Fact{"web": pending(1, 2)}, true},
		{"not when all is over", again, Poststop, "init", nil, false},
		{"not while all tasks go down", again, Init, "init", nil, false},
		{"main waits for prestart", again, WaitAlloc, "web", map[string]Fact{"init": {}, "web": pending(1, 2)}, false},
		{"main waits for its end", again, WaitAlloc, "web", map[string]Fact{"init": run(3), "web": pending(1, 2)}, false},
		{"main after prestart", again, WaitAlloc, "web", map[string]Fact{"init": done(3), "web": pending(1, 2)}, true},
		{"poststart again waits for main", again, WaitAlloc, "warm", map[string]Fact{"web": pending(1, 2), "other": run(1)}, false},
		{"poststart again", again, WaitAlloc, "warm", map[string]Fact{"web": run(3), "other": done(1)}, true},
		{"others do not run again", again, WaitAlloc, "once", map[string]Fact{"web": run(3), "other": run(1)}, false},

		{"who is to go down holds the first", all, Main, "web", map[string]Fact{"db": run(1), "web": pending(2, 5)}, false},
		{"who is down does not, unless it comes before", all, Main, "web", map[string]Fact{"db": pending(1, 6), "web": pending(2, 5)}, false},
		{"who comes after does not", all, Main, "web", map[string]Fact{"db": run(6), "web": pending(2, 5), "log": pending(1, 6)}, true},
		{"who has come up again does not", all, Main, "web", map[string]Fact{"db": run(7), "web": pending(2, 5)}, true},
		{"the others wait as well", all, Main, "db", map[string]Fact{"db": pending(1, 6), "web": pending(2, 5), "log": run(3)}, false},
		{"prestart again waits until all are down", both, WaitAlloc, "init", map[string]Fact{"db": run(1), "web": pending(2, 5)}, false},
		{"and runs then", both, WaitAlloc, "init", map[string]Fact{"db": pending(1, 6), "web": pending(2, 5)}, true},
		{"what comes before stays up", rest, Main, "web", map[string]Fact{"db": run(1), "web": pending(2, 5)}, true},
		{"what comes after does not", rest, Main, "web", map[string]Fact{"db": run(1), "web": pending(2, 5), "log": run(3)}, false},
	} {
		if got := c.g.MayStart(c.phase, c.task, c.facts); got != c.want {
			t.Errorf("%s: MayStart(%v, %s) = %v", c.name, c.phase, c.task, got)
		}
	}
}

func TestFollow(t *testing.T) {
	facts := func(restarted string) map[string]Fact {
		facts := make(map[string]Fact)
		for _, name := range []string{"init", "db", "web", "log", "worker", "tidy"} {
			facts[name] = Fact{State: Running, Started: second(1)}
		}
		facts[restarted] = Fact{Started: second(1), Restarted: second(5)}
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
		{RestForOne, "db", "log web worker"},
		{RestForOne, "web", "log worker"},
		{RestForOne, "worker", "log"},
		{RestForOne, "log", ""},
		{RestForOne, "init", ""},
	} {
		g := group(t, c.group, tasks...)
		follow := g.Follow(facts(c.restarted))
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

func TestRerunAndLost(t *testing.T) {
	g := group(t, OneForOne, "init prestart rerun", "web main", "warm poststart rerun", "once poststart web:healthy", "tidy poststop web:success")
	facts := map[string]Fact{
		"init": {State: Succeeded, Started: second(1)},
		"web":  {Started: second(2), Restarted: second(5)},
		"warm": {State: Running, Started: second(3)},
		"once": {State: Succeeded, Started: second(3)},
	}
	if got := fmt.Sprint(g.Rerun(facts)); got != "map[init:web]" {
		t.Errorf("Rerun = %s: what runs is asked when it has ended", got)
	}
	facts["warm"] = Fact{State: Succeeded, Started: second(3)}
	facts["init"] = Fact{State: Succeeded, Started: second(6)}
	if got := fmt.Sprint(g.Rerun(facts)); got != "map[warm:web]" {
		t.Errorf("Rerun = %s: what has run since is done", got)
	}
	lost := func(p Phase, task string, web Fact) bool {
		_, lost := g.Lost(p, task, map[string]Fact{"web": web})
		return lost
	}
	for _, c := range []struct {
		name string
		got  bool
		want bool
	}{
		{"health may come", lost(Poststart, "once", Fact{State: Running}), false},
		{"the dead have none", lost(Poststart, "once", Fact{State: Succeeded, Started: second(1)}), true},
		{"a restart of all begins anew", lost(Init, "once", Fact{State: Succeeded, Started: second(1)}), false},
		{"success", lost(Poststop, "tidy", Fact{State: Succeeded, Started: second(1)}), false},
		{"failure", lost(Poststop, "tidy", Fact{State: Failed, Started: second(1)}), true},
		{"a kill", lost(Poststop, "tidy", Fact{State: Succeeded, Started: second(1), Killed: true}), true},
		{"nothing is decided before its time", lost(WaitAlloc, "tidy", Fact{State: Failed, Started: second(1)}), false},
	} {
		if c.got != c.want {
			t.Errorf("%s: lost = %v", c.name, c.got)
		}
	}
}

// A graph as large as a job file can define is checked without noticeable delay.
func TestCheckOfALargeGraph(t *testing.T) {
	var nodes []Node
	for i := range 20_000 {
		n := Node{Task: Task{Name: fmt.Sprint(i), Stage: Stage(1 << (i % 6))}}
		if i >= 6 {
			n.After = []After{{fmt.Sprint(i - 6), Started}}
		}
		nodes = append(nodes, n)
	}
	if problems := Check(nodes); len(problems) > 0 {
		t.Errorf("%d problems, such as %v", len(problems), problems[0])
	}
	nodes[2].After = []After{{fmt.Sprint(20_000 - 6 + 2 - 2), Started}} // the last task of its stage
	if problems := Check(nodes); len(problems) != 1 || !strings.HasPrefix(problems[0].Text, "these tasks wait for each other") {
		t.Errorf("%d problems with a long circle", len(problems))
	}
}
