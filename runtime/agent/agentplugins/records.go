package agentplugins

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/internal/replacefile"
	"github.com/nomad-lite/nomad-lite/plugins/host/launch"
	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/agent/datadirectory"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// ProcessRecordStore stores the addresses and pids by which the next agent reattaches to running plugins: in the state, and
// in a file beside it, because the state can be damaged, lost, or replaced by an older one. If a plugin was not made with the
// SDK, only its running process has its tasks.
type ProcessRecordStore struct {
	store    *store.Store
	filePath string
	logger   hclog.Logger

	fileMu    sync.Mutex
	copyByKey map[string]state.PluginProcess // file content
}

var _ supervisor.RecordStore = (*ProcessRecordStore)(nil)

// NewProcessRecordStore returns the records in the state and in the data directory at the path dataDir.
func NewProcessRecordStore(s *store.Store, dataDir string, logger hclog.Logger) *ProcessRecordStore {
	p := &ProcessRecordStore{store: s, filePath: filepath.Join(dataDir, datadirectory.PluginProcessesFile), logger: logger}
	content, err := os.ReadFile(p.filePath)
	if err == nil {
		err = json.Unmarshal(content, &p.copyByKey)
	}
	if err != nil || p.copyByKey == nil {
		p.copyByKey = make(map[string]state.PluginProcess) // the state has the records
	}
	return p
}

// editCopy changes the file. It only logs errors, because the state has the records, too.
func (p *ProcessRecordStore) editCopy(edit func(copyByKey map[string]state.PluginProcess)) {
	p.fileMu.Lock()
	defer p.fileMu.Unlock()
	edit(p.copyByKey)
	content, err := json.Marshal(p.copyByKey)
	if err == nil {
		err = replacefile.Write(p.filePath, content, 0o600)
	}
	if err != nil {
		p.logger.Debug("records of plugin processes not written beside the state", "error", err)
	}
}

// newPluginProcessRecord converts a supervisor record to its stored form.
func newPluginProcessRecord(r supervisor.Record) *state.PluginProcess {
	return &state.PluginProcess{
		Protocol: r.Protocol, Network: r.Network, Addr: r.Addr, PID: r.Pid, StartTimeTicks: r.StartTimeTicks, BootID: r.BootID, KeeperFDKeyPrefix: r.StreamKeyPrefix,
		CommandAndConfigHash: r.IdentityHash, Type: r.Serves.Type, Name: r.Serves.Name,
	}
}

// newSupervisorRecord converts a stored record to a supervisor record.
func newSupervisorRecord(p state.PluginProcess) supervisor.Record {
	return supervisor.Record{
		ReattachConfig: launch.ReattachConfig{
			Protocol: p.Protocol, Network: p.Network, Addr: p.Addr, Pid: p.PID, StartTimeTicks: p.StartTimeTicks, BootID: p.BootID, StreamKeyPrefix: p.KeeperFDKeyPrefix,
		},
		IdentityHash: p.CommandAndConfigHash, Serves: supervisor.PluginKey{Type: p.Type, Name: p.Name},
	}
}

// PluginRecordByKey implements supervisor.RecordStore.
func (p *ProcessRecordStore) PluginRecordByKey() (map[string]supervisor.Record, error) {
	snapshot := p.store.Snapshot()
	all := make(map[string]supervisor.Record)
	p.fileMu.Lock()
	for key, process := range p.copyByKey {
		all[key] = newSupervisorRecord(process)
	}
	p.fileMu.Unlock()
	for _, name := range snapshot.AgentRecordNames(state.PluginProcessPrefix) {
		var process state.PluginProcess
		known, err := snapshot.ReadAgentRecord(name, &process)
		key := strings.TrimPrefix(name, state.PluginProcessPrefix)
		// The state is older than the file if an operator has restored a copy.
		if err == nil && known && !all[key].ProcessID().Alive() {
			all[key] = newSupervisorRecord(process)
		}
	}
	return all, nil
}

// PutPlugin implements supervisor.RecordStore.
func (p *ProcessRecordStore) PutPlugin(key string, r supervisor.Record) error {
	_, err := p.store.Update(context.Background(), func(tx *store.Txn) error {
		tx.PutAgentRecord(state.PluginProcessPrefix+key, newPluginProcessRecord(r))
		return nil
	})
	p.editCopy(func(copyByKey map[string]state.PluginProcess) { copyByKey[key] = *newPluginProcessRecord(r) })
	return err
}

// DeletePlugin implements supervisor.RecordStore.
func (p *ProcessRecordStore) DeletePlugin(key string) error {
	_, err := p.store.Update(context.Background(), func(tx *store.Txn) error {
		tx.DeleteAgentRecord(state.PluginProcessPrefix + key)
		return nil
	})
	p.editCopy(func(copyByKey map[string]state.PluginProcess) { delete(copyByKey, key) })
	return err
}
