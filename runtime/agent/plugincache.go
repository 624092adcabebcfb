package agent

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/plugins/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/state"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// pluginCache stores plugin facts for later agents.
type pluginCache interface {
	load() ([]state.PluginInfo, error)
	save([]state.PluginInfo) error
}

// pluginInfoKey is the record of an agent's plugin facts.
const pluginInfoKey = "plugins_known"

// storeCache is a pluginCache in the state of an agent.
type storeCache struct{ store *store.Store }

func (m storeCache) load() (known []state.PluginInfo, err error) {
	_, err = m.store.Snapshot().Meta(pluginInfoKey, &known)
	return known, err
}

func (m storeCache) save(known []state.PluginInfo) error {
	_, err := m.store.Update(context.Background(), func(tx *store.Txn) error {
		tx.PutMeta(pluginInfoKey, known)
		return nil
	})
	return err
}

// fileCache is a pluginCache in a file that agents without a state share. The file
// may be missing. The last writer wins; later agents collect lost facts again.
type fileCache string

func (m fileCache) load() (known []state.PluginInfo, err error) {
	text, err := os.ReadFile(string(m))
	if errors.Is(err, fs.ErrNotExist) || m == "" {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &known)
	}
	return known, err
}

// save merges the facts with those of other agents about plugins that still exist.
func (m fileCache) save(known []state.PluginInfo) error {
	if m == "" {
		return nil
	}
	others, _ := m.load() // if it fails, other agents collect their facts again
	for _, other := range others {
		if _, err := os.Stat(other.Path); err == nil && !slices.ContainsFunc(known, func(k state.PluginInfo) bool { return k.Path == other.Path }) {
			known = append(known, other)
		}
	}
	text, err := json.MarshalIndent(known, "", "\t")
	if err != nil {
		return err
	}
	dir := filepath.Dir(string(m))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	file, err := os.CreateTemp(dir, "plugins")
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(file.Name(), string(m))
	}
	if err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}
	return nil
}

// knownPlugins compares the plugins with the facts that earlier agents have cached,
// and stores the current facts. Its methods may be called concurrently.
type knownPlugins struct {
	cache   pluginCache
	cached  []state.PluginInfo // facts of earlier agents; read-only
	plugins pluginStates
	logger  hclog.Logger
}

// pluginStates is the part of the supervisor that knownPlugins needs.
type pluginStates interface {
	Plugins() []supervisor.Plugin
	Changed() <-chan struct{}
}

// newKnownPlugins loads the facts of earlier agents.
func newKnownPlugins(cache pluginCache, plugins pluginStates, logger hclog.Logger) *knownPlugins {
	cached, err := cache.load()
	if err != nil {
		logger.Warn("it is not known any more which hooks take part in every allocation, until their plugins are up", "error", err)
	}
	return &knownPlugins{cache: cache, cached: cached, plugins: plugins, logger: logger}
}

// lookup returns the cached fact about the plugin with this path.
func (k *knownPlugins) lookup(path string) (state.PluginInfo, bool) {
	if i := slices.IndexFunc(k.cached, func(info state.PluginInfo) bool { return info.Path == path }); i >= 0 {
		return k.cached[i], true
	}
	return state.PluginInfo{}, false
}

// expectedHooks returns the hooks that took part in every allocation under an
// earlier agent and whose plugins are not up yet, so that a slow plugin does not
// miss hook points. That includes a plugin with a changed program until the plugin
// reports its description.
func (k *knownPlugins) expectedHooks() (names []string) {
	for _, p := range k.plugins.Plugins() {
		if known, _ := k.lookup(p.Path); known.Every != "" && p.Serves.Name == "" && p.Superseded == "" {
			names = append(names, known.Every)
		}
	}
	return names
}

// unknown returns the plugins whose program has never been up, and whether each is
// still in its first start. The channel is closed when the result may have changed.
func (k *knownPlugins) unknown() (map[string]bool, <-chan struct{}) {
	changed := k.plugins.Changed()
	var unknown map[string]bool
	for _, p := range k.plugins.Plugins() {
		if known, met := k.lookup(p.Path); met && known.Program == p.Program || p.Builtin || p.Serves.Name != "" {
			continue
		}
		if unknown == nil {
			unknown = make(map[string]bool)
		}
		unknown[p.Name] = !p.LaunchAttempted
	}
	return unknown, changed
}

// current returns the current plugin facts.
func (k *knownPlugins) current() (all []state.PluginInfo) {
	for _, p := range k.plugins.Plugins() {
		known := state.PluginInfo{Path: p.Path, Program: p.Program}
		if p.Builtin || p.Path == "" {
			continue
		}
		switch before, met := k.lookup(p.Path); {
		case p.Takes != nil && p.Takes.AllAllocs && p.Superseded == "":
			known.Every = p.Serves.Name
		case p.Serves.Name == "" && !met:
			continue
		case p.Serves.Name == "":
			known = before // the plugin has not come up yet
		}
		all = append(all, known)
	}
	return all
}

// sync stores the plugin facts for later agents whenever they change, until ctx ends.
func (k *knownPlugins) sync(ctx context.Context) {
	var kept []state.PluginInfo // cached facts about the current plugins
	for _, p := range k.plugins.Plugins() {
		if known, met := k.lookup(p.Path); met {
			kept = append(kept, known)
		}
	}
	for over := false; ; {
		changed := k.plugins.Changed()
		if now := k.current(); !slices.Equal(now, kept) {
			if err := k.cache.save(now); err != nil {
				k.logger.Info("what plugins take part in is not kept for the next agent", "error", err)
			} else {
				kept = now
			}
		}
		if over {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			over = true // store the last changes before returning
		}
	}
}
