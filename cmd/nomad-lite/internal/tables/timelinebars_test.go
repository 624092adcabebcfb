package tables

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/runtime/job/tracespan"
)

// A task that waits, crashes twice and runs again has one line of 80 columns.
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
	timeline := &AllocTimeline{AllocID: "de775b35-0000", Spans: []tracespan.Span{
		span(tracespan.KindAlloc, "", tracespan.Placement, "", 0, 0.1, "", false),
		span(tracespan.KindHook, "", "prerun", "alloc_dir", 0, 0.1, "", false),
		span(tracespan.KindRun, "migrate", "id", "raw_exec", 0.1, 5, "Exit Code: 0", false),
		span(tracespan.KindWait, "web", "other tasks", "", 0.1, 5, "", false),
		span(tracespan.KindEvent, "web", "Received", "", 0.1, 0, "", false),
		span(tracespan.KindRun, "web", "id", "raw_exec", 5, 6, "Exit Code: 3", true),
		span(tracespan.KindWait, "web", "restart delay", "", 6, 7, "", false),
		span(tracespan.KindDriver, "web", "StartTask", "raw_exec", 7, 8, "", false),
		span(tracespan.KindRun, "web", "id", "raw_exec", 8, 0, "", false),
	}}
	var out strings.Builder
	streams := &cli.Streams{Out: &out}
	p := output.NewPage(streams)
	timeline.PrintBars(p, false, at(10), false)
	if err := output.PrintPage(streams, p); err != nil {
		t.Fatal(err)
	}
	const want = `Time line of allocation de775b35, from 2026-05-04T12:00:00Z, 10s

Task     Time                            Runs             Longest Step
(group)  -                               -                100ms alloc_dir prerun
migrate  ================                1: Exit Code: 0  -
web      ...............===x..---======  2: running       4.9s other tasks

. wait   - hook or driver call   = run   x end of a failed run
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
