package allocrunner

import "sync"

// changes connects the goroutines that change the state of an allocation with the goroutine that
// reconciles it, and with goroutines that wait until a change is reconciled.
type changes struct {
	requested chan struct{} // buffered: contains a value if a reconcile is requested

	mu      sync.Mutex
	waiters []chan struct{} // the next reconcile closes and removes these channels
}

func newChanges() *changes { return &changes{requested: make(chan struct{}, 1)} }

// notify requests a reconcile after a change of a task or of the allocation. Several requests may cause
// one reconcile. It does not block.
func (c *changes) notify() {
	select {
	case c.requested <- struct{}{}:
	default: // a reconcile is requested already
	}
}

// reconciled returns a channel that is closed at the end of the next reconcile.
func (c *changes) reconciled() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := make(chan struct{})
	c.waiters = append(c.waiters, w)
	return w
}

// wakeWaiters closes the channels that reconciled has returned.
func (c *changes) wakeWaiters() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range c.waiters {
		close(w)
	}
	c.waiters = nil
}
