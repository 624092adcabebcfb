package scheduler

import (
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"
)

// NodeOf returns what placement knows about a node. Without a node nothing can be
// placed.
func NodeOf(n *api.Node) Node {
	if n == nil {
		return Node{Ineligible: true}
	}
	node := Node{
		ID: n.ID, Name: n.Name, Datacenter: n.Datacenter, Class: n.NodeClass, Pool: n.NodePool,
		Attributes: n.Attributes, Meta: n.Meta,
		IP:         n.Attributes["unique.network.ip-address"],
		Drivers:    make(map[string]bool, len(n.Drivers)),
		Ineligible: n.SchedulingEligibility == api.NodeSchedulingIneligible,
		Draining:   n.DrainStrategy != nil,
	}
	for name, d := range n.Drivers {
		node.Drivers[name] = d != nil && d.Detected && d.Healthy
	}
	if r := n.ReservedResources; r != nil {
		node.Reserved = [3]float64{float64(r.Cpu.CpuShares), float64(r.Memory.MemoryMB), float64(r.Disk.DiskMB)}
		node.ReservedPorts = portList(r.Networks.ReservedHostPorts)
	}
	return node
}

// portList reads "22,80,8000-8010". What does not read is left out: who wrote it
// has been told when the configuration was read.
func portList(text string) []int {
	var ports []int
	for part := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(strings.TrimSpace(part), "-")
		if !isRange {
			last = first
		}
		from, err1 := strconv.ParseUint(first, 10, 16)
		to, err2 := strconv.ParseUint(last, 10, 16)
		if err1 != nil || err2 != nil {
			continue
		}
		for port := from; port <= to; port++ {
			ports = append(ports, int(port))
		}
	}
	return ports
}
