package clustertest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Call is a call of a node. Its maps must not be changed.
type Call struct {
	Server  *Server
	Method  string
	Request map[string]any
	// Response is what was sent, with the changes of a fault; nil for an error.
	Response map[string]any
	Error    string // of the answer, or that the connection was closed before its end
	// RequestBytes and ResponseBytes are the sizes of the bodies, without headers.
	RequestBytes, ResponseBytes int
	Started, Ended              time.Time // Ended is zero until the answer was sent or the call was cut
}

// Done reports whether the call was answered or cut.
func (c *Call) Done() bool { return !c.Ended.IsZero() }

// callLog has all calls in the order of their arrival.
type callLog struct {
	mu      sync.Mutex
	calls   []*Call
	changed chan struct{} // closed and replaced at each change
}

// add adds a call.
func (l *callLog) add(call *Call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls = append(l.calls, call)
	l.changedLocked()
}

// finish changes a call of the log.
func (l *callLog) finish(change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
	l.changedLocked()
}

func (l *callLog) changedLocked() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// wait waits until match returns true for the calls. match must not call methods of the log.
func (l *callLog) wait(ctx context.Context, subject string, match func([]*Call) bool) error {
	for {
		l.mu.Lock()
		matched, changed := match(l.calls), l.changed
		l.mu.Unlock()
		if matched {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", subject, context.Cause(ctx))
		}
	}
}

// Calls returns the calls that the servers have received, in the order of their arrival. With methods, only calls of these
// methods. Calls that are not answered are included.
func (c *Cluster) Calls(methods ...string) []Call {
	c.calls.mu.Lock()
	defer c.calls.mu.Unlock()
	var calls []Call
	for _, call := range c.calls.calls {
		if len(methods) == 0 || slices.Contains(methods, call.Method) {
			calls = append(calls, *call)
		}
	}
	return calls
}

// WaitCall waits for a call for which match returns true, and returns the first, which can have arrived before. match is
// called again for a call when the call is answered; it must not call methods of the cluster. The error is that of ctx.
func (c *Cluster) WaitCall(ctx context.Context, match func(Call) bool) (found Call, err error) {
	err = c.calls.wait(ctx, "a call", func(calls []*Call) bool {
		i := slices.IndexFunc(calls, func(call *Call) bool { return match(*call) })
		if i >= 0 {
			found = *calls[i]
		}
		return i >= 0
	})
	return found, err
}

// WaitCalls waits until n calls of a method were answered without an error. The error is that of ctx.
func (c *Cluster) WaitCalls(ctx context.Context, method string, n int) error {
	return c.waitCalls(ctx, method, n, func(call *Call) bool { return call.Done() && call.Error == "" })
}

// WaitReceived waits until the servers have received n calls of a method, answered or not. The error is that of ctx.
func (c *Cluster) WaitReceived(ctx context.Context, method string, n int) error {
	return c.waitCalls(ctx, method, n, func(*Call) bool { return true })
}

func (c *Cluster) waitCalls(ctx context.Context, method string, n int, counts func(*Call) bool) error {
	return c.calls.wait(ctx, fmt.Sprintf("%d calls of %s", n, method), func(calls []*Call) bool {
		counted := 0
		for _, call := range calls {
			if call.Method == method && counts(call) {
				counted++
			}
		}
		return counted >= n
	})
}
