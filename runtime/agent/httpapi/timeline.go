package httpapi

import (
	"time"

	"github.com/nomad-lite/nomad-lite/runtime/core/timeline"
	"github.com/nomad-lite/nomad-lite/runtime/explain/spansummary"
	"github.com/nomad-lite/nomad-lite/runtime/job/tracespan"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// allocTimeline is the reply of the route /v1/allocation/{id}/timeline.
type allocTimeline struct {
	AllocID string
	Spans   []tracespan.Span // sorted by start time
	Summary spansummary.Summary
}

// traceEventFormat is the value of the parameter format for a trace that other programs open.
const traceEventFormat = "trace-event"

// timeline replies with the spans of an allocation, an extension of Nomad's API. It blocks like the routes
// that read the state; its index is not the index of the state.
func (h *allocHandler) timeline(r *request) (any, error) {
	if err := checkIDIsUUID("alloc", r.pathID); err != nil {
		return nil, err
	}
	format := r.query.Get("format")
	if format != "" && format != traceEventFormat {
		return nil, badRequestError(`the format must be empty or "` + traceEventFormat + `"`)
	}
	return r.blockingQuery(h.store, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		alloc := s.Allocation(ws, r.pathID)
		if alloc == nil {
			return nil, s.LatestTableIndex(ws, store.Allocations), notFoundError("alloc not found")
		}
		file, err := h.findTimeline(r.pathID)
		if err != nil {
			return nil, 0, err
		}
		now, err := file.ReadSnapshot()
		if err != nil {
			return nil, 0, err
		}
		if ws != nil {
			ws.Add(now.Changed)
		}
		// The summary changes with the spans and with the states of the tasks. Both numbers only increase.
		index := now.Version + alloc.ModifyIndex
		if format == traceEventFormat {
			return tracespan.EncodeTraceEvents(alloc.Name+" "+alloc.ID, now.Spans), index, nil
		}
		return allocTimeline{r.pathID, now.Spans, spansummary.Summarize(now.Spans, alloc, time.Now())}, index, nil
	})
}

// findTimeline returns the time line of an allocation, whether or not it runs.
func (h *allocHandler) findTimeline(allocID string) (*timeline.File, error) {
	if runner := h.allocs.AllocRunner(allocID); runner != nil {
		return runner.Timeline(), nil
	}
	dir, err := h.files.AllocDir(allocID)
	if err != nil {
		return nil, err
	}
	return timeline.NewFile(dir, nil, h.logger), nil
}
