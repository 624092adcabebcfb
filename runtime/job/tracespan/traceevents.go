package tracespan

import (
	"cmp"
	"fmt"
	"time"
)

// TraceEvents is a trace in the Trace Event Format, as JSON. Perfetto (ui.perfetto.dev), chrome://tracing and speedscope open it.
type TraceEvents struct {
	Events          []TraceEvent `json:"traceEvents"`
	DisplayTimeUnit string       `json:"displayTimeUnit"`
}

// TraceEvent is one event in the Trace Event Format.
type TraceEvent struct {
	Phase     string            `json:"ph"` // X: has a duration; B: has not ended; i: has no duration; M: a process or thread name
	Name      string            `json:"name"`
	Category  string            `json:"cat,omitempty"`
	Time      float64           `json:"ts"`            // microseconds after the first span
	Duration  *float64          `json:"dur,omitempty"` // microseconds
	ProcessID int               `json:"pid"`
	ThreadID  int               `json:"tid"`
	Scope     string            `json:"s,omitempty"`
	Args      map[string]string `json:"args,omitempty"`
}

// lane is a trace thread. Its spans do not overlap, as the format requires unless one contains the other.
type lane struct {
	task string
	kind Kind
	end  time.Time
	open bool // a span has not ended, so the lane takes no more
}

// EncodeTraceEvents returns spans, sorted by their start, as a trace with one named process. Each task has a thread per span
// kind, and more where spans overlap.
func EncodeTraceEvents(name string, spans []Span) TraceEvents {
	trace := TraceEvents{DisplayTimeUnit: "ms", Events: []TraceEvent{{Phase: "M", Name: "process_name", ProcessID: 1, Args: map[string]string{"name": name}}}}
	var lanes []lane
	for i := range spans {
		s := &spans[i]
		thread := 0
		for thread < len(lanes) && !lanes[thread].takes(s) {
			thread++
		}
		if thread == len(lanes) {
			lanes = append(lanes, lane{task: s.Task, kind: s.Kind})
			owner := "allocation"
			if s.Task != "" {
				owner = "task " + s.Task
			}
			trace.Events = append(trace.Events, TraceEvent{Phase: "M", Name: "thread_name", ProcessID: 1, ThreadID: thread + 1, Args: map[string]string{"name": owner + ": " + string(s.Kind)}})
		}
		lanes[thread].end, lanes[thread].open = s.End, s.End.IsZero()
		trace.Events = append(trace.Events, encodeTraceEvent(s, spans[0].Start, thread+1))
	}
	return trace
}

// takes reports whether a span belongs to the lane and overlaps no span in it.
func (l lane) takes(s *Span) bool {
	return l.task == s.Task && l.kind == s.Kind && !l.open && !l.end.After(s.Start)
}

func encodeTraceEvent(s *Span, origin time.Time, thread int) TraceEvent {
	e := TraceEvent{
		Phase: "X", Name: s.title(), Category: string(s.Kind), Time: microseconds(s.Start.Sub(origin)), ProcessID: 1, ThreadID: thread,
		Args: map[string]string{"span": s.ID, "start": s.Start.Format(time.RFC3339Nano)},
	}
	for key, value := range map[string]string{"task": s.Task, "result": s.Result, "error": s.Error} {
		if value != "" {
			e.Args[key] = value
		}
	}
	switch {
	case s.Kind == KindEvent:
		e.Phase, e.Scope = "i", "t"
	case s.End.IsZero():
		e.Phase = "B"
	default:
		duration := microseconds(max(0, s.End.Sub(s.Start)))
		e.Duration = &duration
	}
	return e
}

func microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// title returns a span's name for people.
func (s *Span) title() string {
	switch s.Kind {
	case KindHook:
		return fmt.Sprintf("%s (%s)", s.Plugin, s.Name)
	case KindDriver:
		return s.Plugin + ": " + s.Name
	case KindRun:
		return "run: " + cmp.Or(s.Result, "not ended")
	case KindGap:
		return fmt.Sprintf("%d spans were dropped", s.Dropped)
	}
	return s.Name
}
