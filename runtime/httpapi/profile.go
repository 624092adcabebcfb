package httpapi

import (
	"context"
	"io"
	"net/http"
	"os"
	"runtime"
	"runtime/pprof"
	"runtime/trace"
	"strconv"
	"strings"
	"time"
)

// agentProfile is for those who look for a fault in the agent itself. net/http/pprof
// could do it, too, but brings 0.2 MB to subtract one profile from another.
func (a *API) agentProfile(r *request) (any, error) {
	if !a.config.Debug {
		return nil, errDenied
	}
	if err := r.thisNode(a); err != nil {
		return nil, err
	}
	answer := func() io.Writer {
		r.w.Header().Set("Content-Type", "application/octet-stream")
		return r.w
	}
	switch r.id {
	case "cmdline":
		r.answered = true
		_, err := io.WriteString(answer(), strings.Join(os.Args, "\x00"))
		return nil, err
	case "profile":
		return nil, r.during(30*time.Second, func() error { return pprof.StartCPUProfile(answer()) }, pprof.StopCPUProfile)
	case "trace":
		return nil, r.during(time.Second, func() error { return trace.Start(answer()) }, trace.Stop)
	}
	profile := pprof.Lookup(r.id)
	if profile == nil {
		return nil, &statusError{http.StatusNotFound, "Unknown profile " + r.id}
	}
	debug, err := r.number("debug", 0)
	if err != nil {
		return nil, err
	}
	gc, err := r.number("gc", 0)
	if err != nil {
		return nil, err
	}
	if gc > 0 {
		runtime.GC()
	}
	r.answered = true
	return nil, profile.WriteTo(answer(), debug)
}

// during lets something write an answer for as long as the client has asked for, or
// stays.
func (r *request) during(usual time.Duration, start func() error, stop func()) error {
	seconds, err := r.number("seconds", int(usual/time.Second))
	if err != nil {
		return err
	}
	if err := start(); err != nil {
		return err // one at a time
	}
	defer stop()
	r.answered = true
	ctx, cancel := context.WithTimeout(r.Context(), time.Duration(seconds)*time.Second)
	defer cancel()
	<-ctx.Done()
	return nil
}

// number is a parameter that is a whole number.
func (r *request) number(name string, usual int) (int, error) {
	text := r.query.Get(name)
	if text == "" {
		return usual, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, unparsed(name, text, "a number", err)
	}
	return n, nil
}
