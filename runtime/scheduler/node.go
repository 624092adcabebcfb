package scheduler

import (
	"cmp"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/admission"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// PlacementNodeOf converts a stored node. For nil it returns an ineligible node.
func PlacementNodeOf(n *api.Node) PlacementNode {
	if n == nil {
		return PlacementNode{IsIneligible: true}
	}
	node := PlacementNode{
		NodeFeatures:    admission.NodeFeatures{NodeFacts: model.NodeFactsOf(n), HostVolumes: n.HostVolumes},
		IP:              n.Attributes["unique.network.ip-address"],
		HealthyByDriver: make(map[string]bool, len(n.Drivers)),
		IsIneligible:    n.SchedulingEligibility == api.NodeSchedulingIneligible,
		IsDraining:      n.DrainStrategy != nil,
		MaxAllocs:       n.NodeMaxAllocs,
	}
	for name, d := range n.Drivers {
		node.HealthyByDriver[name] = d != nil && d.Detected && d.Healthy
	}
	if r := n.ReservedResources; r != nil {
		node.ReservedCPUMHzMemoryMBDiskMB = [3]float64{0, float64(r.Memory.MemoryMB), float64(r.Disk.DiskMB)}
		node.ReservedPorts, _ = ParsePortRanges(r.Networks.ReservedHostPorts) // errors in the list were reported when the node was configured
	}
	if r := n.NodeResources; r != nil {
		node.MinDynamicPort, node.MaxDynamicPort = r.MinDynamicPort, r.MaxDynamicPort
		node.Devices = r.Devices
		node.NetworkModes = []string{}
		for _, n := range r.Networks {
			node.NetworkModes = append(node.NetworkModes, n.Mode)
			if n.IP == node.IP {
				node.InterfaceName = cmp.Or(n.Device, node.InterfaceName)
			}
		}
		node.HostNetworks = hostNetworkWithAddressByName(n.HostNetworks, r.Networks)
	}
	return node
}

// hostNetworkWithAddressByName returns the host networks that select one of the node's addresses, by name. A host network gets
// the first address it selects.
func hostNetworkWithAddressByName(infoByName map[string]*api.HostNetworkInfo, addresses []*api.NetworkResource) map[string]admission.HostNetwork {
	networks := make(map[string]admission.HostNetwork, len(infoByName))
	for name, info := range infoByName {
		for _, a := range addresses {
			if hostNetworkSelectsAddress(info, a) {
				reserved, _ := ParsePortRanges(info.ReservedPorts) // errors in the list were reported when the node was configured
				networks[name] = admission.HostNetwork{Address: a.IP, ReservedPorts: reserved}
				break
			}
		}
	}
	return networks
}

// hostNetworkSelectsAddress reports whether a host network's interface and CIDR select an address.
func hostNetworkSelectsAddress(info *api.HostNetworkInfo, a *api.NetworkResource) bool {
	address, err := netip.ParseAddr(a.IP)
	if err != nil || a.Mode != "host" || info.Interface != "" && info.Interface != a.Device {
		return false
	}
	if info.CIDR == "" {
		return true
	}
	prefix, err := netip.ParsePrefix(info.CIDR)
	return err == nil && prefix.Contains(address)
}

// ParsePortRanges parses a list of ports and ranges such as "22,80,8000-8010". If a part is invalid, it returns an error and
// the ports of the valid parts.
func ParsePortRanges(text string) (ports []int, err error) {
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, err1 := strconv.ParseUint(first, 10, 16)
		to, err2 := strconv.ParseUint(last, 10, 16)
		if err1 != nil || err2 != nil || from > to {
			err = fmt.Errorf(`%q is no port and no range of ports: write them like "22,8000-8010"`, part)
			continue
		}
		for port := from; port <= to; port++ {
			ports = append(ports, int(port))
		}
	}
	return ports, err
}
