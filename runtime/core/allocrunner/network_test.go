package allocrunner

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/node/network"
	"github.com/nomad-lite/nomad-lite/runtime/node/services/servicestest"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// networkRecords is a network.NetworkRecordStore shared by a test's agents.
type networkRecords struct {
	mu     sync.Mutex
	record *state.AllocNetwork
}

func (n *networkRecords) Networks() []state.AllocNetwork { return nil }

func (n *networkRecords) Network(string) *state.AllocNetwork {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.record
}

func (n *networkRecords) PutNetwork(record state.AllocNetwork) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.record = &record
	return nil
}

func (n *networkRecords) DeleteNetwork(string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.record = nil
	return nil
}

func (n *networkRecords) HasAllocation(string) bool { return true }

// withNetworks lets drivers create networks.
func withNetworks(records *networkRecords, c driver.Capabilities) func(*testConfig) {
	return func(config *testConfig) {
		drivers := config.Drivers.(*fakeDrivers)
		drivers.capabilities = c
		config.NetworkManager = network.New(records, drivers, &fakeHostNetworks{}, nullLogger)
	}
}

// fakeHostNetworks is a network.HostNamespaces in which each namespace has the address 172.26.64.7.
type fakeHostNetworks struct{ calls []string }

func (h *fakeHostNetworks) CreateNamespace(allocID string) (string, error) {
	h.calls = append(h.calls, "create")
	return "/run/netns/" + allocID, nil
}
func (*fakeHostNetworks) RemoveNamespace(string) error                      { return nil }
func (*fakeHostNetworks) ReadCNIConfigIntoRecord(*state.AllocNetwork) error { return nil }
func (h *fakeHostNetworks) DisconnectNamespace(context.Context, *state.AllocNetwork) error {
	h.calls = append(h.calls, "disconnect")
	return nil
}
func (*fakeHostNetworks) Repair([]state.AllocNetwork) ([]network.Damage, error) { return nil, nil }

func (h *fakeHostNetworks) CheckPortsAndConnectNamespace(_ context.Context, n *state.AllocNetwork, _ string) (*state.NetworkStatus, error) {
	h.calls = append(h.calls, "connect")
	if n.Mode == "none" {
		return nil, nil
	}
	return &state.NetworkStatus{Interface: "eth0", Address: "172.26.64.7", DNS: &driver.DNSConfig{Servers: []string{"172.26.64.1"}}}, nil
}

const bridgeNetworkText = `network {
  mode     = "bridge"
  hostname = "host-${NOMAD_ALLOC_INDEX}"
}
`

// networkCreator are a driver's capabilities for creating allocation networks.
var networkCreator = driver.Capabilities{MustCreateNetwork: true, NetworkIsolationModes: []driver.NetworkMode{driver.NetworkGroup}}

// networkCalls returns the driver calls about networks and tasks, without their times.
func (a *testAgent) networkCalls() string {
	a.drivers.mu.Lock()
	defer a.drivers.mu.Unlock()
	var calls []string
	for _, c := range a.drivers.calls {
		method, argument, _ := strings.Cut(c.summary, " ")
		switch method {
		case "CreateNetwork", "DestroyNetwork", "StartTask", "DestroyTask":
			calls = append(calls, method+" "+argument)
		}
	}
	return strings.Join(calls, ", ")
}

// The driver creates the network before the tasks start, every task gets it, also after an agent restart, and the driver
// destroys it after the tasks.
func TestDriverCreatesNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records := &networkRecords{}
		tasks := endlessTaskText + "\ntask \"last\" {\n driver = \"fake\"\n config { run_for = \"1s\" }\n lifecycle {\n hook = \"poststop\"\n }\n}"
		a := startAgent(t, parseJob(t, job("service", bridgeNetworkText+tasks)), withNetworks(records, networkCreator))
		a.advance(time.Second)
		want := &driver.NetworkIsolation{Mode: driver.NetworkGroup, Path: "/netns/" + testAllocID}
		wantEqual(t, "the first task", *a.drivers.lastConfig("web").NetworkIsolation, *want)
		a.die()
		a = a.startNextAgent(withNetworks(records, networkCreator))
		a.Stop() // Prerun is not called again
		a.wait()
		wantEqual(t, "the poststop task", *a.drivers.lastConfig("last").NetworkIsolation, *want)
		wantEqual(t, "calls", a.networkCalls(), "CreateNetwork host-0, StartTask web, DestroyTask web, StartTask last, DestroyTask last, DestroyNetwork "+want.Path)
		wantEqual(t, "record", records.record, nil)
	})
}

