package pluginhooks

import "sync"

// retryQueue serializes one plugin's repeated calls.
type retryQueue struct {
	semaphore chan struct{} // contains a value while one repeated call excludes the others; capacity 1

	mu            sync.Mutex
	repeatedCalls map[*repeatedCall]bool
}

// repeatedCall is a running call in a retryQueue.
type repeatedCall struct {
	ranConcurrently bool // other repeated calls ran at the same time
}

func newRetryQueue() *retryQueue {
	return &retryQueue{semaphore: make(chan struct{}, 1), repeatedCalls: make(map[*repeatedCall]bool)}
}

func (r *retryQueue) addRepeatedCall() *repeatedCall {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := &repeatedCall{ranConcurrently: len(r.repeatedCalls) > 0}
	for other := range r.repeatedCalls {
		other.ranConcurrently = true
	}
	r.repeatedCalls[c] = true
	return c
}

// removeRepeatedCall removes the call, and reports whether no other repeated call ran at the same
// time.
func (r *retryQueue) removeRepeatedCall(c *repeatedCall) (ranAlone bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.repeatedCalls, c)
	return !c.ranConcurrently
}
