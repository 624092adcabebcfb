package allocrunner

import "sync"

// reconcileSignal connects the goroutines that change the state of an allocation with the goroutine that
// reconciles it, and with goroutines that wait until a change is reconciled.
type reconcileSignal struct {
	reconcileRequested chan struct{} // contains a value while a reconcile is requested; capacity 1

	mu                   sync.Mutex
	nextReconcileWaiters []chan struct{} // the next reconcile closes and removes these channels
}

func newReconcileSignal() *reconcileSignal {
	return &reconcileSignal{reconcileRequested: make(chan struct{}, 1)}
}

// requestReconcile requests a reconcile after a change of a task or of the allocation. Several requests may lead to one
// reconcile. It does not block.
func (c *reconcileSignal) requestReconcile() {
	select {
	case c.reconcileRequested <- struct{}{}:
	default: // a reconcile is requested already
	}
}

// nextReconcile returns a channel that is closed at the end of the next reconcile.
func (c *reconcileSignal) nextReconcile() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := make(chan struct{})
	c.nextReconcileWaiters = append(c.nextReconcileWaiters, w)
	return w
}

// wakeWaiters closes the channels that nextReconcile has returned.
func (c *reconcileSignal) wakeWaiters() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range c.nextReconcileWaiters {
		close(w)
	}
	c.nextReconcileWaiters = nil
}
