package agent

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

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

// memory returns the plugin cache of this agent.
func (a *Agent) memory() pluginCache {
	if a.forget {
		return fileCache(a.config.Memory)
	}
	return storeCache{a.store}
}

// loadPluginCache loads the plugin facts of earlier agents.
func (a *Agent) loadPluginCache() {
	var err error
	if a.cachedPlugins, err = a.memory().load(); err != nil {
		a.logger.Warn("it is not known any more which hooks take part in every allocation, until their plugins are up", "error", err)
	}
}

// cachedPlugin returns the cached fact about the plugin with this path.
func (a *Agent) cachedPlugin(path string) (state.PluginInfo, bool) {
	if i := slices.IndexFunc(a.cachedPlugins, func(k state.PluginInfo) bool { return k.Path == path }); i >= 0 {
		return a.cachedPlugins[i], true
	}
	return state.PluginInfo{}, false
}

// expectedHooks returns the hooks that took part in every allocation under an
// earlier agent and whose plugins are not up yet, so that a slow plugin does not
// miss hook points. That includes a plugin with a changed program until the plugin
// reports its description.
func (a *Agent) expectedHooks() (names []string) {
	for _, p := range a.supervisor.Plugins() {
		if known, _ := a.cachedPlugin(p.Path); known.Every != "" && p.Serves.Name == "" && p.Superseded == "" {
			names = append(names, known.Every)
		}
	}
	return names
}

// unknownPlugins returns the plugins whose program has never been up, and whether
// each is still in its first start. The channel is closed when the result may have
// changed.
func (a *Agent) unknownPlugins() (map[string]bool, <-chan struct{}) {
	changed := a.supervisor.Changed()
	var unknown map[string]bool
	for _, p := range a.supervisor.Plugins() {
		if known, met := a.cachedPlugin(p.Path); met && known.Program == p.Program || p.Builtin || p.Serves.Name != "" {
			continue
		}
		if unknown == nil {
			unknown = make(map[string]bool)
		}
		unknown[p.Name] = !p.LaunchAttempted
	}
	return unknown, changed
}

// unknownPluginTimeout is how long the restore of earlier allocations waits for
// unknown plugins, which may be hooks of every allocation.
const unknownPluginTimeout = 2 * time.Second

// waitUnknownPlugins waits for the first start of unknown plugins. New allocations
// wait by themselves.
func (a *Agent) waitUnknownPlugins(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, unknownPluginTimeout)
	defer cancel()
	for {
		unknown, changed := a.unknownPlugins()
		coming := false
		for _, untried := range unknown {
			coming = coming || untried
		}
		if !coming {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// acquaintances returns the current plugin facts.
func (a *Agent) acquaintances() (all []state.PluginInfo) {
	for _, p := range a.supervisor.Plugins() {
		known := state.PluginInfo{Path: p.Path, Program: p.Program}
		if p.Builtin || p.Path == "" {
			continue
		}
		switch before, met := a.cachedPlugin(p.Path); {
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

// syncPluginCache stores the plugin facts for later agents whenever they change, until
// ctx ends.
func (a *Agent) syncPluginCache(ctx context.Context) {
	var kept []state.PluginInfo // cached facts about the current plugins
	for _, p := range a.supervisor.Plugins() {
		if known, met := a.cachedPlugin(p.Path); met {
			kept = append(kept, known)
		}
	}
	for over := false; ; {
		changed := a.supervisor.Changed()
		if now := a.acquaintances(); !slices.Equal(now, kept) {
			if err := a.memory().save(now); err != nil {
				a.logger.Info("what plugins take part in is not kept for the next agent", "error", err)
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
