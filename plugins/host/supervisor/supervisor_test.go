package supervisor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/plugins/hook/hookwire"
	"github.com/nomad-lite/nomad-lite/plugins/host/catalog"
)

// startSupervisor is startSupervisorWithTasks for plugins without tasks.
func startSupervisor(t *testing.T, cfg Config, entries []catalog.Entry, open func(ctx context.Context, name string, n int) (*fakePlugin, error)) *Supervisor {
	return startSupervisorWithTasks(t, cfg, Tasks{}, entries, open)
}

// startSupervisorWithTasks runs a supervisor, which calls open instead of launching a plugin; n is the number
// of launches of the entry so far. The supervisor stops when the test ends.
func startSupervisorWithTasks(t *testing.T, cfg Config, tasks Tasks, entries []catalog.Entry, open func(ctx context.Context, name string, n int) (*fakePlugin, error)) *Supervisor {
	s := New(cfg)
	s.setCatalogEntries(entries)
	var mu sync.Mutex
	counts := map[string]int{}
	var all []*fakePlugin
	s.launchPlugin = func(ctx context.Context, e catalog.Entry) (pluginInstance, error) {
		key := e.Name
		if e.Builtin {
			key = "builtin " + key
		}
		mu.Lock()
		counts[key]++
		n := counts[key]
		mu.Unlock()
		f, err := open(ctx, key, n)
		if err != nil {
			return nil, err
		}
		mu.Lock()
		all = append(all, f)
		mu.Unlock()
		return f, nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.Run(ctx, tasks); err != nil {
			t.Errorf("run: %v", err)
		}
	})
	t.Cleanup(func() {
		cancel()
		wg.Wait()
		for _, f := range all {
			if !hasExited(f) {
				t.Errorf("plugin %q lives on", f.info.Name)
			}
			if !f.stopped && !f.closed {
				t.Errorf("plugin %q was not released", f.info.Name)
			}
		}
		if _, err := s.Driver(context.Background(), "any"); !errors.Is(err, ErrStopped) {
			t.Errorf("driver after the end: %v", err)
		}
	})
	return s
}

func mustDriver(t *testing.T, s *Supervisor, name string) *fakeDriver {
	t.Helper()
	d, err := s.Driver(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return unwrapFakeDriver(d)
}

func TestBackoff(t *testing.T) {
	want := []time.Duration{0, 5, 10, 20, 40, 80, 120, 120}
	for n, w := range want {
		if got := launchBackoff.delayAfter(n); got != w*time.Second {
			t.Errorf("after %d troubles %v, want %v", n, got, w*time.Second)
		}
	}
	if got := launchBackoff.delayAfter(1 << 30); got != 2*time.Minute {
		t.Errorf("after very many troubles %v", got)
	}
	if a, b := streamBackoff.delayAfter(1), streamBackoff.delayAfter(40); a != 250*time.Millisecond || b != 30*time.Second {
		t.Errorf("reopening: %v and %v", a, b)
	}
}

func TestFailureDelays(t *testing.T) {
	var (
		failedLaunch    = pluginRunResult{}
		earlyExit       = pluginRunResult{processStarted: true, uptime: time.Second}
		stableRun       = pluginRunResult{processStarted: true, uptime: stableUptime}
		crashDuringCall = pluginRunResult{processStarted: true, uptime: time.Second, mayHaveCrashedInCall: true}
	)
	const ms = time.Millisecond
	for _, c := range []struct {
		name  string
		lives []pluginRunResult
		want  []time.Duration
	}{
		{"a first death is followed by a launch at once", []pluginRunResult{earlyExit, earlyExit, earlyExit}, []time.Duration{0, 5 * time.Second, 10 * time.Second}},
		{"a launch that fails is not tried again at once", []pluginRunResult{failedLaunch, failedLaunch}, []time.Duration{5 * time.Second, 10 * time.Second}},
		{"a process that was well for a while has no past", []pluginRunResult{earlyExit, earlyExit, stableRun, earlyExit}, []time.Duration{0, 5 * time.Second, 0, 5 * time.Second}},
		{"a hook that dies over calls comes back soon", []pluginRunResult{crashDuringCall, crashDuringCall, crashDuringCall}, []time.Duration{0, 100 * ms, 200 * ms}},
		{"one that does not come back then waits like others", []pluginRunResult{crashDuringCall, crashDuringCall, failedLaunch}, []time.Duration{0, 100 * ms, 10 * time.Second}},
	} {
		var consecutiveFailures failureCounter
		var got []time.Duration
		for _, l := range c.lives {
			got = append(got, consecutiveFailures.countFailureAndNextDelay(l))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: delays %v, want %v", c.name, got, c.want)
		}
	}
}

func TestOneProcessForAllCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		launches := 0
		s := startSupervisor(t, Config{}, []catalog.Entry{builtinEntry("raw_exec")}, func(context.Context, string, int) (*fakePlugin, error) {
			launches++
			time.Sleep(time.Second)
			return newFakePlugin("raw_exec", "0.1.0"), nil
		})
		var got [8]driver.Driver
		var wg sync.WaitGroup
		for i := range got {
			wg.Go(func() {
				var err error
				if got[i], err = s.Driver(t.Context(), "raw_exec"); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		for _, d := range got {
			if d != got[0] {
				t.Error("two callers have two drivers")
			}
		}
		if launches != 1 {
			t.Errorf("%d launches, want 1", launches)
		}
	})
}

func TestRelaunchThenBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var at []time.Duration
		s := startSupervisor(t, Config{}, []catalog.Entry{builtinEntry("x")}, func(_ context.Context, _ string, n int) (*fakePlugin, error) {
			at = append(at, time.Since(began))
			f := newFakePlugin("x", "1")
			switch {
			// The plugin exits early three times: launched again immediately after the first, after a
			// backoff from the second.
			case n <= 3:
				time.AfterFunc(time.Second, f.die)
			case n == 4 || n == 5:
				return nil, errors.New("no licence")
			case n == 6: // runs for stableUptime, which resets the failure count
				time.AfterFunc(stableUptime, f.die)
			}
			return f, nil
		})
		first := mustDriver(t, s, "x")
		<-first.plugin.done
		synctest.Wait()
		if second := mustDriver(t, s, "x"); second == first {
			t.Error("got the dead driver")
		}
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		// The uptimes and the delays before the next launches are: 1 s, 0 s; 1 s, 5 s; 1 s,
		// 10 s; failed start, 20 s; failed start, 40 s; 60 s, 0 s.
		want := []time.Duration{0, 1, 7, 18, 38, 78, 138}
		for i := range want {
			want[i] *= time.Second
		}
		if !slices.Equal(at, want) {
			t.Errorf("launches at\n%v, want\n%v", at, want)
		}
		if p := s.Plugins()[0]; p.PID == 0 || p.LastExitErr == nil || p.LastExitAt.Sub(began) != 138*time.Second || p.ExitCount != 4 {
			t.Errorf("while the next process runs: pid %d, last exit %v after %v, %d restarts", p.PID, p.LastExitErr, p.LastExitAt.Sub(began), p.ExitCount)
		}
	})
}

func TestRestartLaunchesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var at []time.Duration
		s := startSupervisor(t, Config{}, []catalog.Entry{externalEntry("x")}, func(_ context.Context, _ string, n int) (*fakePlugin, error) {
			at = append(at, time.Since(began))
			if n == 3 || n == 4 {
				return nil, errors.New("panic: at start")
			}
			return newFakePlugin("x", "1"), nil
		})
		restart := func() {
			t.Helper()
			backingOff := s.Plugins()[0].Err != nil
			if err := s.Restart(t.Context(), "x"); err != nil {
				t.Fatal(err)
			}
			// The plugin's goroutine runs after the next Wait, unless Restart has waited for it.
			if err := s.Plugins()[0].Err; backingOff && err != nil {
				t.Errorf("the error of an earlier launch is still reported: %v", err)
			}
			synctest.Wait()
		}
		first := mustDriver(t, s, "x")
		time.Sleep(time.Second)
		restart()
		if !first.plugin.stopped {
			t.Error("the process was not shut down in order")
		}
		if second := mustDriver(t, s, "x"); second == first {
			t.Error("got the driver of the process that was shut down")
		}
		time.Sleep(time.Second)
		restart() // the third launch fails; the next follows after 5 seconds
		time.Sleep(time.Second)
		restart() // the fourth launch fails; the next follows after 10 seconds
		time.Sleep(time.Second)
		restart()
		mustDriver(t, s, "x")
		want := []time.Duration{0, 1 * time.Second, 2 * time.Second, 3 * time.Second, 4 * time.Second}
		if !slices.Equal(at, want) {
			t.Errorf("launches at %v, want %v", at, want)
		}
		if err := s.Restart(t.Context(), "y"); !errors.Is(err, ErrNoPlugin) {
			t.Errorf("restart of an unknown plugin: %v", err)
		}
	})
}

func TestDriverDuringBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startSupervisor(t, Config{}, []catalog.Entry{externalEntry("x")}, func(_ context.Context, _ string, n int) (*fakePlugin, error) {
			if n == 1 {
				return nil, errors.New(`plugin "x" (/plugins/x): exited with code 3`)
			}
			time.Sleep(time.Second)
			return newFakePlugin("x", "1"), nil
		})
		_, err := s.Driver(t.Context(), "x")
		if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), `driver "x": not available: plugin "x" (/plugins/x): exited with code 3 (next try in 5s)`) {
			t.Errorf("got %v", err)
		}
		time.Sleep(5500 * time.Millisecond) // after 5.5 s the second launch, which takes a second, is in progress
		mustDriver(t, s, "x")
	})
}

func TestUnavailableDriverAnnouncesTheNextAttempt(t *testing.T) {
	containers := builtinEntry("x")
	processes := containers
	processes.TasksAreHostProcesses = true
	for _, entry := range []catalog.Entry{externalEntry("x"), containers, processes} {
		t.Run(entry.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				s := startSupervisor(t, Config{}, []catalog.Entry{entry}, func(_ context.Context, _ string, n int) (*fakePlugin, error) {
					if n < 3 {
						return nil, errors.New("exit status 3")
					}
					return newFakePlugin("x", "1"), nil
				})
				_, err := s.Driver(t.Context(), "x")
				for err != nil {
					var unavailableErr *driver.UnavailableError
					if !errors.As(err, &unavailableErr) || unavailableErr.Plugin != entry.String() || unavailableErr.TasksAreHostProcesses != entry.TasksAreHostProcesses || unavailableErr.NotLaunchedAgain {
						t.Fatalf("got %v (%+v)", err, unavailableErr)
					}
					<-unavailableErr.RetryOnClose
					_, err = s.Driver(t.Context(), "x")
				}
				if took := time.Since(began); took != 15*time.Second {
					t.Errorf("available after %v, want 15s", took)
				}
			})
		})
	}
	t.Run("not launched again", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := startSupervisor(t, Config{}, []catalog.Entry{{Name: "x", Err: errors.New("no such file")}}, nil)
			_, err := s.Driver(t.Context(), "x")
			var unavailableErr *driver.UnavailableError
			if !errors.As(err, &unavailableErr) || unavailableErr.Plugin == "" || !unavailableErr.NotLaunchedAgain {
				t.Errorf("got %v (%+v)", err, unavailableErr)
			}
		})
	})
	t.Run("no plugin", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := startSupervisor(t, Config{}, nil, nil)
			_, err := s.Driver(t.Context(), "x")
			var unavailableErr *driver.UnavailableError
			if !errors.As(err, &unavailableErr) || unavailableErr.Plugin != "" || !errors.Is(err, ErrNoDriver) {
				t.Errorf("got %v (%+v)", err, unavailableErr)
			}
		})
	})
}

func TestUnknownDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := externalEntry("broken")
		broken.Err = errors.New("other users may write to it")
		s := startSupervisor(t, Config{}, []catalog.Entry{builtinEntry("mock"), builtinEntry("raw_exec"), broken}, func(_ context.Context, name string, _ int) (*fakePlugin, error) {
			return newFakePlugin(strings.TrimPrefix(name, "builtin "), "1"), nil
		})
		_, err := s.Driver(t.Context(), "docker")
		want := `driver "docker": no such driver: there are mock, raw_exec; plugin "broken" (/plugins/broken): other users may write to it`
		if !errors.Is(err, ErrNoDriver) || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
		if _, err := s.Driver(t.Context(), "broken"); !errors.Is(err, ErrUnavailable) || strings.Contains(err.Error(), "next try") {
			t.Errorf("a plugin that may not be started: %v", err)
		}
	})
}

func TestDriverContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startSupervisor(t, Config{}, []catalog.Entry{externalEntry("x")}, func(ctx context.Context, _ string, _ int) (*fakePlugin, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})
		killed := errors.New("task killed")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, killed)
		defer cancel()
		if _, err := s.Driver(ctx, "x"); !errors.Is(err, killed) {
			t.Errorf("got %v, want %v", err, killed)
		}
	})
}

// TestPluginArbitration checks which plugin serves a driver that several plugins offer.
func TestPluginArbitration(t *testing.T) {
	type testPlugin struct {
		entry   catalog.Entry
		name    string
		version string
		err     error
		delay   time.Duration
	}
	tests := []struct {
		name   string
		offers []testPlugin
		driver string
		want   string // file or builtin that serves the driver
		err    string
		unused []string // names of the plugins that must not be launched
	}{
		{"an external plugin of a builtin's name replaces it", []testPlugin{
			{entry: builtinEntry("raw_exec")}, {entry: externalEntry("raw_exec"), name: "raw_exec", version: "0.1.0"},
		}, "raw_exec", "raw_exec", "", []string{"builtin raw_exec"}},
		{"one of a lower version does not", []testPlugin{
			{entry: builtinEntry("raw_exec"), name: "raw_exec", version: "0.1.0"}, {entry: externalEntry("raw_exec"), name: "raw_exec", version: "0.0.9"},
		}, "raw_exec", "builtin raw_exec", "", nil},
		{"nor one that is another driver after all", []testPlugin{
			{entry: builtinEntry("raw_exec"), name: "raw_exec", version: "0.1.0"}, {entry: externalEntry("raw_exec"), name: "other", version: "9"},
		}, "raw_exec", "builtin raw_exec", "", nil},
		{"the file's name does not matter", []testPlugin{
			{entry: builtinEntry("raw_exec"), name: "raw_exec", version: "0.1.0"}, {entry: externalEntry("zz"), name: "raw_exec", version: "1.0.0", delay: 300 * time.Millisecond},
		}, "raw_exec", "zz", "", nil},
		{"a configured plugin that does not start is not replaced by the builtin", []testPlugin{
			{entry: builtinEntry("raw_exec")}, {entry: externalEntry("nomad-driver-raw_exec"), err: errors.New("no licence")},
		}, "raw_exec", "", "no licence", []string{"builtin raw_exec"}},
		{"a file that no block names does not replace a builtin", []testPlugin{
			{entry: builtinEntry("raw_exec"), name: "raw_exec", version: "0.1.0"}, {entry: externalEntryWithoutBlock("hello"), name: "raw_exec", version: "9.0.0"},
		}, "raw_exec", "builtin raw_exec", "", nil},
		{"nor when it comes first", []testPlugin{
			{entry: builtinEntry("raw_exec"), name: "raw_exec", version: "0.1.0", delay: time.Second}, {entry: externalEntryWithoutBlock("hello"), name: "raw_exec", version: "9.0.0"},
		}, "raw_exec", "builtin raw_exec", "", nil},
		{"a file that is another driver than its name says", []testPlugin{
			{entry: externalEntry("hello"), name: "other", version: "1"},
		}, "hello", "", `there is only other; plugin "hello" (/plugins/hello) reports itself as driver "other"`, nil},
		{"the highest version of two files", []testPlugin{
			{entry: externalEntry("a"), name: "hello", version: "v1.10.0"}, {entry: externalEntry("b"), name: "hello", version: "1.9.0", delay: time.Second},
		}, "hello", "a", "", nil},
		{"the highest version, although it is slower", []testPlugin{
			{entry: externalEntry("a"), name: "hello", version: "2", delay: time.Second}, {entry: externalEntry("b"), name: "hello", version: "1"},
		}, "hello", "a", "", nil},
		{"of equal versions the later file", []testPlugin{
			{entry: externalEntry("a"), name: "hello", version: "1.0.0", delay: time.Second}, {entry: externalEntry("b"), name: "hello", version: "1.0"},
		}, "hello", "b", "", nil},
		{"a file that comes too late does not take over", []testPlugin{
			{entry: builtinEntry("raw_exec"), name: "raw_exec", version: "0.1.0"}, {entry: externalEntry("zz"), name: "raw_exec", version: "1.0.0", delay: readyTimeout + 3*time.Second},
		}, "raw_exec", "builtin raw_exec", "", nil},
		{"a slow file of an unknown driver is waited for", []testPlugin{
			{entry: externalEntry("zz"), name: "hello", version: "1.0.0", delay: 5 * time.Second},
		}, "hello", "zz", "", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var entries []catalog.Entry
				offers := map[string]testPlugin{}
				for _, o := range tt.offers {
					entries = append(entries, o.entry)
					key := o.entry.Name
					if o.entry.Builtin {
						key = "builtin " + key
					}
					offers[key] = o
				}
				plugins := map[string]*fakePlugin{}
				var mu sync.Mutex
				s := startSupervisor(t, Config{}, entries, func(_ context.Context, key string, _ int) (*fakePlugin, error) {
					o := offers[key]
					time.Sleep(o.delay)
					if o.err != nil {
						return nil, o.err
					}
					f := newFakePlugin(o.name, o.version)
					mu.Lock()
					plugins[key] = f
					mu.Unlock()
					return f, nil
				})
				d, err := s.Driver(t.Context(), tt.driver)
				if tt.err != "" {
					if err == nil || !strings.Contains(err.Error(), tt.err) {
						t.Fatalf("got %v, want %q", err, tt.err)
					}
				} else if err != nil {
					t.Fatal(err)
				}
				time.Sleep(10 * time.Second)
				synctest.Wait()
				mu.Lock()
				defer mu.Unlock()
				for key, f := range plugins {
					served := d != nil && unwrapFakeDriver(d).plugin == f
					if served != (key == tt.want) {
						t.Errorf("%s serves: %v, want %s to", key, served, tt.want)
					}
					if o := offers[key]; o.name == tt.driver && !served && !hasExited(f) {
						t.Errorf("%s is not used and runs", key)
					}
				}
				for _, key := range tt.unused {
					if plugins[key] != nil {
						t.Errorf("%s was launched", key)
					}
				}
				if tt.want != "" && !s.DriverInfoByName()[tt.driver].Healthy {
					t.Errorf("driver info %+v", s.DriverInfoByName()[tt.driver])
				}
			})
		})
	}
}

