package health

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

var begin = time.Unix(1_700_000_000, 0)

func at(seconds int) time.Time { return begin.Add(time.Duration(seconds) * time.Second) }

// up is a task that has run since the given second.
func up(name string, since int) Task { return Task{Name: name, Started: at(since)} }

func down(name string) Task { return Task{Name: name, Dead: true, Started: at(0)} }

func with(t Task, edit func(*Task)) Task {
	edit(&t)
	return t
}

// passing is a check of the group that has passed since one given second, and last ran
// at another.
func passing(name string, since, last int) Check {
	return Check{Service: "web", Name: name, Passing: true, Since: at(since), Began: at(last)}
}

func failing(name, output string) Check {
	return Check{Service: "web", Name: name, Output: output, Since: at(0), Began: at(0)}
}

func TestJudge(t *testing.T) {
	// The tasks must be healthy for 10 s, with the deadline at second 60.
	params := Params{MinHealthyTime: 10 * time.Second, HealthyDeadline: time.Minute, Deadline: at(60), UseChecks: true}
	hook := func(hook string, sidecar bool) func(*Task) {
		return func(t *Task) { t.Hook, t.Sidecar = hook, sidecar }
	}
	failed := func(t *Task) { t.Failed = true }
	pending := Task{Name: "a", Pending: true}
	for _, c := range []struct {
		name string
		now  int
		s    Snapshot
		want string // state, next time, and the tasks with a reason
	}{
		{"nothing has started", 0, Snapshot{Tasks: []Task{pending}}, "undecided until 60"},
		{"no tasks at all", 0, Snapshot{}, "undecided until 60"},
		{"it has just started", 3, Snapshot{Tasks: []Task{up("a", 3)}}, "undecided until 13"},
		{"it has run for long enough", 13, Snapshot{Tasks: []Task{up("a", 3)}}, "healthy"},
		{"a hook has still to speak", 13, Snapshot{Tasks: []Task{up("a", 3)}, Hooks: []Hook{{Name: "h"}}}, "undecided until 60"},
		{"a hook finds it healthy", 13, Snapshot{Tasks: []Task{up("a", 3)}, Hooks: []Hook{{Name: "h", Healthy: true}}}, "healthy"},
		{"a hook finds it unhealthy", 5, Snapshot{Tasks: []Task{up("a", 3)}, Hooks: []Hook{{Name: "g", Healthy: true}, {Name: "h", Unhealthy: true, Reason: "too slow"}}},
			`unhealthy a: Unhealthy because of hook "h": too slow`},
		{"a hook says nothing", 60, Snapshot{Tasks: []Task{up("a", 3)}, Hooks: []Hook{{Name: "h"}}},
			`unhealthy a: Hook "h" has not found it healthy by healthy_deadline of 1m0s`},
		{"a restart begins anew", 13, Snapshot{Tasks: []Task{up("a", 8)}}, "undecided until 18"},
		{"the last task counts", 13, Snapshot{Tasks: []Task{up("a", 3), up("b", 12)}}, "undecided until 22"},
		{"one waits", 13, Snapshot{Tasks: []Task{up("b", 1), pending}}, "undecided until 60"},
		{"a task has failed", 5, Snapshot{Tasks: []Task{with(down("a"), failed), up("b", 1)}}, "unhealthy a: Unhealthy because of failed task"},
		{"a task has failed, and the others are stopped for it", 5, Snapshot{Tasks: []Task{with(down("a"), failed), down("b")}, Failed: true},
			"unhealthy a: Unhealthy because of failed task"},
		{"a task has failed, and somebody stops the rest", 5, Snapshot{Stopping: true, Tasks: []Task{with(down("a"), failed)}}, "unhealthy a: Unhealthy because of failed task"},
		{"a main task has ended", 5, Snapshot{Tasks: []Task{down("a")}}, "unhealthy a: Unhealthy because of dead task"},
		{"a sidecar has ended", 5, Snapshot{Tasks: []Task{with(down("a"), hook("prestart", true)), up("b", 1)}}, "unhealthy a: Unhealthy because of dead task"},
		{"somebody stops it", 5, Snapshot{Stopping: true, Tasks: []Task{down("a")}}, "stopped"},
		{"somebody stops it when it would be healthy", 15, Snapshot{Stopping: true, Tasks: []Task{up("a", 0)}}, "stopped"},
		{"it has failed without a task", 5, Snapshot{Failed: true, Tasks: []Task{pending}}, "unhealthy"},

		{"a prestart task may end", 12, Snapshot{Tasks: []Task{with(down("a"), hook("prestart", false)), up("b", 2)}}, "healthy"},
		{"a prestart task that runs still counts", 12, Snapshot{Tasks: []Task{with(up("a", 2), hook("prestart", false)), pending}}, "undecided until 60"},
		{"a prestart task may not fail", 12, Snapshot{Tasks: []Task{with(with(down("a"), hook("prestart", false)), failed), up("b", 2)}}, "unhealthy a: Unhealthy because of failed task"},
		{"a poststart task that has done its work has no say", 12, Snapshot{Tasks: []Task{with(with(down("a"), hook("poststart", false)), func(t *Task) { t.Started = at(9) }), up("b", 2)}}, "healthy"},
		{"a poststart task that is at work has", 12, Snapshot{Tasks: []Task{with(up("a", 9), hook("poststart", false)), up("b", 2)}}, "undecided until 19"},
		{"a poststart task may not fail", 12, Snapshot{Tasks: []Task{with(with(down("a"), hook("poststart", false)), failed), up("b", 2)}}, "unhealthy a: Unhealthy because of failed task"},
		{"a poststart sidecar counts", 12, Snapshot{Tasks: []Task{{Name: "a", Hook: "poststart", Sidecar: true, Pending: true}, up("b", 2)}}, "undecided until 60"},
		{"poststop tasks have no say", 12, Snapshot{Tasks: []Task{{Name: "a", Hook: "poststop", Pending: true}, up("b", 2)}}, "healthy"},

		{"all checks pass", 20, Snapshot{Tasks: []Task{up("a", 0)}, Checks: []Check{passing("x", 3, 19), passing("y", 10, 19)}}, "healthy"},
		{"one has not passed for long enough", 19, Snapshot{Tasks: []Task{up("a", 0)}, Checks: []Check{passing("x", 3, 19), passing("y", 10, 19)}}, "undecided until 20"},
		{"one fails", 30, Snapshot{Tasks: []Task{up("a", 0)}, Checks: []Check{passing("x", 3, 19), failing("y", "")}}, "undecided until 60"},
		{"one is pending", 30, Snapshot{Tasks: []Task{up("a", 0)}, Checks: []Check{{Pending: true}}}, "undecided until 60"},
		{"a readiness check has no say", 30, Snapshot{Tasks: []Task{up("a", 0)}, Checks: []Check{{Readiness: true}}}, "healthy"},
		{"what passed before the restart counts for nothing", 45, Snapshot{Tasks: []Task{up("a", 30)}, Checks: []Check{passing("x", 3, 29)}}, "undecided until 60"},
		{"what passes before and after it does", 40, Snapshot{Tasks: []Task{up("a", 30)}, Checks: []Check{passing("x", 3, 31)}}, "healthy"},
		{"the checks are not known yet", 30, Snapshot{Tasks: []Task{up("a", 0)}, Missing: true}, "undecided until 60"},
		{"healthy at the very deadline", 60, Snapshot{Tasks: []Task{up("a", 50)}}, "healthy"},
		{"it would be healthy after the deadline", 59, Snapshot{Tasks: []Task{up("a", 51)}}, "undecided until 60"},

		{"the deadline: pending", 60, Snapshot{Tasks: []Task{pending, up("b", 1)}}, "unhealthy a: Task not running by healthy_deadline of 1m0s"},
		{"the deadline: too short", 60, Snapshot{Tasks: []Task{up("a", 51), up("b", 1)}}, "unhealthy a: Task not running for min_healthy_time of 10s by healthy_deadline of 1m0s"},
		{"the deadline: not registered", 60, Snapshot{Tasks: []Task{up("a", 1)}, Missing: true}, "unhealthy a: Service checks not registered"},
		{"the deadline: a check of the group", 60, Snapshot{
			Tasks:  []Task{with(down("init"), hook("prestart", false)), up("a", 1), up("b", 1)},
			Checks: []Check{failing("alive", "nomad: dial tcp 10.0.0.1:20000: connect: connection refused"), passing("x", 3, 50)},
		}, `unhealthy a: Service checks not healthy by healthy_deadline of 1m0s: check "alive" of service "web" is failing: dial tcp 10.0.0.1:20000: connect: connection refused; ` +
			`b: Service checks not healthy by healthy_deadline of 1m0s: check "alive" of service "web" is failing: dial tcp 10.0.0.1:20000: connect: connection refused`},
		{"the deadline: checks of one task", 60, Snapshot{
			Tasks: []Task{up("a", 1), up("b", 1)},
			Checks: []Check{
				{Task: "a", Service: "s", Name: "x", Output: " first\nsecond", Began: at(5)},
				{Task: "a", Service: "s", Name: "y", Passing: true, Since: at(57), Began: at(57)},
				{Task: "a", Service: "s", Name: "z", Pending: true},
				{Task: "a", Service: "s", Name: "r", Readiness: true},
			},
		}, `unhealthy a: Service checks not healthy by healthy_deadline of 1m0s: check "x" of service "s" is failing: first; ` +
			`check "y" of service "s" has passed only for the last 3s of min_healthy_time 10s; check "z" of service "s" has not run since the task started`},
		{"the deadline: an old result", 60, Snapshot{Tasks: []Task{up("a", 30)}, Checks: []Check{passing("x", 3, 29)}},
			`unhealthy a: Service checks not healthy by healthy_deadline of 1m0s: check "x" of service "web" has not run since the task started`},
		{"the deadline: a long answer", 60, Snapshot{Tasks: []Task{up("a", 1)}, Checks: []Check{failing("x", strings.Repeat("ü", 300))}},
			`unhealthy a: Service checks not healthy by healthy_deadline of 1m0s: check "x" of service "web" is failing: ` + strings.Repeat("ü", 200) + "…"},
	} {
		c.s.Now = at(c.now)
		if got := text(Judge(params, c.s)); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, got, c.want)
		}
	}

	params.UseChecks = false
	s := Snapshot{Now: at(30), Tasks: []Task{up("a", 0)}, Checks: []Check{failing("x", "")}, Missing: true}
	if got := text(Judge(params, s)); got != "healthy" {
		t.Errorf("task_states: %s", got)
	}
	s.Now, s.Tasks = at(60), []Task{up("a", 0), {Name: "b", Pending: true}}
	if got, want := text(Judge(params, s)), "unhealthy b: Task not running by healthy_deadline of 1m0s"; got != want {
		t.Errorf("task_states at the deadline: %s, want %s", got, want)
	}
}

