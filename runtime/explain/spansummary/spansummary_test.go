package spansummary

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/core/restart"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/job/tracespan"
)

var begin = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

// at returns the time this many seconds after begin.
func at(seconds float64) time.Time { return begin.Add(time.Duration(seconds * float64(time.Second))) }

// newSpan returns a span. Without an end it is ongoing.
func newSpan(kind tracespan.Kind, task, name, plugin string, from, to float64, result string) tracespan.Span {
	s := tracespan.Span{Kind: kind, Task: task, Name: name, Plugin: plugin, Start: at(from), Result: result}
	if to != 0 {
		s.End = at(to)
	}
	return s
}

func hook(task, plugin string, from, to float64, failure string) tracespan.Span {
	point := "prestart"
	if task == "" {
		point = "prerun"
	}
	s := newSpan(tracespan.KindHook, task, point, plugin, from, to, "")
	s.Error = failure
	return s
}

func run(task string, from, to float64, result string) tracespan.Span {
	s := newSpan(tracespan.KindRun, task, "id", "raw_exec", from, to, result)
	s.Failed = to != 0 && result != "Exit Code: 0"
	return s
}

func wait(task, name string, from, to float64) tracespan.Span {
	return newSpan(tracespan.KindWait, task, name, "", from, to, "")
}

func event(task, name string, when float64) tracespan.Span {
	return message(task, name, when, "Sent interrupt. Waiting 5s before force killing")
}

// message returns an event with a message.
func message(task, name string, when float64, text string) tracespan.Span {
	return newSpan(tracespan.KindEvent, task, name, "", when, when, text)
}

