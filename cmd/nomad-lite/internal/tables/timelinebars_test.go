package tables

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/runtime/explain/spansummary"
	"github.com/nomad-lite/nomad-lite/runtime/job/tracespan"
)

// A task that waits, crashes twice, fails to start and runs again has one line of 80 columns, and sentences.
func TestTimelineBars(t *testing.T) {
	t.Parallel()
	begin := time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
	at := func(seconds float64) time.Time { return begin.Add(time.Duration(seconds * float64(time.Second))) }
	span := func(kind tracespan.Kind, task, name, plugin string, from, to float64, result string, failed bool) tracespan.Span {
		s := tracespan.Span{Kind: kind, Task: task, Name: name, Plugin: plugin, Start: at(from), Result: result, Failed: failed}
		if to > 0 {
			s.End = at(to)
		}
		return s
	}
	internal := span(tracespan.KindHook, "migrate", "stop", "logmon", 7, 7.01, "", false)
	setup := span(tracespan.KindHook, "", "prerun", "alloc_dir", 0, 0.1, "", false)
	internal.Internal, setup.Internal = true, true
	failed := span(tracespan.KindHook, "web", "prestart", "artifact", 6.5, 6.6, "", false)
	failed.Error = "not found\x1b[2J"
	alloc := &api.Allocation{
		TaskGroup: "g", ClientStatus: "running",
		Job:        &api.Job{TaskGroups: []*api.TaskGroup{{Name: new("g"), Tasks: []*api.Task{{Name: "migrate", Lifecycle: &api.TaskLifecycle{Hook: "prestart"}}, {Name: "web"}}}}},
		TaskStates: map[string]*api.TaskState{"migrate": {State: "dead"}, "web": {State: "running"}},
	}
	timeline := &AllocTimeline{AllocID: "de775b35-0000", Spans: []tracespan.Span{
		span(tracespan.KindAlloc, "", tracespan.Placement, "", 0, 0.1, "", false),
		setup,
		span(tracespan.KindRun, "migrate", "id", "raw_exec", 0.1, 4, "Exit Code: 0", false),
		span(tracespan.KindWait, "web", tracespan.WaitOtherTasks, "", 0.1, 4, "", false),
		span(tracespan.KindEvent, "web", "Received", "", 0.1, 0, "", false),
		span(tracespan.KindRun, "web", "id", "raw_exec", 4, 4.5, "Exit Code: 3", true),
		span(tracespan.KindWait, "web", tracespan.WaitRestartDelay, "", 4.5, 5.5, "", false),
		span(tracespan.KindRun, "web", "id", "raw_exec", 5.5, 6, "Exit Code: 3", true),
		failed,
		span(tracespan.KindWait, "web", tracespan.WaitRestartDelay, "", 6.6, 8, "", false),
		internal,
		span(tracespan.KindDriver, "web", "StartTask", "raw_exec", 8, 8.5, "", false),
		span(tracespan.KindRun, "web", "id", "raw_exec", 8.5, 0, "", false),
	}}
	timeline.Summary = spansummary.Summarize(timeline.Spans, alloc, at(10))
	var out strings.Builder
	streams := &cli.Streams{Out: &out}
	p := output.NewPage(streams)
	timeline.PrintBars(p, false, at(10), false)
	if err := output.PrintPage(streams, p); err != nil {
		t.Fatal(err)
	}
	const want = `Time line of allocation de775b35, from 2026-05-04T12:00:00Z, 10s
web: artifact: not found

Task     Time                      Runs                   Longest Step
migrate  ==========                1: exit 0              10ms logmon stop
web      .........=x3.=xx...-====  3: exit 3 x2, running  3.9s other tasks

. wait   - hook or driver call   = run   x3 failed, with exit code 3

Task migrate: complete
  exit code 0
  start: 100ms (prerun hook alloc_dir 100ms)

Task web: running
  up for 1.5s
  3 runs: exit code 3 (2 times), running
  start: 2.5s (restart delay 1.4s)
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", &out, want)
	}
	for line := range strings.Lines(out.String()) {
		if n := utf8.RuneCountInString(line); n > barPageWidth+1 {
			t.Errorf("%d columns: %s", n-1, line)
		}
	}
}
