package agentplugins

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/plugins/host/catalog"
	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/node/hooks/pluginhooks"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// Foreground runs with different plugins share one file: each run keeps the entries of other plugins with existing files, and
// deletes those of removed plugins.
func TestRunsShareAPluginCache(t *testing.T) {
	dir := t.TempDir()
	plugin := func(name string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, nil, 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	mine, others, gone := plugin("mine"), plugin("others"), plugin("gone")
	m := FileCache(filepath.Join(dir, "cache", "nomad-lite", "plugins.json"))
	if known, err := m.load(); err != nil || known != nil {
		t.Fatalf("before the first run: %v, %v", known, err)
	}
	for _, saved := range [][]state.PluginInfo{
		{{FilePath: others, FileSHA256Hex: "1", Name: "gatekeeper", TakesPartInAllAllocs: true}, {FilePath: gone, FileSHA256Hex: "1"}, {FilePath: mine, FileSHA256Hex: "1", Name: "old"}},
		{{FilePath: mine, FileSHA256Hex: "2"}},
	} {
		if err := m.save(saved); err != nil {
			t.Fatal(err)
		}
		os.Remove(gone)
	}
	known, err := m.load()
	if want := []state.PluginInfo{{FilePath: mine, FileSHA256Hex: "2"}, {FilePath: others, FileSHA256Hex: "1", Name: "gatekeeper", TakesPartInAllAllocs: true}}; err != nil || !slices.Equal(known, want) {
		t.Errorf("known are %v, %v; want %v", known, err, want)
	}
	if entries, err := os.ReadDir(filepath.Dir(string(m))); err != nil || len(entries) != 1 {
		t.Errorf("left are %v, %v", entries, err)
	}
	if err := os.WriteFile(string(m), []byte("[{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if known, err := m.load(); err == nil || len(known) > 0 {
		t.Errorf("of a damaged file: %v, %v", known, err)
	}
	if err := m.save([]state.PluginInfo{{FilePath: mine, FileSHA256Hex: "3"}}); err != nil {
		t.Fatal(err)
	}
	if known, err := m.load(); err != nil || len(known) != 1 {
		t.Errorf("after a damage: %v, %v", known, err)
	}
	if err := FileCache("").save(known); err != nil {
		t.Errorf("without a file: %v", err)
	}
}

// cacheTest has a cache file, and a plugin file with a plugin that provides the hook "audit" for every allocation.
type cacheTest struct {
	t     *testing.T
	cache FileCache
	path  string
}

func newCacheTest(t *testing.T) *cacheTest {
	c := &cacheTest{t: t, cache: FileCache(filepath.Join(t.TempDir(), "plugins.json")), path: filepath.Join(t.TempDir(), "audit")}
	c.write(c.path, "#!/bin/sh\nexec audit 1\n")
	return c
}

func (c *cacheTest) write(path, content string) {
	c.t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
		c.t.Fatal(err)
	}
}

// staticPluginList are plugins that do not change.
type staticPluginList []supervisor.PluginStatus

func (s staticPluginList) ExternalPlugins() []supervisor.PluginStatus { return s }
func (s staticPluginList) InfoChanged() <-chan struct{}               { return nil }

// newKnownPluginInfos returns a newly started agent's pluginInfoTracker. The agent has one plugin, the file at path with these
// arguments.
func (c *cacheTest) newKnownPluginInfos(path string, running bool, args ...string) *pluginInfoTracker {
	c.t.Helper()
	dir, name := filepath.Split(path)
	all, err := catalog.New(catalog.Config{PluginDir: dir, Blocks: []catalog.PluginBlock{{Name: name, Args: args}}})
	if err != nil {
		c.t.Fatal(err)
	}
	e := all.Entries()[0]
	p := supervisor.PluginStatus{Name: e.Name, Path: e.Path, ProgramID: e.ProgramID}
	if running {
		p.Serves = supervisor.PluginKey{Type: base.TypeHook, Name: "audit"}
		p.HookDescription = &hook.Description{AllAllocs: true}
	}
	logger := hclog.NewNullLogger()
	return &pluginInfoTracker{cache: c.cache, cached: loadCachedPlugins(c.cache, logger), pluginLister: staticPluginList{p}, logger: logger}
}

// run simulates an agent that runs until it has stored the description of the plugin at path.
func (c *cacheTest) run(path string, args ...string) {
	c.t.Helper()
	ctx, cancel := context.WithCancel(c.t.Context())
	cancel()
	c.newKnownPluginInfos(path, true, args...).storeInfoChangesUntilDone(ctx)
}

func (c *cacheTest) checkPluginKnown(what string, k *pluginInfoTracker, want bool) {
	c.t.Helper()
	if unknown, _ := k.neverReportedPlugins(); (len(unknown) == 0) != want {
		c.t.Errorf("%s: unknown plugins %v", what, unknown)
	}
}

func TestPluginCacheIsKeyedByContent(t *testing.T) {
	c := newCacheTest(t)
	c.checkPluginKnown("before the first run", c.newKnownPluginInfos(c.path, false), false)
	c.run(c.path)
	c.checkPluginKnown("the same file", c.newKnownPluginInfos(c.path, false), true)
	c.checkPluginKnown("other arguments", c.newKnownPluginInfos(c.path, false, "-v"), false)

	other := filepath.Join(t.TempDir(), "renamed")
	c.write(other, "#!/bin/sh\nexec audit 1\n")
	k := c.newKnownPluginInfos(other, false)
	c.checkPluginKnown("the same content at another path", k, true)
	if got := k.hooksOfAllAllocsStillStarting(); !slices.Equal(got, []string{"audit"}) {
		t.Errorf("expected hooks %v, want audit", got)
	}
	p := k.pluginLister.ExternalPlugins()[0]
	audit := supervisor.PluginKey{Type: base.TypeHook, Name: "audit"}
	if got, unchanged := k.cached.cachedPluginKey(catalog.Entry{Path: p.Path, ProgramID: p.ProgramID}); got != audit || !unchanged {
		t.Errorf("last served: %v, unchanged %v", got, unchanged)
	}
	c.write(c.path, "#!/bin/sh\nexec audit 3\n")
	changed := c.newKnownPluginInfos(c.path, false)
	p = changed.pluginLister.ExternalPlugins()[0]
	if got, unchanged := changed.cached.cachedPluginKey(catalog.Entry{Path: p.Path, ProgramID: p.ProgramID}); got != audit || unchanged {
		t.Errorf("last served by the plugin before the change: %v, unchanged %v", got, unchanged)
	}
	c.write(other, "#!/bin/sh\nexec audit 2\n")
	k = c.newKnownPluginInfos(other, false)
	c.checkPluginKnown("other content of the same size at another path", k, false)
	if got := k.hooksOfAllAllocsStillStarting(); len(got) > 0 {
		t.Errorf("expected hooks of an unknown plugin: %v", got)
	}
}

// A plugin file with changed content is treated as another plugin, even if its size and mtime are the same, and if it is changed
// so soon that its ctime may be the same. The earlier file's hook is expected until the plugin reports its description.
func TestPluginCacheDetectsChangeWithRestoredMtime(t *testing.T) {
	c := newCacheTest(t)
	info, err := os.Stat(c.path)
	if err != nil {
		t.Fatal(err)
	}
	for n := range 20 {
		c.run(c.path)
		c.checkPluginKnown("before the change", c.newKnownPluginInfos(c.path, false), true)
		c.write(c.path, fmt.Sprintf("#!/bin/sh\nexec audit %c\n", 'a'+n))
		if err := os.Chtimes(c.path, info.ModTime(), info.ModTime()); err != nil {
			t.Fatal(err)
		}
		k := c.newKnownPluginInfos(c.path, false)
		c.checkPluginKnown("after the change", k, false)
		if got := k.hooksOfAllAllocsStillStarting(); !slices.Equal(got, []string{"audit"}) {
			t.Fatalf("expected hooks %v, want audit", got)
		}
	}
}

// A file with metadata in the cache is not read again. To detect a read, the test stores a wrong checksum in the cache.
func TestPluginCacheDoesNotReadUnchangedFile(t *testing.T) {
	c := newCacheTest(t)
	k := c.newKnownPluginInfos(c.path, false)
	program := k.pluginLister.ExternalPlugins()[0].ProgramID
	info := state.PluginInfo{FileSHA256Hex: strings.Repeat("0", 64), SettingsHash: program.ArgsAndConfigHash, FilePath: c.path, FileMetadata: state.FileRecord(program.File)}
	for _, test := range []struct {
		name   string
		change func(*state.FileRecord)
		known  bool
	}{
		{"the same metadata", func(*state.FileRecord) {}, true},
		{"other device", func(f *state.FileRecord) { f.Device++ }, false},
		{"other inode", func(f *state.FileRecord) { f.Inode++ }, false},
		{"other mtime", func(f *state.FileRecord) { f.ModTime++ }, false},
		{"other ctime", func(f *state.FileRecord) { f.ChangeTime++ }, false},
		{"hashed just after a change", func(f *state.FileRecord) { f.ChangeTime = 0 }, false},
	} {
		cached := info
		test.change(&cached.FileMetadata)
		if err := c.cache.save([]state.PluginInfo{cached}); err != nil {
			t.Fatal(err)
		}
		c.checkPluginKnown(test.name, c.newKnownPluginInfos(c.path, false), test.known)
	}
}

// The change time of a file changed just now is not stored, because another change may leave the metadata the same.
func TestPluginCacheOmitsRecentChangeTime(t *testing.T) {
	stored := func(c *cacheTest, path string) int64 {
		t.Helper()
		c.run(path)
		infos, err := c.cache.load()
		if err != nil || len(infos) != 1 || infos[0].FileMetadata.Size == 0 {
			t.Fatalf("stored: %+v, %v", infos, err)
		}
		return infos[0].FileMetadata.ChangeTime
	}
	began := time.Now()
	c := newCacheTest(t)
	if changed := stored(c, c.path); changed != 0 && time.Since(began) < minUnchangedTime {
		t.Errorf("a new file: ctime %d is stored", changed)
	}
	old, err := filepath.EvalSymlinks("/bin/sh") // older than minUnchangedTime
	if err != nil {
		t.Fatal(err)
	}
	if changed := stored(newCacheTest(t), old); changed == 0 {
		t.Error("an old file: ctime is not stored")
	}
}

func TestPluginCacheReplacesUnreadableRecords(t *testing.T) {
	for name, text := range map[string]string{
		"damaged":              `[{"SHA`,
		"wrong type":           `[{"SHA256": "1", "Path": "/bin/true"}, {"SHA256": 1}]`,
		"of an earlier format": `[{"Path": %q, "Program": "1", "Every": "audit"}]`,
	} {
		t.Run(name, func(t *testing.T) {
			c := newCacheTest(t)
			if strings.Contains(text, "%q") {
				text = fmt.Sprintf(text, c.path)
			}
			c.write(string(c.cache), text)
			c.checkPluginKnown("before", c.newKnownPluginInfos(c.path, false), false)
			c.run(c.path)
			c.checkPluginKnown("after", c.newKnownPluginInfos(c.path, false), true)
			infos, err := c.cache.load()
			if err != nil || len(infos) != 1 || infos[0].FileSHA256Hex == "" || infos[0].Name != "audit" || !infos[0].TakesPartInAllAllocs {
				t.Errorf("stored: %+v, %v", infos, err)
			}
		})
	}
}

// A plugin with a failed start under an earlier agent is still unknown, and known to have failed, until it starts.
func TestPluginCacheRecordsFailedLaunches(t *testing.T) {
	c := newCacheTest(t)
	expect := func(when string, want map[string]pluginhooks.FirstLaunchState) {
		t.Helper()
		if got, _ := c.newKnownPluginInfos(c.path, false).neverReportedPlugins(); !maps.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", when, got, want)
		}
	}
	expect("before the first run", map[string]pluginhooks.FirstLaunchState{"audit": pluginhooks.LaunchPending})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	failLaunch := func() {
		k := c.newKnownPluginInfos(c.path, false)
		p := &k.pluginLister.(staticPluginList)[0]
		p.FirstLaunchDoneOrDeferred, p.Err = true, errors.New("no luck")
		k.storeInfoChangesUntilDone(ended)
		p.Err = nil // the supervisor launches the plugin again
		k.storeInfoChangesUntilDone(ended)
	}
	failLaunch()
	expect("after a failed launch", map[string]pluginhooks.FirstLaunchState{"audit": pluginhooks.LaunchFailed})
	c.write(c.path, "#!/bin/sh\nexec audit 0\n")
	expect("after a change of the file", map[string]pluginhooks.FirstLaunchState{"audit": pluginhooks.LaunchPending})
	failLaunch()
	expect("after a failed launch of the changed file", map[string]pluginhooks.FirstLaunchState{"audit": pluginhooks.LaunchFailed})
	c.run(c.path)
	expect("after a launch", nil)

	// A hook that has run remains expected, whatever its later launches do.
	failLaunch()
	if got := c.newKnownPluginInfos(c.path, false).hooksOfAllAllocsStillStarting(); !slices.Equal(got, []string{"audit"}) {
		t.Errorf("expected hooks %v, want audit", got)
	}
	c.write(c.path, "#!/bin/sh\nexec audit 2\n")
	expect("after a change of the file", map[string]pluginhooks.FirstLaunchState{"audit": pluginhooks.LaunchPending})
}

