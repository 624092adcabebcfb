package allocrunner

import (
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/wait"
)

func TestReconcileRequestsCoalesce(t *testing.T) {
	s := newAllocState(allocVersion(1, api.AllocDesiredStatusRun))
	s.requestReconcile()
	s.requestReconcile()
	<-s.reconcileRequested
	select {
	case <-s.reconcileRequested:
		t.Error("two changes without a reconcile between them request two reconciles")
	default:
	}
}

func TestReconciledIsClosedByTheNextReconcile(t *testing.T) {
	s := newAllocState(allocVersion(1, api.AllocDesiredStatusRun))
	first, second := s.nextReconcileDone(), s.nextReconcileDone()
	wantEqual(t, "before", []bool{wait.IsClosed(first), wait.IsClosed(second)}, "[false false]")
	s.wakeReconcileWaiters()
	later := s.nextReconcileDone()
	wantEqual(t, "after", []bool{wait.IsClosed(first), wait.IsClosed(second), wait.IsClosed(later)}, "[true true false]")
	s.wakeReconcileWaiters()
	wantEqual(t, "after the next", wait.IsClosed(later), true)
}