func TestPluginThatChangesItsNameIsRejected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startSupervisor(t, Config{}, []catalog.Entry{externalEntry("x")}, func(_ context.Context, _ string, n int) (*fakePlugin, error) {
			if n == 1 {
				return newFakePlugin("hello", "1"), nil
			}
			return newFakePlugin("raw_exec", "1"), nil
		})
		mustDriver(t, s, "hello").plugin.die()
		synctest.Wait()
		if _, err := s.Driver(t.Context(), "hello"); err == nil || !strings.Contains(err.Error(), `it was driver "hello" and reports itself as driver "raw_exec" now`) {
			t.Errorf("got %v", err)
		}
	})
}

// A plugin that is slow to start delays a caller only if it may serve the driver or hook
// that the caller requests.
func TestSlowPluginDelaysOnlyWhatItMayServe(t *testing.T) {
	const launchTime = 10 * time.Second
	podman := driverKey("podman")
	for _, tt := range []struct {
		name       string
		entry      catalog.Entry // catalog entry of the slow plugin, which serves the driver podman
		lastServed PluginKey     // of the slow plugin
		request    PluginKey
		want       time.Duration
	}{
		{"a known plugin does not delay another driver", externalEntry("slow"), podman, driverKey("raw_exec"), 0},
		{"a known plugin does not delay a hook", externalEntry("slow"), podman, PluginKey{base.TypeHook, "audit"}, 0},
		{"a known plugin does not delay a hook with the name of its driver", externalEntry("slow"), driverKey("audit"), PluginKey{base.TypeHook, "audit"}, 0},
		{"a known plugin does not delay an error for an unknown driver", externalEntry("slow"), podman, driverKey("none"), 0},
		{"an unknown plugin delays each driver", externalEntry("slow"), PluginKey{}, driverKey("raw_exec"), readyTimeout},
		{"an unknown plugin delays each hook", externalEntry("slow"), PluginKey{}, PluginKey{base.TypeHook, "audit"}, readyTimeout},
		{"an unknown plugin delays an error for an unknown driver", externalEntry("slow"), PluginKey{}, driverKey("none"), launchTime},
		{"a known plugin delays the driver that it served", externalEntry("slow"), driverKey("second"), driverKey("second"), readyTimeout},
		{"a known plugin delays the driver of its name", externalEntry("nomad-driver-second"), podman, driverKey("second"), readyTimeout},
		{"a known plugin is waited for if no other plugin serves its driver", externalEntry("slow"), podman, podman, launchTime},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				entries := []catalog.Entry{builtinEntry("raw_exec"), externalEntry("audit"), externalEntry("other"), tt.entry}
				served := map[string]PluginKey{"audit": {base.TypeHook, "audit"}, "other": driverKey("second"), tt.entry.Name: tt.lastServed}
				cfg := Config{LastServedKey: func(e catalog.Entry) (PluginKey, bool) { return served[e.Name], served[e.Name] != PluginKey{} }}
				s := startSupervisor(t, cfg, entries, func(_ context.Context, name string, _ int) (*fakePlugin, error) {
					switch name {
					case "builtin raw_exec":
						return newFakePlugin("raw_exec", "0.1.0"), nil
					case "audit":
						return newFakeHook("audit"), nil
					case "other":
						return newFakePlugin("second", "1.0.0"), nil
					}
					time.Sleep(launchTime)
					return newFakePlugin("podman", "1.0.0"), nil
				})
				began := time.Now()
				var err error
				if tt.request.Type == base.TypeHook {
					_, _, err = s.Hook(t.Context(), tt.request.Name, time.Time{})
				} else {
					_, err = s.Driver(t.Context(), tt.request.Name)
				}
				if got := time.Since(began); got != tt.want || (err != nil) != (tt.request.Name == "none") {
					t.Errorf("after %v: %v; want %v", got, err, tt.want)
				}
				if err != nil && !strings.HasSuffix(err.Error(), ": there are podman, raw_exec, second") {
					t.Error(err)
				}
			})
		})
	}
}