// The description of an agent's new plugin is kept when its file changes under that agent: for the agent itself, and for the next
// one, also if the changed plugin fails to start.
func TestPluginCacheKeepsDescriptionOfNewPluginThatChanges(t *testing.T) {
	for _, launchFailed := range []bool{false, true} {
		t.Run(fmt.Sprintf("launch failed: %v", launchFailed), func(t *testing.T) {
			c := newCacheTest(t)
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			k := c.newKnownPluginInfos(c.path, true)
			k.storeInfoChangesUntilDone(ended)

			c.write(c.path, "#!/bin/sh\nexec audit the next version\n")
			changed := c.newKnownPluginInfos(c.path, false).pluginLister.(staticPluginList)
			changed[0].FirstLaunchDoneOrDeferred = launchFailed
			k.pluginLister = changed
			k.storeInfoChangesUntilDone(ended)

			entry := catalog.Entry{Path: c.path, ProgramID: changed[0].ProgramID}
			for agent, k := range map[string]*pluginInfoTracker{"this agent": k, "the next agent": c.newKnownPluginInfos(c.path, false)} {
				if got := k.hooksOfAllAllocsStillStarting(); !slices.Equal(got, []string{"audit"}) {
					t.Errorf("%s expects hooks %v, want audit", agent, got)
				}
				audit := supervisor.PluginKey{Type: base.TypeHook, Name: "audit"}
				if got, unchanged := k.cached.cachedPluginKey(entry); got != audit || unchanged {
					t.Errorf("%s: last served: %v, unchanged %v", agent, got, unchanged)
				}
			}
		})
	}
}
