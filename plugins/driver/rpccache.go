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
	mu       sync.Mutex
	question *inflightRequest[T] // the request in flight or the successful one; nil if there is none
}

// inflightRequest is one request, made by one caller for all callers that arrive before it
// ends.
type inflightRequest[T any] struct {
	over    chan struct{} // closed by the requester, after the other fields are set
	answer  *T
	err     error
	givenUp bool // the request failed because the requester's context ended: the waiters retry
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
		q, leader := t.next()
		if leader {
			q.answer, q.err = ask()
			// The plugin can see the end of the deadline before this process does.
			t.end(q, ctx.Err() != nil || errors.Is(q.err, context.DeadlineExceeded))
			return q.answer, q.err
		}
		select {
		case <-q.over:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if q.err == nil || !q.givenUp {
			return q.answer, q.err
		}
	}
}

// next returns the request to wait for; leader means that the caller must make it.
func (t *rpcCache[T]) next() (q *inflightRequest[T], leader bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.question == nil {
		t.question, leader = &inflightRequest[T]{over: make(chan struct{})}, true
	}
	return t.question, leader
}

func (t *rpcCache[T]) end(q *inflightRequest[T], givenUp bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if q.err != nil {
		q.givenUp, t.question = givenUp, nil
	}
	close(q.over)
}
