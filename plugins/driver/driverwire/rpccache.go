package driverwire

import (
	"context"
	"errors"
	"sync"

	"github.com/nomad-lite/nomad-lite/plugins/base/basewire"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// rpcCache fetches a value that is constant while the plugin process lives. Concurrent
// callers share one request, and all callers get the same result. Errors are not
// cached.
type rpcCache[T any] struct {
	mu                         sync.Mutex
	inflightOrSucceededRequest *inflightRequest[T] // the request in flight or the successful one; nil if there is none
}

// inflightRequest is one request, which is made by its first caller and shared by all
// callers that arrive before its end.
type inflightRequest[T any] struct {
	done     chan struct{} // closed when the other fields are set
	response *T
	err      error
	// callerCancelled means that the request failed because the context of its first caller ended; the
	// waiting callers retry.
	callerCancelled bool
}

// get returns the cached value, or requests it. Callers that wait for a failed request get
// its error, and the next caller makes a new request.
func (r *rpcCache[T]) get(ctx context.Context, conn *basewire.Conn, fetch func() (*T, error)) (*T, error) {
	for {
		select {
		case <-conn.Done():
			return nil, driver.ErrPluginDown
		default:
		}
		q, leader := r.findOrAddRequest()
		if leader {
			q.response, q.err = fetch()
			// The plugin can return DeadlineExceeded before ctx has ended in this process.
			r.finishRequest(q, ctx.Err() != nil || errors.Is(q.err, context.DeadlineExceeded))
			return q.response, q.err
		}
		select {
		case <-q.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if q.err == nil || !q.callerCancelled {
			return q.response, q.err
		}
	}
}

// findOrAddRequest returns the request in flight or the successful one. If there is none,
// it returns a new request, which the caller must make because leader is true.
func (r *rpcCache[T]) findOrAddRequest() (q *inflightRequest[T], leader bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.inflightOrSucceededRequest == nil {
		r.inflightOrSucceededRequest, leader = &inflightRequest[T]{done: make(chan struct{})}, true
	}
	return r.inflightOrSucceededRequest, leader
}

func (r *rpcCache[T]) finishRequest(q *inflightRequest[T], callerCancelled bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if q.err != nil {
		q.callerCancelled, r.inflightOrSucceededRequest = callerCancelled, nil
	}
	close(q.done)
}

// getIfCached returns the cached value, or nil.
func (r *rpcCache[T]) getIfCached() *T {
	r.mu.Lock()
	defer r.mu.Unlock()
	if q := r.inflightOrSucceededRequest; q != nil {
		select {
		case <-q.done:
			return q.response
		default:
		}
	}
	return nil
}
