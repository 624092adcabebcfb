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

// Store is a store in memory. A test can make its changes fail, and is notified of each change.
type Store struct {
	*store.Store
	// InjectFault is called at the end of each transaction. If it returns an error, the transaction fails. Nil means that no
	// transaction fails.
	InjectFault func() error
	// OnCommit is called after each change with the new state. It must not call
	// Update. Nil means that it is not called.
	OnCommit func(*store.Snapshot)

	// mu is held during a change, so that each change has its own commit, and OnCommit receives a state before callers
	// of Snapshot do.
	mu sync.Mutex
}

// ErrFault is the error of a simulated failure of a transaction.
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

// SetNode replaces the stored node by a copy of n.
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
		if err := fn(tx); err != nil || s.InjectFault == nil {
			return err
		}
		return s.InjectFault()
	})
	if err == nil && index > before && s.OnCommit != nil {
		s.OnCommit(s.Store.Snapshot())
	}
	return index, err
}
