package supervisor

import (
	"context"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/host/catalog"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper"
)

// memoryRecordStore is a RecordStore in memory.
type memoryRecordStore struct {
	mu        sync.Mutex
	records   map[string]Record
	history   []Record             // records in the order of PutPlugin
	readCount int                  // number of calls of Plugins
	readError func(call int) error // fails: returns the error of the given call of Plugins; may be nil
}

func (m *memoryRecordStore) PluginRecordByKey() (map[string]Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.readCount++
	if m.readError != nil {
		if err := m.readError(m.readCount); err != nil {
			return nil, err
		}
	}
	return maps.Clone(m.records), nil
}

// failReads makes the calls of Plugins with the given numbers fail. The next call has number
// 1.
func (m *memoryRecordStore) failReads(err error, calls ...int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.readCount = 0
	m.readError = func(call int) error {
		if slices.Contains(calls, call) {
			return err
		}
		return nil
	}
}

func (m *memoryRecordStore) PutPlugin(key string, r Record) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.records == nil {
		m.records = map[string]Record{}
	}
	m.records[key] = r
	m.history = append(m.history, r)
	return nil
}

func (m *memoryRecordStore) DeletePlugin(key string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.records, key)
	return nil
}

// restartableNode is a machine on which a test runs supervisors one after another.
type restartableNode struct {
	t           *testing.T
	keeper      *keeper.Client
	socketDir   string
	recordStore memoryRecordStore
}

func newRestartableNode(t *testing.T) *restartableNode {
	t.Helper()
	dir, err := os.MkdirTemp("", "node")
	if err != nil {
		t.Fatal(err)
	}
	k, err := keeper.ConnectOrStart(t.Context(), keeper.Config{DataDir: filepath.Join(dir, "keeper"), KeeperArgv: []string{"nomad-lite-keeper", "test-keeper"}, Ephemeral: true})
	if err != nil {
		t.Fatal(err)
	}
	sockets := filepath.Join(dir, "sockets")
	if err := os.Mkdir(sockets, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Close(); err != nil {
			t.Error(err)
		}
		os.RemoveAll(dir)
	})
	return &restartableNode{t: t, keeper: k, socketDir: sockets}
}

// run starts a supervisor, calls f and stops the supervisor. If keep is true, the plugins
// continue to run.
func (n *restartableNode) run(cc catalog.Config, keep bool, f func(*Supervisor)) {
	n.t.Helper()
	c, err := catalog.New(cc)
	if err != nil {
		n.t.Fatal(err)
	}
	s := n.newSupervisor(c, keep)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.Run(ctx, Tasks{}) })
	defer wg.Wait()
	defer cancel()
	if err := s.WaitBrieflyForFirstReports(n.t.Context()); err != nil {
		n.t.Fatal(err)
	}
	f(s)
}

func (n *restartableNode) newSupervisor(c *catalog.Catalog, keep bool) *Supervisor {
	return New(Config{
		Catalog: c, Keeper: n.keeper, KeeperSocketPath: n.keeper.SocketPath(), EnsureSocketDir: socketDirFunc(n.socketDir),
		RecordStore: &n.recordStore, KeepRunning: func(PluginKey, int) bool { return keep },
	})
}

// pid returns the pid of the plugin that serves a driver.
func (n *restartableNode) pid(s *Supervisor, name string) int {
	n.t.Helper()
	for {
		d, err := s.Driver(n.t.Context(), name)
		if err != nil {
			n.t.Fatal(err)
		}
		_, err = d.Capabilities(n.t.Context())
		if err == nil {
			break
		}
		if !errors.Is(err, driver.ErrPluginDown) {
			n.t.Fatal(err)
		}
	}
	return s.Plugins()[0].PID
}

