package localnode

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/nomad-lite/nomad-lite/runtime/node/resources/fingerprint"
)

func TestPublicAddressesOfPorts(t *testing.T) {
	eth := func(name string, addresses ...string) fingerprint.Interface {
		i := fingerprint.Interface{Name: name}
		for _, a := range addresses {
			i.Addresses = append(i.Addresses, netip.MustParseAddr(a))
		}
		return i
	}
	lo := eth("lo", "127.0.0.1", "::1")
	bridge := []string{"bridge"}
	withIPv6 := Settings{}
	withIPv6.Networks.Bridge.IPv6Subnet = netip.MustParsePrefix("fd00::/64")
	named := func(name string) Settings { return Settings{Interface: InterfaceSettings{Name: name}} }
	for name, c := range map[string]struct {
		settings Settings
		host     fingerprint.Host
		want     string
	}{
		"public":                           {Settings{}, fingerprint.Host{IP: "203.0.113.7", InterfaceOfIP: "eth0", Interfaces: []fingerprint.Interface{lo, eth("eth0", "203.0.113.7")}}, "[203.0.113.7 (eth0)]"},
		"public IPv6 only":                 {Settings{}, fingerprint.Host{IP: "2001:db8::7", InterfaceOfIP: "eth0", Interfaces: []fingerprint.Interface{lo, eth("eth0", "2001:db8::7")}}, "[2001:db8::7 (eth0)]"},
		"private of RFC 1918":              {Settings{}, fingerprint.Host{IP: "192.168.1.7", InterfaceOfIP: "eth0"}, "[]"},
		"private of RFC 4193":              {Settings{}, fingerprint.Host{IP: "fd12::7", InterfaceOfIP: "eth0"}, "[]"},
		"shared of RFC 6598":               {Settings{}, fingerprint.Host{IP: "100.64.3.7", InterfaceOfIP: "eth0"}, "[]"},
		"loopback":                         {named("lo"), fingerprint.Host{IP: "127.0.0.1", InterfaceOfIP: "lo", NetworkModes: bridge, Interfaces: []fingerprint.Interface{lo, eth("eth0", "203.0.113.7")}}, "[]"},
		"the operator names the interface": {named("eth0"), fingerprint.Host{IP: "203.0.113.7", InterfaceOfIP: "eth0"}, "[]"},
		"the named interface is absent":    {named("eth9"), fingerprint.Host{IP: "203.0.113.7", InterfaceOfIP: "eth0"}, "[203.0.113.7 (eth0)]"},
		"the bridge forwards on another address": {Settings{}, fingerprint.Host{IP: "10.0.0.7", InterfaceOfIP: "eth1", NetworkModes: bridge,
			Interfaces: []fingerprint.Interface{lo, eth("eth0", "203.0.113.7", "2001:db8::7"), eth("eth1", "10.0.0.7")}}, "[203.0.113.7 (eth0)]"},
		"the bridge forwards IPv6": {withIPv6, fingerprint.Host{IP: "10.0.0.7", InterfaceOfIP: "eth0", NetworkModes: bridge,
			Interfaces: []fingerprint.Interface{lo, eth("eth0", "10.0.0.7", "2001:db8::7")}}, "[2001:db8::7 (eth0)]"},
		"without a bridge": {withIPv6, fingerprint.Host{IP: "10.0.0.7", InterfaceOfIP: "eth1",
			Interfaces: []fingerprint.Interface{lo, eth("eth0", "203.0.113.7"), eth("eth1", "10.0.0.7")}}, "[]"},
		"a host network": {Settings{}, fingerprint.Host{IP: "10.0.0.7", InterfaceOfIP: "eth1", NetworkModes: bridge,
			HostNetworks: map[string]fingerprint.HostNetwork{"public": {Interface: "eth0", IP: "203.0.113.7"}},
			Interfaces:   []fingerprint.Interface{lo, eth("eth0", "203.0.113.7"), eth("eth1", "10.0.0.7")}}, "[]"},
		"no address": {Settings{}, fingerprint.Host{}, "[]"},
	} {
		if got := fmt.Sprint(c.settings.PublicAddressesOfPorts(c.host)); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}
