package clustertest

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"
)

// Call is a call of a node.
type Call struct {
	Server  *Server
	Method  string
	Request map[string]any
	// Response is what was sent, with the changes of a fault; nil for an error.
	Response map[string]any
	Error    string
	// RequestBytes and ResponseBytes are the sizes of the bodies, without headers.
	RequestBytes, ResponseBytes int
	Started, Ended              time.Time // Ended is zero until the answer was sent or the call was cut
	session                     *session
}

// Done reports whether the call was answered or cut.
func (c *Call) Done() bool { return !c.Ended.IsZero() }

// callLog has all calls in the order of their arrival.
type callLog struct {
	mu    sync.Mutex
	calls []*Call
}

func (l *callLog) add(call *Call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls = append(l.calls, call)
}

// finish changes a call of the log.
func (l *callLog) finish(call *Call, change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
}

func (l *callLog) list(methods []string) []Call {
	l.mu.Lock()
	defer l.mu.Unlock()
	var calls []Call
	for _, call := range l.calls {
		if len(methods) == 0 || slices.Contains(methods, call.Method) {
			entry := *call
			entry.Request, entry.Response = maps.Clone(call.Request), maps.Clone(call.Response)
			calls = append(calls, entry)
		}
	}
	return calls
}

// Calls returns the calls that the servers have received, in the order of their arrival. With methods, only calls of these
// methods. Calls that are not answered are included.
func (c *Cluster) Calls(methods ...string) []Call { return c.calls.list(methods) }

// WaitCall waits for a call for which match returns true, and returns the first, which can have arrived before. match is
// called again for a call when the call is answered.
func (c *Cluster) WaitCall(ctx context.Context, match func(Call) bool) (found Call, err error) {
	err = c.wait(ctx, "a call", func() bool {
		for _, call := range c.calls.list(nil) {
			if match(call) {
				found = call
				return true
			}
		}
		return false
	})
	return found, err
}

// WaitCalls waits until n calls of a method were answered without an error.
func (c *Cluster) WaitCalls(ctx context.Context, method string, n int) error {
	return c.wait(ctx, "calls of "+method, func() bool {
		answered := 0
		for _, call := range c.calls.list([]string{method}) {
			if call.Done() && call.Error == "" {
				answered++
			}
		}
		return answered >= n
	})
}
