package supervisor

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/host/catalog"
	"github.com/nomad-lite/nomad-lite/plugins/host/launch"
)

// Record is the data with which another supervisor reattaches a running plugin.
type Record struct {
	launch.ReattachConfig
	// IdentityHash is a hash of the command line, the configuration and, for a script, the
	// content of the file. A change of any of them requires a new process, and cannot be
	// read from the running process.
	IdentityHash string
	// Serves is the driver or hook that the plugin serves.
	Serves PluginKey
}

// RecordStore stores records for the next supervisor. A record is stored when PutPlugin
// returns. The supervisor chooses the keys. While PluginRecordByKey returns an error, no plugin is
// started: a recorded process may run, and two processes of one driver must not have the
// same tasks.
type RecordStore interface {
	PluginRecordByKey() (map[string]Record, error)
	PutPlugin(key string, r Record) error
	DeletePlugin(key string) error
}

// isLaunchCompleted reports whether the plugin had completed its launch when the record was stored. Only then it can
// have tasks.
func (r Record) isLaunchCompleted() bool { return r.Addr != "" }

// reattachedPlugin is a plugin that an earlier supervisor has started.
type reattachedPlugin struct{ *launch.Plugin }

// recordKey returns the key of a plugin in the RecordStore.
func recordKey(e catalog.Entry) string {
	if e.Builtin {
		return "builtin " + e.Name
	}
	return e.Path
}

// pluginIdentityHash returns the Record.IdentityHash of a plugin that is started now. It does not
// depend on the executable; see [launch.ReattachConfig.RunsExecutable].
func pluginIdentityHash(e catalog.Entry, binary *catalog.CheckedPluginFile) (string, error) {
	parts := struct {
		Argv   []string
		Config map[string]any
		Script string
	}{Argv: binary.Argv}
	if e.Block != nil {
		parts.Config = e.Block.Config
	}
	if binary.IsScript {
		sum, err := binary.SHA256()
		if err != nil {
			return "", err
		}
		parts.Script = sum
	}
	b, err := json.Marshal(parts)
	if err != nil {
		return "", fmt.Errorf("describe plugin: %w", err)
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:]), nil
}

// recordedPlugins reattaches plugins that an earlier supervisor has started, and kills
// those that are no longer in the catalog.
type recordedPlugins struct {
	store             RecordStore // nil if plugins are not recorded
	keeper            launch.Keeper
	ensureSocketDir   func() (string, error)            // see Config.EnsureSocketDir
	keepRunning       func(key PluginKey, pid int) bool // see Config.KeepRunning
	catalogRecordKeys func() []string                   // returns the record keys of the plugins in the catalog
	logger            hclog.Logger

	// replaceMu is held while a plugin of another build is replaced, so that only one
	// plugin is replaced at a time.
	replaceMu sync.Mutex

	orphansMu     sync.Mutex // locked while killOrphans runs
	orphansKilled bool       // killOrphans has succeeded, and does nothing in further calls

	mu                         sync.Mutex
	recordKeyByUnmanagedPlugin map[PluginKey]string // keys of the records of plugins that run and are not in the catalog
}

func newRecordedPlugins(cfg Config, catalogRecordKeys func() []string) *recordedPlugins {
	return &recordedPlugins{
		store: cfg.RecordStore, keeper: cfg.Keeper, ensureSocketDir: cfg.EnsureSocketDir, keepRunning: cfg.KeepRunning, catalogRecordKeys: catalogRecordKeys, logger: cfg.Logger,
		recordKeyByUnmanagedPlugin: map[PluginKey]string{},
	}
}

// storeLaunchRecord stores the record of a plugin that does not serve yet. If this process and the keeper die before
// storeRecordAndKeepRunning, the next supervisor kills the plugin. An error is only logged: a keeper that lives kills
// the plugin, too.
func (r *recordedPlugins) storeLaunchRecord(key string, c launch.ReattachConfig, identity string) {
	if err := r.store.PutPlugin(key, Record{ReattachConfig: c, IdentityHash: identity}); err != nil {
		r.logger.Debug("launch of a plugin not recorded", "plugin", key, "error", err)
	}
}

// storeRecordAndKeepRunning stores the record of a started plugin. Then it calls KeepAfterAgentExit, so that the
// process outlives the agent.
func (r *recordedPlugins) storeRecordAndKeepRunning(ctx context.Context, e catalog.Entry, p *launch.Plugin, identity string) {
	rec := Record{ReattachConfig: p.ReattachConfig(), IdentityHash: identity, Serves: servedKey(p.Info())}
	if err := r.store.PutPlugin(recordKey(e), rec); err != nil {
		r.logger.Error("record of a plugin not written, the next agent cannot reattach it", "plugin", e.Name, "error", err)
	} else if err := p.KeepAfterAgentExit(ctx); err != nil {
		r.logger.Debug("plugin not confirmed", "plugin", e.Name, "error", err)
	}
}

// mayBeRunning reports whether an earlier supervisor may have left the plugin running.
func (r *recordedPlugins) mayBeRunning(e catalog.Entry) bool {
	if r.store == nil {
		return false
	}
	records, err := r.store.PluginRecordByKey()
	rec, found := records[recordKey(e)]
	if err != nil || !found {
		return err != nil
	}
	thisBoot, err := rec.IsFromThisBoot()
	return err != nil || thisBoot
}

