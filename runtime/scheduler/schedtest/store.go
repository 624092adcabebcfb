package schedtest

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// Store is a store in memory whose changes can fail, and are reported one by one.
type Store struct {
	*store.Store
	// Fault is called at the end of each transaction; an error makes it fail. Nil means
	// no faults.
	Fault func() error
	// Committed is called after each change with the new state. It must not call
	// Update. Nil means that it is not called.
	Committed func(*store.Snapshot)

	// mu is held during a change: no two changes share a commit, and Committed sees a
	// state before the callers of Snapshot do.
	mu sync.Mutex
}

// ErrFault is the error of a simulated fault.
var ErrFault = errors.New("no space left on device")

// NewStore returns a store that contains only a node. It is closed when the test ends.
func NewStore(t testing.TB, node *api.Node) *Store {
	t.Helper()
	s, err := store.OpenMemory(store.Config{Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	m := &Store{Store: s}
	m.SetNode(t, node)
	return m
}

// SetNode replaces the node by a copy of n.
func (s *Store) SetNode(t testing.TB, n *api.Node) {
	t.Helper()
	copied := *n
	if _, err := s.Update(t.Context(), func(tx *store.Txn) error { tx.PutNode(&copied); return nil }); err != nil {
		t.Fatal(err)
	}
}

// Snapshot implements scheduler.Store.
func (s *Store) Snapshot() *store.Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Store.Snapshot()
}

// Update implements scheduler.Store.
func (s *Store) Update(ctx context.Context, fn func(*store.Txn) error) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.Index()
	index, err := s.Store.Update(ctx, func(tx *store.Txn) error {
		if err := fn(tx); err != nil || s.Fault == nil {
			return err
		}
		return s.Fault()
	})
	if err == nil && index > before && s.Committed != nil {
		s.Committed(s.Store.Snapshot())
	}
	return index, err
}