// After a reboot the network is created again, by the driver or by the agent.
func TestNetworkIsCreatedAfterReboot(t *testing.T) {
	for name, c := range map[string]struct {
		capabilities     driver.Capabilities
		want, wantOfHost string
	}{
		"by the driver": {networkCreator, "CreateNetwork host-0, StartTask web, CreateNetwork host-0, StartTask web", "disconnect, connect"},
		"by the agent":  {driver.Capabilities{NetworkIsolationModes: []driver.NetworkMode{driver.NetworkGroup}}, "StartTask web, StartTask web", "disconnect, create, connect"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				records, host := &networkRecords{}, &fakeHostNetworks{}
				setNetworks := func(config *testConfig) {
					withNetworks(records, c.capabilities)(config)
					config.NetworkManager = network.New(records, config.Drivers, host, nullLogger)
				}
				a := startAgent(t, parseJob(t, job("service", bridgeNetworkText+endlessTaskText)), setNetworks)
				a.advance(time.Second)
				a.die()
				removeWebProcess(a)
				host.calls = nil
				a = a.startNextAgent(func(config *testConfig) {
					setNetworks(config)
					config.RebootedSinceEarlierAgent = true
				})
				a.advance(time.Minute)
				wantEqual(t, "calls", a.networkCalls(), c.want)
				wantEqual(t, "calls of the host", strings.Join(host.calls, ", "), c.wantOfHost)
			})
		})
	}
}

func TestNetworkIsRejected(t *testing.T) {
	for name, c := range map[string]struct {
		capabilities driver.Capabilities
		want         string
	}{
		"the driver lacks the mode": {driver.Capabilities{MustCreateNetwork: true}, `task web does not support "bridge" networking mode`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				records := &networkRecords{}
				a := startAgent(t, parseJob(t, job("service", bridgeNetworkText+endlessTaskText)), withNetworks(records, c.capabilities))
				a.wait()
				wantEqual(t, "status", a.Status().ClientStatus, "failed")
				if events := a.transcript(); !strings.Contains(events, c.want) {
					t.Errorf("%s\nwant an event that contains %q", events, c.want)
				}
				wantEqual(t, "calls", a.networkCalls(), "")
			})
		})
	}
}

// Only one driver in a group can create its network.
func TestNetworkOfTwoDriversIsRejected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := startAgent(t, parseJob(t, job("service", bridgeNetworkText+endlessTaskText+"\ntask \"api\" { driver = \"other\" }")), func(c *testConfig) {
			drivers := c.Drivers.(*fakeDrivers)
			withNetworks(&networkRecords{}, networkCreator)(c)
			c.Drivers = anyDriver{drivers}
		})
		a.wait()
		if events := a.transcript(); !strings.Contains(events, "tasks web and api want to initiate networking but only one driver can do so") {
			t.Error(events)
		}
	})
}

// anyDriver returns the fake driver under each name.
type anyDriver struct{ *fakeDrivers }

func (d anyDriver) Driver(ctx context.Context, _ string) (driver.Driver, error) {
	return d.fakeDrivers.Driver(ctx, "fake")
}

// A task's services advertise the address from its driver, also under the next agent.
func TestDriverNetworkIsAdvertised(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := new(servicestest.Registry)
		withAddress := func(c *testConfig) {
			c.Drivers.(*fakeDrivers).networkOverride = &driver.NetworkOverride{
				Addr: "172.17.0.5", PortMap: map[string]int{"http": 8080}, AutoAdvertise: true,
			}
			c.Services = registry
			if len(c.Alloc.AllocatedResources.Shared.Ports) == 0 {
				grantPorts(c.Alloc)
			}
		}
		a := startAgent(t, parseJob(t, job("service", `network {
			port "http" {}
		}
		task "web" {
			driver = "fake"
			service {
				name     = "web"
				port     = "http"
				provider = "nomad"
			}
		}`)), withAddress)
		check := func(when string) {
			t.Helper()
			a.advance(time.Second)
			services := registry.ServicesByAllocation(testAllocID)
			if len(services) != 1 || services[0].Address != "172.17.0.5" || services[0].Port != 8080 {
				t.Errorf("%s: services %+v", when, services)
			}
		}
		check("first agent")
		a.die()
		*registry = servicestest.Registry{}
		a = a.startNextAgent(withAddress)
		check("next agent")
		a.Stop()
		a.wait()
	})
}