func text(v Verdict) string {
	switch v.State {
	case Undecided:
		return fmt.Sprintf("undecided until %d", int(v.Next.Sub(begin).Seconds()))
	case Healthy:
		return "healthy"
	case Stopped:
		return "stopped"
	}
	var why []string
	for _, name := range slices.Sorted(maps.Keys(v.Why)) {
		why = append(why, name+": "+v.Why[name])
	}
	return strings.TrimSpace("unhealthy " + strings.Join(why, "; "))
}

// For every snapshot, a verdict that is not final requests a later time that is not
// after the deadline. The same snapshot gives the same verdict.
func FuzzJudge(f *testing.F) {
	f.Add([]byte{1, 2, 3, 4, 5, 6, 7, 8, 9})
	f.Add([]byte{0, 255, 17, 3, 99, 200, 31, 4, 60, 61, 62, 63})
	f.Fuzz(func(t *testing.T, data []byte) {
		next := func() int {
			if len(data) == 0 {
				return 0
			}
			b := data[0]
			data = data[1:]
			return int(b)
		}
		p := Params{MinHealthyTime: time.Duration(next()) * time.Second, HealthyDeadline: time.Duration(next()) * time.Second, UseChecks: next()%2 == 0}
		p.Deadline = begin.Add(p.HealthyDeadline)
		s := Snapshot{Now: at(next()), Stopping: next()%4 == 0, Missing: next()%4 == 0}
		for len(data) > 0 {
			bits := next()
			if bits&1 == 0 {
				s.Tasks = append(s.Tasks, Task{
					Name: fmt.Sprint(len(s.Tasks)), Pending: bits&2 != 0, Dead: bits&4 != 0, Failed: bits&8 != 0,
					Sidecar: bits&16 != 0, Hook: []string{"", "prestart", "poststart", "poststop"}[bits>>6], Started: at(next()),
				})
			} else {
				s.Checks = append(s.Checks, Check{Passing: bits&2 != 0, Pending: bits&4 != 0, Readiness: bits&8 != 0, Since: at(next()), Began: at(next())})
			}
		}
		v := Judge(p, s)
		if v.State == Undecided && (!v.Next.After(s.Now) || v.Next.After(p.Deadline)) {
			t.Errorf("at %v look again at %v, the deadline is %v", s.Now, v.Next, p.Deadline)
		}
		if again := Judge(p, s); text(again) != text(v) {
			t.Errorf("%q, then %q", text(v), text(again))
		}
	})
}
