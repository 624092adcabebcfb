package network

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// memoryStore is a NetworkRecordStore. Its allocations are allocs' keys.
type memoryStore struct {
	mu      sync.Mutex
	records map[string]state.AllocNetwork
	allocs  map[string]bool
}

func (s *memoryStore) Networks() []state.AllocNetwork {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.records))
}

func (s *memoryStore) Network(id string) *state.AllocNetwork {
	s.mu.Lock()
	defer s.mu.Unlock()
	if record, ok := s.records[id]; ok {
		return &record
	}
	return nil
}

func (s *memoryStore) PutNetwork(record state.AllocNetwork) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.records[record.AllocID] = record
	return nil
}

func (s *memoryStore) DeleteNetwork(id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.records, id)
	return nil
}

func (s *memoryStore) HasAllocation(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.allocs[id]
}

// fakeDriver has networks, which outlive its plugin processes and the agents.
type fakeDriver struct {
	driver.Driver // nil: methods that the tests do not need panic

	mu       sync.Mutex
	networks map[string]*driver.NetworkIsolation
	calls    []string
	answer   *driver.NetworkIsolation // CreateNetwork's answer; nil: the tasks need no isolation

	createErrs, destroyErrs []error // the next calls' errors
	onCreated               func()  // called when a network was created, before the answer
}

func newFakeDriver() *fakeDriver {
	return &fakeDriver{
		networks: map[string]*driver.NetworkIsolation{},
		answer:   &driver.NetworkIsolation{Mode: driver.NetworkGroup, Path: "/run/netns/x"},
	}
}

// fakeDrivers has one driver.
type fakeDrivers struct{ *fakeDriver }

func (d fakeDrivers) Driver(context.Context, string) (driver.Driver, error) { return d.fakeDriver, nil }

func ignoreOutage(error) {}

func nextError(errs *[]error) (err error) {
	if len(*errs) > 0 {
		err, *errs = (*errs)[0], (*errs)[1:]
	}
	return err
}

func (d *fakeDriver) CreateNetwork(ctx context.Context, allocID, hostname string) (*driver.NetworkIsolation, bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = append(d.calls, "create "+allocID+" "+hostname)
	if err := nextError(&d.createErrs); err != nil {
		return nil, false, err
	}
	_, exists := d.networks[allocID]
	if d.answer != nil {
		d.networks[allocID] = d.answer
	}
	if d.onCreated != nil {
		d.onCreated()
	}
	return d.answer, !exists, ctx.Err()
}

func (d *fakeDriver) DestroyNetwork(_ context.Context, allocID string, isolation *driver.NetworkIsolation) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = append(d.calls, "destroy "+allocID+" "+isolation.Path)
	if err := nextError(&d.destroyErrs); err != nil {
		return err
	}
	delete(d.networks, allocID)
	return nil
}

// checkCalls compares the driver's calls, and checks that neither a network nor a record is left.
func checkCalls(t *testing.T, d *fakeDriver, s *memoryStore, want ...string) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if !slices.Equal(d.calls, want) {
		t.Errorf("calls %q, want %q", d.calls, want)
	}
	if len(d.networks) > 0 || len(s.records) > 0 {
		t.Errorf("left behind: networks %v, records %v", d.networks, s.records)
	}
}

// fakeHost records its calls in the driver's. Its namespaces outlive the agents.
type fakeHost struct {
	d           *fakeDriver
	namespaces  map[string]bool
	connected   map[string]string // paths by allocation
	connectErrs []error
	repair      func() []Damage // returns Repair's result; may be nil
}

func newFakeHost(d *fakeDriver) *fakeHost {
	return &fakeHost{d: d, namespaces: map[string]bool{}, connected: map[string]string{}}
}

func (h *fakeHost) call(text string) {
	h.d.mu.Lock()
	defer h.d.mu.Unlock()
	h.d.calls = append(h.d.calls, text)
}

func (h *fakeHost) CreateNamespace(allocID string) (string, error) {
	h.call("namespace")
	h.d.mu.Lock()
	defer h.d.mu.Unlock()
	h.namespaces[allocID] = true
	return "/run/netns/" + allocID, nil
}

