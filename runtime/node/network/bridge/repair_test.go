package bridge

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/internal/netns"
)

// repair calls Repair for connected endpoints, and fails the test if a namespace was not.
func repair(t testing.TB, b *Bridge, endpoints ...Endpoint) {
	t.Helper()
	var connected []ConnectedEndpoint
	for _, e := range endpoints {
		connected = append(connected, ConnectedEndpoint{Endpoint: e})
	}
	if damages, err := b.Repair(connected); err != nil || len(damages) > 0 {
		t.Errorf("%v, %v", damages, err)
	}
}

// Rules and links that others have removed are restored, and the namespace keeps its addresses.
func TestRepair(t *testing.T) {
	if testing.Short() {
		t.Skip("creates network namespaces; TestNamespacesReachEachOther and TestMasquerade run")
	}
	b := New(testConfig)
	e, status := attach(t, b, "one", ForwardedPort{Label: "http", HostPort: 80, NamespacePort: 8080})
	_, two := attach(t, b, "two")
	name := hostInterfaceName("one")
	for _, c := range []struct {
		damage     func()
		wantReason string // "" for damage to rules or settings
	}{
		{func() {
			command(t, "nft", "flush", "ruleset")
			command(t, "ip", "link", "set", "nomad", "down")
		}, ""},
		{func() { command(t, "ip", "link", "del", "nomad") }, "not connected to the bridge nomad"},
		{func() { command(t, "ip", "link", "del", name) }, name + " was removed"},
		{func() { command(t, "ip", "-n", "one", "link", "del", InterfaceName) }, name + " was removed"},
		{func() {
			command(t, "ip", "link", "del", "nomad")
			command(t, "ip", "link", "del", name)
		}, name + " was removed"},
		{func() { command(t, "ip", "link", "set", name, "nomaster") }, "not connected to the bridge nomad"},
		{func() { command(t, "ip", "link", "set", name, "down") }, name + " was down"},
		{func() {
			command(t, "ip", "link", "set", name, "alias", "")
			command(t, "ip", "link", "set", name, "down")
		}, name + " was down"},
	} {
		c.damage()
		checkUnreachable(t, "damaged", outside, machineAddress+":80")
		damages, err := b.Repair([]ConnectedEndpoint{{e, status}, {Endpoint{AllocID: "two", NamespacePath: netns.Path("two")}, two}})
		if err != nil {
			t.Fatal(c.wantReason, err)
		}
		found := c.wantReason == ""
		for _, d := range damages {
			if !d.IsRepaired {
				t.Errorf("not repaired: %+v", d)
			}
			found = found || d.AllocID == "one" && strings.HasSuffix(d.Reason, c.wantReason)
		}
		if !found {
			t.Errorf("damages %+v, want %q", damages, c.wantReason)
		}
		checkAnswer(t, c.wantReason, outside, "tcp", machineAddress+":80", "one "+outsideAddress)
		checkAnswer(t, c.wantReason, "two", "tcp", at(status.IPv6Address, 8080), "one "+two.IPv6Address.String())
		checkAnswer(t, c.wantReason, "one", "tcp", at(two.IPv4Address, 8080), "two "+status.IPv4Address.String())
		checkAnswer(t, c.wantReason, "", "tcp", at(status.IPv4Address, 8080), "one 172.26.64.1")
		repair(t, b, e)
	}
}

// A namespace cannot be repaired if another one has got its addresses meanwhile, or if they are from an earlier subnet: Attach
// gives it other ones.
func TestRepairNeedsOtherAddresses(t *testing.T) {
	if testing.Short() {
		t.Skip("creates network namespaces; TestNamespacesReachEachOther and TestMasquerade run")
	}
	b := New(testConfig)
	one, status := attach(t, b, "one")
	_, other := attach(t, b, "two")
	for _, c := range []struct{ address, wantReason string }{
		{other.IPv4Address.String(), "allocation two has its address"},
		{"10.5.5.5", "is not in the subnet"},
	} {
		command(t, "ip", "link", "del", hostInterfaceName("one"))
		damages, err := b.Repair([]ConnectedEndpoint{{one, NamespaceStatus{InterfaceName, netip.MustParseAddr(c.address), status.IPv6Address}}})
		if err != nil || len(damages) != 1 || damages[0].IsRepaired || !strings.Contains(damages[0].Reason, c.wantReason) {
			t.Errorf("%+v, %v, want %q", damages, err, c.wantReason)
		}
		if err := b.Detach("one"); err != nil {
			t.Error(err)
		}
		if again, err := b.Attach(one); err != nil || again != status {
			t.Errorf("%v, %v, want %v", again, err, status)
		}
	}
}

// If a namespace gets its first address while the bridge is missing, it does not get one from a namespace that Repair will
// connect again.
func TestAddressesStayReservedWithoutBridge(t *testing.T) {
	c := testConfig
	c.IPv4Subnet, c.IPv6Subnet = netip.MustParsePrefix("172.26.64.0/29"), netip.Prefix{} // five addresses
	b := New(c)
	used := make(map[netip.Addr]bool)
	for _, id := range []string{"a", "b", "c", "d", "e"} {
		_, s := attach(t, b, id)
		if used[s.IPv4Address] {
			t.Errorf("the address %s was given out twice", s.IPv4Address)
		}
		used[s.IPv4Address] = true
		command(t, "ip", "link", "del", "nomad")
	}
}