func TestFingerprints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startSupervisor(t, Config{}, []catalog.Entry{builtinEntry("x")}, func(context.Context, string, int) (*fakePlugin, error) {
			return newFakePlugin("x", "1"), nil
		})
		infoChanged := s.InfoChanged()
		if err := s.WaitBrieflyForFirstReports(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-infoChanged
		d := mustDriver(t, s, "x")
		expect := func(what string, detected, healthy bool, description string, attributes ...string) {
			t.Helper()
			synctest.Wait()
			info := s.DriverInfoByName()["x"]
			var attributeTexts []string
			for k, v := range info.Attributes {
				attributeTexts = append(attributeTexts, fmt.Sprint(k, "=", v.Value))
			}
			slices.Sort(attributeTexts)
			if info.Detected != detected || info.Healthy != healthy || info.Description != description || !slices.Equal(attributeTexts, attributes) {
				t.Errorf("%s: %+v", what, info)
			}
		}
		expect("first", true, true, "Healthy")
		d.fingerprints <- driver.Fingerprint{Health: driver.HealthUnhealthy, HealthDescription: "no daemon", Attributes: map[string]driver.Attribute{"driver.x": {Value: true}, "driver.x.version": {Value: "1"}}}
		expect("unhealthy", true, false, "no daemon", "driver.x.version=1", "driver.x=true")
		d.fingerprints <- driver.Fingerprint{Health: driver.HealthUndetected, Attributes: map[string]driver.Attribute{"driver.x.version": {Value: ""}}}
		expect("an attribute taken back, another one left out", false, false, "", "driver.x=true")

		opened := d.streamCount
		d.fingerprints <- driver.Fingerprint{Err: errors.New("channel closed")}
		expect("broken stream", false, false, "failed to fingerprint driver", "driver.x=true")
		time.Sleep(time.Second)
		expect("stream reopened", true, true, "Healthy", "driver.x=true")
		if d.streamCount != opened+1 || hasExited(d.plugin) {
			t.Errorf("%d streams opened, want one more than %d, and the plugin alive", d.streamCount, opened)
		}
		d.fingerprints <- driver.Fingerprint{Err: errOnOpenStream}
		expect("an error on an open stream", false, false, "failed to fingerprint driver", "driver.x=true")
		d.fingerprints <- driver.Fingerprint{Health: driver.HealthHealthy, HealthDescription: "Healthy"}
		expect("the next fingerprint of the stream", true, true, "Healthy", "driver.x=true")
		for range 2 {
			d.fingerprints <- driver.Fingerprint{Err: driver.ErrPluginDown}
			expect("a broken connection", false, false, "failed to fingerprint driver", "driver.x=true")
			time.Sleep(time.Minute)
			expect("stream reopened", true, true, "Healthy", "driver.x=true")
		}

		d.plugin.die()
		synctest.Wait()
		expect("plugin replaced", true, true, "Healthy", "driver.x=true")
	})
}

// A stream that ends immediately is reopened with a backoff, and not in a busy loop.
func TestStreamsThatEndAtOnceAreReopened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakePlugin("x", "1")
		f.drv.streamsBroken = true
		s := startSupervisor(t, Config{}, []catalog.Entry{builtinEntry("x")}, func(context.Context, string, int) (*fakePlugin, error) { return f, nil })
		mustDriver(t, s, "x")
		time.Sleep(time.Minute)
		f.drv.set(func(d *fakeDriver) {
			if d.streamCount > 12 {
				t.Errorf("%d streams in a minute", d.streamCount)
			}
			d.streamsBroken = false
		})
		time.Sleep(streamBackoff.maxDelay)
		synctest.Wait()
		if !s.DriverInfoByName()["x"].Healthy {
			t.Error("not healthy after the stream has recovered")
		}
	})
}

// A process that runs but no longer listens on its socket is replaced.
func TestStreamsOfAnUnreachablePlugin(t *testing.T) {
	for name, notice := range map[string]func(*Supervisor, *fakeDriver){
		"its stream breaks":  func(_ *Supervisor, d *fakeDriver) { d.fingerprints <- driver.Fingerprint{Err: errors.New("broke")} },
		"its driver is used": func(*Supervisor, *fakeDriver) {},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := startSupervisor(t, Config{}, []catalog.Entry{builtinEntry("x")}, func(context.Context, string, int) (*fakePlugin, error) {
					return newFakePlugin("x", "1"), nil
				})
				first := mustDriver(t, s, "x")
				first.plugin.becomeUnreachable()
				notice(s, first)
				began := time.Now()
				second := mustDriver(t, s, "x")
				if second == first || !hasExited(first.plugin) {
					t.Error("the deaf plugin is still there")
				}
				if d := time.Since(began); d > 2*time.Second {
					t.Errorf("replaced after %v", d)
				}
			})
		})
	}
}

func TestTaskEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []string
		tasks := Tasks{OnEvent: func(name string, ev driver.TaskEvent) { got = append(got, name+" "+ev.TaskID+" "+ev.Message) }}
		s := startSupervisorWithTasks(t, Config{}, tasks, []catalog.Entry{builtinEntry("x")}, func(context.Context, string, int) (*fakePlugin, error) {
			return newFakePlugin("x", "1"), nil
		})
		d := mustDriver(t, s, "x")
		d.events <- &driver.TaskEvent{TaskID: "1", Message: "image pulled"}
		synctest.Wait()
		d.plugin.die()
		synctest.Wait()
		d = mustDriver(t, s, "x")
		d.events <- nil
		d.events <- &driver.TaskEvent{TaskID: "2", Message: "image pulled again"}
		synctest.Wait()
		if want := []string{"x 1 image pulled", "x 2 image pulled again"}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