func (h *fakeHost) RemoveNamespace(allocID string) error {
	h.call("remove")
	h.d.mu.Lock()
	defer h.d.mu.Unlock()
	delete(h.namespaces, allocID)
	return nil
}

func (*fakeHost) ReadCNIConfigIntoRecord(n *state.AllocNetwork) error {
	if n.Mode == "cni/missing" {
		return errors.New("there is no CNI network")
	}
	return nil
}

func (h *fakeHost) CheckPortsAndConnectNamespace(_ context.Context, n *state.AllocNetwork, path string) (*state.NetworkStatus, error) {
	h.call("connect " + path)
	h.d.mu.Lock()
	defer h.d.mu.Unlock()
	h.connected[n.AllocID] = path
	return &state.NetworkStatus{Interface: "eth0", Address: "172.26.64.7"}, nextError(&h.connectErrs)
}

func (h *fakeHost) DisconnectNamespace(_ context.Context, n *state.AllocNetwork) error {
	if n.Mode != "" { // the host has not connected the other networks in these tests
		h.call("disconnect")
	}
	h.d.mu.Lock()
	defer h.d.mu.Unlock()
	delete(h.connected, n.AllocID)
	return nil
}

func (h *fakeHost) Repair(networks []state.AllocNetwork) ([]Damage, error) {
	h.call(fmt.Sprint("repair ", len(networks)))
	if h.repair == nil {
		return nil, nil
	}
	return h.repair(), nil
}

func newTestManager() (*Manager, *fakeDriver, *memoryStore) {
	d, s := newFakeDriver(), &memoryStore{records: map[string]state.AllocNetwork{}, allocs: map[string]bool{"a": true}}
	return New(s, fakeDrivers{d}, newFakeHost(d), hclog.NewNullLogger()), d, s
}

func TestCreateAndDestroy(t *testing.T) {
	m, d, s := newTestManager()
	got, err := m.Create(t.Context(), state.AllocNetwork{AllocID: "a", NamespaceDriver: "pods", Hostname: "web"}, ignoreOutage)
	if err != nil || !reflect.DeepEqual(got.Isolation, d.answer) || !reflect.DeepEqual(m.ActiveNetwork("a"), got) {
		t.Fatal(got, err, m.ActiveNetwork("a"))
	}
	for range 2 {
		if err := m.Destroy(t.Context(), "a"); err != nil {
			t.Error(err)
		}
	}
	if existing := m.ActiveNetwork("a"); existing != nil {
		t.Error(existing)
	}
	checkCalls(t, d, s, "create a web", "connect /run/netns/x", "destroy a /run/netns/x")
}

// An allocation has no network to destroy if its tasks need no isolation.
func TestDriverWithoutIsolation(t *testing.T) {
	m, d, s := newTestManager()
	d.answer = nil
	if got, err := m.Create(t.Context(), state.AllocNetwork{AllocID: "a", NamespaceDriver: "pods", Hostname: ""}, ignoreOutage); got != nil || err != nil {
		t.Error(got, err)
	}
	if err := m.Destroy(t.Context(), "a"); err != nil {
		t.Error(err)
	}
	checkCalls(t, d, s, "create a ")
}

func TestCreateErrors(t *testing.T) {
	for name, c := range map[string]struct {
		errs  []error
		text  string
		calls []string
	}{
		"an error of the driver leaves nothing":      {[]error{errors.New("no image")}, `driver "pods": create network: no image`, []string{"create a h"}},
		"a driver that creates no networks":          {[]error{driver.ErrCreateNetworkNotSupported}, `driver "pods" declares must_create_network and does not implement`, []string{"create a h"}},
		"a plugin that exits is called once more":    {[]error{driver.ErrPluginDown}, "", []string{"create a h", "create a h", "connect /run/netns/x", "destroy a /run/netns/x"}},
		"the network of an unknown result is found":  {[]error{driver.ErrPluginDown, driver.ErrPluginDown}, "plugin", []string{"create a h", "create a h", "create a h", "destroy a /run/netns/x"}},
		"a driver that cannot find what it has made": {[]error{driver.ErrPluginDown, driver.ErrPluginDown, driver.ErrCreateNetworkNotSupported}, "plugin", []string{"create a h", "create a h", "create a h"}},
	} {
		t.Run(name, func(t *testing.T) {
			m, d, s := newTestManager()
			d.createErrs = c.errs
			got, err := m.Create(t.Context(), state.AllocNetwork{AllocID: "a", NamespaceDriver: "pods", Hostname: "h"}, ignoreOutage)
			if c.text == "" && (err != nil || got == nil) || c.text != "" && (err == nil || !strings.Contains(err.Error(), c.text)) {
				t.Errorf("%v, %v, want %q", got, err, c.text)
			}
			if err := m.Destroy(t.Context(), "a"); err != nil {
				t.Error(err)
			}
			checkCalls(t, d, s, c.calls...)
		})
	}
}

