package scheduler

import (
	"math"
	"strconv"

	"github.com/hashicorp/nomad/api"
)

// resourceAmounts has an amount of each shared resource: the free amount of a node, or the demand of a group.
type resourceAmounts [len(resourceDimensions)]float64

// resourceDimensions are the shared resources, each with the node attribute that has
// the total, and the number of attribute units in one unit of the job file.
var resourceDimensions = [...]struct {
	name, unit, attribute string
	scale                 float64
}{
	{"cpu", "MHz", "cpu.usablecompute", 1},
	{"memory", "MB", "memory.totalbytes", 1 << 20},
	{"disk", "MB", "unique.storage.bytestotal", 1 << 20},
	{"cores", "cores", "cpu.reservablecores", 1},
	{"max allocation exceeded", "allocations", "", 1}, // the limit is Node.MaxAllocs; the name is Nomad's
}

// nodeCapacity returns the capacity of a node. A missing attribute means no limit.
func nodeCapacity(node Node) resourceAmounts {
	var c resourceAmounts
	for i, d := range resourceDimensions {
		c[i] = math.Inf(1)
		if n, err := strconv.ParseFloat(node.Attributes[d.attribute], 64); err == nil && n > 0 {
			c[i] = n / d.scale
			if i < len(node.Reserved) {
				c[i] -= node.Reserved[i]
			}
		}
	}
	if node.MaxAllocs > 0 {
		c[4] = float64(node.MaxAllocs)
	}
	return c
}

// add adds the amounts of another resourceAmounts, multiplied by times.
func (c *resourceAmounts) add(amount resourceAmounts, times float64) {
	for i := range c {
		c[i] += times * amount[i]
	}
}

// coreMHz returns the CPU of one core of a node, 0 if it is not known. Where the frequency is unknown, it is a part of the
// CPU that the operator has configured.
func coreMHz(node Node) float64 {
	if mhz, err := strconv.ParseFloat(node.Attributes["cpu.frequency"], 64); err == nil {
		return mhz
	}
	total, _ := strconv.ParseFloat(node.Attributes["cpu.usablecompute"], 64)
	cores, _ := strconv.ParseFloat(node.Attributes["cpu.reservablecores"], 64)
	if cores <= 0 {
		return 0
	}
	return math.Floor(total / cores)
}

// taskCPU returns the CPU of a task in MHz: that of its reserved cores, if it has some.
func taskCPU(t *api.Task, coreMHz float64) float64 {
	if cores := deref(t.Resources.Cores); cores > 0 {
		return float64(cores) * coreMHz
	}
	return float64(*t.Resources.CPU)
}

// groupDemand returns the largest amounts that the tasks of a group use at one time. Prestart, main and poststop tasks
// run one after the other: the result is the maximum over these stages, plus the sidecars.
func groupDemand(g *api.TaskGroup, coreMHz float64) resourceAmounts {
	var prestartDemand, mainDemand, poststopDemand, sidecarDemand resourceAmounts
	for _, t := range g.Tasks {
		stage := &mainDemand
		switch l := t.Lifecycle; {
		case l == nil:
		case l.Hook == api.TaskLifecycleHookPoststop:
			stage = &poststopDemand
		case l.Sidecar:
			stage = &sidecarDemand
		case l.Hook == api.TaskLifecycleHookPrestart:
			stage = &prestartDemand
		}
		stage[0] += taskCPU(t, coreMHz)
		stage[3] += float64(deref(t.Resources.Cores))
		stage[1] += float64(*t.Resources.MemoryMB)
	}
	var maxDemand resourceAmounts
	for i := range maxDemand {
		maxDemand[i] = max(prestartDemand[i], mainDemand[i], poststopDemand[i]) + sidecarDemand[i]
	}
	maxDemand[2] = float64(*g.EphemeralDisk.SizeMB)
	maxDemand[4] = 1
	return maxDemand
}
