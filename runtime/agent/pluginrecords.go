package agent

import (
	"context"
	"strings"

	"github.com/nomad-lite/nomad-lite/plugins/host/launch"
	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// pluginProcessRecordStore stores in the state the addresses and pids by which the next agent reattaches to
// running plugins.
type pluginProcessRecordStore struct{ store *store.Store }

var _ supervisor.RecordStore = pluginProcessRecordStore{}

// newPluginProcessRecord converts a record of the supervisor to the form in which it is stored.
func newPluginProcessRecord(r supervisor.Record) *state.PluginProcess {
	return &state.PluginProcess{
		Protocol: r.Protocol, Network: r.Network, Addr: r.Addr, PID: r.Pid, StartTimeTicks: r.StartTimeTicks, BootID: r.BootID, KeeperFDKeyPrefix: r.StreamKeyPrefix,
		CommandAndConfigHash: r.IdentityHash, Type: r.Serves.Type, Name: r.Serves.Name,
	}
}

// newSupervisorRecord converts a stored record to a record of the supervisor.
func newSupervisorRecord(p state.PluginProcess) supervisor.Record {
	return supervisor.Record{
		ReattachConfig: launch.ReattachConfig{
			Protocol: p.Protocol, Network: p.Network, Addr: p.Addr, Pid: p.PID, StartTimeTicks: p.StartTimeTicks, BootID: p.BootID, StreamKeyPrefix: p.KeeperFDKeyPrefix,
		},
		IdentityHash: p.CommandAndConfigHash, Serves: supervisor.PluginKey{Type: p.Type, Name: p.Name},
	}
}

// PluginRecordByKey implements supervisor.RecordStore. The store quarantines an unreadable record; then the
// supervisor replaces the plugin process that the record described.
func (p pluginProcessRecordStore) PluginRecordByKey() (map[string]supervisor.Record, error) {
	snapshot := p.store.Snapshot()
	all := make(map[string]supervisor.Record)
	for _, name := range snapshot.AgentRecordNames(state.PluginProcessPrefix) {
		var process state.PluginProcess
		if known, err := snapshot.ReadAgentRecord(name, &process); err == nil && known {
			all[strings.TrimPrefix(name, state.PluginProcessPrefix)] = newSupervisorRecord(process)
		}
	}
	return all, nil
}

// PutPlugin implements supervisor.RecordStore.
func (p pluginProcessRecordStore) PutPlugin(key string, r supervisor.Record) error {
	_, err := p.store.Update(context.Background(), func(tx *store.Txn) error {
		tx.PutAgentRecord(state.PluginProcessPrefix+key, newPluginProcessRecord(r))
		return nil
	})
	return err
}

// DeletePlugin implements supervisor.RecordStore.
func (p pluginProcessRecordStore) DeletePlugin(key string) error {
	_, err := p.store.Update(context.Background(), func(tx *store.Txn) error {
		tx.DeleteAgentRecord(state.PluginProcessPrefix + key)
		return nil
	})
	return err
}
