package store

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nomad-lite/nomad-lite/internal/wait"
)

// updateRequest is one call of Update, or of another method with a function for the writer goroutine to call.
type updateRequest struct {
	updateFn      func(*Txn) error
	betweenTxnsFn func() error // function that the writer calls between two transactions, instead of updateFn
	writeDeadline time.Time    // the writer must start the write at this time, and may start it earlier
	taskKey       string       // key of the task for which the request puts records; empty for other requests
	recordCount   int          // 1 for a put of the task's state, 2 for one of all its records
	replacedBy    *updateRequest
	requestState  atomic.Int32
	index         uint64
	err           error
	panicValue    any
	onCommit      []func()
	done          chan struct{} // done is closed by the writer
}

// markReplacedPuts sets replacedBy for each request if a later request puts its records too. Both then get the later request's
// result. A batch is stored completely or not at all, so no reader and no later agent could see the earlier request's records.
func markReplacedPuts(requests []*updateRequest) {
	lastByTask := make(map[string]*updateRequest)
	for _, r := range slices.Backward(requests) {
		if r.taskKey == "" {
			continue
		}
		last := lastByTask[r.taskKey]
		if last != nil && last.recordCount >= r.recordCount {
			r.replacedBy = last
		} else {
			lastByTask[r.taskKey] = r
		}
	}
}

// Values for updateRequest.requestState.
const (
	requestStateQueued = iota
	requestStateTaken
	requestStateWithdrawn
)

// maxBatchRequests is the maximum number of requests written to the file together.
const maxBatchRequests = 1024

// requestQueue holds the requests not yet started by the writer.
type requestQueue struct {
	writerWake chan struct{} // buffered; has a value when the writer must look at requests and closed again

	mu         sync.Mutex
	requests   []*updateRequest
	nextTxnFns []func(*Txn) error // Store.UpdateInNextTransaction functions that are not stored yet
	closed     bool
}

// push adds a request to the queue's end and wakes the writer. After closeIfOpen it returns ErrClosed.
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

// addNextTxnFn adds a function for the writer to call in the next transaction.
func (q *requestQueue) addNextTxnFn(fn func(*Txn) error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.nextTxnFns = append(q.nextTxnFns, fn)
}

// listNextTxnFns returns the functions for the writer to call in the next transaction.
func (q *requestQueue) listNextTxnFns() []func(*Txn) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.nextTxnFns[:len(q.nextTxnFns):len(q.nextTxnFns)]
}

// removeNextTxnFns removes the first n functions, after a transaction with their changes was stored.
func (q *requestQueue) removeNextTxnFns(n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.nextTxnFns = slices.Delete(slices.Clone(q.nextTxnFns), 0, n)
}

// closeIfOpen makes push reject further requests. It returns false if the queue was closed before.
func (q *requestQueue) closeIfOpen() bool {
	q.mu.Lock()
	was := q.closed
	q.closed = true
	q.mu.Unlock()
	q.wakeWriter()
	return !was
}

func (q *requestQueue) wakeWriter() {
	wait.Notify(q.writerWake)
}

// takeDueRequests removes and returns up to maxBatchRequests requests if one of them must be written now, or if the queue is
// closed. Otherwise it returns no requests, and untilDue is the time until one must be written, or 0 if the queue is
// empty.
func (q *requestQueue) takeDueRequests() (requests []*updateRequest, untilDue time.Duration, closed bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.requests) > 0 && !q.closed {
		first := slices.MinFunc(q.requests, func(a, b *updateRequest) int { return a.writeDeadline.Compare(b.writeDeadline) })
		if untilDue = time.Until(first.writeDeadline); untilDue > 0 {
			return nil, untilDue, false
		}
	}
	n := min(len(q.requests), maxBatchRequests)
	requests = q.requests[:n:n]
	if q.requests = q.requests[n:]; len(q.requests) == 0 {
		q.requests = nil
	}
	return requests, 0, q.closed
}
