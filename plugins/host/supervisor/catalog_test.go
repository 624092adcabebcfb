package supervisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/plugins/host/catalog"
)

// busyDrivers records which drivers have tasks.
type busyDrivers struct {
	mu    sync.Mutex
	names map[string]bool
}

func (b *busyDrivers) set(name string, tasks bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.names == nil {
		b.names = make(map[string]bool)
	}
	b.names[name] = tasks
}

func (b *busyDrivers) get(what PluginKey) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.names[what.Name]
}

// entryWithConfig returns the catalog entry of plugin "db" with a configuration.
func entryWithConfig(config string) catalog.Entry {
	e := externalEntry("db")
	e.Block.Config = map[string]any{"config": config}
	return e
}

// TestSetEntries checks that another catalog starts, stops and replaces plugins, but stops
// no plugin whose tasks still run.
func TestSetEntries(t *testing.T) {
	for what, c := range map[string]struct {
		before, after []catalog.Entry
		tasks         bool // the plugin has tasks
		meanwhile     func(*fakePlugin, *busyDrivers)
		launches      map[string]int
		runs          string // the expected process of the driver "db": name, number of launches, configuration
	}{
		"the same":                      {before: []catalog.Entry{entryWithConfig("a")}, after: []catalog.Entry{entryWithConfig("a")}, launches: map[string]int{"db": 1}, runs: "db 1 a"},
		"a new one":                     {before: []catalog.Entry{externalEntry("web")}, after: []catalog.Entry{entryWithConfig("a"), externalEntry("web")}, launches: map[string]int{"web": 1, "db": 1}, runs: "db 1 a"},
		"one less":                      {before: []catalog.Entry{entryWithConfig("a")}, launches: map[string]int{"db": 1}},
		"one less, which has tasks":     {before: []catalog.Entry{entryWithConfig("a")}, tasks: true, launches: map[string]int{"db": 1}, runs: "db 1 a"},
		"one less, which had tasks":     {before: []catalog.Entry{entryWithConfig("a")}, tasks: true, meanwhile: func(_ *fakePlugin, b *busyDrivers) { b.set("db", false) }, launches: map[string]int{"db": 1}},
		"one less, which dies":          {before: []catalog.Entry{entryWithConfig("a")}, tasks: true, meanwhile: func(f *fakePlugin, _ *busyDrivers) { f.die() }, launches: map[string]int{"db": 2}, runs: "db 2 a"},
		"another":                       {before: []catalog.Entry{entryWithConfig("a")}, after: []catalog.Entry{entryWithConfig("b")}, launches: map[string]int{"db": 2}, runs: "db 2 b"},
		"another, and there are tasks":  {before: []catalog.Entry{entryWithConfig("a")}, after: []catalog.Entry{entryWithConfig("b")}, tasks: true, launches: map[string]int{"db": 1}, runs: "db 1 a"},
		"another, and there were tasks": {before: []catalog.Entry{entryWithConfig("a")}, after: []catalog.Entry{entryWithConfig("b")}, tasks: true, meanwhile: func(_ *fakePlugin, b *busyDrivers) { b.set("db", false) }, launches: map[string]int{"db": 2}, runs: "db 2 b"},
		"another, and the one dies":     {before: []catalog.Entry{entryWithConfig("a")}, after: []catalog.Entry{entryWithConfig("b")}, tasks: true, meanwhile: func(f *fakePlugin, _ *busyDrivers) { f.die() }, launches: map[string]int{"db": 2}, runs: "db 2 b"},
		"one that could not be started": {before: []catalog.Entry{{Name: "db", Err: errors.New("no such file")}}, after: []catalog.Entry{entryWithConfig("a")}, launches: map[string]int{"db": 1}, runs: "db 1 a"},
		// The builtin is launched twice, because it was stopped once as idle.
		"one in the place of a builtin": {before: []catalog.Entry{builtinEntry("db"), entryWithConfig("a")}, after: []catalog.Entry{builtinEntry("db")}, launches: map[string]int{"db": 1, "builtin db": 2}, runs: "builtin db 2"},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var (
					mu               sync.Mutex
					runningPlugin    *fakePlugin // the latest process
					is               = map[*fakePlugin]string{}
					launchCounts     = map[string]int{}
					driversWithTasks busyDrivers
				)
				driversWithTasks.set("db", c.tasks)
				s := startSupervisorWithTasks(t, Config{}, Tasks{Use: driversWithTasks.get}, c.before, func(_ context.Context, name string, n int) (*fakePlugin, error) {
					mu.Lock()
					defer mu.Unlock()
					launchCounts[name] = n
					f := newFakePlugin("db", "1.0.0")
					if name == "web" {
						f = newFakePlugin("web", "1.0.0")
					}
					runningPlugin, is[f] = f, fmt.Sprint(name, " ", n)
					return f, nil
				})
				_, _ = s.Driver(t.Context(), "db") // the error is ignored: the driver may not be available yet
				mu.Lock()
				reattached := runningPlugin
				mu.Unlock()
				s.setCatalogEntries(c.after)
				synctest.Wait()
				if c.meanwhile != nil {
					c.meanwhile(reattached, &driversWithTasks)
				}
				time.Sleep(2 * idleTimeout)
				d, err := s.Driver(t.Context(), "db")
				runs := ""
				if err == nil {
					f := unwrapFakeDriver(d).plugin
					runs = is[f]
					s.mu.Lock()
					if m := s.registry.ownerByKey[driverKey("db")]; m.entry.Block != nil {
						runs += fmt.Sprint(" ", m.entry.Block.Config["config"])
					}
					s.mu.Unlock()
				} else if !errors.Is(err, ErrNoDriver) {
					t.Error(err)
				}
				if runs != c.runs {
					t.Errorf("it is run by %q, want %q", runs, c.runs)
				}
				if _, there := s.DriverInfoByName()["db"]; there != (c.runs != "") {
					t.Errorf("the driver is there: %v", there)
				}
				if fmt.Sprint(launchCounts) != fmt.Sprint(c.launches) {
					t.Errorf("launches %v, want %v", launchCounts, c.launches)
				}
			})
		})
	}
}