func TestReadyWaitsForFingerprints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startSupervisor(t, Config{}, []catalog.Entry{builtinEntry("a"), builtinEntry("b"), externalEntry("c"), hookEntry("nobody asks for")}, func(_ context.Context, key string, _ int) (*fakePlugin, error) {
			switch key {
			case "builtin b":
				time.Sleep(300 * time.Millisecond)
			case "c":
				return nil, errors.New("does not start")
			}
			return newFakePlugin(strings.TrimPrefix(key, "builtin "), "1"), nil
		})
		began := time.Now()
		if err := s.WaitBrieflyForFirstReports(t.Context()); err != nil || time.Since(began) != 300*time.Millisecond {
			t.Errorf("ready after %v, %v; want the slowest that starts", time.Since(began), err)
		}
		if len(s.DriverInfoByName()) != 2 {
			t.Errorf("drivers %v", s.DriverInfoByName())
		}
		if got := s.Plugins()[2]; got.Err == nil || got.PID != 0 || got.Name != "c" {
			t.Errorf("plugin %+v", got)
		}
		if got := s.Plugins()[0]; got.PID != 42 || got.Serves.Name != "a" || !got.Builtin {
			t.Errorf("plugin %+v", got)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		f := newFakePlugin("a", "1")
		f.drv.omitsFirstFingerprint = true
		s := startSupervisor(t, Config{}, []catalog.Entry{builtinEntry("a")}, func(context.Context, string, int) (*fakePlugin, error) { return f, nil })
		began := time.Now()
		if err := s.WaitBrieflyForFirstReports(t.Context()); err != nil || time.Since(began) != readyTimeout {
			t.Errorf("ready after %v, %v; want %v", time.Since(began), err, readyTimeout)
		}
		short, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := s.WaitAllReportedOrFailed(short); !errors.Is(err, context.DeadlineExceeded) || s.Plugins()[0].HasReportedOrFailed {
			t.Errorf("who is silent has answered: %v", err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		s := startSupervisor(t, Config{}, []catalog.Entry{externalEntry("c")}, func(context.Context, string, int) (*fakePlugin, error) {
			time.Sleep(time.Minute)
			return nil, errors.New("does not start")
		})
		began := time.Now()
		if err := s.WaitBrieflyForFirstReports(t.Context()); err != nil || s.Plugins()[0].Err != nil || s.Plugins()[0].HasReportedOrFailed {
			t.Errorf("ready: %v with %v", err, s.Plugins()[0].Err)
		}
		if err := s.WaitAllReportedOrFailed(t.Context()); err != nil || s.Plugins()[0].Err == nil || !s.Plugins()[0].HasReportedOrFailed || time.Since(began) != time.Minute {
			t.Errorf("answered after %v: %v with %v", time.Since(began), err, s.Plugins()[0].Err)
		}
	})
	// The waits are longer for a plugin that has worked before.
	for _, c := range []struct {
		served             PluginKey
		unchanged          bool
		wantKnown, wantAll time.Duration
	}{{PluginKey{}, false, 0, unknownPluginTimeout}, {driverKey("c"), false, unknownPluginTimeout, unknownPluginTimeout}, {driverKey("c"), true, readyTimeout, readyTimeout}} {
		synctest.Test(t, func(t *testing.T) {
			cfg := Config{LastServedKey: func(catalog.Entry) (PluginKey, bool) { return c.served, c.unchanged }}
			s := startSupervisor(t, cfg, []catalog.Entry{builtinEntry("a"), externalEntry("c")}, func(_ context.Context, key string, _ int) (*fakePlugin, error) {
				if key == "c" {
					time.Sleep(time.Minute)
				}
				return newFakePlugin(strings.TrimPrefix(key, "builtin "), "1"), nil
			})
			began := time.Now()
			if err := s.WaitBrieflyForKnownPlugins(t.Context()); err != nil || time.Since(began) != c.wantKnown || !s.DriverInfoByName()["a"].Detected {
				t.Errorf("known plugins have reported after %v, %v; want %v and %v", time.Since(began), err, c.wantKnown, s.DriverInfoByName())
			}
			if err := s.WaitBrieflyForFirstReports(t.Context()); err != nil || time.Since(began) != c.wantAll {
				t.Errorf("ready after %v, %v; want %v", time.Since(began), err, c.wantAll)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		s := startSupervisor(t, Config{}, nil, nil)
		began := time.Now()
		if err := s.WaitBrieflyForFirstReports(t.Context()); err != nil || time.Since(began) != 0 {
			t.Errorf("ready without plugins after %v, %v", time.Since(began), err)
		}
		if _, err := s.Driver(t.Context(), "x"); !errors.Is(err, ErrNoDriver) || !strings.Contains(err.Error(), "no plugin serves it") {
			t.Errorf("driver without plugins: %v", err)
		}
	})
}

// The first process of an external plugin dies before it has reported what it serves. Because an earlier agent or the process of
// an earlier version of the file has reported that, its driver or hook is unavailable and not unknown: a task waits for it, and does
// not fail. If the next process serves something else, there is no such driver or hook any longer.
func TestPluginThatServedDriverOrHookBeforeIsUnavailable(t *testing.T) {
	for _, key := range []PluginKey{driverKey("podman"), {base.TypeHook, "audit"}} {
		for _, before := range []string{"unchanged", "changed while no agent ran", "changed under this agent"} {
			for _, servesOther := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s %s, serves something else %v", key, before, servesOther), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { checkUnavailableBeforeReport(t, key, before, servesOther) })
				})
			}
		}
	}
}

