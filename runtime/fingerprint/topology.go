package fingerprint

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/nomad-lite/nomad-lite/plugins/base"
)

// Distances in the kernel's tables: from a memory node to itself, and to another node for which
// the firmware states none.
const localDistance, remoteDistance = 10, 20

// topology describes the online cores. mhz is the frequency of cores whose own frequency is
// unknown; 0 means unknown.
func (p *probe) topology(cores []int, mhz int) *base.Topology {
	t := &base.Topology{}
	nodeOf := map[int]uint32{}
	for _, node := range parseList(p.text("sys/devices/system/node/online")) {
		t.NodeIDs = append(t.NodeIDs, uint32(node))
		for _, core := range parseList(p.text(fmt.Sprintf("sys/devices/system/node/node%d/cpulist", node))) {
			nodeOf[core] = uint32(node)
		}
	}
	if len(t.NodeIDs) == 0 {
		t.NodeIDs = []uint32{0}
	}
	for i, node := range t.NodeIDs {
		t.Distances = append(t.Distances, p.distances(node, i, len(t.NodeIDs)))
	}
	usable := affinity()
	for _, id := range cores {
		dir := fmt.Sprintf("sys/devices/system/cpu/cpu%d/", id)
		core := base.Core{
			CoreID:    uint32(id),
			NodeID:    nodeOf[id],
			SocketID:  uint32(p.positive(dir + "topology/physical_package_id")),
			Disable:   usable != nil && !usable.IsSet(id),
			BaseSpeed: p.positive(dir+"cpufreq/base_frequency") / 1000,
			MaxSpeed:  p.positive(dir+"cpufreq/cpuinfo_max_freq") / 1000,
		}
		if core.BaseSpeed == 0 && core.MaxSpeed == 0 {
			core.GuessSpeed = uint64(mhz)
		}
		t.Cores = append(t.Cores, core)
	}
	return t
}

// distances returns the row of a memory node in the matrix of distances.
func (p *probe) distances(node uint32, self, nodes int) []uint32 {
	row := make([]uint32, nodes)
	stated := strings.Fields(p.text(fmt.Sprintf("sys/devices/system/node/node%d/distance", node)))
	for i := range row {
		row[i] = remoteDistance
		if i == self {
			row[i] = localDistance
		}
		if len(stated) == nodes {
			if n, err := strconv.ParseUint(stated[i], 10, 32); err == nil {
				row[i] = uint32(n)
			}
		}
	}
	return row
}

// positive returns the number in a file; 0 if the file is missing or the number is negative.
func (p *probe) positive(path string) uint64 {
	n, err := strconv.ParseUint(p.text(path), 10, 32)
	if err != nil {
		return 0
	}
	return n
}
