package agent

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/plugins/host/catalog"
	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/node/hooks/pluginhooks"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// pluginCache stores the descriptions of plugins for later agents.
type pluginCache interface {
	load() ([]state.PluginInfo, error)
	save([]state.PluginInfo) error
}

// storePluginCache is a pluginCache in the state file of an agent.
type storePluginCache struct{ store *store.Store }

func (c storePluginCache) load() (infos []state.PluginInfo, err error) {
	_, err = c.store.Snapshot().AgentRecord(state.PluginInfoName, &infos)
	return infos, err
}

func (c storePluginCache) save(infos []state.PluginInfo) error {
	_, err := c.store.Update(context.Background(), func(tx *store.Txn) error {
		tx.PutAgentRecord(state.PluginInfoName, infos)
		return nil
	})
	return err
}

// filePluginCache is a pluginCache in a file, which agents without a state file share. The file may be
// missing. If agents write concurrently, the last one wins; later agents collect the lost descriptions
// again.
type filePluginCache string

func (c filePluginCache) load() (infos []state.PluginInfo, err error) {
	text, err := os.ReadFile(string(c))
	if errors.Is(err, fs.ErrNotExist) || c == "" {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &infos)
	}
	if err != nil {
		return nil, err // infos can have the descriptions that precede the damage
	}
	return infos, nil
}

// save stores infos. It keeps the stored descriptions of other plugins whose files still exist.
func (c filePluginCache) save(infos []state.PluginInfo) error {
	if c == "" {
		return nil
	}
	others, _ := c.load() // after an error the stored descriptions are lost, and the agents that need them call the plugins again
	for _, other := range others {
		if _, err := os.Stat(other.Path); err == nil && !slices.ContainsFunc(infos, func(info state.PluginInfo) bool { return info.Path == other.Path }) {
			infos = append(infos, other)
		}
	}
	text, err := json.MarshalIndent(infos, "", "\t")
	if err != nil {
		return err
	}
	dir := filepath.Dir(string(c))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	file, err := os.CreateTemp(dir, "plugins")
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(file.Name(), string(c))
	}
	if err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}
	return nil
}

// cachedPlugins has the plugin descriptions that earlier agents have stored. Its methods may be called
// concurrently.
type cachedPlugins struct {
	infos  []state.PluginInfo // never changes
	logger hclog.Logger

	mu               sync.Mutex
	hashesByFileStat map[catalog.FileStat]fileHash // hashes of files by metadata, so that an unchanged file is not read again
}

// fileHash is the SHA-256 of a file's content.
type fileHash struct {
	sum             string
	changedRecently bool // less than minUnchangedTime has passed between the last change of the file and the computation of the hash
}

// minUnchangedTime is the age of a file from which any further change of the file also changes its metadata.
// The resolution of ctime is 2 s at most.
const minUnchangedTime = 2 * time.Second

// loadCachedPlugins returns the descriptions that are stored in cache.
func loadCachedPlugins(cache pluginCache, logger hclog.Logger) *cachedPlugins {
	infos, err := cache.load()
	if err != nil {
		logger.Warn("plugin cache cannot be read; which hooks take part in every allocation is unknown until their plugins run", "error", err)
	}
	c := &cachedPlugins{infos: infos, logger: logger, hashesByFileStat: make(map[catalog.FileStat]fileHash)}
	for _, info := range infos {
		if info.SHA256 != "" && info.File.ChangeTime != 0 {
			c.hashesByFileStat[info.File.FileStat()] = fileHash{sum: info.SHA256}
		}
	}
	return c
}

// findByContent returns the description of a plugin whose file content and settings are those of the plugin at path.
func (c *cachedPlugins) findByContent(path string, program catalog.ProgramID) (state.PluginInfo, bool) {
	for _, info := range c.infos {
		if info.SHA256 == "" || info.File.Size != program.File.Size || info.Settings != program.SettingsHash {
			continue // the size or the settings differ, so that the file need not be read
		}
		if hash, ok := c.hashFile(path, program.File); ok && hash.sum == info.SHA256 {
			return info, true
		}
	}
	return state.PluginInfo{}, false
}

// findByPath returns the description of the plugin that had this path. Its file content and settings may have been different.
func (c *cachedPlugins) findByPath(path string) (state.PluginInfo, bool) {
	if i := slices.IndexFunc(c.infos, func(info state.PluginInfo) bool { return info.Path == path }); i >= 0 {
		return c.infos[i], true
	}
	return state.PluginInfo{}, false
}

// cachedPluginKey returns the type and name of the driver or hook that a plugin with the same file
// content and settings served, or the zero value if there is no description.
func (c *cachedPlugins) cachedPluginKey(e catalog.Entry) supervisor.PluginKey {
	info, _ := c.findByContent(e.Path, e.ProgramID)
	return supervisor.PluginKey{Type: info.Type, Name: info.Name}
}

