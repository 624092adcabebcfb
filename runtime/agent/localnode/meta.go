package localnode

import (
	"context"
	"fmt"
	"maps"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// loadDynamicMeta loads the metadata set through the API under an earlier agent. A nil value hides the key's configured value.
func (n *Node) loadDynamicMeta() {
	meta := make(map[string]*string)
	if _, err := n.config.Store.Snapshot().ReadAgentRecord(state.NodeMetaName, &meta); err != nil {
		n.config.Logger.Warn("metadata of the node that was set through the API is lost", "error", err)
	}
	n.dynamicMeta = meta
}

// Meta returns the metadata from the configuration (Static), the metadata set through the API (Dynamic), and both merged.
func (n *Node) Meta() api.NodeMetaResponse {
	n.mu.Lock()
	defer n.mu.Unlock()
	static := n.settings.Meta
	if static == nil {
		static = map[string]string{}
	}
	return api.NodeMetaResponse{
		Meta:    mergeMeta(static, n.dynamicMeta),
		Dynamic: maps.Clone(n.dynamicMeta),
		Static:  maps.Clone(static),
	}
}

// SetMeta changes the node's dynamic metadata and stores it for later agents. A nil value removes the key; if the configuration
// has the key, the nil value hides the configured value.
func (n *Node) SetMeta(ctx context.Context, changes map[string]*string) error {
	n.metaUpdateMu.Lock()
	defer n.metaUpdateMu.Unlock()
	now := n.Meta()
	for key, value := range changes {
		if _, configured := now.Static[key]; value == nil && !configured {
			delete(now.Dynamic, key)
		} else {
			now.Dynamic[key] = value
		}
	}
	_, err := n.config.Store.Update(ctx, func(tx *store.Txn) error {
		tx.PutAgentRecord(state.NodeMetaName, now.Dynamic)
		if old := tx.Node(nil, n.config.ID); old != nil {
			changed := *old
			changed.Meta = mergeMeta(now.Static, now.Dynamic)
			tx.PutNodeWithStorageEvents(&changed)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("store metadata of the node: %w", err)
	}
	n.mu.Lock()
	n.dynamicMeta = now.Dynamic
	n.mu.Unlock()
	n.notifyStored()
	n.triggerRecordUpdate() // a concurrent updateRecord may have written the old metadata after the transaction
	return nil
}

// mergeMeta returns a new map with the static metadata, overridden by the dynamic metadata. A nil value removes a key.
func mergeMeta(static map[string]string, dynamic map[string]*string) map[string]string {
	all := maps.Clone(static)
	if all == nil {
		all = make(map[string]string)
	}
	for key, value := range dynamic {
		if value == nil {
			delete(all, key)
		} else {
			all[key] = *value
		}
	}
	return all
}
