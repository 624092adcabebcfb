package agent

import (
	"context"
	"fmt"
	"maps"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// metaKey is the record of the node metadata that was set through the API. A key
// without a value hides the configured value.
const metaKey = "node_meta"

// readMeta loads the metadata that was set under an earlier agent.
func (a *Agent) readMeta() {
	meta := make(map[string]*string)
	if _, err := a.store.Snapshot().Meta(metaKey, &meta); err != nil {
		a.logger.Warn("metadata of the node that was set through the API is lost", "error", err)
	}
	a.dynamicMeta = meta
}

// Meta returns the metadata of the node: the merged map and both sources.
func (a *Agent) Meta() api.NodeMetaResponse {
	a.mu.Lock()
	defer a.mu.Unlock()
	static := a.config.Node.Meta
	if static == nil {
		static = map[string]string{}
	}
	return api.NodeMetaResponse{
		Meta:    mergeMeta(static, a.dynamicMeta),
		Dynamic: maps.Clone(a.dynamicMeta),
		Static:  maps.Clone(static),
	}
}

// SetMeta changes the metadata of the node permanently and at once. A key without a
// value is removed; if it is configured, its configured value is hidden.
func (a *Agent) SetMeta(ctx context.Context, changes map[string]*string) error {
	a.metaUpdateMu.Lock()
	defer a.metaUpdateMu.Unlock()
	now := a.Meta()
	for key, value := range changes {
		if _, configured := now.Static[key]; value == nil && !configured {
			delete(now.Dynamic, key)
		} else {
			now.Dynamic[key] = value
		}
	}
	_, err := a.store.Update(ctx, func(tx *store.Txn) error {
		tx.PutMeta(metaKey, now.Dynamic)
		if old := tx.Node(nil, a.nodeID); old != nil {
			n := *old
			n.Meta = mergeMeta(now.Static, now.Dynamic)
			tx.PutNode(&n)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("store metadata of the node: %w", err)
	}
	a.mu.Lock()
	a.dynamicMeta = now.Dynamic
	a.mu.Unlock()
	a.scheduler.NodeChanged()
	a.triggerNodeUpdate() // a concurrent update may have written the old metadata
	return nil
}

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