// hashFile returns the hash of the file at path. It reads the file unless the hash of a file with this
// metadata is known. It returns false if the file cannot be read or has other metadata.
func (c *cachedPlugins) hashFile(path string, file catalog.FileStat) (fileHash, bool) {
	c.mu.Lock()
	hash, ok := c.hashesByFileStat[file]
	c.mu.Unlock()
	if ok {
		return hash, true
	}
	hash.changedRecently = time.Since(time.Unix(0, file.ChangeTime)) < minUnchangedTime
	var err error
	if hash.sum, err = catalog.HashFile(path, file); err != nil {
		c.logger.Debug("plugin file not hashed", "path", path, "error", err)
		return fileHash{}, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hashesByFileStat[file] = hash
	return hash, true
}

// newPluginInfo returns the description of a plugin that has been launched. SHA256 is empty if the file cannot be read.
func (c *cachedPlugins) newPluginInfo(p supervisor.Plugin) state.PluginInfo {
	info := state.PluginInfo{
		Settings: p.ProgramID.SettingsHash, Type: p.Serves.Type, Name: p.Serves.Name,
		AllAllocs: p.HookDescription != nil && p.HookDescription.AllAllocs && p.SupersededBy == "",
		Path:      p.Path,
	}
	if hash, ok := c.hashFile(p.Path, p.ProgramID.File); ok {
		info.SHA256, info.File = hash.sum, state.FileRecord(p.ProgramID.File)
		if hash.changedRecently {
			info.File.ChangeTime = 0
		}
	}
	return info
}

// knownPluginInfos finds the plugins that have no cached description or have not reported yet, and updates the cache. Its
// methods may be called concurrently.
type knownPluginInfos struct {
	cache        pluginCache
	cached       *cachedPlugins
	pluginLister pluginLister
	logger       hclog.Logger
}

// pluginLister is the part of the supervisor that knownPluginInfos needs.
type pluginLister interface {
	Plugins() []supervisor.Plugin
	Changed() <-chan struct{}
}

// hooksOfAllAllocsStillStarting returns the names of the hooks that took part in every allocation under an earlier agent and whose
// plugins are still starting. Allocations wait for these hooks, so that a slow plugin does not miss hook
// points. A plugin whose program has changed is included until the plugin reports its description.
func (k *knownPluginInfos) hooksOfAllAllocsStillStarting() (names []string) {
	for _, p := range k.pluginLister.Plugins() {
		if p.Builtin || p.Serves.Name != "" || p.SupersededBy != "" {
			continue
		}
		if info, _ := k.lastKnownInfo(p); info.AllAllocs {
			names = append(names, info.Name)
		}
	}
	return names
}

// lastKnownInfo returns the description of a plugin with the same file content and settings. If there is
// none, it returns the description of the plugin that had the same path.
func (k *knownPluginInfos) lastKnownInfo(p supervisor.Plugin) (state.PluginInfo, bool) {
	if info, ok := k.cached.findByContent(p.Path, p.ProgramID); ok {
		return info, true
	}
	return k.cached.findByPath(p.Path)
}

// neverReportedPlugins returns the plugins that have never reported a description, and the state of their first launch; the keys are
// plugin names. The channel is closed when the result may have changed.
func (k *knownPluginInfos) neverReportedPlugins() (map[string]pluginhooks.FirstLaunchState, <-chan struct{}) {
	changed := k.pluginLister.Changed()
	var unknown map[string]pluginhooks.FirstLaunchState
	for _, p := range k.pluginLister.Plugins() {
		if p.Builtin || p.Serves.Name != "" {
			continue
		}
		info, found := k.cached.findByContent(p.Path, p.ProgramID)
		if found && !info.NeverStarted {
			continue
		}
		if unknown == nil {
			unknown = make(map[string]pluginhooks.FirstLaunchState)
		}
		unknown[p.Name] = pluginhooks.LaunchPending
		if p.LaunchAttempted || found {
			unknown[p.Name] = pluginhooks.LaunchFailed
		}
	}
	return unknown, changed
}

// currentPluginInfos returns the descriptions of the current plugins. For a plugin that has not run yet it returns the cached
// description. If there is none and a launch has failed, it returns a description with NeverStarted.
func (k *knownPluginInfos) currentPluginInfos() (infos []state.PluginInfo) {
	for _, p := range k.pluginLister.Plugins() {
		if p.Builtin || p.Path == "" {
			continue
		}
		info, found := k.lastKnownInfo(p)
		switch {
		case p.Serves.Name != "":
			info = k.cached.newPluginInfo(p)
		case p.LaunchAttempted && (!found || info.NeverStarted): // Plugin.Err is nil while the plugin is launched again
			info = k.cached.newPluginInfo(p)
			info.NeverStarted = true
		case found:
			info.Path = p.Path
		default:
			continue
		}
		infos = append(infos, info)
	}
	return infos
}

// storeInfoChanges stores the descriptions of the current plugins for later agents whenever they change,
// until ctx ends.
func (k *knownPluginInfos) storeInfoChanges(ctx context.Context) {
	var storedInfos []state.PluginInfo // stored descriptions of the present plugins
	for _, p := range k.pluginLister.Plugins() {
		if info, ok := k.cached.findByPath(p.Path); ok {
			storedInfos = append(storedInfos, info)
		}
	}
	for stopping := false; ; {
		changed := k.pluginLister.Changed()
		if infos := k.currentPluginInfos(); !slices.Equal(infos, storedInfos) {
			if err := k.cache.save(infos); err != nil {
				k.logger.Info("plugin cache not written; the next agent starts without it", "error", err)
			} else {
				storedInfos = infos
			}
		}
		if stopping {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			stopping = true // the loop stores the last changes once more before it returns
		}
	}
}