// A driver that the catalog does not start is listed with the reason, without a process, until the catalog starts it.
func TestDriversNotStarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		newCatalog := func(reason string) *catalog.Catalog {
			c, err := catalog.New(catalog.Config{Builtins: []catalog.Builtin{{Name: "docker", NotStartedReason: reason}}})
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		launches := 0
		s := startSupervisor(t, Config{}, nil, func(_ context.Context, name string, _ int) (*fakePlugin, error) {
			launches++
			return newFakePlugin("docker", "0.1.0"), nil
		})
		s.SetCatalog(newCatalog("no engine"))
		synctest.Wait()
		info, ok := s.NotStartedDriverInfoByName()["docker"]
		if !ok || info.Detected || info.Healthy || info.Description != "no engine" || info.UpdatedAt.IsZero() || launches != 0 {
			t.Errorf("driver %+v, %d launches", info, launches)
		}
		time.Sleep(time.Second)
		s.SetCatalog(newCatalog("no engine"))
		if got := s.NotStartedDriverInfoByName()["docker"].UpdatedAt; !got.Equal(info.UpdatedAt) {
			t.Errorf("updated at %v by a catalog with the same reason, want %v", got, info.UpdatedAt)
		}
		if _, err := s.Driver(t.Context(), "docker"); !errors.Is(err, ErrNoDriver) || !strings.Contains(err.Error(), "no engine") {
			t.Errorf("error %v, want the reason", err)
		}
		if len(s.DriverInfoByName()) != 0 || len(s.Plugins()) != 0 {
			t.Errorf("drivers %v, plugins %v", s.DriverInfoByName(), s.Plugins())
		}

		s.SetCatalog(newCatalog(""))
		synctest.Wait()
		if got := s.NotStartedDriverInfoByName(); len(got) != 0 || launches != 1 {
			t.Errorf("not started: %v, %d launches", got, launches)
		}
		if _, err := s.Driver(t.Context(), "docker"); err != nil {
			t.Error(err)
		}
	})
}

// The log names a plugin that has moved, was removed or is new once, also if a catalog is set again while its process has tasks.
func TestLogOfChangedCatalog(t *testing.T) {
	var log bytes.Buffer
	r := registry{ownerByKey: map[PluginKey]*managedPlugin{}, driverInfoByName: map[string]DriverInfo{}, logger: hclog.New(&hclog.LoggerOptions{Output: &log, DisableTime: true})}
	set := func(entries ...catalog.Entry) string {
		log.Reset()
		r.replaceCatalogPlugins(newManagedPlugins(entries, nil))
		return log.String()
	}
	at := func(name, dir string) catalog.Entry { return catalog.Entry{Name: name, Path: dir + "/" + name} }
	set(at("a", "/old"), at("b", "/old"))
	for _, m := range r.plugins {
		m.loopRunning = true // its process has tasks
	}
	want := "[INFO]  plugin has moved: plugin=a from=/old/a to=/new/a\n[INFO]  plugin was removed from the configuration: plugin=b\n[INFO]  plugin is new: plugin=c\n"
	if got := set(at("a", "/new"), at("c", "/new")); got != want {
		t.Errorf("log\n%swant\n%s", got, want)
	}
	if got := set(at("a", "/new"), at("c", "/new")); got != "" {
		t.Errorf("the same catalog again: log\n%s", got)
	}
}
