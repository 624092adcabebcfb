package hostnet

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// HostNetwork selects a machine address for ports that name the network. At least one of CIDR and Interface is set;
// with both, the address satisfies both.
type HostNetwork struct {
	CIDR          netip.Prefix
	Interface     string
	ReservedPorts string // ports that allocations do not get on the address, a list like "22,80,8000-8010"
}

// HostAddress is a machine address and its interface.
type HostAddress struct {
	Interface string
	Address   netip.Addr
}

// SelectHostAddressByNetworkName returns host network name -> its address: the first in all, the machine's addresses,
// that the network selects. The error names the networks without an address.
func (c Config) SelectHostAddressByNetworkName(machineAddresses []HostAddress) (map[string]HostAddress, error) {
	addresses := make(map[string]HostAddress)
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(c.HostNetworks)) {
		n := c.HostNetworks[name]
		i := slices.IndexFunc(machineAddresses, n.Selects)
		if i < 0 {
			errs = append(errs, fmt.Errorf("no host network %q: %s", name, n.missingAddressText()))
			continue
		}
		addresses[name] = machineAddresses[i]
	}
	return addresses, errors.Join(errs...)
}

// Selects reports whether an address satisfies CIDR and Interface.
func (n HostNetwork) Selects(a HostAddress) bool {
	return (n.Interface == "" || n.Interface == a.Interface) && (!n.CIDR.IsValid() || n.CIDR.Contains(a.Address))
}

func (n HostNetwork) missingAddressText() string {
	switch {
	case !n.CIDR.IsValid():
		return fmt.Sprintf("the interface %q does not exist or has no address", n.Interface)
	case n.Interface == "":
		return fmt.Sprintf("no interface has an address in %s", n.CIDR)
	}
	return fmt.Sprintf("the interface %q does not exist or has no address in %s", n.Interface, n.CIDR)
}
