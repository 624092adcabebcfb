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

// FaultyStore is a store in memory. A test can make its transactions fail, and is notified on each commit.
type FaultyStore struct {
	*store.Store
	// InjectFault is called when each transaction ends. If it returns an error, the transaction fails. It may be nil.
	InjectFault func() error
	// OnCommit is called after each transaction with the new state. It must not call Update. It may be
	// nil.
	OnCommit func(*store.Snapshot)

	// commitOrderMu is held during a transaction and its OnCommit call, so that OnCommit sees each state, and sees it before
	// Snapshot's callers do.
	commitOrderMu sync.Mutex
}

// ErrFault is an error for InjectFault: the disk is full.
var ErrFault = errors.New("no space left on device")

// NewFaultyStoreWithNode returns a store with only a node. It is closed when the test ends.
func NewFaultyStoreWithNode(t testing.TB, node *api.Node) *FaultyStore {
	t.Helper()
	s, err := store.OpenMemory(store.Config{Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	m := &FaultyStore{Store: s}
	m.PutNodeCopy(t, node)
	return m
}

// PutNodeCopy replaces the stored node with a copy of n.
func (s *FaultyStore) PutNodeCopy(t testing.TB, n *api.Node) {
	t.Helper()
	copied := *n
	if _, err := s.Update(t.Context(), func(tx *store.Txn) error { tx.PutNodeWithStorageEvents(&copied); return nil }); err != nil {
		t.Fatal(err)
	}
}

// Snapshot implements scheduler.Store.
func (s *FaultyStore) Snapshot() *store.Snapshot {
	s.commitOrderMu.Lock()
	defer s.commitOrderMu.Unlock()
	return s.Store.Snapshot()
}

// Update implements scheduler.Store.
func (s *FaultyStore) Update(ctx context.Context, fn func(*store.Txn) error) (index uint64, err error) {
	s.commitOrderMu.Lock()
	defer s.commitOrderMu.Unlock()
	before := s.Index()
	index, err = s.Store.Update(ctx, func(tx *store.Txn) error {
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