func TestSummarize(t *testing.T) {
	t.Parallel()
	pending, running := &api.TaskState{State: model.TaskPending}, &api.TaskState{State: model.TaskRunning}
	succeeded, failed := &api.TaskState{State: model.TaskDead}, &api.TaskState{State: model.TaskDead, Failed: true}
	tests := map[string]struct {
		spans   []tracespan.Span
		states  []*api.TaskState // for migrate, a prestart task, and web
		status  string           // the allocation's; running if empty
		problem string           // the span's, with the number after #
		tasks   string
	}{
		"a start that waited for the artifact of a prestart task": {
			spans: []tracespan.Span{
				hook("", "alloc_dir", 0, 0.1, ""), hook("migrate", "artifact", 0.1, 3, ""), wait("web", "other tasks", 0.1, 3.2),
				run("migrate", 3, 3.15, "Exit Code: 0"), run("web", 3.3, 0, ""),
			},
			states:  []*api.TaskState{succeeded, running},
			problem: `migrate: slowest step: artifact (2.9s) #1`,
			tasks: `migrate complete
  exit code 0 #3
  start: 3s (artifact 2.9s) #1
web running
  up for 16.7s #4
  waited 3.1s for "migrate" (artifact 2.9s) #1`,
		},
		"a start that waited for the run of a prestart task": {
			spans:   []tracespan.Span{wait("web", "other tasks", 0.1, 5), run("migrate", 0.2, 5, "Exit Code: 0"), hook("web", "script", 5, 5.5, ""), run("web", 6, 0, "")},
			states:  []*api.TaskState{succeeded, running},
			problem: `web: slowest step: prestart hook script (500ms) #2`,
			tasks: `migrate complete
  exit code 0 #1
web running
  up for 14s #3
  waited 4.9s for "migrate" (run 4.8s) #1`,
		},
		"a task that waits for a task that runs": {
			spans:   []tracespan.Span{hook("migrate", "script", 0, 1, ""), wait("web", "other tasks", 1, 0), run("migrate", 2, 0, "")},
			states:  []*api.TaskState{running, pending},
			problem: `web waits for task "migrate" to end for 19s #2`,
			tasks: `migrate running
  up for 18s #2
  start: 2s (prestart hook script 1s) #0
web pending
  waits for task "migrate" to end for 19s #1`,
		},
		"a task that waits for artifact of another one": {
			spans:   []tracespan.Span{wait("web", "other tasks", 1, 0), hook("migrate", "artifact", 2, 0, "")},
			states:  []*api.TaskState{pending, pending},
			problem: `migrate waits for artifact for 18s #1`,
			tasks: `migrate pending
  waits for artifact for 18s #1
web pending
  waits for task "migrate" to end for 19s #0`,
		},
		"a crash loop that waits for restart": {
			spans: []tracespan.Span{
				run("web", 0, 1, "Exit Code: 1"), wait("web", "restart delay", 1, 2), run("web", 2, 3, "Exit Code: 3"), wait("web", "restart delay", 3, 4),
				run("web", 4, 5, "Exit Code: 3"), wait("web", "restart delay", 5, 0),
			},
			states:  []*api.TaskState{succeeded, pending},
			problem: `web: exit code 3, 2 times in a row #4`,
			tasks: `migrate not started
  ended before its start
web pending
  waits for restart delay for 15s #5
  3 runs: exit code 1, exit code 3 (2 times) #4
  start: 1s (restart delay 1s) #3`,
		},
		"a task that has recovered": {
			spans:   []tracespan.Span{run("web", -100, -99, "Exit Code: 1"), wait("web", "restart delay", -99, -98), run("web", -98, 0, "")},
			states:  []*api.TaskState{succeeded, running},
			problem: `web: slowest step: restart delay (1s) #1`,
			tasks: `migrate not started
  ended before its start
web running
  up for 1m58s #2
  2 runs: exit code 1, running #2
  start: 1s (restart delay 1s) #1`,
		},
		"a failing hook": {
			spans: []tracespan.Span{
				hook("web", "script", 0, 1, "exit code 4"), event("web", "Restarting", 1), wait("web", "restart delay", 1, 2), hook("web", "script", 2, 3, "exit code 4"),
				event("web", api.TaskKilling, 4), hook("migrate", "script", 3, 5, "context canceled"), event("migrate", api.TaskKilling, 4),
			},
			states: []*api.TaskState{succeeded, failed}, status: "failed",
			problem: `web: prestart hook script: exit code 4, 2 times in a row #3`,
			tasks: `migrate not started
  ended before its start
web failed
  prestart hook script: exit code 4 #3`,
		},
		"a failing hook of the allocation": {
			spans:  []tracespan.Span{hook("", "network", 0, 1, "no bridge")},
			states: []*api.TaskState{failed, failed}, status: "failed",
			problem: `allocation: prerun hook network: no bridge #0`,
			tasks: `migrate failed
  the allocation was not set up: prerun hook network: no bridge #0
web failed
  the allocation was not set up: prerun hook network: no bridge #0`,
		},
		"a task that was stopped, and a run without a recorded end": {
			spans:  []tracespan.Span{run("migrate", 0, 0, ""), run("web", 0, 2, "Exit Code: 143, Signal: 15"), event("web", api.TaskKilling, 1)},
			states: []*api.TaskState{succeeded, succeeded}, status: "complete",
			tasks: `migrate complete
  exit status unknown #0
web complete
  signal 15 #1`,
		},
		"a task that was restarted by a check, and then by a user": {
			spans: []tracespan.Span{
				run("web", 0, 2, "Exit Code: 143, Signal: 15"), message("web", api.TaskRestartSignal, 1, `healthcheck: check "alive" unhealthy`), event("web", api.TaskKilling, 1.1),
				run("web", 3, 5, "Exit Code: 143, Signal: 15"), message("web", api.TaskRestartSignal, 4, "User requested task to restart"), run("web", 6, 0, ""),
			},
			states:  []*api.TaskState{succeeded, running},
			problem: `web: healthcheck: check "alive" unhealthy #0`,
			tasks: `migrate not started
  ended before its start
web running
  up for 14s #5
  3 runs: signal 15 (2 times), running #5`,
		},
		"a task that was killed because its template failed": {
			spans: []tracespan.Span{
				run("web", 0, 2, "Exit Code: 143, Signal: 15"), message("web", api.TaskKilling, 1, "Template failed: no such variable"), event("web", api.TaskKilling, 1.1),
			},
			states: []*api.TaskState{succeeded, failed}, status: "failed",
			problem: `web: Template failed: no such variable #0`,
			tasks: `migrate not started
  ended before its start
web failed
  Template failed: no such variable #0`,
		},
		"a task that failed with an event only": {
			spans:  []tracespan.Span{message("web", "Sibling Task Failed", 1, `Task's sibling "x" failed`), event("web", api.TaskKilling, 1)},
			states: []*api.TaskState{succeeded, failed}, status: "failed",
			problem: `web: Sibling Task Failed: Task's sibling "x" failed #0`,
			tasks: `migrate not started
  ended before its start
web failed
  Sibling Task Failed: Task's sibling "x" failed #0`,
		},
		"a task that was killed before its start, and one whose run is lost": {
			spans:  []tracespan.Span{message("migrate", "Sibling Task Failed", 1, `Task's sibling "x" failed`)},
			states: []*api.TaskState{succeeded, {State: model.TaskDead, StartedAt: at(1)}}, status: "failed",
			tasks: `migrate not started
  Sibling Task Failed: Task's sibling "x" failed #0
web complete
  its run is not in the time line`,
		},
		"an allocation that is being set up": {
			spans:   []tracespan.Span{hook("", "network", 0, 0, "")},
			states:  []*api.TaskState{pending, pending},
			problem: `migrate waits for prerun hook network for 20s #0`,
			tasks: `migrate pending
  waits for prerun hook network for 20s #0
web pending
  waits for prerun hook network for 20s #0`,
		},
		"no spans": {
			states: []*api.TaskState{pending, pending},
			tasks: `migrate pending
  has not started
web pending
  has not started`,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for i := range test.spans {
				test.spans[i].ID = fmt.Sprint(i)
			}
			group := &api.TaskGroup{Name: new("g"), Tasks: []*api.Task{{Name: "migrate", Lifecycle: &api.TaskLifecycle{Hook: "prestart"}}, {Name: "web"}}}
			alloc := &api.Allocation{
				TaskGroup: "g", Job: &api.Job{TaskGroups: []*api.TaskGroup{group}}, ClientStatus: "running",
				TaskStates: map[string]*api.TaskState{"migrate": test.states[0], "web": test.states[1]},
			}
			if test.status != "" {
				alloc.ClientStatus = test.status
			}
			now := at(20)
			format := func(s Sentence) string {
				if s.SpanID == "" {
					return s.Format(now)
				}
				return s.Format(now) + " #" + s.SpanID
			}
			summary := Summarize(test.spans, alloc, now)
			if got := format(summary.Problem); got != test.problem {
				t.Errorf("the problem is\n%s\nwant\n%s", got, test.problem)
			}
			var lines []string
			for _, task := range summary.Tasks {
				lines = append(lines, task.Task+" "+task.State)
				for _, s := range task.Sentences {
					lines = append(lines, "  "+format(s))
				}
			}
			if got := strings.Join(lines, "\n"); got != test.tasks {
				t.Errorf("got\n%s\nwant\n%s", got, test.tasks)
			}
		})
	}
}

