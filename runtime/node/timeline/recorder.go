package timeline

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"hash/fnv"
	"math/rand/v2"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/runtime/job/tracespan"
)

// Recorder records spans of one allocation or one task. The zero value records nothing. Its methods may be
// called concurrently, and do not block.
type Recorder struct {
	file   *File
	task   string
	redact func(string) string
}

// Recorder returns a recorder for a task, or for the allocation itself if task is empty. The function
// redact replaces secrets in the results and errors of calls, waits and runs; nil replaces nothing.
func (f *File) Recorder(task string, redact func(string) string) Recorder {
	return Recorder{f, task, redact}
}

// ActiveSpan is a span that has started. A nil pointer has no effect.
type ActiveSpan struct {
	recorder Recorder
	span     tracespan.Span
}

// Start starts a span of the given kind. The caller calls End once.
func (r Recorder) Start(kind tracespan.Kind, name, plugin string) *ActiveSpan {
	return r.start(tracespan.Span{ID: newID(), Kind: kind, Name: name, Plugin: plugin, Start: time.Now()})
}

// StartRun starts the span of a process of a task. A recorder of a later agent that recovers the process
// calls StartRun with the same startID, and continues the span.
func (r Recorder) StartRun(startID, driver string, start time.Time) *ActiveSpan {
	return r.start(tracespan.Span{ID: runID(startID), Kind: tracespan.KindRun, Name: startID, Plugin: driver, Start: start})
}

// TaskTraceparent returns the value of the environment variable TRACEPARENT for a process of the task, or ""
// if it gets none. The run of the process is the parent of the spans that the process exports.
func (r Recorder) TaskTraceparent(startID string) string {
	if r.file == nil || r.file.trace == nil || !r.file.trace.ForTasks() {
		return ""
	}
	return r.file.trace.Traceparent(runID(startID))
}

func runID(startID string) string {
	h := fnv.New64a()
	h.Write([]byte(startID))
	return formatID(h.Sum64())
}

func (r Recorder) start(s tracespan.Span) *ActiveSpan {
	if r.file == nil {
		return nil
	}
	s.Task = r.task
	s.Clip()
	r.file.start(s)
	return &ActiveSpan{r, s}
}

// Context returns ctx for the call that the span records. If the allocation has a trace, plugins that are
// called with the result receive the span as their parent.
func (a *ActiveSpan) Context(ctx context.Context) context.Context {
	if a == nil || a.recorder.file.trace == nil {
		return ctx
	}
	return base.WithTraceparent(ctx, a.recorder.file.trace.Traceparent(a.span.ID))
}

// End ends the span with a result for people, which may be empty, and an error, which may be nil.
func (a *ActiveSpan) End(result string, err error) { a.end(result, err, false) }

// EndRun ends the span of a process. failed means that the process has failed, or that its exit status is
// unknown.
func (a *ActiveSpan) EndRun(result string, failed bool) { a.end(result, nil, failed) }

func (a *ActiveSpan) end(result string, err error, failed bool) {
	if a == nil {
		return
	}
	s := a.span
	elapsed := time.Since(s.Start)
	if s.Kind == tracespan.KindWait && elapsed < minWait {
		a.recorder.file.remove(s)
		return
	}
	s.Failed = failed
	s.End = s.Start.Add(elapsed) // a change of the clock does not change the duration
	s.Result = a.recorder.redacted(result)
	if err != nil {
		s.Error = a.recorder.redacted(err.Error())
	}
	s.Clip()
	a.recorder.file.end(s)
}

// Record records a call as a span. The call gets the context of the span.
func (r Recorder) Record(ctx context.Context, kind tracespan.Kind, name, plugin string, call func(context.Context) error) error {
	span := r.Start(kind, name, plugin)
	err := call(span.Context(ctx))
	span.End("", err)
	return err
}

// minWait is the duration of the shortest wait that is kept.
const minWait = time.Millisecond

// StartWait starts the span of a wait of a task. End removes the span if the wait was short.
func (r Recorder) StartWait(reason string) *ActiveSpan {
	return r.Start(tracespan.KindWait, reason, "")
}

// RecordAlloc records a period of the allocation that has ended now.
func (r Recorder) RecordAlloc(name string, start time.Time, result string, failed bool) {
	if r.file == nil {
		return
	}
	s := tracespan.Span{ID: newID(), Kind: tracespan.KindAlloc, Name: name, Task: r.task, Start: start, End: time.Now(), Result: r.redacted(result), Failed: failed}
	s.Clip()
	r.file.end(s)
}

// RecordEvent records an event, which has no duration. The message must contain no secrets.
func (r Recorder) RecordEvent(name, message string, at time.Time) {
	if r.file == nil {
		return
	}
	s := tracespan.Span{ID: newID(), Kind: tracespan.KindEvent, Name: name, Task: r.task, Start: at, End: at, Result: message}
	s.Clip()
	r.file.end(s)
}

func (r Recorder) redacted(text string) string {
	if r.redact == nil {
		return text
	}
	return r.redact(text)
}

func newID() string { return formatID(rand.Uint64()) }

// idLen is the length of the id of a span.
const idLen = 16

func formatID(id uint64) string {
	var b [idLen / 2]byte
	binary.BigEndian.PutUint64(b[:], id)
	return hex.EncodeToString(b[:])
}
