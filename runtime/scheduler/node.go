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

// NodeOf returns the properties of a node that placement needs. With a nil node nothing can be placed.
func NodeOf(n *api.Node) Node {
	if n == nil {
		return Node{Ineligible: true}
	}
	node := Node{
		Features:   admission.Features{NodeFacts: model.NodeFactsOf(n), HostVolumes: n.HostVolumes},
		IP:         n.Attributes["unique.network.ip-address"],
		Drivers:    make(map[string]bool, len(n.Drivers)),
		Ineligible: n.SchedulingEligibility == api.NodeSchedulingIneligible,
		Draining:   n.DrainStrategy != nil,
		MaxAllocs:  n.NodeMaxAllocs,
	}
	for name, d := range n.Drivers {
		node.Drivers[name] = d != nil && d.Detected && d.Healthy
	}
	if r := n.ReservedResources; r != nil {
		node.Reserved = [3]float64{0, float64(r.Memory.MemoryMB), float64(r.Disk.DiskMB)}
		node.ReservedPorts, _ = ParsePorts(r.Networks.ReservedHostPorts) // errors in the list were reported when the node was configured
	}
	if r := n.NodeResources; r != nil {
		node.MinDynamicPort, node.MaxDynamicPort = r.MinDynamicPort, r.MaxDynamicPort
		node.Devices = r.Devices
		node.NetworkModes = []string{}
		for _, n := range r.Networks {
			node.NetworkModes = append(node.NetworkModes, n.Mode)
			if n.IP == node.IP {
				node.Interface = cmp.Or(n.Device, node.Interface)
			}
		}
		node.HostNetworks = hostNetworks(n.HostNetworks, r.Networks)
	}
	return node
}

// hostNetworks returns the host networks of a node that have an address.
func hostNetworks(infos map[string]*api.HostNetworkInfo, addresses []*api.NetworkResource) map[string]admission.HostNetwork {
	networks := make(map[string]admission.HostNetwork, len(infos))
	for name, info := range infos {
		for _, a := range addresses {
			if selectsAddress(info, a) {
				reserved, _ := ParsePorts(info.ReservedPorts) // errors in the list were reported when the node was configured
				networks[name] = admission.HostNetwork{Address: a.IP, ReservedPorts: reserved}
				break
			}
		}
	}
	return networks
}

func selectsAddress(info *api.HostNetworkInfo, a *api.NetworkResource) bool {
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

// ParsePorts parses a list like "22,80,8000-8010". It returns the ports that are valid even with an error.
func ParsePorts(text string) (ports []int, err error) {
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