func checkUnavailableBeforeReport(t *testing.T, key PluginKey, before string, servesOther bool) {
	cfg := Config{LastServedKey: func(catalog.Entry) (PluginKey, bool) { return key, before == "unchanged" }}
	firstKilled := 1
	if before == "changed under this agent" {
		cfg, firstKilled = Config{}, 2
	}
	s := startSupervisor(t, cfg, []catalog.Entry{externalEntry("plugin")}, func(_ context.Context, _ string, n int) (*fakePlugin, error) {
		switch {
		case n == firstKilled:
			return nil, errors.New("PluginInfo: was killed by signal 9 (SIGKILL)")
		case n > firstKilled && servesOther:
			return newFakePlugin("other", "1.0.0"), nil
		case key.Type == base.TypeHook:
			return newFakeHook(key.Name), nil
		}
		return newFakePlugin(key.Name, "1.0.0"), nil
	})
	get := func(key PluginKey) error {
		if key.Type == base.TypeHook {
			_, _, err := s.Hook(t.Context(), key.Name, time.Time{})
			return err
		}
		_, err := s.Driver(t.Context(), key.Name)
		return err
	}
	if before == "changed under this agent" {
		if err := get(key); err != nil {
			t.Fatal(err)
		}
		changed := externalEntry("plugin")
		changed.Block.Config = map[string]any{"a": "b"}
		s.setCatalogEntries([]catalog.Entry{changed})
		time.Sleep(time.Second) // the process of the earlier version exits, and the first launch of the changed version fails
	}
	err := get(key)
	unavailable, ok := errors.AsType[*driver.UnavailableError](err)
	if !ok || unavailable.Plugin == "" || !errors.Is(err, ErrUnavailable) {
		t.Fatalf("after the failed launch: %v", err)
	}
	none := ErrNoDriver
	if key.Type == base.TypeHook {
		none = ErrNoHook
	}
	if err := get(PluginKey{key.Type, "docker"}); !errors.Is(err, none) {
		t.Errorf("driver or hook that the plugin has never served: %v", err)
	}
	time.Sleep(time.Minute)
	if err := get(key); servesOther != errors.Is(err, none) || servesOther != (err != nil) {
		t.Errorf("after the next launch: %v", err)
	}
}

// A configured plugin with another file name has replaced a builtin. Its first process dies under this agent before it has
// reported anything. The builtin does not get the tasks meanwhile, and is launched if the plugin serves something else.
func TestBuiltinWaitsForPluginThatReplacedItBefore(t *testing.T) {
	for _, unchanged := range []bool{false, true} {
		for served, version := range map[string]string{"db": "9.0.0", "other": "0.1.0"} {
			synctest.Test(t, func(t *testing.T) {
				cfg := Config{LastServedKey: func(catalog.Entry) (PluginKey, bool) { return driverKey("db"), unchanged }}
				s := startSupervisor(t, cfg, []catalog.Entry{builtinEntry("db"), externalEntry("mine")}, func(_ context.Context, name string, n int) (*fakePlugin, error) {
					switch {
					case name != "mine":
						return newFakePlugin("db", "0.1.0"), nil
					case n == 1:
						return nil, errors.New("PluginInfo: was killed by signal 9 (SIGKILL)")
					}
					return newFakePlugin(served, "9.0.0"), nil
				})
				if _, err := s.Driver(t.Context(), "db"); !errors.Is(err, ErrUnavailable) {
					t.Errorf("driver after the failed launch: %v", err)
				}
				time.Sleep(time.Minute)
				d, err := s.Driver(t.Context(), "db")
				if err != nil {
					t.Fatal(err)
				}
				if got := unwrapFakeDriver(d).plugin.info.Version; got != version {
					t.Errorf("unchanged %v, the plugin serves %s: version %s of the driver, want %s", unchanged, served, got, version)
				}
			})
		}
	}
}

// An unused builtin is stopped after a minute and started again on request; meanwhile the
// supervisor keeps the DriverInfo of its driver.
func TestIdleBuiltinIsStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var hasTasks atomic.Bool
		var launchCount atomic.Int32
		var currentPlugin atomic.Pointer[fakePlugin]
		broken := false
		s := startSupervisorWithTasks(t, Config{}, Tasks{Use: func(what PluginKey) bool { return what.Name == "b" && hasTasks.Load() }},
			[]catalog.Entry{builtinEntry("b"), externalEntry("x")},
			func(_ context.Context, key string, n int) (*fakePlugin, error) {
				if key == "x" {
					return newFakePlugin("x", "1"), nil
				}
				if broken {
					return nil, errors.New("out of memory")
				}
				launchCount.Store(int32(n))
				f := newFakePlugin("b", "0.1.0")
				currentPlugin.Store(f)
				return f, nil
			})
		rested := func() bool {
			if d := s.DriverInfoByName()["b"]; !d.Healthy || d.Description != "Healthy" {
				t.Errorf("driver %+v", d)
			}
			return hasExited(currentPlugin.Load())
		}
		hasTasks.Store(true)
		time.Sleep(10*time.Minute - time.Second) // one second before the idle check, which runs every minute
		if rested() || launchCount.Load() != 1 {
			t.Error("a builtin with tasks has ended")
		}
		hasTasks.Store(false)
		mustDriver(t, s, "b") // the call resets the idle time of the plugin
		time.Sleep(idleTimeout - time.Second)
		if rested() {
			t.Error("it has ended within a minute")
		}
		time.Sleep(idleTimeout + time.Second)
		if !rested() {
			t.Error("it runs though nobody needs it")
		}
		if p := s.Plugins()[0]; p.PID != 0 || p.Err != nil || p.Serves.Name != "b" {
			t.Errorf("plugin %+v", p)
		}
		for range 2 {
			if d := mustDriver(t, s, "b"); d.plugin != currentPlugin.Load() || hasExited(d.plugin) || launchCount.Load() != 2 {
				t.Errorf("driver of %v after %d launches", d.plugin, launchCount.Load())
			}
		}
		// A builtin that exits while it is in use is launched again immediately, and does
		// not become idle.
		currentPlugin.Load().die()
		if mustDriver(t, s, "b"); launchCount.Load() != 3 {
			t.Errorf("%d launches", launchCount.Load())
		}
		time.Sleep(3 * idleTimeout)
		broken = true
		if _, err := s.Driver(t.Context(), "b"); !errors.Is(err, ErrUnavailable) {
			t.Errorf("a builtin that does not start again: %v", err)
		}
		if d := s.DriverInfoByName()["b"]; d.Healthy {
			t.Errorf("and is %+v", d)
		}
		if d := mustDriver(t, s, "x"); hasExited(d.plugin) {
			t.Error("a plugin that is no builtin has ended")
		}
	})
}

