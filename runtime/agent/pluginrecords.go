package agent

import (
	"context"
	"errors"
	"strings"

	"github.com/nomad-lite/nomad-lite/plugins/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// pluginKey is the prefix of the records of running plugins.
const pluginKey = "plugin/"

// pluginRecords keeps in the state how to reattach to running plugins.
type pluginRecords struct{ store *store.Store }

var _ supervisor.RecordStore = pluginRecords{}

// pluginRecord is a supervisor.Record with a check for reading it from the state.
type pluginRecord supervisor.Record

// CheckRecord implements the check of [store.Reader.Meta].
func (r *pluginRecord) CheckRecord() error {
	if r.Pid == 0 || r.Addr == "" {
		return errors.New("the record of a plugin process lacks its pid or its address")
	}
	return nil
}

// Plugins implements supervisor.RecordStore. An unreadable record is left out and
// quarantined by the store; its plugin process is replaced.
func (p pluginRecords) Plugins() (map[string]supervisor.Record, error) {
	snapshot := p.store.Snapshot()
	all := make(map[string]supervisor.Record)
	for _, name := range snapshot.MetaKeys(pluginKey) {
		var r pluginRecord
		if known, err := snapshot.Meta(name, &r); err == nil && known {
			all[strings.TrimPrefix(name, pluginKey)] = supervisor.Record(r)
		}
	}
	return all, nil
}

// PutPlugin implements supervisor.RecordStore.
func (p pluginRecords) PutPlugin(key string, r supervisor.Record) error {
	_, err := p.store.Update(context.Background(), func(tx *store.Txn) error {
		tx.PutMeta(pluginKey+key, r)
		return nil
	})
	return err
}

// DeletePlugin implements supervisor.RecordStore.
func (p pluginRecords) DeletePlugin(key string) error {
	_, err := p.store.Update(context.Background(), func(tx *store.Txn) error {
		tx.DeleteMeta(pluginKey + key)
		return nil
	})
	return err
}
