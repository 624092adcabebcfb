package hostnet

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sort"
)

// HostNetwork selects an address of the machine for ports that name the network. At least one of CIDR and Interface is
// set; with both, the address satisfies both.
type HostNetwork struct {
	CIDR          netip.Prefix
	Interface     string
	ReservedPorts string // ports that allocations do not get on the address, a list like "22,80,8000-8010"
}

// HostAddress is the address of a host network.
type HostAddress struct {
	Interface string
	Address   netip.Addr
}

// HostAddresses returns the addresses of the host networks by name. A network has the first address that
// it selects, IPv4 before IPv6. The error names the networks that have none.
func (c Config) HostAddresses() (map[string]HostAddress, error) {
	if len(c.HostNetworks) == 0 {
		return nil, nil
	}
	all, err := machineAddresses()
	if err != nil {
		return nil, err
	}
	addresses := make(map[string]HostAddress)
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(c.HostNetworks)) {
		n := c.HostNetworks[name]
		i := slices.IndexFunc(all, n.selects)
		if i < 0 {
			errs = append(errs, fmt.Errorf("no host network %q: %s", name, n.describeMissing()))
			continue
		}
		addresses[name] = all[i]
	}
	return addresses, errors.Join(errs...)
}

func (n HostNetwork) selects(a HostAddress) bool {
	return (n.Interface == "" || n.Interface == a.Interface) && (!n.CIDR.IsValid() || n.CIDR.Contains(a.Address))
}

func (n HostNetwork) describeMissing() string {
	switch {
	case !n.CIDR.IsValid():
		return fmt.Sprintf("the interface %q does not exist or has no address", n.Interface)
	case n.Interface == "":
		return fmt.Sprintf("no interface has an address in %s", n.CIDR)
	}
	return fmt.Sprintf("the interface %q does not exist or has no address in %s", n.Interface, n.CIDR)
}

// machineAddresses returns the addresses of the machine, except link-local ones, in the order of the interfaces, IPv4
// before IPv6.
func machineAddresses() ([]HostAddress, error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	var all []HostAddress
	for _, i := range interfaces {
		addresses, err := i.Addrs()
		if err != nil {
			continue // the interface was removed meanwhile
		}
		for _, a := range addresses {
			prefix, err := netip.ParsePrefix(a.String())
			if err == nil && !prefix.Addr().IsLinkLocalUnicast() {
				all = append(all, HostAddress{i.Name, prefix.Addr()})
			}
		}
	}
	sort.SliceStable(all, func(i, j int) bool { return all[i].Address.BitLen() < all[j].Address.BitLen() })
	return all, nil
}
