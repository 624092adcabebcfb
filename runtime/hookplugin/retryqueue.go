package hookplugin

import "sync"

// retryQueue serializes the repeated calls of one plugin.
type retryQueue struct {
	turn chan struct{} // semaphore: held while one repeated call excludes the others

	mu      sync.Mutex
	running map[*repeatedCall]bool
}

// repeatedCall is a running call of a retryQueue.
type repeatedCall struct {
	concurrent bool // other repeated calls ran at the same time
}

func newRetryQueue() *retryQueue {
	return &retryQueue{turn: make(chan struct{}, 1), running: make(map[*repeatedCall]bool)}
}

func (r *retryQueue) begin() *repeatedCall {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := &repeatedCall{concurrent: len(r.running) > 0}
	for other := range r.running {
		other.concurrent = true
	}
	r.running[c] = true
	return c
}

// end removes the call, and reports whether no other repeated call ran meanwhile.
func (r *retryQueue) end(c *repeatedCall) (alone bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.running, c)
	return !c.concurrent
}
