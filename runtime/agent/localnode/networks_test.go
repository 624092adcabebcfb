package localnode

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/node/network/hostnet"
	"github.com/nomad-lite/nomad-lite/runtime/node/resources/fingerprint"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
)

// fakePlugins has the drivers d, which is unhealthy, and missing, which is not started.
type fakePlugins struct{ pluginLister }

func (fakePlugins) DriverInfoByName() map[string]supervisor.DriverInfo {
	return map[string]supervisor.DriverInfo{"d": {Detected: true, Description: "ill"}, "gone": {Description: "not here"}}
}

func (fakePlugins) NotStartedDriverInfoByName() map[string]supervisor.DriverInfo {
	return map[string]supervisor.DriverInfo{"missing": {Description: "no such engine"}}
}

func (fakePlugins) DeviceGroups() []supervisor.DeviceGroup { return nil }

func (fakePlugins) LaunchFailureReasonByPlugin() map[string]string {
	return map[string]string{"broken": "exits"}
}

func (fakePlugins) DeviceFailureReasonByPlugin() map[string]string {
	return map[string]string{"bus": "no bus"}
}

// machine is a machine with three interfaces; eth1 has the node's address.
func machine(t *testing.T, settings *Settings) fingerprint.Host {
	t.Helper()
	addresses := func(list ...string) (all []netip.Addr) {
		for _, a := range list {
			all = append(all, netip.MustParseAddr(a))
		}
		return all
	}
	cidr := netip.MustParsePrefix
	settings.Networks.HostNetworks = map[string]hostnet.HostNetwork{
		"public": {CIDR: cidr("10.0.0.0/8"), Interface: "eth2", ReservedPorts: "22"},
		"all":    {CIDR: cidr("10.0.0.0/8")},
		"second": {CIDR: cidr("10.2.0.2/32")},
		"six":    {CIDR: cidr("fd00::/16")},
	}
	host := fingerprint.Host{
		Attributes: map[string]string{}, InterfaceOfIP: "eth1", IP: "10.1.0.1", NetworkModes: []string{"bridge"},
		Interfaces: []fingerprint.Interface{
			{Name: "lo", MBits: 1000, Addresses: addresses("127.0.0.1", "::1")},
			{Name: "eth1", MAC: "02:00:00:00:00:01", MBits: 10000, Addresses: addresses("10.1.0.1", "10.1.0.2", "fd00::1")},
			{Name: "eth2", MAC: "02:00:00:00:00:02", MBits: 1000, Addresses: addresses("10.2.0.1", "10.2.0.2", "fd00::2")},
		},
		Topology: &base.Topology{},
	}
	selected, err := settings.Networks.SelectHostAddressByNetworkName(addressesOwnInterfaceFirst(host))
	if err != nil {
		t.Fatal(err)
	}
	host.HostNetworks = make(map[string]fingerprint.HostNetwork)
	for name, a := range selected {
		host.HostNetworks[name] = fingerprint.HostNetwork{Interface: a.Interface, IP: a.Address.String()}
	}
	return host
}

// Interfaces are listed with the address names that ports can use. Addresses without a name are left out.
func TestNodeNetworks(t *testing.T) {
	var settings Settings
	host := machine(t, &settings)
	var got []string
	for _, n := range newNodeNetworks(host, settings.Networks.HostNetworks) {
		got = append(got, fmt.Sprintf("%s %s %s %d", n.Mode, n.Device, n.MacAddress, n.Speed))
		for _, a := range n.Addresses {
			got = append(got, fmt.Sprintf("%s %s %s %s", a.Family, a.Address, a.Alias, a.ReservedPorts))
		}
	}
	want := []string{
		"bridge   0",
		"host eth1 02:00:00:00:00:01 10000",
		"ipv4 10.1.0.1 all ", "ipv4 10.1.0.1 default ", "ipv4 10.1.0.2 all ", "ipv4 10.1.0.2 default ", "ipv6 fd00::1 six ", "ipv6 fd00::1 default ",
		"host eth2 02:00:00:00:00:02 1000",
		"ipv4 10.2.0.1 all ", "ipv4 10.2.0.1 public 22", "ipv4 10.2.0.2 all ", "ipv4 10.2.0.2 public 22", "ipv4 10.2.0.2 second ", "ipv6 fd00::2 six ",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %s\nwant %s", strings.Join(got, "\n     "), strings.Join(want, "\n     "))
	}
}

// The scheduler gives a host network's ports the address that the bridge forwards, and ports without a network the node's
// address: further addresses change neither.
func TestSchedulerSelectsAddressesOfHostNetworks(t *testing.T) {
	var settings Settings
	host := machine(t, &settings)
	n := newRecordFixture(t, settings, host)
	node := scheduler.PlacementNodeOf(n.newNodeRecord(nil, nil))
	for name, want := range map[string]string{"public": "10.2.0.1", "all": "10.1.0.1", "second": "10.2.0.2", "six": "fd00::1"} {
		if got := node.HostNetworks[name].Address; got != want || host.HostNetworks[name].IP != want {
			t.Errorf("%s: the scheduler has %s, the fingerprint %s, want %s", name, got, host.HostNetworks[name].IP, want)
		}
	}
	if len(node.HostNetworks) != 4 || !slices.Contains(node.NetworkModes, "bridge") || !slices.Contains(node.NetworkModes, "host") {
		t.Errorf("networks %v, modes %v", node.HostNetworks, node.NetworkModes)
	}
}

