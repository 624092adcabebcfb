package allocrunner

import "testing"

func TestChangesCoalesce(t *testing.T) {
	c := newChanges()
	c.notify()
	c.notify()
	<-c.requested
	select {
	case <-c.requested:
		t.Error("two changes without a reconcile between them request two reconciles")
	default:
	}
}

func TestReconciledIsClosedByTheNextReconcile(t *testing.T) {
	c := newChanges()
	first, second := c.reconciled(), c.reconciled()
	want(t, "before", []bool{isClosed(first), isClosed(second)}, "[false false]")
	c.wakeWaiters()
	later := c.reconciled()
	want(t, "after", []bool{isClosed(first), isClosed(second), isClosed(later)}, "[true true false]")
	c.wakeWaiters()
	want(t, "after the next", isClosed(later), true)
}
