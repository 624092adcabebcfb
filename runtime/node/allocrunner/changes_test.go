package allocrunner

import (
	"testing"

	"github.com/nomad-lite/nomad-lite/internal/wait"
)

func TestReconcileRequestsCoalesce(t *testing.T) {
	c := newReconcileSignal()
	c.requestReconcile()
	c.requestReconcile()
	<-c.reconcileRequested
	select {
	case <-c.reconcileRequested:
		t.Error("two changes without a reconcile between them request two reconciles")
	default:
	}
}

func TestReconciledIsClosedByTheNextReconcile(t *testing.T) {
	c := newReconcileSignal()
	first, second := c.nextReconcile(), c.nextReconcile()
	wantEqual(t, "before", []bool{wait.IsClosed(first), wait.IsClosed(second)}, "[false false]")
	c.wakeWaiters()
	later := c.nextReconcile()
	wantEqual(t, "after", []bool{wait.IsClosed(first), wait.IsClosed(second), wait.IsClosed(later)}, "[true true false]")
	c.wakeWaiters()
	wantEqual(t, "after the next", wait.IsClosed(later), true)
}
