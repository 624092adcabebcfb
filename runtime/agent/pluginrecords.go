package agent

import (
	"context"
	"errors"
	"strings"

	"github.com/nomad-lite/nomad-lite/plugins/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// pluginRecordPrefix is the prefix of the names of records of running plugins.
const pluginRecordPrefix = "plugin/"

// pluginRecords stores in the state the addresses and pids by which the next agent reattaches to
// running plugins.
type pluginRecords struct{ store *store.Store }

var _ supervisor.RecordStore = pluginRecords{}

// pluginRecord is a supervisor.Record that is checked when it is read from the state.
type pluginRecord supervisor.Record

// CheckRecord is called by [store.Reader.Meta] after a record was decoded.
func (r *pluginRecord) CheckRecord() error {
	if r.Pid == 0 || r.Addr == "" {
		return errors.New("the record of a plugin process lacks its pid or its address")
	}
	return nil
}

// Plugins implements supervisor.RecordStore. The store quarantines an unreadable record; then the
// supervisor replaces the plugin process that the record described.
func (p pluginRecords) Plugins() (map[string]supervisor.Record, error) {
	snapshot := p.store.Snapshot()
	all := make(map[string]supervisor.Record)
	for _, name := range snapshot.MetaKeys(pluginRecordPrefix) {
		var r pluginRecord
		if known, err := snapshot.Meta(name, &r); err == nil && known {
			all[strings.TrimPrefix(name, pluginRecordPrefix)] = supervisor.Record(r)
		}
	}
	return all, nil
}

// PutPlugin implements supervisor.RecordStore.
func (p pluginRecords) PutPlugin(key string, r supervisor.Record) error {
	_, err := p.store.Update(context.Background(), func(tx *store.Txn) error {
		tx.PutMeta(pluginRecordPrefix+key, r)
		return nil
	})
	return err
}

// DeletePlugin implements supervisor.RecordStore.
func (p pluginRecords) DeletePlugin(key string) error {
	_, err := p.store.Update(context.Background(), func(tx *store.Txn) error {
		tx.DeleteMeta(pluginRecordPrefix + key)
		return nil
	})
	return err
}
