package httpapi

import (
	"context"
	"fmt"
	"path"
	"strconv"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs"
)

// parseStreamPositionParams reads the position in a stream at which the response starts.
func (r *request) parseStreamPositionParams() (fromEnd bool, offset int64, err error) {
	if text := r.query.Get("offset"); text != "" {
		if offset, err = strconv.ParseInt(text, 10, 64); err != nil {
			return false, 0, badRequestError("error parsing offset: " + err.Error())
		}
		if offset < 0 {
			return false, 0, badRequestError("offset must not be negative")
		}
	}
	switch r.query.Get("origin") {
	case "start", "":
		return false, offset, nil
	case "end":
		return true, offset, nil
	}
	return false, 0, badRequestError("origin must be start or end")
}

// readFollowParam reads the parameter that selects whether the response continues when the end of the stream is
// reached.
func (r *request) readFollowParam(defaultValue bool) (bool, error) {
	if r.query.Get("follow") == "" {
		return defaultValue, nil
	}
	follow, err := r.boolParam("follow")
	if err != nil {
		return false, badRequestError(err.Error())
	}
	return follow, nil
}

// taskLogs streams the past and the new output of a task.
func (h *fileHandler) taskLogs(r *request) (any, error) {
	ask, err := h.newLogFollowRequest(r)
	if err != nil {
		return nil, err
	}
	plain, err := r.boolParam("plain")
	if err != nil {
		return nil, badRequestError(err.Error())
	}
	if !plain {
		r.streamFrames(func(ctx context.Context, emit func(api.StreamFrame) error) error {
			return h.logCollector.Follow(ctx, ask, func(c logs.OutputChunk) error {
				return emit(api.StreamFrame{File: path.Join("alloc/logs", c.FileName), Offset: c.FileOffset + int64(len(c.Data)), Data: c.Data})
			})
		})
		return nil, nil
	}
	s := r.startStream("text/plain; charset=utf-8")
	_ = h.logCollector.Follow(r.Context(), ask, func(c logs.OutputChunk) error { // the response has started, so the error cannot be sent
		_, err := s.Write(c.Data)
		return err
	})
	return nil, nil
}

// newLogFollowRequest reads the parameters, and checks that the requested output exists.
func (h *fileHandler) newLogFollowRequest(r *request) (logs.FollowRequest, error) {
	ask := logs.FollowRequest{AllocID: r.pathID, Task: r.query.Get("task"), Stream: logs.Stream(r.query.Get("type"))}
	switch {
	case ask.Task == "":
		return ask, badRequestError("must provide task name")
	case ask.Stream != logs.Stdout && ask.Stream != logs.Stderr:
		return ask, badRequestError("must provide log type (stdout/stderr)")
	}
	end, offset, err := r.parseStreamPositionParams()
	if err != nil {
		return ask, err
	}
	follow, err := r.readFollowParam(false)
	if err != nil {
		return ask, err
	}
	alloc, err := r.findAllocation(h.store)
	if err != nil {
		return ask, err
	}
	if model.FindTask(alloc, ask.Task) == nil {
		return ask, badRequestError(fmt.Sprintf("unknown task name %q", ask.Task))
	}
	if state := alloc.TaskStates[ask.Task]; state == nil || state.StartedAt.IsZero() {
		return ask, notFoundError(fmt.Sprintf("task %q not started yet. No logs available", ask.Task))
	}
	dir, err := h.files.AllocDir(alloc.ID)
	if err != nil {
		return ask, err
	}
	ask.LogDir = dir.LogDir()
	if kept, err := h.logCollector.HasLogsOrIsCollected(ask); err != nil || !kept {
		text := fmt.Sprintf("log entry for task %q and log type %q not found", ask.Task, ask.Stream)
		if hint := allocDirRemovalReason(alloc); hint != "" {
			text += ": " + hint
		}
		return ask, notFoundError(text)
	}
	ask.StopAtEnd, ask.AcrossRestarts, ask.OffsetFromOrigin = !follow, follow, offset
	switch {
	case end && offset == 0:
		ask.Origin = logs.FromNewestFile
	case end:
		ask.Origin = logs.FromEnd
	}
	return ask, nil
}