func TestPluginWithTasksOutlivesTheSupervisor(t *testing.T) {
	t.Parallel()
	n := newRestartableNode(t)
	cc := catalog.Config{Builtins: newCatalogBuiltins("one")}
	first := 0
	n.run(cc, true, func(s *Supervisor) { first = n.pid(s, "one") })
	n.run(cc, true, func(s *Supervisor) {
		if pid := n.pid(s, "one"); pid != first || !s.DriverInfoByName()["one"].Healthy {
			t.Errorf("pid %d, was %d, healthy %v", pid, first, s.DriverInfoByName()["one"].Healthy)
		}
		if !s.DriverKnowsInterruptedStarts("one") || s.DriverKnowsInterruptedStarts("other") {
			t.Error("what is remembered")
		}
		// The supervisor notices the death of a reattached process.
		if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		p := osprocess.ID{PID: first, StartTime: n.recordStore.records["builtin one"].StartTimeTicks}
		if status, err := n.keeper.Wait(t.Context(), p); err != nil || status.Signal != 9 {
			t.Errorf("status %v, %v", status, err)
		}
		for n.pid(s, "one") == first {
		}
		first = n.pid(s, "one")
	})
	// This supervisor reattaches the plugin, and stops it at its end.
	n.run(cc, false, func(s *Supervisor) {
		if pid := n.pid(s, "one"); pid != first {
			t.Errorf("pid %d, was %d", pid, first)
		}
	})
	if records, _ := n.recordStore.PluginRecordByKey(); len(records) > 0 {
		t.Errorf("records stay: %v", records)
	}
	n.run(cc, false, func(s *Supervisor) {
		if pid := n.pid(s, "one"); pid == first {
			t.Error("the plugin was not ended")
		}
	})
}

func TestRestartReattachedReplacesOnlyProcessesOfEarlierSupervisors(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("ends a plugin without Shutdown, which is killed after two seconds")
	}
	n := newRestartableNode(t)
	for driverName, test := range map[string]struct {
		catalog  catalog.Config
		replaced bool
	}{
		"one": {catalog.Config{Builtins: newCatalogBuiltins("one")}, false},
		"hello-world-example": {catalog.Config{
			PluginDir: installPlugins(t, "file"),
			Blocks:    []catalog.PluginBlock{{Name: "file", Args: []string{"plugin", "serve", "legacy"}}},
		}, true},
	} {
		first := 0
		n.run(test.catalog, true, func(s *Supervisor) { first = n.pid(s, driverName) })
		n.run(test.catalog, false, func(s *Supervisor) {
			if pid := n.pid(s, driverName); pid != first {
				t.Fatalf("%s: pid %d, was %d", driverName, pid, first)
			}
			second := 0
			for range 2 {
				if err := s.RestartReattachedPlugin(t.Context(), driverName); err != nil {
					t.Fatal(err)
				}
				pid := n.pid(s, driverName)
				if second == 0 {
					second = pid
				}
				if (second != first) != test.replaced || pid != second {
					t.Errorf("%s: pid %d, was %d and %d; want a new process: %v, once", driverName, pid, first, second, test.replaced)
				}
			}
		})
	}
}

