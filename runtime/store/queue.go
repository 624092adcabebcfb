package store

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// updateRequest is one request to the writer, usually a call of Update.
type updateRequest struct {
	fn          func(*Txn) error
	exclusiveFn func() error // function that the writer calls between two transactions, instead of fn
	deadline    time.Time    // latest time of the write; the request may be part of an earlier transaction
	state       atomic.Int32
	index       uint64
	err         error
	panicValue  any
	onCommit    []func()
	done        chan struct{} // done is closed by the writer
}

// The states of a request.
const (
	requestStateQueued = iota
	requestStateTaken
	requestStateWithdrawn
)

// maxBatchRequests is the maximum number of requests in one transaction.
const maxBatchRequests = 1024

// requestQueue holds the requests that the writer has not started.
type requestQueue struct {
	wake chan struct{} // receives a value when the fields below have changed; the writer receives it

	mu       sync.Mutex
	requests []*updateRequest
	withNext []func(*Txn) error // see Store.UpdateWithNext
	closed   bool
}

// push adds a request after all others. After close it returns ErrClosed.
func (q *requestQueue) push(r *updateRequest) (*updateRequest, error) {
	r.done = make(chan struct{})
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return nil, ErrClosed
	}
	q.requests = append(q.requests, r)
	q.mu.Unlock()
	q.wakeWriter()
	return r, nil
}

// addWithNext adds a function for the next transaction that is stored.
func (q *requestQueue) addWithNext(fn func(*Txn) error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.withNext = append(q.withNext, fn)
}

// listWithNext returns the functions for the next transaction that is stored.
func (q *requestQueue) listWithNext() []func(*Txn) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.withNext[:len(q.withNext):len(q.withNext)]
}

// removeWithNext removes the first n functions for the next transaction that is stored.
func (q *requestQueue) removeWithNext(n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.withNext = slices.Delete(slices.Clone(q.withNext), 0, n)
}

// close rejects further requests, and reports false if the queue is closed already.
func (q *requestQueue) close() bool {
	q.mu.Lock()
	was := q.closed
	q.closed = true
	q.mu.Unlock()
	q.wakeWriter()
	return !was
}

func (q *requestQueue) wakeWriter() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// takeDueRequests removes and returns the requests that must be written now. If no request is due, it returns none,
// and delay is the time until the first request is due.
func (q *requestQueue) takeDueRequests() (requests []*updateRequest, delay time.Duration, closed bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.requests) > 0 && !q.closed {
		first := slices.MinFunc(q.requests, func(a, b *updateRequest) int { return a.deadline.Compare(b.deadline) })
		if delay = time.Until(first.deadline); delay > 0 {
			return nil, delay, false
		}
	}
	n := min(len(q.requests), maxBatchRequests)
	requests = q.requests[:n:n]
	if q.requests = q.requests[n:]; len(q.requests) == 0 {
		q.requests = nil
	}
	return requests, 0, q.closed
}