// The agent creates the network if no driver does. Tasks, services and clients see its address, also under the
// next agent.
func TestAgentCreatesNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records, registry := &networkRecords{}, new(servicestest.Registry)
		config := func(c *testConfig) {
			withNetworks(records, driver.Capabilities{NetworkIsolationModes: []driver.NetworkMode{driver.NetworkGroup}})(c)
			c.Services = registry
			if len(c.Alloc.AllocatedResources.Shared.Ports) == 0 {
				grantPorts(c.Alloc)
			}
		}
		a := startAgent(t, parseJob(t, job("service", `network {
			mode     = "bridge"
			hostname = "host-${NOMAD_ALLOC_INDEX}"
			port "http" {}
			dns {
				searches = ["example.org"]
			}
		}
		service {
			name         = "web"
			port         = "http"
			provider     = "nomad"
			address_mode = "alloc"
		}
`+endlessTaskText)), config)
		check := func(when string) {
			t.Helper()
			a.advance(time.Second)
			task := a.drivers.lastConfig("web")
			wantEqual(t, when+": namespace", task.NetworkIsolation.Path, "/run/netns/"+testAllocID)
			wantEqual(t, when+": hosts", *task.NetworkIsolation.Hosts, driver.HostsConfig{Hostname: "host-0", Address: "172.26.64.7"})
			wantEqual(t, when+": name servers of the network", task.DNS.Servers, "[172.26.64.1]")
			wantEqual(t, when+": search domains of the group", task.DNS.Searches, "[example.org]")
			wantEqual(t, when+": DNS of the status", a.Status().NetworkStatus.DNS.Servers, "[172.26.64.1]")
			wantEqual(t, when+": address", task.Env["NOMAD_ALLOC_IP_http"], "172.26.64.7")
			wantEqual(t, when+": interface", task.Env["NOMAD_ALLOC_INTERFACE_http"], "eth0")
			wantEqual(t, when+": status", a.Status().NetworkStatus.Address, "172.26.64.7")
			services := registry.ServicesByAllocation(testAllocID)
			if len(services) != 1 || services[0].Address != "172.26.64.7" {
				t.Errorf("%s: services %+v", when, services)
			}
		}
		check("first agent")
		a.die()
		*registry = servicestest.Registry{}
		a = a.startNextAgent(config)
		check("next agent")
		a.Stop()
		a.wait()
		wantEqual(t, "record", records.record, nil)
	})
}

// A network connected again with another address restarts the tasks with that address, and their events give the reason.
func TestReplacedNetworkRestartsTasks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records, registry := &networkRecords{}, new(servicestest.Registry)
		a := startAgent(t, parseJob(t, job("service", `network {
			mode = "bridge"
			port "http" {}
		}
		service {
			name         = "web"
			port         = "http"
			provider     = "nomad"
			address_mode = "alloc"
		}
`+endlessTaskText)), func(c *testConfig) {
			withNetworks(records, driver.Capabilities{NetworkIsolationModes: []driver.NetworkMode{driver.NetworkGroup}})(c)
			c.Services = registry
			grantPorts(c.Alloc)
		})
		a.advance(time.Second)
		replaced := *records.record
		replaced.Status = &state.NetworkStatus{Interface: "eth0", Address: "172.26.64.8"}
		a.ReplaceNetwork(&replaced, "its interface cni0 was removed")
		a.advance(time.Minute)
		wantEqual(t, "calls", a.networkCalls(), "StartTask web, DestroyTask web, StartTask web")
		wantEqual(t, "address", a.drivers.lastConfig("web").Env["NOMAD_ALLOC_IP_http"], "172.26.64.8")
		wantEqual(t, "status", a.Status().NetworkStatus.Address, "172.26.64.8")
		if services := registry.ServicesByAllocation(testAllocID); len(services) != 1 || services[0].Address != "172.26.64.8" {
			t.Errorf("services %+v", services)
		}
		if events, want := a.transcript(), "connected again with the address 172.26.64.8, because its interface cni0 was removed"; !strings.Contains(events, want) {
			t.Errorf("%s\nwant an event that contains %q", events, want)
		}
		a.Stop()
		a.wait()
		a.ReplaceNetwork(&replaced, "the allocation has ended") // has no effect
		wantEqual(t, "record", records.record, nil)
	})
}
