package pluginhooks

import "sync"

// retryQueue serializes the repeated calls of one plugin.
type retryQueue struct {
	sem chan struct{} // semaphore: held while one repeated call excludes the others

	mu           sync.Mutex
	runningCalls map[*repeatedCall]bool
}

// repeatedCall is a running call of a retryQueue.
type repeatedCall struct {
	concurrent bool // other repeated calls ran at the same time
}

func newRetryQueue() *retryQueue {
	return &retryQueue{sem: make(chan struct{}, 1), runningCalls: make(map[*repeatedCall]bool)}
}

func (r *retryQueue) startCall() *repeatedCall {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := &repeatedCall{concurrent: len(r.runningCalls) > 0}
	for other := range r.runningCalls {
		other.concurrent = true
	}
	r.runningCalls[c] = true
	return c
}

// endCall removes the call, and reports whether no other repeated call ran at the same
// time.
func (r *retryQueue) endCall(c *repeatedCall) (alone bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.runningCalls, c)
	return !c.concurrent
}