func hookEntry(name string) catalog.Entry {
	return catalog.Entry{Name: name, Builtin: true, Type: base.TypeHook, Version: "0.1.0"}
}

func newFakeHook(name string) *fakePlugin {
	f := newFakePlugin(name, "1.0.0")
	f.info.Type, f.info.APIVersions = base.TypeHook, []string{hook.APIVersion}
	f.hook = new(hookwire.Client)
	f.description = &hook.Description{Subscriptions: []hook.Subscription{{Point: hook.Prestart}}}
	return f
}

// A hook that dies in each call is launched again with a short delay: the next call may be
// for another allocation.
func TestHookDiesDuringCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startSupervisor(t, Config{}, []catalog.Entry{hookEntry("h")}, func(context.Context, string, int) (*fakePlugin, error) {
			return newFakeHook("h"), nil
		})
		began := time.Now()
		for range 10 {
			if _, _, err := s.Hook(t.Context(), "h", time.Now().Add(2*time.Second)); err != nil {
				t.Fatalf("after %v: %v", time.Since(began), err)
			}
			time.Sleep(time.Millisecond)
			s.mu.Lock()
			s.registry.plugins[0].inst.Kill()
			s.mu.Unlock()
			synctest.Wait()
		}
		if took := time.Since(began); took < 3*time.Second || took > 10*time.Second {
			t.Errorf("ten deaths took %v", took)
		}
	})
}

// If a hook does not start, Hook returns the reason.
func TestHookThatDoesNotStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startSupervisor(t, Config{}, []catalog.Entry{hookEntry("h")}, func(ctx context.Context, _ string, n int) (*fakePlugin, error) {
			if n > 1 {
				<-ctx.Done() // the launch hangs
			}
			return nil, errors.New("the licence is void")
		})
		began := time.Now()
		if _, _, err := s.Hook(t.Context(), "h", time.Time{}); !errors.Is(err, ErrUnavailable) || time.Since(began) != 0 {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, _, err := s.Hook(ctx, "h", time.Now().Add(time.Minute))
		if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "the licence is void") || time.Since(began) != time.Minute {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}

// A builtin hook is started on request, also after it has died or was stopped as idle. It
// does not serve a driver of the same name.
func TestHooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		launched := map[string]int{}
		var lastPlugin *fakePlugin
		s := startSupervisorWithTasks(t, Config{}, Tasks{Use: func(what PluginKey) bool { return what == PluginKey{base.TypeHook, "stamp"} }},
			[]catalog.Entry{hookEntry("artifact"), externalEntry("stamp"), builtinEntry("stamp")},
			func(_ context.Context, name string, _ int) (*fakePlugin, error) {
				launched[name]++
				if name == "builtin stamp" {
					return newFakePlugin("stamp", "0.1.0"), nil // the driver and the hook named stamp do not conflict
				}
				lastPlugin = newFakeHook(strings.TrimPrefix(name, "builtin "))
				return lastPlugin, nil
			})
		if err := s.WaitBrieflyForFirstReports(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if p := s.Plugins()[0]; launched["builtin artifact"] != 0 || !p.Idle {
			t.Errorf("%d launches before somebody asks, %+v", launched["builtin artifact"], p)
		}
		if _, _, err := s.Hook(t.Context(), "none", time.Time{}); !errors.Is(err, ErrNoHook) || !strings.Contains(err.Error(), `hook "none": no such hook: there are artifact, stamp`) {
			t.Errorf("a hook that is not there: %v", err)
		}
		mustDriver(t, s, "stamp")
		for _, name := range []string{"artifact", "stamp"} {
			client, description, err := s.Hook(t.Context(), name, time.Time{})
			if err != nil || client != lastPlugin.hook && name == "artifact" || description == nil || len(description.Subscriptions) != 1 {
				t.Errorf("hook %s: %v %v", name, description, err)
			}
		}
		if _, ok := s.DriverInfoByName()["artifact"]; ok {
			t.Error("a hook is a driver")
		}
		lastPlugin.die()
		if client, _, err := s.Hook(t.Context(), "artifact", time.Time{}); err != nil || client != lastPlugin.hook || launched["builtin artifact"] != 2 {
			t.Errorf("after its death: %v, %d launches", err, launched["builtin artifact"])
		}
		time.Sleep(3 * idleTimeout)
		synctest.Wait()
		if p := s.Plugins(); p[0].PID != 0 || !p[0].Idle || p[1].PID == 0 {
			t.Errorf("nobody needs artifact, somebody needs stamp: %+v", p)
		}
		if _, _, err := s.Hook(t.Context(), "artifact", time.Time{}); err != nil || launched["builtin artifact"] != 3 {
			t.Errorf("after its rest: %v, %d launches", err, launched["builtin artifact"])
		}
	})
}
