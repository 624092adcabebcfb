package health

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

var testStart = time.Unix(1_700_000_000, 0)

func timeAt(seconds int) time.Time { return testStart.Add(time.Duration(seconds) * time.Second) }

// runningTask is a task running since the given second.
func runningTask(name string, since int) Task { return Task{Name: name, LastStart: timeAt(since)} }

func deadTask(name string) Task { return Task{Name: name, Dead: true, LastStart: timeAt(0)} }

func editTask(t Task, edit func(*Task)) Task {
	edit(&t)
	return t
}

// passingCheck returns a group check that has passed since the time since and last ran at the time last, both in seconds.
func passingCheck(name string, since, last int) Check {
	return Check{Service: "web", Name: name, Passing: true, LastStatusChange: timeAt(since), LastRun: timeAt(last)}
}

func failingCheck(name, output string) Check {
	return Check{Service: "web", Name: name, Output: output, LastStatusChange: timeAt(0), LastRun: timeAt(0)}
}

func TestEvaluate(t *testing.T) {
	// The tasks must be healthy for 10 s, with the deadline at second 60.
	params := Params{MinHealthyTime: 10 * time.Second, HealthyDeadline: time.Minute, MustBeHealthyBy: timeAt(60), RequirePassingChecks: true}
	hook := func(hook string, sidecar bool) func(*Task) {
		return func(t *Task) { t.LifecycleHook, t.Sidecar = hook, sidecar }
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
		{"it has just started", 3, Snapshot{Tasks: []Task{runningTask("a", 3)}}, "undecided until 13"},
		{"it has run for long enough", 13, Snapshot{Tasks: []Task{runningTask("a", 3)}}, "healthy"},
		{"a hook has still to speak", 13, Snapshot{Tasks: []Task{runningTask("a", 3)}, Hooks: []Hook{{Name: "h"}}}, "undecided until 60"},
		{"a hook finds it healthy", 13, Snapshot{Tasks: []Task{runningTask("a", 3)}, Hooks: []Hook{{Name: "h", ReportedHealthy: true}}}, "healthy"},
		{"a hook finds it unhealthy", 5, Snapshot{Tasks: []Task{runningTask("a", 3)}, Hooks: []Hook{{Name: "g", ReportedHealthy: true}, {Name: "h", ReportedUnhealthy: true, Reason: "too slow"}}},
			`unhealthy a: Unhealthy because of hook "h": too slow`},
		{"a hook finds one task unhealthy", 5, Snapshot{Tasks: []Task{runningTask("a", 3)}, Hooks: []Hook{{Name: "h", Task: "a", ReportedUnhealthy: true, Reason: "too slow"}}},
			`unhealthy a: Unhealthy because of hook "h" of task "a": too slow`},
		{"a hook says nothing about one task", 60, Snapshot{Tasks: []Task{runningTask("a", 3)}, Hooks: []Hook{{Name: "h", Task: "a", ReportedHealthy: true}, {Name: "h", Task: "b"}}},
			`unhealthy a: Hook "h" of task "b" has not found it healthy by healthy_deadline of 1m0s`},
		{"a hook says nothing", 60, Snapshot{Tasks: []Task{runningTask("a", 3)}, Hooks: []Hook{{Name: "h"}}},
			`unhealthy a: Hook "h" has not found it healthy by healthy_deadline of 1m0s`},
		{"a restart begins anew", 13, Snapshot{Tasks: []Task{runningTask("a", 8)}}, "undecided until 18"},
		{"the last task counts", 13, Snapshot{Tasks: []Task{runningTask("a", 3), runningTask("b", 12)}}, "undecided until 22"},
		{"one waits", 13, Snapshot{Tasks: []Task{runningTask("b", 1), pending}}, "undecided until 60"},
		{"a task has failed", 5, Snapshot{Tasks: []Task{editTask(deadTask("a"), failed), runningTask("b", 1)}}, "unhealthy a: Unhealthy because of failed task"},
		{"a task has failed, and the others are stopped for it", 5, Snapshot{Tasks: []Task{editTask(deadTask("a"), failed), deadTask("b")}, AllocFailed: true},
			"unhealthy a: Unhealthy because of failed task"},
		{"a task has failed, and somebody stops the rest", 5, Snapshot{StopRequested: true, Tasks: []Task{editTask(deadTask("a"), failed)}}, "unhealthy a: Unhealthy because of failed task"},
		{"a main task has ended", 5, Snapshot{Tasks: []Task{deadTask("a")}}, "unhealthy a: Unhealthy because of dead task"},
		{"a sidecar has ended", 5, Snapshot{Tasks: []Task{editTask(deadTask("a"), hook("prestart", true)), runningTask("b", 1)}}, "unhealthy a: Unhealthy because of dead task"},
		{"somebody stops it", 5, Snapshot{StopRequested: true, Tasks: []Task{deadTask("a")}}, "stopped"},
		{"somebody stops it when it would be healthy", 15, Snapshot{StopRequested: true, Tasks: []Task{runningTask("a", 0)}}, "stopped"},
		{"it has failed without a task", 5, Snapshot{AllocFailed: true, Tasks: []Task{pending}}, "unhealthy"},

		{"a prestart task may end", 12, Snapshot{Tasks: []Task{editTask(deadTask("a"), hook("prestart", false)), runningTask("b", 2)}}, "healthy"},
		{"a prestart task that runs still counts", 12, Snapshot{Tasks: []Task{editTask(runningTask("a", 2), hook("prestart", false)), pending}}, "undecided until 60"},
		{"a prestart task may not fail", 12, Snapshot{Tasks: []Task{editTask(editTask(deadTask("a"), hook("prestart", false)), failed), runningTask("b", 2)}}, "unhealthy a: Unhealthy because of failed task"},
		{"a poststart task that has done its work has no say", 12, Snapshot{Tasks: []Task{editTask(editTask(deadTask("a"), hook("poststart", false)), func(t *Task) { t.LastStart = timeAt(9) }), runningTask("b", 2)}}, "healthy"},
		{"a poststart task that is at work has", 12, Snapshot{Tasks: []Task{editTask(runningTask("a", 9), hook("poststart", false)), runningTask("b", 2)}}, "undecided until 19"},
		{"a poststart task may not fail", 12, Snapshot{Tasks: []Task{editTask(editTask(deadTask("a"), hook("poststart", false)), failed), runningTask("b", 2)}}, "unhealthy a: Unhealthy because of failed task"},
		{"a poststart sidecar counts", 12, Snapshot{Tasks: []Task{{Name: "a", LifecycleHook: "poststart", Sidecar: true, Pending: true}, runningTask("b", 2)}}, "undecided until 60"},
		{"poststop tasks have no say", 12, Snapshot{Tasks: []Task{{Name: "a", LifecycleHook: "poststop", Pending: true}, runningTask("b", 2)}}, "healthy"},

		{"all checks pass", 20, Snapshot{Tasks: []Task{runningTask("a", 0)}, Checks: []Check{passingCheck("x", 3, 19), passingCheck("y", 10, 19)}}, "healthy"},
		{"one has not passed for long enough", 19, Snapshot{Tasks: []Task{runningTask("a", 0)}, Checks: []Check{passingCheck("x", 3, 19), passingCheck("y", 10, 19)}}, "undecided until 20"},
		{"one fails", 30, Snapshot{Tasks: []Task{runningTask("a", 0)}, Checks: []Check{passingCheck("x", 3, 19), failingCheck("y", "")}}, "undecided until 60"},
		{"one is pending", 30, Snapshot{Tasks: []Task{runningTask("a", 0)}, Checks: []Check{{NeverRun: true}}}, "undecided until 60"},
		{"a readiness check has no say", 30, Snapshot{Tasks: []Task{runningTask("a", 0)}, Checks: []Check{{IsReadinessCheck: true}}}, "healthy"},
		{"what passed before the restart counts for nothing", 45, Snapshot{Tasks: []Task{runningTask("a", 30)}, Checks: []Check{passingCheck("x", 3, 29)}}, "undecided until 60"},
		{"what passes before and after it does", 40, Snapshot{Tasks: []Task{runningTask("a", 30)}, Checks: []Check{passingCheck("x", 3, 31)}}, "healthy"},
		{"the checks are not known yet", 30, Snapshot{Tasks: []Task{runningTask("a", 0)}, CheckResultsMissing: true}, "undecided until 60"},
		{"healthy at the very deadline", 60, Snapshot{Tasks: []Task{runningTask("a", 50)}}, "healthy"},
		{"it would be healthy after the deadline", 59, Snapshot{Tasks: []Task{runningTask("a", 51)}}, "undecided until 60"},

		{"the deadline: pending", 60, Snapshot{Tasks: []Task{pending, runningTask("b", 1)}}, "unhealthy a: Task not running by healthy_deadline of 1m0s"},
		{"the deadline: too short", 60, Snapshot{Tasks: []Task{runningTask("a", 51), runningTask("b", 1)}}, "unhealthy a: Task not running for min_healthy_time of 10s by healthy_deadline of 1m0s"},
		{"the deadline: not registered", 60, Snapshot{Tasks: []Task{runningTask("a", 1)}, CheckResultsMissing: true}, "unhealthy a: Service checks not registered"},
		{"the deadline: a check of the group", 60, Snapshot{
			Tasks:  []Task{editTask(deadTask("init"), hook("prestart", false)), runningTask("a", 1), runningTask("b", 1)},
			Checks: []Check{failingCheck("alive", "nomad: dial tcp 10.0.0.1:20000: connect: connection refused"), passingCheck("x", 3, 50)},
		}, `unhealthy a: Service checks not healthy by healthy_deadline of 1m0s: check "alive" of service "web" is failing: dial tcp 10.0.0.1:20000: connect: connection refused; ` +
			`b: Service checks not healthy by healthy_deadline of 1m0s: check "alive" of service "web" is failing: dial tcp 10.0.0.1:20000: connect: connection refused`},
		{"the deadline: checks of one task", 60, Snapshot{
			Tasks: []Task{runningTask("a", 1), runningTask("b", 1)},
			Checks: []Check{
				{Task: "a", Service: "s", Name: "x", Output: " first\nsecond", LastRun: timeAt(5)},
				{Task: "a", Service: "s", Name: "y", Passing: true, LastStatusChange: timeAt(57), LastRun: timeAt(57)},
				{Task: "a", Service: "s", Name: "z", NeverRun: true},
				{Task: "a", Service: "s", Name: "r", IsReadinessCheck: true},
			},
		}, `unhealthy a: Service checks not healthy by healthy_deadline of 1m0s: check "x" of service "s" is failing: first; ` +
			`check "y" of service "s" has passed only for the last 3s of min_healthy_time 10s; check "z" of service "s" has not run since the task started`},
		{"the deadline: an old result", 60, Snapshot{Tasks: []Task{runningTask("a", 30)}, Checks: []Check{passingCheck("x", 3, 29)}},
			`unhealthy a: Service checks not healthy by healthy_deadline of 1m0s: check "x" of service "web" has not run since the task started`},
		{"the deadline: a long answer", 60, Snapshot{Tasks: []Task{runningTask("a", 1)}, Checks: []Check{failingCheck("x", strings.Repeat("ü", 300))}},
			`unhealthy a: Service checks not healthy by healthy_deadline of 1m0s: check "x" of service "web" is failing: ` + strings.Repeat("ü", 200) + "…"},
	} {
		c.s.Now = timeAt(c.now)
		if got := formatVerdict(Evaluate(params, c.s)); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, got, c.want)
		}
	}

	params.RequirePassingChecks = false
	s := Snapshot{Now: timeAt(30), Tasks: []Task{runningTask("a", 0)}, Checks: []Check{failingCheck("x", "")}, CheckResultsMissing: true}
	if got := formatVerdict(Evaluate(params, s)); got != "healthy" {
		t.Errorf("task_states: %s", got)
	}
	s.Now, s.Tasks = timeAt(60), []Task{runningTask("a", 0), {Name: "b", Pending: true}}
	if got, want := formatVerdict(Evaluate(params, s)), "unhealthy b: Task not running by healthy_deadline of 1m0s"; got != want {
		t.Errorf("task_states at the deadline: %s, want %s", got, want)
	}
}

