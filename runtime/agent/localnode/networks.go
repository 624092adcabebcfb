package localnode

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/network/hostnet"
	"github.com/nomad-lite/nomad-lite/runtime/node/resources/fingerprint"
)

// addressesOwnInterfaceFirst returns the machine's addresses in the order in which host networks select them: the addresses of
// the node's own interface precede all others.
func addressesOwnInterfaceFirst(host fingerprint.Host) []hostnet.HostAddress {
	var own, others []hostnet.HostAddress
	for _, i := range host.Interfaces {
		list := &others
		if i.Name == host.InterfaceOfIP {
			list = &own
		}
		for _, address := range i.Addresses {
			*list = append(*list, hostnet.HostAddress{Interface: i.Name, Address: address})
		}
	}
	return append(own, others...)
}

// newNodeNetworks describes the node's networks in Nomad's order: the modes of group networks, then the interfaces with the
// node's address or a host network's. Without such an interface there is an entry for the node's address.
func newNodeNetworks(host fingerprint.Host, hostNetworks map[string]hostnet.HostNetwork) []fingerprint.NodeNetwork {
	var all []fingerprint.NodeNetwork
	for _, mode := range host.NetworkModes {
		all = append(all, fingerprint.NodeNetwork{Mode: mode})
	}
	if host.InterfaceOfIP == "" { // no interface has the node's address, and ports without a network get it nevertheless
		all = append(all, fingerprint.NodeNetwork{Mode: "host", Addresses: []fingerprint.NodeNetworkAddress{{Family: "ipv4", Alias: model.DefaultHostNetwork, Address: host.IP}}})
	}
	names := slices.Sorted(maps.Keys(hostNetworks))
	for _, i := range host.Interfaces {
		n := fingerprint.NodeNetwork{Mode: "host", Device: i.Name, MacAddress: i.MAC, Speed: i.MBits}
		for _, address := range i.Addresses {
			entry := fingerprint.NodeNetworkAddress{Family: "ipv4", Address: address.String()}
			if address.Is6() {
				entry.Family = "ipv6"
			}
			for _, name := range names {
				if hostNetwork := hostNetworks[name]; hostNetwork.Selects(hostnet.HostAddress{Interface: i.Name, Address: address}) {
					entry.Alias, entry.ReservedPorts = name, hostNetwork.ReservedPorts
					n.Addresses = append(n.Addresses, entry)
				}
			}
			if i.Name == host.InterfaceOfIP {
				entry.Alias, entry.ReservedPorts = model.DefaultHostNetwork, ""
				n.Addresses = append(n.Addresses, entry)
			}
		}
		if len(n.Addresses) > 0 {
			all = append(all, n)
		}
	}
	return all
}

// newNetworkResources returns the node's networks for the scheduler: the group networks' modes, the addresses of the node's own
// interface, and the host networks' other addresses. interfaceMBits overrides the speed of the node's own interface if it is not
// 0.
func newNetworkResources(host fingerprint.Host, interfaceMBits int) []*api.NetworkResource {
	var all []*api.NetworkResource
	for _, mode := range host.NetworkModes {
		all = append(all, &api.NetworkResource{Mode: mode})
	}
	if host.InterfaceOfIP == "" {
		all = append(all, &api.NetworkResource{Mode: "host", IP: host.IP})
	}
	speeds := make(map[string]int, len(host.Interfaces))
	for _, i := range host.Interfaces {
		speeds[i.Name] = i.MBits
	}
	speeds[host.InterfaceOfIP] = cmp.Or(interfaceMBits, speeds[host.InterfaceOfIP])
	selected := make(map[fingerprint.HostNetwork]bool, len(host.HostNetworks))
	for _, n := range host.HostNetworks {
		selected[n] = true
	}
	for _, a := range addressesOwnInterfaceFirst(host) {
		if a.Interface == host.InterfaceOfIP || selected[fingerprint.HostNetwork{Interface: a.Interface, IP: a.Address.String()}] {
			cidr, speed := netip.PrefixFrom(a.Address, a.Address.BitLen()).String(), speeds[a.Interface]
			all = append(all, &api.NetworkResource{Mode: "host", Device: a.Interface, CIDR: cidr, IP: a.Address.String(), MBits: &speed})
		}
	}
	return all
}
