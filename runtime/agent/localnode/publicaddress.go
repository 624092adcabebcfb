package localnode

import (
	"net/netip"
	"slices"

	"github.com/nomad-lite/nomad-lite/runtime/node/resources/fingerprint"
)

// PublicAddress is a machine address that the internet reaches, unless a firewall prevents it.
type PublicAddress struct {
	Interface string
	Address   netip.Addr
}

// String returns the address and its interface, such as "203.0.113.7 (eth0)".
func (a PublicAddress) String() string { return a.Address.String() + " (" + a.Interface + ")" }

// PublicAddressesOfPorts returns the public addresses at which jobs' ports are reachable although the operator has not chosen the
// addresses: the node's own address unless s names its interface, and each address on which the bridge forwards the default
// network's ports. An address at which only a host network's ports are reachable is not among them.
func (s Settings) PublicAddressesOfPorts(host fingerprint.Host) (public []PublicAddress) {
	own, err := netip.ParseAddr(host.IP)
	if err != nil {
		return nil
	}
	if isPublic(own) && host.InterfaceOfIP != s.Interface.Name {
		public = append(public, PublicAddress{host.InterfaceOfIP, own})
	}
	if own.IsLoopback() || !slices.Contains(host.NetworkModes, "bridge") {
		return public
	}
	ofHostNetworks := host.HostNetworkAddressesExceptIP()
	for _, i := range host.Interfaces {
		for _, address := range i.Addresses {
			if address != own && isPublic(address) && (address.Is4() || s.Networks.Bridge.IPv6Subnet.IsValid()) && !slices.Contains(ofHostNetworks, address) {
				public = append(public, PublicAddress{i.Name, address})
			}
		}
	}
	return public
}

// sharedAddressSpace are the addresses behind a provider's NAT (RFC 6598).
var sharedAddressSpace = netip.PrefixFrom(netip.AddrFrom4([4]byte{100, 64, 0, 0}), 10)

// isPublic reports whether an address is global unicast and neither private (RFC 1918, RFC 4193) nor behind a provider's NAT.
func isPublic(a netip.Addr) bool {
	return a.IsGlobalUnicast() && !a.IsPrivate() && !sharedAddressSpace.Contains(a)
}
