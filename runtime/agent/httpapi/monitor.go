package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/internal/hoststats"
	"github.com/nomad-lite/nomad-lite/internal/redact"
)

// Limits of a monitor: a line that does not fit is split into frames, and lines for which the
// client reads too slowly are dropped and counted.
const (
	monitorFrameSize   = 1 << 10
	monitorBufferLines = 512
	heartbeatInterval  = time.Second
)

// monitorFrame is a piece of the log stream, in the format of file frames.
type monitorFrame struct {
	Data      []byte `json:",omitempty"`
	FileEvent string `json:",omitempty"`
}

// monitorSink receives the lines of a log. It never blocks the logger.
type monitorSink struct {
	lines            chan []byte
	droppedLineCount chan int // the number of dropped lines; receiving resets it
}

func (m *monitorSink) Write(line []byte) (int, error) {
	select {
	case m.lines <- append([]byte(nil), line...):
	default:
		n := 0
		select {
		case n = <-m.droppedLineCount:
		default:
		}
		m.droppedLineCount <- n + 1 // the send does not block because the logger writes one line at a time
	}
	return len(line), nil
}

// debugHandler serves the log, profiles and host data.
type debugHandler struct {
	agent              *localAgent
	hostStats          func(context.Context) hoststats.Stats
	monitoredLog       hclog.InterceptLogger // nil disables the log
	secrets            *redact.Values        // removed from the log
	debugRoutesEnabled bool                  // routes of profiles and host data are enabled
}

// monitor streams new log lines.
func (h *debugHandler) monitor(r *request) (any, error) {
	if r.query.Get("node_id") != "" && r.query.Get("server_id") != "" {
		return nil, badRequestError("Cannot target node and server simultaneously")
	}
	if err := h.agent.checkNodeAndServerParams(r); err != nil {
		return nil, err
	}
	level := hclog.Info
	if name := r.query.Get("log_level"); name != "" {
		if level = hclog.LevelFromString(name); level == hclog.NoLevel {
			return nil, badRequestError("Unknown log level: " + name)
		}
	}
	inJSON, err := r.boolParam("log_json")
	if err != nil {
		return nil, badRequestError(err.Error())
	}
	plain, err := r.boolParam("plain")
	if err != nil {
		return nil, badRequestError(err.Error())
	}
	if h.monitoredLog == nil {
		return nil, &statusError{http.StatusNotImplemented, "this agent has no log to follow"}
	}

	f := &monitorSink{lines: make(chan []byte, monitorBufferLines), droppedLineCount: make(chan int, 1)}
	sink := hclog.NewSinkAdapter(&hclog.LoggerOptions{Name: h.monitoredLog.Name(), Level: level, Output: h.secrets.Writer(f), JSONFormat: inJSON})
	h.monitoredLog.RegisterSink(sink)
	defer h.monitoredLog.DeregisterSink(sink)
	if plain {
		s := r.startStream("text/plain; charset=utf-8")
		return nil, f.forwardLines(r.Context(), func(line []byte) error { _, err := s.Write(line); return err }, nil)
	}
	frames := json.NewEncoder(r.startStream("application/json"))
	err = f.forwardLines(r.Context(), func(line []byte) error {
		for len(line) > monitorFrameSize {
			if err := frames.Encode(monitorFrame{line[:monitorFrameSize], "log"}); err != nil {
				return err
			}
			line = line[monitorFrameSize:]
		}
		return frames.Encode(monitorFrame{line, "log"})
	}, func() error { return frames.Encode(struct{}{}) })
	if reason := r.endOfRights(); reason != "" {
		_ = frames.Encode(monitorFrame{FileEvent: reason})
	}
	return nil, err
}

// forwardLines calls write for each log line, and heartbeat, which may be nil, in each heartbeatInterval, until ctx ends
// or one of them fails.
func (m *monitorSink) forwardLines(ctx context.Context, write func(line []byte) error, heartbeat func() error) error {
	ticker := time.NewTicker(heartbeatInterval)
	defer ticker.Stop()
	for {
		var err error
		select {
		case line := <-m.lines:
			err = write(line)
		case n := <-m.droppedLineCount:
			err = write(fmt.Appendf(nil, "[%d lines were dropped: they came faster than they were read]\n", n))
		case <-ticker.C:
			if heartbeat != nil {
				err = heartbeat()
			}
		case <-ctx.Done():
			return nil
		}
		if err != nil {
			return nil // the client has disconnected
		}
	}
}
