package agent

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/launch"
	"github.com/nomad-lite/nomad-lite/plugins/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/state"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

func openStore(t *testing.T, path string) *store.Store {
	t.Helper()
	s, err := store.Open(store.Config{Path: path, Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestPluginRecordsSurvive(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	s := openStore(t, path)
	want := supervisor.Record{ReattachConfig: launch.ReattachConfig{Network: "unix", Addr: "/x", Pid: 7, StartTime: 8, BootID: "b", Streams: "k"}, Identity: "i"}
	for _, key := range []string{"builtin raw_exec", "/plugins/x"} {
		if err := (pluginRecords{s}).PutPlugin(key, want); err != nil {
			t.Fatal(err)
		}
	}
	if err := (pluginRecords{s}).DeletePlugin("/plugins/x"); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, path)
	defer s.Close()
	got, err := pluginRecords{s}.Plugins()
	if err != nil || len(got) != 1 || got["builtin raw_exec"] != want {
		t.Errorf("read %+v, %v", got, err)
	}
}

func TestWhatAKilledAgentWasRemoving(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, filepath.Join(dir, "state.db"))
	defer s.Close()
	c := &orphanCleaner{logger: hclog.NewNullLogger(), allocs: filepath.Join(dir, allocDir), store: s}
	for _, id := range []string{"here", "gone"} {
		if err := os.MkdirAll(filepath.Join(c.allocs, id, "alloc"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	put := func(f func(*store.Txn)) {
		t.Helper()
		if _, err := s.Update(t.Context(), func(tx *store.Txn) error { f(tx); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	put(func(tx *store.Txn) { tx.PutAllocation(&api.Allocation{ID: "here", Job: &api.Job{}}) })
	if got := c.find(); !slices.Equal(got, []orphan{{id: "gone"}}) {
		t.Errorf("orphans %v, want the one that has only a directory", got)
	}
	r := &allocSync{store: s, changed: make(chan struct{}), wake: make(chan struct{}, 1)}
	// The agent may receive a request to delete the allocation before the node
	// runner first lists the allocations.
	put(func(tx *store.Txn) { tx.DeleteAllocation("here") })
	if got := c.find(); !slices.Equal(got, []orphan{{id: "gone"}, {id: "here", known: true, leaving: true}}) {
		t.Errorf("orphans %v, want the one that was being removed too", got)
	}
	c.clear(t.Context(), supervisor.New(supervisor.Config{Logger: c.logger}))
	if _, err := os.Stat(filepath.Join(c.allocs, "here")); err != nil {
		t.Error("its hooks were not told yet that it is removed:", err)
	}

	first, changed := r.Allocs()
	if len(first) != 1 || first[0].Alloc.ID != "here" || !first[0].Ended {
		t.Errorf("the node gets %+v, want the one that has to be removed", first)
	}
	select {
	case <-changed:
	default:
		t.Error("the node is not told to look again")
	}
	if second, _ := r.Allocs(); len(second) != 0 {
		t.Errorf("the node gets %+v again", second)
	}
	r.Removed("here")
	if err := r.write(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := s.Snapshot().PendingRemovals(); len(left) != 0 {
		t.Errorf("%+v are left", left)
	}
}

// An earlier version left the directories open. The runners close those of running
// allocations, because they have the users of the tasks.
func TestDirectoriesOfEndedAllocationsAreClosed(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("an agent that is not root closes its data directory")
	}
	dir := t.TempDir()
	s := openStore(t, filepath.Join(dir, "state.db"))
	defer s.Close()
	c := &orphanCleaner{logger: hclog.NewNullLogger(), allocs: filepath.Join(dir, allocDir), store: s}
	want := map[string]fs.FileMode{"running": 0o755, "complete": 0o700, "unknown": 0o700}
	for id := range want {
		if err := os.MkdirAll(filepath.Join(c.allocs, id, "alloc"), 0o755); err != nil {
			t.Fatal(err)
		}
		if id != "unknown" {
			_, err := s.Update(t.Context(), func(tx *store.Txn) error {
				tx.PutAllocation(&api.Allocation{ID: id, Job: &api.Job{}, ClientStatus: id})
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	for range 2 {
		c.closeEnded()
		for id, mode := range want {
			if info, err := os.Stat(filepath.Join(c.allocs, id)); err != nil || info.Mode().Perm() != mode {
				t.Errorf("%s: %v, %v; want mode %o", id, info.Mode(), err, mode)
			}
		}
	}
}

func TestNodeKeepsItsID(t *testing.T) {
	s := openStore(t, filepath.Join(t.TempDir(), "state.db"))
	defer s.Close()
	if a, b := loadNodeID(s), loadNodeID(s); a == b || a == "" {
		t.Errorf("ids of an empty state: %q and %q", a, b)
	}
	put := func(f func(*store.Txn)) {
		t.Helper()
		if _, err := s.Update(t.Context(), func(tx *store.Txn) error { f(tx); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	// A node whose record was lost gets its id from its allocations.
	put(func(tx *store.Txn) { tx.PutAllocation(&api.Allocation{ID: "a", NodeID: "n1", Job: &api.Job{}}) })
	if got := loadNodeID(s); got != "n1" {
		t.Errorf("id %q, want that of the allocations", got)
	}
	put(func(tx *store.Txn) { tx.PutNode(&api.Node{ID: "n2"}) })
	if got := loadNodeID(s); got != "n2" {
		t.Errorf("id %q, want that of the node", got)
	}
}

func TestSameNode(t *testing.T) {
	node := func() *api.Node {
		return &api.Node{ID: "n", Drivers: map[string]*api.DriverInfo{"d": {Detected: true, Healthy: true}}}
	}
	later, sick := node(), node()
	later.Drivers["d"].UpdateTime = later.Drivers["d"].UpdateTime.AddDate(1, 0, 0)
	sick.Drivers["d"].Healthy = false
	switch {
	case !same(node(), later):
		t.Error("a driver that says the same again makes another node")
	case same(node(), sick):
		t.Error("a driver that is unhealthy makes no other node")
	case same(node(), nil), !same(nil, nil):
		t.Error("no node")
	}
	n := sick
	if !addEvents(n, node(), later.Drivers["d"].UpdateTime) || len(n.Events) != 1 || n.Events[0].Details["driver"] != "d" || n.Events[0].Subsystem != "Driver" {
		t.Errorf("events %+v", n.Events)
	}
	if addEvents(later, node(), time.Now()) {
		t.Errorf("events %+v without a reason", later.Events)
	}
}

// Followers of events can distinguish a new node, node events and other changes of
// the node.
func TestEventsOfANode(t *testing.T) {
	s, err := store.Open(store.Config{Path: filepath.Join(t.TempDir(), "state.db"), Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	follower := s.Subscribe(0)
	var old *api.Node
	for _, c := range []struct {
		node api.Node
		want string
	}{
		{api.Node{Drivers: map[string]*api.DriverInfo{"d": {Healthy: true}}}, "NodeRegistration"},
		{api.Node{Drivers: map[string]*api.DriverInfo{"d": {}}}, "NodeStreamEvent"},
		{api.Node{Drivers: map[string]*api.DriverInfo{"d": {}}, Attributes: map[string]string{"a": "b"}}, "NodeRegistration"},
	} {
		c.node.ID = "n"
		if _, err := s.Update(t.Context(), func(tx *store.Txn) error { putNode(tx, &c.node, old, time.Now()); return nil }); err != nil {
			t.Fatal(err)
		}
		events, err := follower.Next(t.Context())
		if err != nil || len(events) != 1 || events[0].Type != c.want {
			t.Errorf("%+v, %v, want %s", events, err, c.want)
		}
		old = &c.node
	}
}

// No record of the agent is dropped without a report: unusable records are
// quarantined, and the agent continues without them.
func TestUnusableFactsAreQuarantined(t *testing.T) {
	for _, test := range []struct {
		name    string
		fact    string
		content any
		read    func(*testing.T, *Agent)
	}{
		{"pending cleanup", pendingCleanupKey + "x", "text", func(t *testing.T, a *Agent) {
			if list := (cleanupStore{a.store, a.logger}).List(); len(list) > 0 {
				t.Errorf("pending: %+v", list)
			}
		}},
		{"pending cleanup without a request", pendingCleanupKey + "x", map[string]string{"Hook": "h", "AllocID": "a"}, func(t *testing.T, a *Agent) {
			if list := (cleanupStore{a.store, a.logger}).List(); len(list) > 0 {
				t.Errorf("pending: %+v", list)
			}
		}},
		{"hook key", hookKeyKey, map[string]string{"a": "b"}, func(t *testing.T, a *Agent) {
			key, err := a.hookKey()
			if err != nil || len(key) != state.HookKeySize {
				t.Errorf("key %v, %v", key, err)
			}
			if again, _ := a.hookKey(); !slices.Equal(key, again) {
				t.Error("the new key does not stay")
			}
		}},
		{"short hook key", hookKeyKey, []byte("short"), func(t *testing.T, a *Agent) { _, _ = a.hookKey() }},
		{"allocation that is being removed", store.PendingRemovalKey + "gone", "text", func(t *testing.T, a *Agent) {
			if allocs := a.store.Snapshot().PendingRemovals(); len(allocs) > 0 {
				t.Errorf("being removed: %v", allocs)
			}
		}},
		{"allocation that is being removed, without its job", store.PendingRemovalKey + "gone", map[string]string{"ID": "gone"}, func(t *testing.T, a *Agent) { a.store.Snapshot().PendingRemovals() }},
		{"plugin process", pluginKey + "builtin raw_exec", "text", func(t *testing.T, a *Agent) {
			if all, err := (pluginRecords{a.store}).Plugins(); err != nil || len(all) > 0 {
				t.Errorf("plugins %v, %v", all, err)
			}
		}},
		{"plugin process without a pid", pluginKey + "builtin raw_exec", map[string]string{"Addr": "/x"}, func(t *testing.T, a *Agent) { _, _ = (pluginRecords{a.store}).Plugins() }},
		{"hooks of an ended allocation", "attached/a", "text", func(t *testing.T, a *Agent) { a.store.Snapshot().AttachedHooks("a") }},
		{"known plugins", pluginInfoKey, "text", func(t *testing.T, a *Agent) {
			if known := newKnownPlugins(storeCache{a.store}, nil, a.logger); len(known.cached) > 0 {
				t.Errorf("cached: %v", known.cached)
			}
		}},
		{"metadata", metaKey, "text", func(t *testing.T, a *Agent) { a.readMeta() }},
		{"boot", bootKey, map[string]string{"a": "b"}, func(t *testing.T, a *Agent) {
			if err := a.detectReboot(); err != nil || a.rebooted {
				t.Errorf("rebooted %t, %v", a.rebooted, err)
			}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			s := openStore(t, filepath.Join(dir, "state.db"))
			defer s.Close()
			a := &Agent{logger: hclog.NewNullLogger(), dataDir: dir, store: s}
			put := func(f func(*store.Txn)) {
				t.Helper()
				if _, err := s.Update(t.Context(), func(tx *store.Txn) error { f(tx); return nil }); err != nil {
					t.Fatal(err)
				}
			}
			put(func(tx *store.Txn) { tx.PutMeta(test.fact, test.content) })
			test.read(t, a)
			put(func(*store.Txn) {}) // waits for the quarantine that the read has enqueued
			if d := s.Damage(); len(d) != 1 || d[0].Key != test.fact || d[0].Kept != "quarantine" {
				t.Errorf("reported: %v", d)
			}
		})
	}
}

// The directory of an allocation that was being removed is removed even if the
// removal record is unusable.
func TestOrphanWithQuarantinedRecordIsRemoved(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, filepath.Join(dir, "state.db"))
	defer s.Close()
	c := &orphanCleaner{logger: hclog.NewNullLogger(), allocs: filepath.Join(dir, allocDir), store: s}
	if err := os.MkdirAll(filepath.Join(c.allocs, "gone", "alloc"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, f := range []func(*store.Txn){
		func(tx *store.Txn) { tx.PutMeta(store.PendingRemovalKey+"gone", "text") },
		func(*store.Txn) { s.Snapshot().PendingRemovals() },
		func(*store.Txn) {},
	} {
		if _, err := s.Update(t.Context(), func(tx *store.Txn) error { f(tx); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	if got := c.find(); !slices.Equal(got, []orphan{{id: "gone", known: true}}) {
		t.Errorf("orphans %v", got)
	}
	c.clear(t.Context(), supervisor.New(supervisor.Config{Logger: c.logger}))
	if _, err := os.Stat(filepath.Join(c.allocs, "gone")); err == nil {
		t.Error("its directory is left")
	}
}

// recordingDriver records the ids that it must destroy.
type recordingDriver struct {
	driver.Driver
	destroyed []string
}

func (d *recordingDriver) RecoverTask(context.Context, *driver.Handle) error { return nil }

func (d *recordingDriver) DestroyTask(_ context.Context, id string, _ bool) error {
	d.destroyed = append(d.destroyed, id)
	return nil
}

// oneDriver is the only driver of a node.
type oneDriver struct{ *recordingDriver }

func (o oneDriver) Drivers() map[string]supervisor.Info {
	return map[string]supervisor.Info{"recording": {}}
}

func (o oneDriver) Driver(context.Context, string) (driver.Driver, error) {
	return o.recordingDriver, nil
}

func TestEachStartOfAnOrphanIsDestroyed(t *testing.T) {
	handle := func(id string) *driver.Handle { return &driver.Handle{Config: &driver.TaskConfig{ID: id}} }
	for _, tt := range []struct {
		local state.LocalState
		want  string
	}{
		{state.LocalState{}, ""},
		{state.LocalState{StartID: "1"}, "1"},
		{state.LocalState{StartID: "1", Handle: handle("1")}, "1"},
		{state.LocalState{StartID: "1", Handle: handle("1"), Exit: &state.Exit{}, NextStartID: "2"}, "1 2"},
		{state.LocalState{Destroy: &state.PendingDestroy{ID: "1", Next: &state.PendingDestroy{ID: "2"}}}, "1 2"},
	} {
		dir := t.TempDir()
		s := openStore(t, filepath.Join(dir, "state.db"))
		defer s.Close()
		put := func(f func(*store.Txn)) {
			t.Helper()
			if _, err := s.Update(t.Context(), func(tx *store.Txn) error { f(tx); return nil }); err != nil {
				t.Fatal(err)
			}
		}
		put(func(tx *store.Txn) { tx.PutAllocation(&api.Allocation{ID: "gone", Job: &api.Job{}}) })
		if err := s.PutTask("gone", "web", tt.local, &api.TaskState{}, state.Sync)(); err != nil {
			t.Fatal(err)
		}
		put(func(tx *store.Txn) { tx.DeleteAllocation("gone") })
		c := &orphanCleaner{logger: hclog.NewNullLogger(), allocs: filepath.Join(dir, allocDir), store: s}
		d := &recordingDriver{}
		c.clear(t.Context(), oneDriver{d})
		if got := strings.Join(d.destroyed, " "); got != tt.want {
			t.Errorf("%+v: destroyed %q, want %q", tt.local, got, tt.want)
		}
	}
}
