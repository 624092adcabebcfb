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

	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// pluginInfo is what is known of a plugin that has been up.
type pluginInfo struct {
	Path    string // of its file
	Program string // that was up; with another one it is a stranger again
	Every   string // the hook that takes part in every allocation; "" for all others
}

// pluginCache keeps acquaintances for the agents that come later.
type pluginCache interface {
	load() ([]pluginInfo, error)
	save([]pluginInfo) error
}

// pluginInfoKey is the record of the acquaintances of an agent.
const pluginInfoKey = "plugins_known"

// storeCache is in the state, where nobody else has plugins.
type storeCache struct{ store *store.Store }

func (m storeCache) load() (known []pluginInfo, err error) {
	_, err = m.store.Snapshot().Meta(pluginInfoKey, &known)
	return known, err
}

func (m storeCache) save(known []pluginInfo) error {
	_, err := m.store.Update(context.Background(), func(tx *store.Txn) error {
		tx.PutMeta(pluginInfoKey, known)
		return nil
	})
	return err
}

// fileCache is a file that many use who have no state. It need not be there, and
// whoever writes last wins: what is lost is found out again.
type fileCache string

func (m fileCache) load() (known []pluginInfo, err error) {
	text, err := os.ReadFile(string(m))
	if errors.Is(err, fs.ErrNotExist) || m == "" {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &known)
	}
	return known, err
}

// save leaves alone what others know of plugins that there still are.
func (m fileCache) save(known []pluginInfo) error {
	if m == "" {
		return nil
	}
	others, _ := m.load() // or they find it out again
	for _, other := range others {
		if _, err := os.Stat(other.Path); err == nil && !slices.ContainsFunc(known, func(k pluginInfo) bool { return k.Path == other.Path }) {
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

// memory returns where this agent finds what those before it knew.
func (a *Agent) memory() pluginCache {
	if a.forget {
		return fileCache(a.config.Memory)
	}
	return storeCache{a.store}
}

// loadPluginCache takes up what an earlier agent knew of plugins.
func (a *Agent) loadPluginCache() {
	var err error
	if a.cachedPlugins, err = a.memory().load(); err != nil {
		a.logger.Warn("it is not known any more which hooks take part in every allocation, until their plugins are up", "error", err)
	}
}

// cachedPlugin returns what an earlier agent knew of the plugin of a file.
func (a *Agent) cachedPlugin(path string) (pluginInfo, bool) {
	if i := slices.IndexFunc(a.cachedPlugins, func(k pluginInfo) bool { return k.Path == path }); i >= 0 {
		return a.cachedPlugins[i], true
	}
	return pluginInfo{}, false
}

// expectedHooks returns the hooks that took part in every allocation under an
// earlier agent, and whose plugins have not come up under this one: allocations
// shall not miss their moments because a plugin is slow. That holds for a plugin
// with another program, too, until it says something else.
func (a *Agent) expectedHooks() (names []string) {
	for _, p := range a.supervisor.Plugins() {
		if known, _ := a.cachedPlugin(p.Path); known.Every != "" && p.Serves.Name == "" && p.Superseded == "" {
			names = append(names, known.Every)
		}
	}
	return names
}

// unknownPlugins returns the plugins of which no program like theirs has ever been up,
// with whether they are still being started for the first time. The channel is closed
// when there may be another answer.
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

// unknownPluginTimeout is how long what an earlier agent has left waits for plugins that
// may be hooks of everything, and of which nobody knows.
const unknownPluginTimeout = 2 * time.Second

// waitUnknownPlugins waits until it is known what the plugins are, as far as they start
// soon. What begins later waits by itself.
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

// acquaintances is what is known of the plugins now.
func (a *Agent) acquaintances() (all []pluginInfo) {
	for _, p := range a.supervisor.Plugins() {
		known := pluginInfo{Path: p.Path, Program: p.Program}
		if p.Builtin || p.Path == "" {
			continue
		}
		switch before, met := a.cachedPlugin(p.Path); {
		case p.Takes != nil && p.Takes.EveryAlloc && p.Superseded == "":
			known.Every = p.Serves.Name
		case p.Serves.Name == "" && !met:
			continue
		case p.Serves.Name == "":
			known = before // it is to come
		}
		all = append(all, known)
	}
	return all
}

// syncPluginCache keeps what is known of plugins for the next agent, until ctx ends.
func (a *Agent) syncPluginCache(ctx context.Context) {
	var kept []pluginInfo // of these plugins
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
			over = true // what has become known at the end counts, too
		}
	}
}
