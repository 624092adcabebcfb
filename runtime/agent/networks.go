package agent

import (
	"context"

	"github.com/nomad-lite/nomad-lite/runtime/node/network"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// networkStore stores the networks of allocations in the state.
type networkStore struct{ store *store.Store }

var _ network.Store = networkStore{}

// Networks implements network.Store.
func (n networkStore) Networks() (list []state.AllocNetwork) {
	for _, name := range n.store.Snapshot().MetaKeys(state.NetworkPrefix) {
		if record := n.read(name); record != nil {
			list = append(list, *record)
		}
	}
	return list
}

// Network implements network.Store.
func (n networkStore) Network(allocID string) *state.AllocNetwork {
	return n.read(state.NetworkPrefix + allocID)
}

// read returns nil also for an unreadable record, which the store quarantines.
func (n networkStore) read(name string) *state.AllocNetwork {
	var record state.NetworkRecord
	if known, err := n.store.Snapshot().Meta(name, &record); err != nil || !known {
		return nil
	}
	return new(record.AllocNetwork())
}

// PutNetwork implements network.Store.
func (n networkStore) PutNetwork(record state.AllocNetwork) error {
	_, err := n.store.Update(context.Background(), func(tx *store.Txn) error {
		tx.PutMeta(state.NetworkPrefix+record.AllocID, state.NewNetworkRecord(record))
		return nil
	})
	return err
}

// DeleteNetwork implements network.Store.
func (n networkStore) DeleteNetwork(allocID string) error {
	_, err := n.store.Update(context.Background(), func(tx *store.Txn) error {
		tx.DeleteMeta(state.NetworkPrefix + allocID)
		return nil
	})
	return err
}

// HasAllocation implements network.Store.
func (n networkStore) HasAllocation(id string) bool {
	return n.store.Snapshot().Allocation(nil, id) != nil
}