// A plugin whose agent and keeper died during its launch is found by its record.
func TestPluginWhoseLaunchWasInterruptedIsKilled(t *testing.T) {
	t.Parallel()
	n := newRestartableNode(t)
	cc := catalog.Config{Builtins: newCatalogBuiltins("one")}
	n.run(cc, true, func(s *Supervisor) { n.pid(s, "one") })
	if first := n.recordStore.history[0]; first.Addr != "" || first.Pid == 0 || first.Pid != n.recordStore.records["builtin one"].Pid {
		t.Errorf("before the plugin serves, its record is %+v, later %+v", first, n.recordStore.records["builtin one"])
	}
	for _, key := range []string{"builtin one", "builtin removed"} {
		cmd := exec.Command("sleep", "1000")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		id, err := osprocess.LookupID(cmd.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		record := n.recordStore.history[0]
		record.Pid, record.StartTimeTicks = id.PID, id.StartTime
		_ = n.recordStore.PutPlugin(key, record)
		n.run(cc, true, func(s *Supervisor) { n.pid(s, "one") })
		if err := cmd.Wait(); err == nil || err.Error() != "signal: killed" {
			t.Errorf("%s: %v", key, err)
		}
	}
}

func TestPluginWithChangedIdentityIsReplaced(t *testing.T) {
	t.Parallel()
	n := newRestartableNode(t)
	cc := catalog.Config{Builtins: newCatalogBuiltins("one")}
	first := 0
	n.run(cc, true, func(s *Supervisor) { first = n.pid(s, "one") })
	reattached := osprocess.ID{PID: first, StartTime: n.recordStore.records["builtin one"].StartTimeTicks}

	// The recorded plugin has another configuration.
	infoChanged := n.recordStore.records["builtin one"]
	infoChanged.IdentityHash = "of another configuration"
	_ = n.recordStore.PutPlugin("builtin one", infoChanged)
	second := 0
	n.run(cc, true, func(s *Supervisor) { second = n.pid(s, "one") })
	if second == first || reattached.Alive() {
		t.Errorf("pid %d, was %d; alive: %v", second, first, reattached.Alive())
	}

	// If another process has reused the recorded pid, it is not killed.
	stranger := n.recordStore.records["builtin one"]
	stranger.StartTimeTicks++
	_ = n.recordStore.PutPlugin("builtin one", stranger)
	n.run(cc, false, func(s *Supervisor) {
		if pid := n.pid(s, "one"); pid == second {
			t.Error("a process was taken over that is not the recorded one")
		}
	})
	if err := syscall.Kill(second, 0); err != nil {
		t.Errorf("a stranger was killed: %v", err)
	}
	_ = syscall.Kill(second, syscall.SIGKILL) // the signal 0 above has reported a failure
}

func TestPluginThatIsNotWantedAnyMoreIsEnded(t *testing.T) {
	t.Parallel()
	n := newRestartableNode(t)
	n.run(catalog.Config{Builtins: newCatalogBuiltins("one")}, true, func(s *Supervisor) { n.pid(s, "one") })
	rec := n.recordStore.records["builtin one"]
	// A record of another boot belongs to an unrelated process.
	other := rec
	other.BootID = "another"
	_ = n.recordStore.PutPlugin("builtin one", other)
	n.run(catalog.Config{Builtins: newCatalogBuiltins("two")}, false, func(s *Supervisor) { n.pid(s, "two") })
	p := osprocess.ID{PID: rec.Pid, StartTime: rec.StartTimeTicks}
	if !p.Alive() {
		t.Fatal("a process of another boot was killed")
	}
	_ = n.recordStore.PutPlugin("builtin one", rec)
	n.run(catalog.Config{Builtins: newCatalogBuiltins("two")}, false, func(s *Supervisor) { n.pid(s, "two") })
	if status, err := n.keeper.Wait(t.Context(), p); err != nil || status.Signal != 9 {
		t.Errorf("status %v, %v", status, err)
	}
	if len(n.recordStore.records) > 0 {
		t.Errorf("records stay: %v", n.recordStore.records)
	}
}

// TestReattachIsNotCutShort stops supervisors at different times during their start, and
// checks that none of them kills a reattached process.
func TestReattachIsNotCutShort(t *testing.T) {
	t.Parallel()
	n := newRestartableNode(t)
	cc := catalog.Config{Builtins: newCatalogBuiltins("one")}
	first := 0
	n.run(cc, true, func(s *Supervisor) { first = n.pid(s, "one") })
	c, err := catalog.New(cc)
	if err != nil {
		t.Fatal(err)
	}
	for delay := time.Duration(0); delay < 15*time.Millisecond; delay += 250 * time.Microsecond {
		ctx, cancel := context.WithTimeout(t.Context(), delay)
		if err := n.newSupervisor(c, true).Run(ctx, Tasks{}); err != nil {
			t.Error(err)
		}
		cancel()
		if err := syscall.Kill(first, 0); err != nil || n.recordStore.records["builtin one"].Pid != first {
			t.Fatalf("after a start that ended after %v: process %d: %v; record %+v", delay, first, err, n.recordStore.records)
		}
	}
	n.run(cc, false, func(s *Supervisor) {
		if pid := n.pid(s, "one"); pid != first {
			t.Errorf("pid %d, was %d", pid, first)
		}
	})
}

// TestPluginWithTasksOutlivesItsConfiguration removes a plugin from the configuration while
// its tasks may run. Its process is killed when another plugin serves the same driver.
func TestPluginWithTasksOutlivesItsConfiguration(t *testing.T) {
	t.Parallel()
	n := newRestartableNode(t)
	n.run(catalog.Config{Builtins: newCatalogBuiltins("one")}, true, func(s *Supervisor) { n.pid(s, "one") })
	rec := n.recordStore.records["builtin one"]
	n.run(catalog.Config{Builtins: newCatalogBuiltins("two")}, true, func(s *Supervisor) { n.pid(s, "two") })
	if !rec.ProcessID().Alive() || n.recordStore.records["builtin one"] != rec {
		t.Fatalf("alive %v, records %v", rec.ProcessID().Alive(), n.recordStore.records)
	}
	n.run(catalog.Config{Builtins: newCatalogBuiltins("one")}, true, func(s *Supervisor) {
		if pid := n.pid(s, "one"); pid != rec.Pid {
			t.Errorf("pid %d, was %d", pid, rec.Pid)
		}
	})

	_ = n.recordStore.DeletePlugin("builtin one")
	_ = n.recordStore.PutPlugin("/where/it/was", rec)
	n.run(catalog.Config{Builtins: newCatalogBuiltins("one")}, true, func(s *Supervisor) {
		if pid := n.pid(s, "one"); pid == rec.Pid {
			t.Error("a process that the configuration does not name was taken over")
		}
		if status, err := n.keeper.Wait(t.Context(), rec.ProcessID()); err != nil || status.Signal != 9 {
			t.Errorf("status %v, %v", status, err)
		}
	})
	n.run(catalog.Config{Builtins: newCatalogBuiltins("one", "two")}, false, func(s *Supervisor) { n.pid(s, "one") })
	if len(n.recordStore.records) > 0 {
		t.Errorf("records stay: %v", n.recordStore.records)
	}
}

// As long as the records cannot be read, no plugin is started, because a recorded process
// may run. It is reattached when the records can be read again.
func TestPluginIsNotStartedWhileTheRecordsCannotBeRead(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("waits five seconds for the second launch")
	}
	for name, calls := range map[string][]int{"from the start": {1, 2}, "at the reattach": {2}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newRestartableNode(t)
			cc := catalog.Config{Builtins: newCatalogBuiltins("one")}
			first := 0
			n.run(cc, true, func(s *Supervisor) { first = n.pid(s, "one") })
			unreadable := errors.New("too many open files")
			n.recordStore.failReads(unreadable, calls...)
			n.run(cc, true, func(s *Supervisor) {
				if p := s.Plugins()[0]; p.PID != 0 || !errors.Is(p.Err, unreadable) {
					t.Errorf("pid %d, %v, want no process and %v", p.PID, p.Err, unreadable)
				}
				eventually(t, "there is a process", func() bool { return s.Plugins()[0].PID != 0 })
				if pid := n.pid(s, "one"); pid != first {
					t.Errorf("pid %d, was %d", pid, first)
				}
			})
			n.run(cc, false, func(s *Supervisor) { n.pid(s, "one") })
		})
	}
}

