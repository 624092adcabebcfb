package bridge

import "sync"

// callQueue has a method's waiting calls. The call that locks executorMu executes all of them, because changing the network of
// many allocations takes the kernel little longer than changing one.
type callQueue[Call any] struct {
	executorMu sync.Mutex // held by the call that executes; locked before mu

	mu      sync.Mutex
	waiting []*Call
}

func (q *callQueue[Call]) enqueue(c *Call) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = append(q.waiting, c)
}

// takeWaiting removes up to count calls from the queue, the oldest first, and returns them.
func (q *callQueue[Call]) takeWaiting(count int) []*Call {
	q.mu.Lock()
	defer q.mu.Unlock()
	calls := q.waiting[:min(count, len(q.waiting))]
	if q.waiting = q.waiting[len(calls):]; len(q.waiting) == 0 {
		q.waiting = nil
	}
	return calls
}
