package timeline

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/internal/redact"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/runtime/core/restart"
	"github.com/nomad-lite/nomad-lite/runtime/job/tracespan"
)

// testTrace keeps the received spans.
type testTrace struct {
	spans    []tracespan.Span
	forTasks bool
}

func (t *testTrace) ExportEndedSpan(s tracespan.Span) { t.spans = append(t.spans, s) }
func (t *testTrace) Traceparent(spanID string) string { return "00-1-" + spanID }
func (t *testTrace) TasksGetTraceparent() bool        { return t.forTasks }

// A trace gets the same spans as the file, each once and with the same id, and calls get their spans'
// context.
func TestTraceGetsSpansOfFile(t *testing.T) { synctest.Test(t, testTraceGetsSpansOfFile) }

func testTraceGetsSpansOfFile(t *testing.T) {
	trace, dir := new(testTrace), t.TempDir()
	f := NewFile(testDir(dir), trace, hclog.NewNullLogger())
	var secrets redact.Values
	secrets.Add("secret")
	r := f.Recorder("web", &secrets)
	r.RecordAllocSpanEndingNow(tracespan.Placement, time.Now(), "", false)
	call := r.StartSpan(tracespan.KindHook, "prestart", "x")
	traceparent := base.Traceparent(call.ContextWithTraceparent(t.Context()))
	call.End("secret", nil)
	run := r.StartRunSpan("id", "x", time.Now())
	run.EndRun("secret", &restart.RunEnd{})
	wait := r.StartWaitSpan("other tasks")
	time.Sleep(2 * minWait)
	wait.End("", errors.New("secret"))
	r.RecordEvent("Started", "", time.Now())
	r.StartSpan(tracespan.KindHook, "stop", "x") // does not end

	now, err := f.ReadSnapshot()
	if err != nil {
		t.Fatal(err)
	}
	ended := 0
	for _, s := range now.Spans {
		if s.End.IsZero() {
			continue
		}
		ended++
		matches := 0
		for _, e := range trace.spans {
			if e.ID == s.ID && e.Kind == s.Kind && e.Result == s.Result && e.Error == s.Error && e.Failed == s.Failed && e.End.Equal(s.End) {
				matches++
			}
		}
		if matches != 1 {
			t.Errorf("span %+v was exported %d times", s, matches)
		}
	}
	if ended != 5 || len(trace.spans) != 5 {
		t.Errorf("%d spans have ended, and %d were exported, want 5", ended, len(trace.spans))
	}
	if want := "00-1-" + trace.spans[1].ID; traceparent != want {
		t.Errorf("the hook got %q, want %q", traceparent, want)
	}
	if got := r.TaskTraceparent("id"); got != "" {
		t.Errorf("without the option a task gets %q", got)
	}
	trace.forTasks = true
	if got, want := r.TaskTraceparent("id"), "00-1-"+trace.spans[2].ID; got != want {
		t.Errorf("a task gets %q, want %q", got, want)
	}
	f.Close()
	r.RecordEvent("Late", "", time.Now())
	if len(trace.spans) != 5 {
		t.Error("a span was exported after Close")
	}
}