// A recorded plugin that is no longer configured keeps the tasks of its driver until it is
// killed. If killing it fails at the start of the supervisor, it is retried.
func TestUnmanagedPluginIsEndedWhenTheRecordsCanBeRead(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("waits five seconds for the second launch")
	}
	for name, calls := range map[string][]int{"at the start": {1, 2}, "before another plugin gets its tasks": {3}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newRestartableNode(t)
			n.run(catalog.Config{Builtins: newCatalogBuiltins("one")}, true, func(s *Supervisor) { n.pid(s, "one") })
			rec := n.recordStore.records["builtin one"]
			_ = n.recordStore.DeletePlugin("builtin one")
			_ = n.recordStore.PutPlugin("/where/it/was", rec)
			n.recordStore.failReads(errors.New("too many open files"), calls...)
			n.run(catalog.Config{Builtins: newCatalogBuiltins("one")}, true, func(s *Supervisor) {
				if p := s.Plugins()[0]; p.PID != 0 || p.Err == nil || !rec.ProcessID().Alive() {
					t.Errorf("pid %d, %v, the recorded one runs: %v", p.PID, p.Err, rec.ProcessID().Alive())
				}
				eventually(t, "there is a process", func() bool { return s.Plugins()[0].PID != 0 })
				if pid := n.pid(s, "one"); pid == rec.Pid {
					t.Error("a process that the configuration does not name was reattached")
				}
				if status, err := n.keeper.Wait(t.Context(), rec.ProcessID()); err != nil || status.Signal != 9 {
					t.Errorf("status %v, %v", status, err)
				}
			})
			n.run(catalog.Config{Builtins: newCatalogBuiltins("one")}, false, func(s *Supervisor) { n.pid(s, "one") })
			if len(n.recordStore.records) > 0 {
				t.Errorf("records stay: %v", n.recordStore.records)
			}
		})
	}
}