// driversInBackoff has one driver, which is unavailable for Driver calls with a non-nil channel.
type driversInBackoff struct {
	*fakeDriver
	changed []chan struct{} // for the next calls
}

func (d *driversInBackoff) Driver(context.Context, string) (driver.Driver, error) {
	if len(d.changed) > 0 {
		var changed chan struct{}
		if changed, d.changed = d.changed[0], d.changed[1:]; changed != nil {
			return nil, &driver.UnavailableError{Plugin: "pods", Err: errors.New("killed"), RetryOnClose: changed}
		}
	}
	return d.fakeDriver, nil
}

// Create waits while the driver's plugin is unavailable, also after the plugin has exited during the first call. A stop ends
// the wait, and a possible network is destroyed.
func TestCreateWaitsForUnavailableDriver(t *testing.T) {
	for name, c := range map[string]struct {
		available   []bool // for each Driver call
		createErrs  []error
		interrupted bool // an earlier agent has died during Create
		stopped     bool
		calls       []string
	}{
		"before the first call":                      {[]bool{false}, nil, false, false, []string{"create a h", "connect /run/netns/x", "destroy a /run/netns/x"}},
		"after the first call":                       {[]bool{true, false}, []error{driver.ErrPluginDown}, false, false, []string{"create a h", "create a h", "connect /run/netns/x", "destroy a /run/netns/x"}},
		"stopped before the first call":              {[]bool{false}, nil, false, true, nil},
		"stopped after the first call":               {[]bool{true, false}, []error{driver.ErrPluginDown}, false, true, []string{"create a h", "create a h", "destroy a /run/netns/x"}},
		"stopped after the call of an earlier agent": {[]bool{false}, nil, true, true, []string{"create a h", "destroy a /run/netns/x"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, d, s := newTestManager()
				d.createErrs = c.createErrs
				drivers, changed := &driversInBackoff{fakeDriver: d}, make(chan struct{})
				for _, available := range c.available {
					drivers.changed = append(drivers.changed, map[bool]chan struct{}{false: changed}[available])
				}
				m := New(s, drivers, newFakeHost(d), hclog.NewNullLogger())
				request := state.AllocNetwork{AllocID: "a", NamespaceDriver: "pods", Hostname: "h"}
				if c.interrupted {
					s.records["a"] = request
				}
				stopErr := errors.New("stopped")
				ctx, stop := context.WithCancelCause(t.Context())
				outages := 0
				var got *state.AllocNetwork
				var err error
				var wg sync.WaitGroup
				wg.Go(func() { got, err = m.Create(ctx, request, func(error) { outages++ }) })
				synctest.Wait()
				if c.stopped {
					stop(stopErr)
				} else {
					close(changed)
				}
				wg.Wait()
				stop(nil)
				if c.stopped && !errors.Is(err, stopErr) || !c.stopped && (err != nil || got == nil) || outages != 1 {
					t.Errorf("%v, %v, %d outages", got, err, outages)
				}
				if err := m.Destroy(t.Context(), "a"); err != nil {
					t.Error(err)
				}
				checkCalls(t, d, s, c.calls...)
			})
		})
	}
}

