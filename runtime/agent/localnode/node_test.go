package localnode

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

func openStore(t *testing.T) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), store.Config{StateFilePath: filepath.Join(t.TempDir(), "state.db"), Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func TestNodeKeepsItsID(t *testing.T) {
	s := openStore(t)
	if a, b := LoadOrNewNodeID(s, ""), LoadOrNewNodeID(s, ""); a == b || a == "" {
		t.Errorf("ids of an empty state: %q and %q", a, b)
	}
	put := func(f func(*store.Txn)) {
		t.Helper()
		if _, err := s.Update(t.Context(), func(tx *store.Txn) error { f(tx); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	// A node with a lost record gets its id from its allocations.
	put(func(tx *store.Txn) {
		tx.PutScheduledAllocation(&api.Allocation{ID: "a", NodeID: "n1", Job: &api.Job{}})
	})
	if got := LoadOrNewNodeID(s, ""); got != "n1" {
		t.Errorf("id %q, want that of the allocations", got)
	}
	put(func(tx *store.Txn) { tx.PutNodeWithStorageEvents(&api.Node{ID: "n2"}) })
	if got := LoadOrNewNodeID(s, ""); got != "n2" {
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
	case !equalNodesIgnoringDriverTimes(node(), later):
		t.Error("a driver that says the same again makes another node")
	case equalNodesIgnoringDriverTimes(node(), sick):
		t.Error("a driver that is unhealthy makes no other node")
	case equalNodesIgnoringDriverTimes(node(), nil), !equalNodesIgnoringDriverTimes(nil, nil):
		t.Error("no node")
	}
	n := sick
	if !addChangeEvents(n, node(), later.Drivers["d"].UpdateTime) || len(n.Events) != 1 || n.Events[0].Details["driver"] != "d" || n.Events[0].Subsystem != "Driver" {
		t.Errorf("events %+v", n.Events)
	}
	if addChangeEvents(later, node(), time.Now()) {
		t.Errorf("events %+v without a reason", later.Events)
	}
}

// Event readers can distinguish a new node, node events and other node changes.
func TestEventsOfANode(t *testing.T) {
	s := openStore(t)
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
		if _, err := s.Update(t.Context(), func(tx *store.Txn) error { putNodeWithEvents(tx, &c.node, old, time.Now()); return nil }); err != nil {
			t.Fatal(err)
		}
		events, err := follower.Next(t.Context())
		if err != nil || len(events) != 1 || events[0].Type != c.want {
			t.Errorf("%+v, %v, want %s", events, err, c.want)
		}
		old = &c.node
	}
}

// Unreadable metadata is quarantined, and the node continues without it.
func TestUnusableMetadataIsQuarantined(t *testing.T) {
	s := openStore(t)
	put := func(f func(*store.Txn)) {
		t.Helper()
		if _, err := s.Update(t.Context(), func(tx *store.Txn) error { f(tx); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	put(func(tx *store.Txn) { tx.PutAgentRecord(state.NodeMetaName, "text") })
	n := New(Config{Store: s, Logger: hclog.NewNullLogger()})
	if meta := n.Meta(); len(meta.Dynamic) > 0 {
		t.Errorf("metadata %v", meta.Dynamic)
	}
	put(func(*store.Txn) {}) // waits for the quarantine enqueued by the read
	if d := s.Damage(); len(d) != 1 || d[0].Key != state.NodeMetaName || d[0].KeptIn != "quarantine" {
		t.Errorf("reported: %v", d)
	}
}

// unchangingPlugins are ready plugins that do not change.
type unchangingPlugins struct{ fakePlugins }

func (unchangingPlugins) InfoChanged() <-chan struct{} { return nil }

func (unchangingPlugins) WaitBrieflyForKnownPlugins(context.Context) error { return nil }

func (unchangingPlugins) WaitBrieflyForFirstReports(context.Context) error { return nil }

// startingPlugins have no known driver, and a driver "new" after report was called.
type startingPlugins struct {
	unchangingPlugins
	reported chan struct{}
}

func (p startingPlugins) DriverInfoByName() map[string]supervisor.DriverInfo {
	if wait.IsClosed(p.reported) {
		return map[string]supervisor.DriverInfo{"new": {Detected: true, Healthy: true}}
	}
	return nil
}

func (p startingPlugins) WaitBrieflyForFirstReports(context.Context) error {
	<-p.reported
	return nil
}

// A node is registered before plugins that have never run have reported, and stores their drivers before
// FirstReportsDone.
func TestNodeRegistersBeforeUnknownPluginsReport(t *testing.T) {
	s := openStore(t)
	plugins := startingPlugins{reported: make(chan struct{})}
	var settings Settings
	host := machine(t, &settings)
	n := New(Config{
		ID: "n", Settings: settings.WithDefaults("box"), Host: host, Store: s, Plugins: plugins, Logger: hclog.NewNullLogger(),
	})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		n.Run(ctx, Events{})
	}()
	defer func() { stop(); <-ended }()
	<-n.Registered()
	if node := s.Snapshot().Node(nil, "n"); node == nil || node.Drivers["new"] != nil || wait.IsClosed(n.FirstReportsDone()) {
		t.Errorf("registered with %+v, first reports done: %v", node, wait.IsClosed(n.FirstReportsDone()))
	}
	close(plugins.reported)
	<-n.FirstReportsDone()
	if d := s.Snapshot().Node(nil, "n").Drivers["new"]; d == nil || !d.Healthy {
		t.Errorf("driver %+v after its report", d)
	}
}

// An agent with an unchangeable state becomes ready with an earlier agent's record.
func TestNodeRegistersWithUnchangeableState(t *testing.T) {
	s := openStore(t)
	if _, err := s.Update(t.Context(), func(tx *store.Txn) error { tx.PutNodeWithStorageEvents(&api.Node{ID: "n"}); return nil }); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil { // each later change fails
		t.Fatal(err)
	}
	stored := false
	n := New(Config{
		ID: "n", Store: s, Plugins: unchangingPlugins{}, Logger: hclog.NewNullLogger(),
	})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		n.Run(ctx, Events{OnStored: func() { stored = true }})
	}()
	select {
	case <-n.Registered():
	case <-time.After(10 * time.Second):
		t.Error("the node does not become ready")
	}
	stop()
	<-ended
	if stored {
		t.Error("a change is stored in a closed state")
	}
}
