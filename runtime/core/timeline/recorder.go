package timeline

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"hash/fnv"
	"math/rand/v2"
	"time"

	"github.com/nomad-lite/nomad-lite/internal/redact"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/runtime/core/restart"
	"github.com/nomad-lite/nomad-lite/runtime/job/tracespan"
)

// Recorder records one allocation's or one task's spans. The zero value records nothing. Its methods may
// be called concurrently, and do not block.
type Recorder struct {
	file     *File
	taskName string
	secrets  *redact.Values
}

// Recorder returns a recorder for a task, or for the allocation itself if taskName is empty. It removes the secrets from
// the results and errors of calls, waits and runs; nil removes nothing.
func (f *File) Recorder(taskName string, secrets *redact.Values) Recorder {
	return Recorder{f, taskName, secrets}
}

// ActiveSpan is a span in progress. A nil ActiveSpan records nothing.
type ActiveSpan struct {
	recorder Recorder
	span     tracespan.Span
}

// StartSpan starts a span of the given kind. The caller calls End once.
func (r Recorder) StartSpan(kind tracespan.Kind, name, plugin string) *ActiveSpan {
	return r.addActiveSpan(tracespan.Span{ID: newSpanID(), Kind: kind, Name: name, Plugin: plugin, Start: time.Now()})
}

// StartHookSpan starts the span for a hook call. The caller calls End once.
func (r Recorder) StartHookSpan(hookPoint, hookName string, internal bool) *ActiveSpan {
	return r.addActiveSpan(tracespan.Span{ID: newSpanID(), Kind: tracespan.KindHook, Name: hookPoint, Plugin: hookName, Internal: internal, Start: time.Now()})
}

// StartRunSpan starts the span for a task process run. If a later agent recovers the process, it calls StartRunSpan with the same
// startID and so continues the span.
func (r Recorder) StartRunSpan(startID, driver string, start time.Time) *ActiveSpan {
	return r.addActiveSpan(tracespan.Span{ID: spanIDOfRun(startID), Kind: tracespan.KindRun, Name: startID, Plugin: driver, Start: start})
}

// TaskTraceparent returns the TRACEPARENT environment variable's value for a task process, or "" if the task
// gets none. With it, the spans exported by the process are children of its run's span.
func (r Recorder) TaskTraceparent(startID string) string {
	if r.file == nil || r.file.trace == nil || !r.file.trace.TasksGetTraceparent() {
		return ""
	}
	return r.file.trace.Traceparent(spanIDOfRun(startID))
}

func spanIDOfRun(startID string) string {
	h := fnv.New64a()
	h.Write([]byte(startID))
	return formatSpanID(h.Sum64())
}

func (r Recorder) addActiveSpan(s tracespan.Span) *ActiveSpan {
	if r.file == nil {
		return nil
	}
	s.Task = r.taskName
	s.TruncateTexts()
	r.file.addActiveSpan(s)
	return &ActiveSpan{r, s}
}

// ContextWithTraceparent returns the context for the recorded call. If the allocation has a trace, a plugin
// called with this context receives the span as the parent for its own spans.
func (a *ActiveSpan) ContextWithTraceparent(ctx context.Context) context.Context {
	if a == nil || a.recorder.file.trace == nil {
		return ctx
	}
	return base.WithTraceparent(ctx, a.recorder.file.trace.Traceparent(a.span.ID))
}

// End ends the span with a result, which is a text for users and may be empty, and an error, which may be nil.
func (a *ActiveSpan) End(result string, err error) { a.endOrDropSpan(result, err, nil) }

// EndRun ends the StartRunSpan span with the run's end, which contains no secrets.
func (a *ActiveSpan) EndRun(result string, end *restart.RunEnd) { a.endOrDropSpan(result, nil, end) }

func (a *ActiveSpan) endOrDropSpan(result string, err error, runEnd *restart.RunEnd) {
	if a == nil {
		return
	}
	s := a.span
	elapsed := time.Since(s.Start)
	if s.Kind == tracespan.KindWait && elapsed < minWait {
		a.recorder.file.dropActiveSpan(s)
		return
	}
	s.RunEnd, s.Failed = runEnd, runEnd != nil && !runEnd.Success
	s.End = s.Start.Add(elapsed) // a clock change does not change the duration
	s.Result = a.recorder.secrets.Text(result)
	if err != nil {
		s.Error = a.recorder.secrets.Text(err.Error())
	}
	s.TruncateTexts()
	a.recorder.file.recordEndedSpan(s)
}

// CallWithSpan calls the function call with a new span's context. It ends the span with the returned error.
func (r Recorder) CallWithSpan(ctx context.Context, kind tracespan.Kind, name, plugin string, call func(context.Context) error) error {
	span := r.StartSpan(kind, name, plugin)
	err := call(span.ContextWithTraceparent(ctx))
	span.End("", err)
	return err
}

// minWait is the shortest wait recorded as a span.
const minWait = time.Millisecond

// StartWaitSpan starts the span for a task's wait. End drops the span if it is shorter than minWait.
func (r Recorder) StartWaitSpan(reason string) *ActiveSpan {
	return r.StartSpan(tracespan.KindWait, reason, "")
}

// RecordAllocSpanEndingNow records a period in the allocation's life, such as its placement or its lifetime, as a
// span that ends now.
func (r Recorder) RecordAllocSpanEndingNow(name string, start time.Time, result string, failed bool) {
	if r.file == nil {
		return
	}
	s := tracespan.Span{ID: newSpanID(), Kind: tracespan.KindAlloc, Name: name, Task: r.taskName, Start: start, End: time.Now(), Result: r.secrets.Text(result), Failed: failed}
	s.TruncateTexts()
	r.file.recordEndedSpan(s)
}

// RecordEvent records an event, which has no duration. The message must contain no secrets.
func (r Recorder) RecordEvent(name, message string, at time.Time) {
	if r.file == nil {
		return
	}
	s := tracespan.Span{ID: newSpanID(), Kind: tracespan.KindEvent, Name: name, Task: r.taskName, Start: at, End: at, Result: r.secrets.Text(message)}
	s.TruncateTexts()
	r.file.recordEndedSpan(s)
}

func newSpanID() string { return formatSpanID(rand.Uint64()) }

// spanIDLen is the number of hexadecimal digits in a span id.
const spanIDLen = 16

func formatSpanID(id uint64) string {
	var b [spanIDLen / 2]byte
	binary.BigEndian.PutUint64(b[:], id)
	return hex.EncodeToString(b[:])
}
