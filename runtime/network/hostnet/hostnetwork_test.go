package hostnet

import (
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/nomad-lite/nomad-lite/runtime/network/netns"
)

// The machine of the test is a network namespace with two interfaces.
func TestHostAddresses(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	addresses := map[string][]string{"lo": nil, "one": {"fd00::1/64", "10.1.0.1/24", "10.1.0.2/24"}, "two": {"10.2.0.1/24", "fe80::1/64"}}
	err := netns.Probe(func() error {
		for name, list := range addresses {
			attributes := netlink.NewLinkAttrs()
			attributes.Name = name
			if name != "lo" {
				if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attributes, PeerName: "peer-" + name}); err != nil {
					return err
				}
			}
			link, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			if err := netlink.LinkSetUp(link); err != nil {
				return err
			}
			for _, text := range list {
				address, err := netlink.ParseAddr(text)
				if err != nil {
					return err
				}
				if err := netlink.AddrAdd(link, address); err != nil {
					return err
				}
			}
		}
		cidr := netip.MustParsePrefix
		got, err := Config{HostNetworks: map[string]HostNetwork{
			"interface":   {Interface: "one"},
			"cidr":        {CIDR: cidr("10.0.0.0/8"), Interface: "two"},
			"second":      {CIDR: cidr("10.1.0.2/32")},
			"six":         {CIDR: cidr("fd00::/16")},
			"loopback":    {Interface: "lo"},
			"elsewhere":   {CIDR: cidr("192.0.2.0/24")},
			"other":       {CIDR: cidr("10.1.0.0/24"), Interface: "two"},
			"nonexistent": {Interface: "three"},
		}}.HostAddresses()
		for name, want := range map[string]string{
			"interface": "one 10.1.0.1", "cidr": "two 10.2.0.1", "second": "one 10.1.0.2", "six": "one fd00::1", "loopback": "lo 127.0.0.1",
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
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