// A reason or an exit message that looks like another field does not change a run's meaning.
func TestRunEndDecides(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		end           restart.RunEnd
		exit, problem string
	}{
		"an exit":                              {restart.RunEnd{ExitCode: 3, RunsInRow: 4}, "exit code 3", "web: exit code 3, 4 times in a row"},
		"a message like an exit status":        {restart.RunEnd{ExitCode: 3, Error: "Exit Code: 7, Signal: 9"}, "exit code 3, Exit Code: 7, Signal: 9", "web: exit code 3, Exit Code: 7, Signal: 9"},
		"a check":                              {restart.RunEnd{Signal: 15, RestartRequested: true, RestartCountsAsFailure: true, RequestReason: "unhealthy"}, "signal 15", "web: unhealthy"},
		"a user's reason like that of a check": {restart.RunEnd{Signal: 15, RestartRequested: true, RequestReason: "healthcheck: my words"}, "signal 15", ""},
		"a stop":                               {restart.RunEnd{Signal: 15, Stopped: true}, "signal 15", ""},
		"an unknown exit status":               {restart.RunEnd{StatusUnknown: true}, "Exit Code: 0, healthcheck: ", "web: Exit Code: 0, healthcheck: "},
	} {
		span := run("web", 0, 2, "Exit Code: 0, healthcheck: ")
		span.RunEnd, span.ID = &test.end, "1"
		request := message("web", api.TaskRestartSignal, 1, test.end.RequestReason)
		spans := []tracespan.Span{span}
		if test.end.RestartRequested {
			spans = append(spans, request)
		}
		if got := FormatExit(&span); got != test.exit {
			t.Errorf("%s: exit %q, want %q", name, got, test.exit)
		}
		alloc := &api.Allocation{
			TaskGroup: "g", Job: &api.Job{TaskGroups: []*api.TaskGroup{{Name: new("g"), Tasks: []*api.Task{{Name: "web"}}}}}, ClientStatus: "running",
			TaskStates: map[string]*api.TaskState{"web": {State: model.TaskPending}},
		}
		if got := Summarize(spans, alloc, at(20)).Problem.Text; got != test.problem {
			t.Errorf("%s: problem %q, want %q", name, got, test.problem)
		}
	}
}

func TestFormatExitOfEarlierBuild(t *testing.T) {
	t.Parallel()
	for result, want := range map[string]string{
		"Exit Code: 3":                 "exit code 3",
		"Exit Code: 137, Signal: 9":    "signal 9",
		"":                             "exit status unknown",
		"exit status unknown: no file": "exit status unknown: no file",
		`Exit Code: 137, Signal: 9, Exit Message: "OOM Killed"`: "signal 9, OOM Killed",
		`Exit Code: 1, Exit Message: "no image"`:                "exit code 1, no image",
	} {
		if got := FormatExit(&tracespan.Span{Result: result}); got != want {
			t.Errorf("%q: got %q, want %q", result, got, want)
		}
	}
}