func formatVerdict(v Verdict) string {
	switch v.State {
	case Undecided:
		return fmt.Sprintf("undecided until %d", int(v.RecheckAt.Sub(testStart).Seconds()))
	case Healthy:
		return "healthy"
	case Stopped:
		return "stopped"
	}
	var why []string
	for _, name := range slices.Sorted(maps.Keys(v.UnhealthyReasonByTask)) {
		why = append(why, name+": "+v.UnhealthyReasonByTask[name])
	}
	return strings.TrimSpace("unhealthy " + strings.Join(why, "; "))
}

// For every snapshot, a verdict that is not final requests a later time, not after the deadline. The same snapshot gives the same
// verdict.
func FuzzEvaluate(f *testing.F) {
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
		p := Params{MinHealthyTime: time.Duration(next()) * time.Second, HealthyDeadline: time.Duration(next()) * time.Second, RequirePassingChecks: next()%2 == 0}
		p.MustBeHealthyBy = testStart.Add(p.HealthyDeadline)
		s := Snapshot{Now: timeAt(next()), StopRequested: next()%4 == 0, CheckResultsMissing: next()%4 == 0}
		for len(data) > 0 {
			bits := next()
			if bits&1 == 0 {
				s.Tasks = append(s.Tasks, Task{
					Name: fmt.Sprint(len(s.Tasks)), Pending: bits&2 != 0, Dead: bits&4 != 0, Failed: bits&8 != 0,
					Sidecar: bits&16 != 0, LifecycleHook: []string{"", "prestart", "poststart", "poststop"}[bits>>6], LastStart: timeAt(next()),
				})
			} else {
				s.Checks = append(s.Checks, Check{Passing: bits&2 != 0, NeverRun: bits&4 != 0, IsReadinessCheck: bits&8 != 0, LastStatusChange: timeAt(next()), LastRun: timeAt(next())})
			}
		}
		v := Evaluate(p, s)
		if v.State == Undecided && (!v.RecheckAt.After(s.Now) || v.RecheckAt.After(p.MustBeHealthyBy)) {
			t.Errorf("at %v look again at %v, the deadline is %v", s.Now, v.RecheckAt, p.MustBeHealthyBy)
		}
		if again := Evaluate(p, s); formatVerdict(again) != formatVerdict(v) {
			t.Errorf("%q, then %q", formatVerdict(v), formatVerdict(again))
		}
	})
}