func TestNetworkResources(t *testing.T) {
	var settings Settings
	host := machine(t, &settings)
	text := func(host fingerprint.Host, mbits int) string {
		var all []string
		for _, n := range newNetworkResources(host, mbits) {
			speed := 0
			if n.MBits != nil {
				speed = *n.MBits
			}
			all = append(all, fmt.Sprintf("%s %s %s %s %d", n.Mode, n.Device, n.CIDR, n.IP, speed))
		}
		return strings.Join(all, "\n")
	}
	want := `bridge    0
host eth1 10.1.0.1/32 10.1.0.1 10000
host eth1 10.1.0.2/32 10.1.0.2 10000
host eth1 fd00::1/128 fd00::1 10000
host eth2 10.2.0.1/32 10.2.0.1 1000
host eth2 10.2.0.2/32 10.2.0.2 1000`
	if got := text(host, 0); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got, want := text(host, 250), strings.ReplaceAll(want, " 10000", " 250"); got != want {
		t.Errorf("with network_speed: got\n%s\nwant\n%s", got, want)
	}
	if got := text(fingerprint.Host{IP: "127.0.0.1"}, 0); got != "host   127.0.0.1 0" {
		t.Errorf("without an interface: %s", got)
	}
}

func newRecordFixture(t *testing.T, settings Settings, host fingerprint.Host) *Node {
	t.Helper()
	return New(Config{ID: "n", Settings: settings.WithDefaults("box"), Host: host, Store: openStore(t), Plugins: fakePlugins{}, Logger: hclog.NewNullLogger()})
}

// Drivers not started are listed with the reason, and are not used.
func TestDriversThatAreNotStarted(t *testing.T) {
	var settings Settings
	record := newRecordFixture(t, settings, machine(t, &settings)).newNodeRecord(nil, nil)
	missing := record.Drivers["missing"]
	if missing == nil || missing.Detected || missing.Healthy || missing.HealthDescription != "no such engine" {
		t.Errorf("driver %+v", missing)
	}
	if usable, listed := scheduler.PlacementNodeOf(record).HealthyByDriver["missing"]; usable || !listed {
		t.Error("jobs can use a driver that is not started")
	}
	if got := record.Attributes["plugins.unknown.broken.failure"]; got != "exits" {
		t.Errorf("the failure of a plugin of unknown type is %q", got)
	}
	if got := record.Attributes["plugins.device.bus.failure"]; got != "no bus" {
		t.Errorf("the failure of the device plugin is %q", got)
	}
	for name, want := range map[string]string{"d": "1", "gone": "", "missing": ""} {
		if got := record.Attributes["driver."+name]; got != want {
			t.Errorf("attribute of driver %s is %q, want %q", name, got, want)
		}
	}
	text, err := json.Marshal(missing.Attributes)
	if err != nil || string(text) != "{}" {
		t.Errorf("attributes %s, %v", text, err)
	}
}

// Reserved cores and reserved CPU are subtracted once, and the settings can change.
func TestReservedCPU(t *testing.T) {
	settings := Settings{Reserved: ReservedResources{CPUMHz: 300}, MaxAllocs: 7}
	host := machine(t, &settings)
	host.Attributes = map[string]string{"cpu.reservablecores": "3", "cpu.frequency": "1000", "cpu.usablecompute": "3000"}
	host.UsableCores, host.UsableCPUMHz, host.ReservedCoreIDs, host.ReservableCoreIDs = 4, 4000, []uint16{0}, []uint16{1, 2, 3}
	n := newRecordFixture(t, settings, host)
	check := func(usable string, reserved uint64) {
		t.Helper()
		record := n.newNodeRecord(nil, nil)
		if got := record.Attributes["cpu.usablecompute"]; got != usable {
			t.Errorf("cpu.usablecompute %s, want %s", got, usable)
		}
		if got := record.ReservedResources.Cpu.CpuShares; got != reserved || record.NodeResources.Cpu.CpuShares != 4000 || record.NodeResources.Cpu.TotalCpuCores != 3 {
			t.Errorf("reserved %d, want %d; %+v", got, reserved, record.NodeResources.Cpu)
		}
	}
	check("2700", 1300)
	if got := scheduler.PlacementNodeOf(n.newNodeRecord(nil, nil)).MaxAllocs; got != 7 {
		t.Errorf("%d allocations at most, want 7", got)
	}
	n.Reload(Settings{})
	check("3000", 1000)
	n.Reload(Settings{Reserved: ReservedResources{CPUMHz: 9000}}) // more than the node has
	check("1", 10000)
}

// A node on a machine with only loopback addresses has one for ports without a network.
func TestNodeNetworksOfMachineWithoutInterface(t *testing.T) {
	got := newNodeNetworks(fingerprint.Host{IP: "127.0.0.1", NetworkModes: []string{"bridge"}}, nil)
	want := []fingerprint.NodeNetwork{{Mode: "bridge"}, {Mode: "host", Addresses: []fingerprint.NodeNetworkAddress{{Family: "ipv4", Alias: "default", Address: "127.0.0.1"}}}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