// reattachCurrentOrStop connects to the process that an earlier supervisor has started, if its
// executable and IdentityHash are current. Otherwise it stops the process: the tasks continue,
// and the next process recovers them. It returns nil if the caller must start a process.
// After an error the caller must not start a process, because the recorded one runs, and
// can be reattached later.
func (r *recordedPlugins) reattachCurrentOrStop(ctx context.Context, e catalog.Entry, cfg launch.Config, binary *catalog.CheckedPluginFile, identity string) (*launch.Plugin, error) {
	records, err := r.store.PluginRecordByKey()
	if err != nil {
		return nil, fmt.Errorf("read the records of running plugins: %w", err)
	}
	rec, found := records[recordKey(e)]
	if !found {
		return nil, nil
	}
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	if rec.Serves.Type == base.TypeDevice || !rec.isLaunchCompleted() {
		// The process is killed and not reattached: it has no tasks, and a new process finds the
		// devices again.
		if thisBoot, err := rec.IsFromThisBoot(); err != nil || !thisBoot {
			return nil, err
		}
		r.killProcessAndDeleteRecord(recordKey(e), rec)
		return nil, nil
	}
	logger := r.logger.With("plugin", e.Name, "pid", rec.Pid)
	same := rec.IdentityHash == identity
	if same && !binary.IsScript {
		if same, err = rec.RunsExecutable(ctx, cfg.Keeper, binary.File); errors.Is(err, launch.ErrResourceExhausted) {
			return nil, err
		} else if err != nil {
			logger.Debug("program of a running plugin cannot be compared", "error", err)
		}
	}
	if !same {
		r.replaceMu.Lock()
		defer r.replaceMu.Unlock()
	}
	p, err := launch.ReattachOrKill(ctx, cfg, rec.ReattachConfig)
	switch {
	case errors.Is(err, launch.ErrProcessChanged):
		return nil, nil
	case errors.Is(err, launch.ErrResourceExhausted):
		return nil, err
	case err != nil:
		logger.Warn("running plugin cannot be used, starting another", "error", err)
		return nil, nil
	case same:
		return p, nil
	case ctx.Err() != nil:
		p.Detach() // the process of another build continues; the next supervisor replaces it
		return nil, context.Cause(ctx)
	}
	logger.Info("replacing a running plugin, which is another build or has another configuration")
	p.Stop(ctx)
	return nil, nil
}

// killOrphans kills the plugins of an earlier supervisor that are no longer in the catalog.
// A plugin with tasks continues, unmanaged, until another plugin serves the same driver or
// hook. After the first success killOrphans does nothing.
func (r *recordedPlugins) killOrphans() error {
	r.orphansMu.Lock()
	defer r.orphansMu.Unlock()
	if r.store == nil || r.orphansKilled {
		return nil
	}
	records, err := r.store.PluginRecordByKey()
	if err != nil {
		return fmt.Errorf("read the records of running plugins: %w", err)
	}
	for key, rec := range records {
		thisBoot, err := rec.IsFromThisBoot()
		if err != nil {
			return fmt.Errorf("boot of the record of plugin %q: %w", key, err)
		}
		if !thisBoot {
			delete(records, key)
		}
	}
	r.orphansKilled = true
	for _, key := range r.catalogRecordKeys() {
		delete(records, key)
	}
	for key, rec := range records {
		if r.keepRunning != nil && rec.Serves.Type != base.TypeDevice && rec.isLaunchCompleted() && rec.ProcessID().Alive() && r.keepRunning(rec.Serves, rec.Pid) {
			r.logger.Warn("plugin was removed from the configuration and continues, because its tasks may run; configure it again to manage them",
				"plugin", key, "pid", rec.Pid, "serves", rec.Serves)
			r.mu.Lock()
			r.recordKeyByUnmanagedPlugin[rec.Serves] = key
			r.mu.Unlock()
			continue
		}
		r.killProcessAndDeleteRecord(key, rec)
	}
	return nil
}

// killUnmanagedPlugin kills the plugin of a driver or hook that killOrphans has left running. It
// is called before another plugin serves the driver or hook: two processes of one driver
// must not have the same tasks. After an error the plugin may still run.
func (r *recordedPlugins) killUnmanagedPlugin(served PluginKey) error {
	r.mu.Lock()
	key, found := r.recordKeyByUnmanagedPlugin[served]
	r.mu.Unlock()
	if !found {
		return nil
	}
	records, err := r.store.PluginRecordByKey()
	if err != nil {
		return fmt.Errorf("read the record of running plugin %q: %w", key, err)
	}
	if rec, found := records[key]; found {
		r.killProcessAndDeleteRecord(key, rec)
	}
	r.mu.Lock()
	delete(r.recordKeyByUnmanagedPlugin, served)
	r.mu.Unlock()
	return nil
}

// killProcessAndDeleteRecord kills the process of a record from this boot, removes what it has left behind, and deletes
// the record.
func (r *recordedPlugins) killProcessAndDeleteRecord(key string, rec Record) {
	dir, err := r.ensureSocketDir()
	if err != nil {
		r.logger.Debug("socket of a plugin not removed", "plugin", key, "error", err)
	}
	mayHaveTasks := rec.isLaunchCompleted() && rec.Serves.Type != base.TypeDevice
	if launch.KillRecorded(rec.ReattachConfig, mayHaveTasks, r.keeper, dir, r.logger) {
		r.logger.Info("stopped the plugin process of an earlier agent", "plugin", key, "pid", rec.Pid)
	}
	r.deleteRecord(key)
}

// ProcessID returns the ID of the recorded process. It is valid only if IsFromThisBoot returns
// true.
func (r Record) ProcessID() osprocess.ID {
	return osprocess.ID{PID: r.Pid, StartTime: r.StartTimeTicks}
}

func (r *recordedPlugins) deleteRecord(key string) {
	if err := r.store.DeletePlugin(key); err != nil {
		r.logger.Warn("record of a plugin not deleted", "plugin", key, "error", err)
	}
}