// A network is destroyed although the agent died before CreateNetwork's answer was stored, and the allocation is gone when
// the next agent starts.
func TestNetworkOfDeadAgentIsDestroyed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, d, s := newTestManager()
		ctx, die := context.WithCancel(t.Context())
		d.onCreated = die
		if _, err := m.Create(ctx, state.AllocNetwork{AllocID: "a", NamespaceDriver: "pods", Hostname: "h"}, ignoreOutage); err == nil {
			t.Fatal("the agent has survived")
		}
		d.onCreated = nil
		runManager(t, New(s, fakeDrivers{d}, newFakeHost(d), hclog.NewNullLogger()), time.Minute)
		if len(d.networks) != 1 {
			t.Error("the network of an allocation that exists was destroyed")
		}
		s.allocs = nil
		runManager(t, New(s, fakeDrivers{d}, newFakeHost(d), hclog.NewNullLogger()), time.Minute)
		checkCalls(t, d, s, "create a h", "create a h", "destroy a /run/netns/x")
	})
}

// runManager is runReplacingManager for networks that keep their addresses.
func runManager(t *testing.T, m *Manager, d time.Duration) {
	runReplacingManager(t, m, d, nil)
}

// runReplacingManager calls m's Run for a duration.
func runReplacingManager(t *testing.T, m *Manager, d time.Duration, replace ReplaceNetworkFunc) {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	m.RunDestroyRetriesAndRepairs(ctx, replace)
}

// A failed DestroyNetwork is repeated until it succeeds, also by the next agent.
func TestDestroyIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, d, s := newTestManager()
		if _, err := m.Create(t.Context(), state.AllocNetwork{AllocID: "a", NamespaceDriver: "pods", Hostname: "h"}, ignoreOutage); err != nil {
			t.Fatal(err)
		}
		busy := errors.New("device busy")
		d.destroyErrs = []error{busy, busy, busy, busy, busy, busy}
		if err := m.Destroy(t.Context(), "a"); !errors.Is(err, busy) {
			t.Error(err)
		}
		if m.ActiveNetwork("a") != nil {
			t.Error("a released network is used again")
		}
		runManager(t, m, 2500*time.Millisecond)
		if left := len(d.destroyErrs); left == 0 || left == 5 {
			t.Errorf("%d errors left", left)
		}
		runManager(t, New(s, fakeDrivers{d}, newFakeHost(d), hclog.NewNullLogger()), time.Hour)
		checkCalls(t, d, s, append([]string{"create a h", "connect /run/netns/x"}, slices.Repeat([]string{"destroy a /run/netns/x"}, 7)...)...)
	})
}

func TestDestroyNotSupported(t *testing.T) {
	m, d, s := newTestManager()
	if _, err := m.Create(t.Context(), state.AllocNetwork{AllocID: "a", NamespaceDriver: "pods", Hostname: "h"}, ignoreOutage); err != nil {
		t.Fatal(err)
	}
	d.destroyErrs = []error{driver.ErrDestroyNetworkNotSupported}
	if err := m.Destroy(t.Context(), "a"); err != nil || len(s.records) > 0 {
		t.Error(err, s.records)
	}
}

func TestHostnameOfLabels(t *testing.T) {
	own := &driver.HostsConfig{Hostname: "own", Address: "10.0.0.2"}
	for _, c := range []struct {
		labels      map[string]string
		hosts, want *driver.HostsConfig
	}{
		{nil, nil, nil},
		{map[string]string{"docker_sandbox_hostname": "web"}, nil, &driver.HostsConfig{Hostname: "web", Address: "172.26.64.7"}},
		{map[string]string{"docker_sandbox_container_id": "0123456789abcdef"}, nil, &driver.HostsConfig{Hostname: "0123456789ab", Address: "172.26.64.7"}},
		{map[string]string{"docker_sandbox_container_id": "0123"}, nil, &driver.HostsConfig{Hostname: "0123", Address: "172.26.64.7"}},
		{map[string]string{"docker_sandbox_hostname": "web"}, own, own},
	} {
		m, d, _ := newTestManager()
		d.answer = &driver.NetworkIsolation{Labels: c.labels, Hosts: c.hosts}
		got, err := m.Create(t.Context(), state.AllocNetwork{AllocID: "a", NamespaceDriver: "pods", Hostname: "h"}, ignoreOutage)
		if err != nil || !reflect.DeepEqual(got.Isolation.Hosts, c.want) {
			t.Errorf("%v: %+v, %v, want %+v", c.labels, got.Isolation.Hosts, err, c.want)
		}
	}
}

