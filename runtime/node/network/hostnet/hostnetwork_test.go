package hostnet

import (
	"net/netip"
	"strings"
	"testing"
)

func TestHostAddresses(t *testing.T) {
	cidr, address := netip.MustParsePrefix, netip.MustParseAddr
	machine := []HostAddress{
		{"one", address("10.1.0.1")}, {"one", address("10.1.0.2")}, {"one", address("fd00::1")}, {"two", address("10.2.0.1")}, {"lo", address("127.0.0.1")},
	}
	got, err := Config{HostNetworks: map[string]HostNetwork{
		"interface":   {Interface: "one"},
		"first":       {CIDR: cidr("10.0.0.0/8")},
		"cidr":        {CIDR: cidr("10.0.0.0/8"), Interface: "two"},
		"second":      {CIDR: cidr("10.1.0.2/32")},
		"six":         {CIDR: cidr("fd00::/16")},
		"loopback":    {Interface: "lo"},
		"elsewhere":   {CIDR: cidr("192.0.2.0/24")},
		"other":       {CIDR: cidr("10.1.0.0/24"), Interface: "two"},
		"nonexistent": {Interface: "three"},
	}}.SelectHostAddressByNetworkName(machine)
	for name, want := range map[string]string{
		"interface": "one 10.1.0.1", "first": "one 10.1.0.1", "cidr": "two 10.2.0.1", "second": "one 10.1.0.2", "six": "one fd00::1", "loopback": "lo 127.0.0.1",
		"elsewhere": " invalid IP", "other": " invalid IP", "nonexistent": " invalid IP",
	} {
		if text := got[name].Interface + " " + got[name].Address.String(); text != want {
			t.Errorf("%s: %s, want %s", name, text, want)
		}
	}
	for _, want := range []string{
		`no host network "elsewhere": no interface has an address in 192.0.2.0/24`,
		`no host network "other": the interface "two" does not exist or has no address in 10.1.0.0/24`,
		`no host network "nonexistent": the interface "three" does not exist or has no address`,
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}
