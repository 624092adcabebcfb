package agentplugins

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

	"github.com/nomad-lite/nomad-lite/internal/replacefile"
	"github.com/nomad-lite/nomad-lite/plugins/host/catalog"
	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/node/hooks/pluginhooks"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// Cache stores plugin descriptions for later agents.
type Cache interface {
	load() ([]state.PluginInfo, error)
	save([]state.PluginInfo) error
}

// StoreCache is a Cache in an agent's state file.
type StoreCache struct{ Store *store.Store }

func (c StoreCache) load() (infos []state.PluginInfo, err error) {
	_, err = c.Store.Snapshot().ReadAgentRecord(state.PluginInfoName, &infos)
	return infos, err
}

func (c StoreCache) save(infos []state.PluginInfo) error {
	_, err := c.Store.Update(context.Background(), func(tx *store.Txn) error {
		tx.PutAgentRecord(state.PluginInfoName, infos)
		return nil
	})
	return err
}

// FileCache is a Cache in a file shared by agents without a state file. The file may be missing. If agents write
// concurrently, the last one wins; later agents collect the lost descriptions again.
type FileCache string

func (c FileCache) load() (infos []state.PluginInfo, err error) {
	text, err := os.ReadFile(string(c))
	if errors.Is(err, fs.ErrNotExist) || c == "" {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &infos)
	}
	if err != nil {
		return nil, err // infos may have the descriptions before the damage
	}
	return infos, nil
}

// save stores infos. It keeps the stored descriptions of other plugins while their files exist.
func (c FileCache) save(infos []state.PluginInfo) error {
	if c == "" {
		return nil
	}
	others, _ := c.load() // after an error the stored descriptions are lost, and agents that need them call the plugins again
	others = slices.DeleteFunc(others, func(other state.PluginInfo) bool {
		_, err := os.Stat(other.FilePath)
		return err != nil
	})
	infos = mergeByPath(infos, others)
	text, err := json.MarshalIndent(infos, "", "\t")
	if err != nil {
		return err
	}
	dir := filepath.Dir(string(c))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return replacefile.Write(string(c), text, 0o600)
}

// mergeByPath returns infos, and those others with another path.
func mergeByPath(infos, others []state.PluginInfo) []state.PluginInfo {
	merged := slices.Clone(infos)
	for _, other := range others {
		if !slices.ContainsFunc(infos, func(info state.PluginInfo) bool { return info.FilePath == other.FilePath }) {
			merged = append(merged, other)
		}
	}
	return merged
}

// cachedPlugins has the plugin descriptions stored by earlier agents, and those of this agent's plugins. Its methods may be
// called concurrently.
type cachedPlugins struct {
	logger hclog.Logger

	mu             sync.Mutex
	infos          []state.PluginInfo            // replaced by update; the elements never change
	hashByFileStat map[catalog.FileStat]fileHash // file hashes by metadata, so that an unchanged file is not read again
}

// fileHash is the SHA-256 of a file's content.
type fileHash struct {
	sha256Hex       string
	changedRecently bool // less than minUnchangedTime has passed between the file's last change and the hash computation
}

// minUnchangedTime is the file age from which any further change also changes the file's metadata. The resolution of ctime is 2 s
// at most.
const minUnchangedTime = 2 * time.Second

// loadCachedPlugins returns the descriptions stored in cache.
func loadCachedPlugins(cache Cache, logger hclog.Logger) *cachedPlugins {
	infos, err := cache.load()
	if err != nil {
		logger.Warn("plugin cache cannot be read; which hooks take part in every allocation is unknown until their plugins run", "error", err)
	}
	c := &cachedPlugins{infos: infos, logger: logger, hashByFileStat: make(map[catalog.FileStat]fileHash)}
	for _, info := range infos {
		if info.FileSHA256Hex != "" && info.FileMetadata.ChangeTime != 0 {
			c.hashByFileStat[catalog.FileStat(info.FileMetadata)] = fileHash{sha256Hex: info.FileSHA256Hex}
		}
	}
	return c
}