// Without a job hostname, tasks find the namespace's address under the machine's hostname.
func TestHostnameOfMachine(t *testing.T) {
	machine, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	m, _, _ := newTestManager()
	got, err := m.Create(t.Context(), state.AllocNetwork{AllocID: "a", Mode: "bridge"}, ignoreOutage)
	if want := (driver.HostsConfig{Hostname: machine, Address: "172.26.64.7"}); err != nil || got.Isolation.Hosts == nil || *got.Isolation.Hosts != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
}

// The host creates the namespace if no driver does, and disconnects it before it removes it.
func TestHostCreatesNetwork(t *testing.T) {
	m, d, s := newTestManager()
	request := state.AllocNetwork{AllocID: "a", Mode: "bridge", Hostname: "web"}
	got, err := m.Create(t.Context(), request, ignoreOutage)
	want := &driver.NetworkIsolation{Mode: driver.NetworkGroup, Path: "/run/netns/a", Hosts: &driver.HostsConfig{Hostname: "web", Address: "172.26.64.7"}}
	if err != nil || !reflect.DeepEqual(got.Isolation, want) || got.Status.Address != "172.26.64.7" || !reflect.DeepEqual(m.ActiveNetwork("a"), got) {
		t.Fatalf("%+v, %v", got, err)
	}
	// After a reboot the former network is disconnected first.
	if _, err := m.Create(t.Context(), request, ignoreOutage); err != nil {
		t.Fatal(err)
	}
	if err := m.Destroy(t.Context(), "a"); err != nil {
		t.Error(err)
	}
	checkCalls(t, d, s, "namespace", "connect /run/netns/a", "disconnect", "namespace", "connect /run/netns/a", "disconnect", "remove")
}

// A namespace is removed if it could not be connected, or if an agent died while connecting it.
func TestIncompleteNetworkIsRemoved(t *testing.T) {
	m, d, s := newTestManager()
	m.host.(*fakeHost).connectErrs = []error{errors.New("no address")}
	if got, err := m.Create(t.Context(), state.AllocNetwork{AllocID: "a", Mode: "bridge"}, ignoreOutage); got != nil || err == nil || err.Error() != "no address" {
		t.Error(got, err)
	}
	if m.ActiveNetwork("a") != nil {
		t.Error("an incomplete network is used")
	}
	s.allocs = nil
	next := New(s, fakeDrivers{d}, newFakeHost(d), hclog.NewNullLogger())
	if left := next.DestroyUnused(t.Context()); left != 0 {
		t.Errorf("%d networks are left", left)
	}
	checkCalls(t, d, s, "namespace", "connect /run/netns/a", "disconnect", "remove")
}

// slowHost is a host that takes a second to remove a namespace.
type slowHost struct{ *fakeHost }

func (slowHost) RemoveNamespace(string) error {
	time.Sleep(time.Second)
	return nil
}

// A killed agent may have left hundreds of networks.
func TestReleasedNetworksAreDestroyedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, d, s := newTestManager()
		m.host = slowHost{newFakeHost(d)}
		for i := range 2 * maxParallelDestroys {
			id := fmt.Sprint("gone", i)
			s.records[id] = state.AllocNetwork{AllocID: id}
		}
		begin := time.Now()
		if remaining := m.DestroyUnused(t.Context()); remaining != 0 || time.Since(begin) != 2*time.Second {
			t.Errorf("%d networks remain after %v, want none after 2s", remaining, time.Since(begin))
		}
		checkCalls(t, d, s)
	})
}

// Nothing is recorded for a missing network.
func TestUnknownNetwork(t *testing.T) {
	m, d, s := newTestManager()
	if _, err := m.Create(t.Context(), state.AllocNetwork{AllocID: "a", Mode: "cni/missing"}, ignoreOutage); err == nil {
		t.Error("created")
	}
	checkCalls(t, d, s)
}
