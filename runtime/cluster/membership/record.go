package membership

import (
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/protocol"
	"github.com/nomad-lite/nomad-lite/runtime/node/resources/fingerprint"
)

// attributePrefixesOfOwnScheduler are prefixes of attributes for features that work only without servers: servers must not place
// jobs here that need them.
var attributePrefixesOfOwnScheduler = []string{"plugins.host_volume."}

// newNodeRecord returns the servers' record for a node in the store. Dynamic host volumes are left out. The result shares memory
// with node.
func newNodeRecord(node *api.Node, host *fingerprint.Host, secretID string) *protocol.Node {
	attributes := maps.Clone(node.Attributes)
	maps.DeleteFunc(attributes, func(name, _ string) bool {
		return slices.ContainsFunc(attributePrefixesOfOwnScheduler, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
	})
	record := &protocol.Node{
		ID:                    node.ID,
		SecretID:              secretID,
		Datacenter:            node.Datacenter,
		Name:                  node.Name,
		NodePool:              node.NodePool,
		NodeClass:             node.NodeClass,
		HTTPAddr:              node.HTTPAddr,
		TLSEnabled:            node.TLSEnabled,
		CgroupParent:          node.CgroupParent,
		Status:                protocol.NodeStatusInitializing,
		SchedulingEligibility: api.NodeSchedulingEligible,
		NodeMaxAllocs:         node.NodeMaxAllocs,
		Attributes:            attributes,
		Meta:                  node.Meta,
		Links:                 node.Links,
		Drivers:               make(map[string]*protocol.DriverInfo, len(node.Drivers)),
		HostVolumes:           make(map[string]*protocol.HostVolume, len(node.HostVolumes)),
		HostNetworks:          make(map[string]*protocol.HostNetwork, len(node.HostNetworks)),
	}
	for name, d := range node.Drivers {
		record.Drivers[name] = &protocol.DriverInfo{
			Attributes: d.Attributes, Detected: d.Detected, Healthy: d.Healthy, HealthDescription: d.HealthDescription, UpdateTime: d.UpdateTime.Round(0),
		}
	}
	for name, v := range node.HostVolumes {
		if v.ID == "" {
			record.HostVolumes[name] = &protocol.HostVolume{Name: name, Path: v.Path, ReadOnly: v.ReadOnly}
		}
	}
	for name, n := range node.HostNetworks {
		record.HostNetworks[name] = &protocol.HostNetwork{Name: name, CIDR: n.CIDR, Interface: n.Interface, ReservedPorts: n.ReservedPorts}
	}
	if r := node.NodeResources; r != nil {
		record.NodeResources = newResources(r, host)
	}
	record.ReservedResources = newReservedResources(node.ReservedResources, host)
	return record
}

// newResources returns a node's resources. Cpu is Processors in the form for servers before 1.7.
func newResources(r *api.NodeResources, host *fingerprint.Host) *protocol.NodeResources {
	resources := &protocol.NodeResources{
		Cpu:            protocol.CPUResources{CpuShares: r.Cpu.CpuShares, TotalCpuCores: r.Cpu.TotalCpuCores, ReservableCpuCores: r.Cpu.ReservableCpuCores},
		Memory:         protocol.MemoryResources{MemoryMB: r.Memory.MemoryMB},
		Disk:           protocol.DiskResources{DiskMB: r.Disk.DiskMB},
		MinDynamicPort: r.MinDynamicPort,
		MaxDynamicPort: r.MaxDynamicPort,
	}
	if t := host.Topology; t != nil {
		resources.Processors = &protocol.Processors{Topology: newTopology(t)}
	}
	for _, n := range host.NodeNetworks {
		network := &protocol.NodeNetwork{Mode: n.Mode, Device: n.Device, MacAddress: n.MacAddress, Speed: n.Speed}
		for _, a := range n.Addresses {
			network.Addresses = append(network.Addresses, protocol.NodeNetworkAddress(a))
		}
		resources.NodeNetworks = append(resources.NodeNetworks, network)
	}
	for _, n := range r.Networks {
		if host.IsOnlyOfHostNetworks(n.Mode, n.Device) {
			continue
		}
		mbits := 0
		if n.MBits != nil {
			mbits = *n.MBits
		}
		resources.Networks = append(resources.Networks, &protocol.NetworkResource{Mode: n.Mode, Device: n.Device, CIDR: n.CIDR, IP: n.IP, MBits: mbits})
	}
	for _, d := range r.Devices {
		group := &protocol.DeviceGroup{Vendor: d.Vendor, Type: d.Type, Name: d.Name, Attributes: make(map[string]*protocol.Attribute, len(d.Attributes))}
		for _, i := range d.Instances {
			instance := &protocol.Device{ID: i.ID, Healthy: i.Healthy, HealthDescription: i.HealthDescription}
			if i.Locality != nil {
				instance.Locality = &protocol.DeviceLocality{PciBusID: i.Locality.PciBusID}
			}
			group.Instances = append(group.Instances, instance)
		}
		for name, a := range d.Attributes {
			group.Attributes[name] = &protocol.Attribute{Int: a.IntVal, Float: a.FloatVal, Bool: a.BoolVal, String: a.StringVal, Unit: a.Unit}
		}
		resources.Devices = append(resources.Devices, group)
	}
	return resources
}

// newTopology returns the machine's processors in the servers' form.
func newTopology(t *base.Topology) *protocol.Topology {
	topology := &protocol.Topology{OverrideTotalCompute: t.OverrideTotalCompute, OverrideWitholdCompute: t.OverrideWithholdCompute}
	for i, id := range t.NodeIDs {
		topology.Nodes = append(topology.Nodes, uint8(id))
		if len(t.NodeIDs) == 1 {
			break // Nomad sends no distances for a single NUMA node
		}
		var row []uint16
		for _, distance := range t.Distances[i] {
			row = append(row, uint16(distance))
		}
		topology.Distances = append(topology.Distances, row)
	}
	for _, c := range t.Cores {
		topology.Cores = append(topology.Cores, protocol.Core{
			ID: uint16(c.CoreID), SocketID: uint8(c.SocketID), NodeID: uint8(c.NodeID), Grade: c.Grade == base.CorePerformance, Disable: c.Disable,
			BaseSpeed: c.BaseSpeed, MaxSpeed: c.MaxSpeed, GuessSpeed: c.GuessSpeed,
		})
	}
	return topology
}

// newReservedResources returns a node's reserved resources. The servers subtract the reserved cores, which are disabled in the
// topology, so the reserved CPU is only what the operator has reserved beside them.
func newReservedResources(r *api.NodeReservedResources, host *fingerprint.Host) *protocol.ReservedResources {
	if r == nil {
		return &protocol.ReservedResources{} // the nomad command fails on a node without reserved resources
	}
	cpu := protocol.ReservedCPU{CpuShares: int64(r.Cpu.CpuShares)}
	if host.Topology != nil {
		cpu = protocol.ReservedCPU{CpuShares: int64(host.Topology.OverrideWithholdCompute), ReservedCpuCores: host.ReservedCoreIDs}
	}
	return &protocol.ReservedResources{
		Cpu:      cpu,
		Memory:   protocol.MemoryResources{MemoryMB: int64(r.Memory.MemoryMB)},
		Disk:     protocol.DiskResources{DiskMB: int64(r.Disk.DiskMB)},
		Networks: protocol.ReservedNetworks{ReservedHostPorts: r.Networks.ReservedHostPorts},
	}
}
