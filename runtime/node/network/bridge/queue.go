package bridge

import "sync"

// callQueue executes a method's concurrent calls together, because changing the network of many allocations takes the kernel little
// longer than changing one.
type callQueue[Call any] struct {
	executorMu sync.Mutex // held by the goroutine that executes calls; locked before mu

	mu      sync.Mutex
	waiting []*queuedCall[Call]
}

// queuedCall is a call in a callQueue.
type queuedCall[Call any] struct {
	call   *Call
	isDone bool // guarded by executorMu
}

// execute blocks until c was executed, together with calls that wait: this goroutine or another one has called executeAll with at
// most maxTogether calls, the oldest first. executeAll sets the calls' results.
func (q *callQueue[Call]) execute(c *Call, maxTogether int, executeAll func([]*Call)) {
	queued := &queuedCall[Call]{call: c}
	q.enqueue(queued)
	q.executorMu.Lock()
	defer q.executorMu.Unlock()
	for !queued.isDone {
		var calls []*Call
		for _, other := range q.takeWaiting(maxTogether) {
			calls, other.isDone = append(calls, other.call), true
		}
		executeAll(calls)
	}
}

func (q *callQueue[Call]) enqueue(c *queuedCall[Call]) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = append(q.waiting, c)
}

func (q *callQueue[Call]) takeWaiting(count int) []*queuedCall[Call] {
	q.mu.Lock()
	defer q.mu.Unlock()
	calls := q.waiting[:min(count, len(q.waiting))]
	if q.waiting = q.waiting[len(calls):]; len(q.waiting) == 0 {
		q.waiting = nil
	}
	return calls
}
