package fingerprint

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nomad-lite/nomad-lite/internal/cgroup"
	"github.com/nomad-lite/nomad-lite/plugins/base"
)

// The kernel's distances if the firmware defines none: from a NUMA node to itself, and to another node.
const localNUMADistance, remoteNUMADistance = 10, 20

// defaultCoreMHz is the assumed speed for a core without a known speed. It is not 0, because drivers divide by the speed.
const defaultCoreMHz = 1000

// readTopologyAndSetHostCores returns a description of the online cores, and sets the host's ReservableCoreIDs, SharedCoreIDs and
// ReservedCoreIDs. defaultMHz is the base frequency for cores without a known frequency; 0 means unknown.
func (p *prober) readTopologyAndSetHostCores(coreIDs []int, defaultMHz int) *base.Topology {
	t := &base.Topology{}
	nodeOfCore := map[int]uint32{}
	for _, node := range cgroup.ParseCPUList(p.readTrimmedTextOrEmpty("sys/devices/system/node/online")) {
		t.NodeIDs = append(t.NodeIDs, uint32(node))
		for _, core := range cgroup.ParseCPUList(p.readTrimmedTextOrEmpty(fmt.Sprintf("sys/devices/system/node/node%d/cpulist", node))) {
			nodeOfCore[core] = uint32(node)
		}
	}
	if len(t.NodeIDs) == 0 {
		t.NodeIDs = []uint32{0}
	}
	for i, node := range t.NodeIDs {
		t.Distances = append(t.Distances, p.numaDistances(node, i, len(t.NodeIDs)))
	}
	usable := cpuAffinity()
	efficient := cgroup.ParseCPUList(p.readTrimmedTextOrEmpty("sys/devices/cpu_atom/cpus"))
	for _, id := range coreIDs {
		dir := fmt.Sprintf("sys/devices/system/cpu/cpu%d/", id)
		core := base.Core{
			CoreID:    uint32(id),
			NodeID:    nodeOfCore[id],
			SocketID:  uint32(p.readNumberOrZero(dir + "topology/physical_package_id")),
			BaseSpeed: p.readNumberOrZero(dir+"cpufreq/base_frequency") / 1000,
			MaxSpeed:  p.readNumberOrZero(dir+"cpufreq/cpuinfo_max_freq") / 1000,
		}
		if core.BaseSpeed == 0 && core.MaxSpeed == 0 {
			core.BaseSpeed = uint64(defaultMHz)
			if defaultMHz == 0 {
				core.GuessSpeed = defaultCoreMHz
			}
		}
		if slices.Contains(efficient, id) {
			core.Grade = base.CoreEfficiency
		}
		switch {
		case usable != nil && !usable.IsSet(id):
			core.Disable = true
		case slices.Contains(p.options.ReservedCoreIDs, id):
			core.Disable = true
			p.host.ReservedCoreIDs = append(p.host.ReservedCoreIDs, uint16(id))
		case p.options.ReservableCoreIDs != nil && !slices.Contains(p.options.ReservableCoreIDs, id):
			p.host.SharedCoreIDs = append(p.host.SharedCoreIDs, uint16(id))
		default:
			p.host.ReservableCoreIDs = append(p.host.ReservableCoreIDs, uint16(id))
		}
		t.Cores = append(t.Cores, core)
	}
	return t
}

// numaDistances returns a NUMA node's distances to all nodes. selfIndex is the node's index, nodeCount how many nodes
// there are.
func (p *prober) numaDistances(node uint32, selfIndex, nodeCount int) []uint32 {
	row := make([]uint32, nodeCount)
	stated := strings.Fields(p.readTrimmedTextOrEmpty(fmt.Sprintf("sys/devices/system/node/node%d/distance", node)))
	for i := range row {
		row[i] = remoteNUMADistance
		if i == selfIndex {
			row[i] = localNUMADistance
		}
		if len(stated) == nodeCount {
			if n, err := strconv.ParseUint(stated[i], 10, 32); err == nil {
				row[i] = uint32(n)
			}
		}
	}
	return row
}

// readNumberOrZero returns the number in a file; 0 if the file is missing, or has a negative number or other text.
func (p *prober) readNumberOrZero(path string) uint64 {
	n, err := strconv.ParseUint(p.readTrimmedTextOrEmpty(path), 10, 32)
	if err != nil {
		return 0
	}
	return n
}
