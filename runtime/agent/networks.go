package agent

import (
	"context"

	"github.com/nomad-lite/nomad-lite/runtime/core/noderunner"
	"github.com/nomad-lite/nomad-lite/runtime/node/network"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// allocNetworkStore stores allocation networks in the state.
type allocNetworkStore struct{ store *store.Store }

var _ network.NetworkRecordStore = allocNetworkStore{}

// Networks implements network.NetworkRecordStore.
func (n allocNetworkStore) Networks() (list []state.AllocNetwork) {
	for _, name := range n.store.Snapshot().AgentRecordNames(state.NetworkPrefix) {
		if record := n.readNetwork(name); record != nil {
			list = append(list, *record)
		}
	}
	return list
}

// Network implements network.NetworkRecordStore.
func (n allocNetworkStore) Network(allocID string) *state.AllocNetwork {
	return n.readNetwork(state.NetworkPrefix + allocID)
}

// readNetwork returns the network stored under key. It returns nil if there is none, or if the record is unreadable; then the
// store quarantines it.
func (n allocNetworkStore) readNetwork(key string) *state.AllocNetwork {
	var record state.NetworkRecord
	if known, err := n.store.Snapshot().ReadAgentRecord(key, &record); err != nil || !known {
		return nil
	}
	return new(record.AllocNetwork())
}

// PutNetwork implements network.NetworkRecordStore.
func (n allocNetworkStore) PutNetwork(record state.AllocNetwork) error {
	_, err := n.store.Update(context.Background(), func(tx *store.Txn) error {
		tx.PutAgentRecord(state.NetworkPrefix+record.AllocID, state.NewNetworkRecord(record))
		return nil
	})
	return err
}

// DeleteNetwork implements network.NetworkRecordStore.
func (n allocNetworkStore) DeleteNetwork(allocID string) error {
	_, err := n.store.Update(context.Background(), func(tx *store.Txn) error {
		tx.DeleteAgentRecord(state.NetworkPrefix + allocID)
		return nil
	})
	return err
}

// HasAllocation implements network.NetworkRecordStore.
func (n allocNetworkStore) HasAllocation(id string) bool {
	return n.store.Snapshot().HasAllocationOrItsTasks(id)
}

// networkReplacer returns a function that passes a reconnected network to its allocation's tasks.
func networkReplacer(allocs *noderunner.Runner) network.ReplaceNetworkFunc {
	return func(network *state.AllocNetwork, reason string) {
		if runner := allocs.AllocRunner(network.AllocID); runner != nil {
			runner.ReplaceNetwork(network, reason)
		}
	}
}
