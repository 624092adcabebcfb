package users

import (
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/internal/idrange"
)

func newTestPool(first, last uint32) *UIDPool {
	p := NewPool(idrange.Range{First: first, Last: last})
	p.hasAccount = func(uint32) bool { return false }
	return p
}

func acquire(t *testing.T, p *UIDPool, task string, previous uint32) uint32 {
	t.Helper()
	id, err := p.Acquire(Task{"alloc", task}, previous)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestNoTwoTasksHaveOneID(t *testing.T) {
	p := newTestPool(10, 13)
	owners := map[uint32]string{}
	for _, task := range []string{"a", "b", "c", "d"} {
		id := acquire(t, p, task, 0)
		if other := owners[id]; other != "" || id < 10 || id > 13 {
			t.Errorf("task %s has id %d, as task %q", task, id, other)
		}
		owners[id] = task
		if again := acquire(t, p, task, 12345); again != id {
			t.Errorf("task %s had id %d, has %d", task, id, again)
		}
	}
	if id, err := p.Acquire(Task{"alloc", "e"}, 0); err == nil || !strings.Contains(err.Error(), "all user ids 10-13") {
		t.Errorf("a fifth of four ids: %d, %v", id, err)
	}
	p.Release(Task{"alloc", "b"})
	p.Release(Task{"alloc", "b"})
	if id := acquire(t, p, "e", 0); owners[id] != "b" {
		t.Errorf("task e has id %d of task %s", id, owners[id])
	}
	if id, err := p.Acquire(Task{"other alloc", "a"}, 0); err == nil {
		t.Errorf("a task of the same name in another allocation has id %d", id)
	}
}

// A released id is assigned again only after all others.
func TestReleasedIDIsAssignedLast(t *testing.T) {
	p := newTestPool(100, 149)
	first := acquire(t, p, "first", 0)
	p.Release(Task{"alloc", "first"})
	for i := range 49 {
		if id := acquire(t, p, strings.Repeat("x", i+1), 0); id == first {
			t.Fatalf("id %d is assigned again after %d others", id, i)
		}
	}
	if id := acquire(t, p, "last", 0); id != first {
		t.Errorf("the last id is %d, want %d", id, first)
	}
}

// A task that starts again has its earlier id, unless another task has it. The id may be outside a
// range that the operator has changed.
func TestPreviousID(t *testing.T) {
	p := newTestPool(10, 19)
	if id := acquire(t, p, "a", 77); id != 77 {
		t.Errorf("id %d, want 77", id)
	}
	if id := acquire(t, p, "b", 77); id == 77 {
		t.Error("two tasks with one id")
	}
	p.RestoreUnlessTaken(Task{"alloc", "c"}, 78)
	p.RestoreUnlessTaken(Task{"alloc", "d"}, 78)
	if c, d := acquire(t, p, "c", 0), acquire(t, p, "d", 78); c != 78 || d == 78 {
		t.Errorf("ids %d and %d, want 78 and another", c, d)
	}
}

func TestIDWithAccountIsNotAssigned(t *testing.T) {
	p := newTestPool(10, 11)
	p.hasAccount = func(id uint32) bool { return id == 10 }
	if id := acquire(t, p, "a", 0); id != 11 {
		t.Errorf("id %d, want 11", id)
	}
	if !hasAccount(0) {
		t.Error("root has no account")
	}
}
