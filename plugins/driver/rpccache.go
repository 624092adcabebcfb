package driver

import (
	"context"
	"errors"
	"sync"

	"github.com/nomad-lite/nomad-lite/plugins/base"
)

// rpcCache fetches a value that is constant while the plugin process lives. Concurrent
// callers share one request, and all callers get the same result. Errors are not
// cached.
type rpcCache[T any] struct {
	mu      sync.Mutex
	request *inflightRequest[T] // the request in flight or the successful one; nil if there is none
}

// inflightRequest is one request, made by one caller for all callers that arrive before it
// ends.
type inflightRequest[T any] struct {
	done      chan struct{} // closed by the requester, after the other fields are set
	response  *T
	err       error
	cancelled bool // the request failed because the requester's context ended: the waiters retry
}

// get returns the value, and makes the request if there is none. Callers that wait for
// a failed request get its error, and the next caller makes a new request.
func (t *rpcCache[T]) get(ctx context.Context, conn *base.Conn, ask func() (*T, error)) (*T, error) {
	for {
		select {
		case <-conn.Done():
			return nil, ErrPluginDown
		default:
		}
		q, leader := t.findOrStartRequest()
		if leader {
			q.response, q.err = ask()
			// The plugin can see the end of the deadline before this process does.
			t.finishRequest(q, ctx.Err() != nil || errors.Is(q.err, context.DeadlineExceeded))
			return q.response, q.err
		}
		select {
		case <-q.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if q.err == nil || !q.cancelled {
			return q.response, q.err
		}
	}
}

// findOrStartRequest returns the request to wait for; leader means that the caller must make it.
func (t *rpcCache[T]) findOrStartRequest() (q *inflightRequest[T], leader bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.request == nil {
		t.request, leader = &inflightRequest[T]{done: make(chan struct{})}, true
	}
	return t.request, leader
}

func (t *rpcCache[T]) finishRequest(q *inflightRequest[T], givenUp bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if q.err != nil {
		q.cancelled, t.request = givenUp, nil
	}
	close(q.done)
}