// update replaces the descriptions of the plugins at the paths in current.
func (c *cachedPlugins) update(current []state.PluginInfo) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.infos = mergeByPath(current, c.infos)
}

// all returns all descriptions. The caller must not change them.
func (c *cachedPlugins) all() []state.PluginInfo {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.infos
}

// findByContent returns the description of a plugin with the same file content and settings as the plugin at path.
func (c *cachedPlugins) findByContent(path string, program catalog.ProgramID) (info state.PluginInfo, found bool) {
	for _, cached := range c.all() {
		if cached.FileSHA256Hex == "" || cached.FileMetadata.Size != program.File.Size || cached.SettingsHash != program.ArgsAndConfigHash {
			continue // the size or the settings differ, so the file need not be read
		}
		if hash, ok := c.hashFile(path, program.File); ok && hash.sha256Hex == cached.FileSHA256Hex {
			return cached, true
		}
	}
	return state.PluginInfo{}, false
}

// findByPath returns the description cached for path. The file content and settings may have been different.
func (c *cachedPlugins) findByPath(path string) (info state.PluginInfo, found bool) {
	infos := c.all()
	if i := slices.IndexFunc(infos, func(cached state.PluginInfo) bool { return cached.FilePath == path }); i >= 0 {
		return infos[i], true
	}
	return state.PluginInfo{}, false
}

// cachedPluginKey returns the type and name of the driver or hook served by a plugin with the same file content and settings
// (unchanged is true), or else by the plugin at the same path. The key is zero if there is no description, or another plugin
// superseded the plugin.
func (c *cachedPlugins) cachedPluginKey(e catalog.Entry) (key supervisor.PluginKey, unchanged bool) {
	info, unchanged := c.findByContent(e.Path, e.ProgramID)
	if info.Name == "" {
		unchanged = false
		info, _ = c.findByPath(e.Path)
	}
	if info.Name == "" {
		return supervisor.PluginKey{}, false
	}
	return supervisor.PluginKey{Type: info.Type, Name: info.Name}, unchanged
}

