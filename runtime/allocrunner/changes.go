package allocrunner

import "sync"

// changes connects the goroutines that change the state of an allocation with the one
// that reconciles it, and with the goroutines that wait for a reconcile.
type changes struct {
	requested chan struct{} // holds one request to reconcile

	mu      sync.Mutex
	waiters []chan struct{} // closed and dropped by the next reconcile
}

func newChanges() *changes { return &changes{requested: make(chan struct{}, 1)} }

// notify requests a reconcile after a change of a task or of the allocation. Requests
// coalesce. It does not block.
func (c *changes) notify() {
	select {
	case c.requested <- struct{}{}:
	default: // a reconcile is requested already
	}
}

// reconciled returns a channel that is closed by the next reconcile.
func (c *changes) reconciled() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := make(chan struct{})
	c.waiters = append(c.waiters, w)
	return w
}

// wakeWaiters wakes the waiters at the end of a reconcile.
func (c *changes) wakeWaiters() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range c.waiters {
		close(w)
	}
	c.waiters = nil
}
