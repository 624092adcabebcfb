package agent

import (
	"context"
	"strings"

	"github.com/nomad-lite/nomad-lite/plugins/host/launch"
	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// pluginRecords stores in the state the addresses and pids by which the next agent reattaches to
// running plugins.
type pluginRecords struct{ store *store.Store }

var _ supervisor.RecordStore = pluginRecords{}

// newPluginProcess returns the record in the state of a supervisor's record.
func newPluginProcess(r supervisor.Record) *state.PluginProcess {
	return &state.PluginProcess{
		Protocol: r.Protocol, Network: r.Network, Addr: r.Addr, PID: r.Pid, StartTime: r.StartTime, BootID: r.BootID, Streams: r.Streams,
		Identity: r.Identity, Type: r.Serves.Type, Name: r.Serves.Name,
	}
}

// supervisorRecord returns the supervisor's record of a record in the state.
func supervisorRecord(p state.PluginProcess) supervisor.Record {
	return supervisor.Record{
		ReattachConfig: launch.ReattachConfig{
			Protocol: p.Protocol, Network: p.Network, Addr: p.Addr, Pid: p.PID, StartTime: p.StartTime, BootID: p.BootID, Streams: p.Streams,
		},
		Identity: p.Identity, Serves: supervisor.PluginKey{Type: p.Type, Name: p.Name},
	}
}

// Plugins implements supervisor.RecordStore. The store quarantines an unreadable record; then the
// supervisor replaces the plugin process that the record described.
func (p pluginRecords) Plugins() (map[string]supervisor.Record, error) {
	snapshot := p.store.Snapshot()
	all := make(map[string]supervisor.Record)
	for _, name := range snapshot.MetaKeys(state.PluginProcessPrefix) {
		var process state.PluginProcess
		if known, err := snapshot.Meta(name, &process); err == nil && known {
			all[strings.TrimPrefix(name, state.PluginProcessPrefix)] = supervisorRecord(process)
		}
	}
	return all, nil
}

// PutPlugin implements supervisor.RecordStore.
func (p pluginRecords) PutPlugin(key string, r supervisor.Record) error {
	_, err := p.store.Update(context.Background(), func(tx *store.Txn) error {
		tx.PutMeta(state.PluginProcessPrefix+key, newPluginProcess(r))
		return nil
	})
	return err
}

// DeletePlugin implements supervisor.RecordStore.
func (p pluginRecords) DeletePlugin(key string) error {
	_, err := p.store.Update(context.Background(), func(tx *store.Txn) error {
		tx.DeleteMeta(state.PluginProcessPrefix + key)
		return nil
	})
	return err
}