// hashFile returns the hash of the file at path. It reads the file unless a hash for its metadata is known. It returns false if
// the file cannot be read or has other metadata.
func (c *cachedPlugins) hashFile(path string, file catalog.FileStat) (hash fileHash, ok bool) {
	c.mu.Lock()
	hash, ok = c.hashByFileStat[file]
	c.mu.Unlock()
	if ok {
		return hash, true
	}
	hash.changedRecently = time.Since(time.Unix(0, file.ChangeTime)) < minUnchangedTime
	var err error
	if hash.sha256Hex, err = catalog.HashUnchangedFile(path, file); err != nil {
		c.logger.Debug("plugin file not hashed", "path", path, "error", err)
		return fileHash{}, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hashByFileStat[file] = hash
	return hash, true
}

// newPluginInfo returns a launched plugin's description. FileSHA256Hex is empty if the file cannot be read.
func (c *cachedPlugins) newPluginInfo(p supervisor.PluginStatus) state.PluginInfo {
	info := state.PluginInfo{
		SettingsHash: p.ProgramID.ArgsAndConfigHash, Type: p.Serves.Type, Name: p.Serves.Name,
		TakesPartInAllAllocs: p.HookDescription != nil && p.HookDescription.AllAllocs && p.SupersededBy == "",
		FilePath:             p.Path,
	}
	if p.SupersededBy != "" {
		info.Name = "" // the tasks belong to the superseding plugin
	}
	if hash, ok := c.hashFile(p.Path, p.ProgramID.File); ok {
		info.FileSHA256Hex, info.FileMetadata = hash.sha256Hex, state.FileRecord(p.ProgramID.File)
		if hash.changedRecently {
			info.FileMetadata.ChangeTime = 0
		}
	}
	return info
}

// pluginInfoTracker finds the plugins without a cached description or a report, and updates the cache. Its methods may be called
// concurrently.
type pluginInfoTracker struct {
	cache        Cache
	cached       *cachedPlugins
	pluginLister pluginLister
	logger       hclog.Logger
}

// pluginLister is the part of the supervisor used by pluginInfoTracker.
type pluginLister interface {
	ExternalPlugins() []supervisor.PluginStatus
	InfoChanged() <-chan struct{}
}

// hooksOfAllAllocsStillStarting returns the names of hooks that took part in every allocation when they last ran, if their plugin
// is still starting. Allocations wait for these hooks, so that a slow plugin does not miss hook points. A plugin with a changed
// program is included until it reports its description.
func (k *pluginInfoTracker) hooksOfAllAllocsStillStarting() (names []string) {
	for _, p := range k.pluginLister.ExternalPlugins() {
		if p.Serves.Name != "" || p.SupersededBy != "" {
			continue
		}
		if info, _ := k.lastKnownInfo(p); info.TakesPartInAllAllocs {
			names = append(names, info.Name)
		}
	}
	return names
}

// lastKnownInfo returns the description of a plugin with the same file content and settings. If there is none, it returns the
// description for the same path.
func (k *pluginInfoTracker) lastKnownInfo(p supervisor.PluginStatus) (info state.PluginInfo, found bool) {
	if info, found = k.cached.findByContent(p.Path, p.ProgramID); found {
		return info, true
	}
	return k.cached.findByPath(p.Path)
}

// neverReportedPlugins returns the plugins that have never reported a description, by name, with the state of their first launch.
// The channel is closed when the result may have changed.
func (k *pluginInfoTracker) neverReportedPlugins() (launchStateByPlugin map[string]pluginhooks.FirstLaunchState, changed <-chan struct{}) {
	changed = k.pluginLister.InfoChanged()
	for _, p := range k.pluginLister.ExternalPlugins() {
		if p.Serves.Name != "" {
			continue
		}
		info, found := k.cached.findByContent(p.Path, p.ProgramID)
		if found && !info.FailedToStart {
			continue
		}
		if launchStateByPlugin == nil {
			launchStateByPlugin = make(map[string]pluginhooks.FirstLaunchState)
		}
		launchStateByPlugin[p.Name] = pluginhooks.LaunchPending
		if p.FirstLaunchDoneOrDeferred || found {
			launchStateByPlugin[p.Name] = pluginhooks.LaunchFailed
		}
	}
	return launchStateByPlugin, changed
}

// currentPluginInfos returns the current plugins' descriptions. Before a plugin has run it returns the cached description. If
// there is none and a launch has failed, it returns a description with FailedToStart.
func (k *pluginInfoTracker) currentPluginInfos() (infos []state.PluginInfo) {
	for _, p := range k.pluginLister.ExternalPlugins() {
		if p.Path == "" {
			continue
		}
		info, found := k.lastKnownInfo(p)
		switch {
		case p.Serves.Name != "":
			info = k.cached.newPluginInfo(p)
		case p.FirstLaunchDoneOrDeferred && (!found || info.FailedToStart): // PluginStatus.Err is nil while the plugin is launched again
			info = k.cached.newPluginInfo(p)
			info.FailedToStart = true
		case found:
			info.FilePath = p.Path
		default:
			continue
		}
		infos = append(infos, info)
	}
	return infos
}

// storeInfoChangesUntilDone stores the current plugins' descriptions whenever they change, until ctx ends: for later agents, and
// for this agent, where a plugin's description still counts after its file has changed.
func (k *pluginInfoTracker) storeInfoChangesUntilDone(ctx context.Context) {
	var storedInfos []state.PluginInfo // current plugins' descriptions in the store
	for _, p := range k.pluginLister.ExternalPlugins() {
		if info, ok := k.cached.findByPath(p.Path); ok {
			storedInfos = append(storedInfos, info)
		}
	}
	for stopping := false; ; {
		changed := k.pluginLister.InfoChanged()
		infos := k.currentPluginInfos()
		k.cached.update(infos)
		if !slices.Equal(infos, storedInfos) {
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
