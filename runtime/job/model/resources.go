package model

import (
	"math"
	"math/bits"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
)

const (
	minCPU      = 1
	minMemoryMB = 10
)

func checkResources(r *faultReport, res *api.Resources) {
	if res == nil {
		r.addFault("Missing task resources")
		return
	}
	cpu, cores, memory := pointer.Value(res.CPU), pointer.Value(res.Cores), pointer.Value(res.MemoryMB)
	if cpu > 0 && cores > 0 {
		r.addFault("Task can only ask for 'cpu' or 'cores' resource, not both.")
	}
	if cores < 0 {
		r.addFault("cores value (%d) cannot be negative", cores)
	}
	if cores <= 0 && cpu < minCPU {
		r.addFault("minimum CPU value is %d; got %d", minCPU, cpu)
	}
	if memory < minMemoryMB {
		r.addFault("minimum MemoryMB value is %d; got %d", minMemoryMB, memory)
	}
	if limit := pointer.Value(res.MemoryMaxMB); limit != 0 && limit != -1 && limit < memory {
		r.addFault("MemoryMaxMB value (%d) should be larger than MemoryMB value (%d)", limit, memory)
	}
	switch secrets := pointer.Value(res.SecretsMB); {
	case secrets < 0:
		r.addFault("SecretsMB value (%d) cannot be negative", secrets)
	case secrets > memory:
		r.addFault("SecretsMB value (%d) cannot be larger than MemoryMB value (%d)", secrets, memory)
	}
	for i, d := range res.Devices {
		at := r.nestedReport("device", d.Name)
		checkDevice(at, d)
		r.addNested(at, "device %d failed validation:", i+1)
	}
	checkNUMA(r.atPath("numa"), res)
}

func checkDevice(r *faultReport, d *api.RequestedDevice) {
	if parts := strings.Split(d.Name, "/"); len(parts) > 3 || slices.Contains(parts, "") {
		r.addFault("device name must be given as one of the following: type, vendor/type, or vendor/type/name")
	}
	for i, c := range d.Constraints {
		at := r.nestedReport("constraint", positionText(i))
		if isDistinctConstraint(c) {
			at.addFault("using unsupported operand %q", c.Operand)
		} else {
			checkConstraint(at, c)
		}
		r.addNested(at, "Constraint %d validation failed:", i+1)
	}
	for i, a := range d.Affinities {
		at := r.nestedReport("affinity", positionText(i))
		checkAffinity(at, a)
		r.addNested(at, "Affinity %d validation failed:", i+1)
	}
}

var numaAffinities = []string{"none", "prefer", "require"}

func checkNUMA(r *faultReport, res *api.Resources) {
	if res.NUMA == nil {
		return
	}
	if !slices.Contains(numaAffinities, res.NUMA.Affinity) {
		r.addFault("numa affinity must be one of none, prefer, or require")
	}
	for _, name := range res.NUMA.Devices {
		if !slices.ContainsFunc(res.Devices, func(d *api.RequestedDevice) bool { return d.Name == name }) {
			r.addFault("numa device %q not requested as task resource", name)
		}
	}
}

func checkLogConfig(r *faultReport, g *api.TaskGroup, t *api.Task) {
	if t.LogConfig == nil {
		return
	}
	files, size := pointer.Value(t.LogConfig.MaxFiles), pointer.Value(t.LogConfig.MaxFileSizeMB)
	logs := r.nestedReport("logs")
	if files < 1 {
		logs.addFault("minimum number of files is 1; got %d", files)
	}
	if size < 1 {
		logs.addFault("minimum file size is 1MB; got %d", size)
	}
	r.addNested(logs, "")
	if g.EphemeralDisk == nil || files < 1 || size < 1 {
		return
	}
	if disk := pointer.Value(g.EphemeralDisk.SizeMB); saturatingMul(files, size) >= disk {
		r.atPath("logs").addFault("log storage (%d MB) must be less than requested disk capacity (%d MB)", saturatingMul(files, size), disk)
	}
}

// saturatingMul multiplies two positive numbers, and saturates on overflow.
func saturatingMul(a, b int) int {
	high, low := bits.Mul64(uint64(a), uint64(b))
	if high > 0 || low > math.MaxInt {
		return math.MaxInt
	}
	return int(low)
}
