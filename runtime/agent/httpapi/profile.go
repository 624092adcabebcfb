package httpapi

import (
	"cmp"
	"context"
	"io"
	"mime"
	"net/http"
	"os"
	"runtime"
	"runtime/pprof"
	"runtime/trace"
	"strconv"
	"strings"
	"time"
)

// profile returns profiles of the agent for troubleshooting, as net/http/pprof does, which is not used because it registers
// handlers at the default mux of the process: see DESIGN.md.
func (h *debugHandler) profile(r *request) (any, error) {
	if !h.debugRoutesEnabled {
		return nil, errPermissionDenied
	}
	if err := h.agent.checkNodeAndServerParams(r); err != nil {
		return nil, err
	}
	switch r.pathID {
	case "cmdline":
		r.isReplyWritten = true
		r.w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(r.w, strings.Join(os.Args, "\x00"))
		return nil, nil
	case "profile":
		return nil, recordProfile(r, 30*time.Second, pprof.StartCPUProfile, pprof.StopCPUProfile)
	case "trace":
		return nil, recordProfile(r, time.Second, trace.Start, trace.Stop)
	}
	p := pprof.Lookup(r.pathID)
	if p == nil {
		return nil, &statusError{http.StatusNotFound, "Unknown profile"}
	}
	debug, _ := strconv.Atoi(r.query.Get("debug"))
	if gc, _ := strconv.Atoi(r.query.Get("gc")); gc > 0 && r.pathID == "heap" {
		runtime.GC()
	}
	if debug != 0 {
		r.isReplyWritten = true
		r.w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	} else {
		setBinaryProfileHeaders(r)
	}
	_ = p.WriteTo(r.w, debug) // the client may have disconnected
	return nil, nil
}

// recordProfile records a profile for the duration in the parameter seconds, or defaultTime, and replies with the
// profile. It blocks until the profile is complete or the client disconnects.
func recordProfile(r *request, defaultTime time.Duration, start func(io.Writer) error, stop func()) error {
	seconds, _ := strconv.ParseFloat(r.query.Get("seconds"), 64)
	ctx, cancel := context.WithTimeout(r.Context(), cmp.Or(max(0, time.Duration(seconds*float64(time.Second))), defaultTime))
	defer cancel()
	setBinaryProfileHeaders(r)
	if err := start(r.w); err != nil {
		r.w.Header().Del("Content-Disposition")
		r.isReplyWritten = false
		return &statusError{http.StatusInternalServerError, "Could not start the profile: " + err.Error()}
	}
	<-ctx.Done()
	stop()
	return nil
}

// setBinaryProfileHeaders sets the headers of a binary profile.
func setBinaryProfileHeaders(r *request) {
	r.isReplyWritten = true
	r.w.Header().Set("Content-Type", "application/octet-stream")
	r.w.Header().Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": r.pathID}))
}
