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
func (r *reconcileSignal) requestReconcile() {
	select {
	case r.reconcileRequested <- struct{}{}:
	default: // a reconcile is requested already
	}
}

// nextReconcile returns a channel that is closed at the end of the next reconcile.
func (r *reconcileSignal) nextReconcile() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := make(chan struct{})
	r.nextReconcileWaiters = append(r.nextReconcileWaiters, w)
	return w
}

// wakeWaiters closes the channels that nextReconcile has returned.
func (r *reconcileSignal) wakeWaiters() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range r.nextReconcileWaiters {
		close(w)
	}
	r.nextReconcileWaiters = nil
}
