package scheduler

import (
	"math"
	"strconv"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/descriptors"
	"github.com/nomad-lite/nomad-lite/internal/pointer"
)

// resourceAmounts has one amount for each resourceDimensions entry, such as a node's capacity or a group's demand.
type resourceAmounts [len(resourceDimensions)]float64

// Indexes into resourceAmounts and resourceDimensions. PlacementNode.ReservedCPUMHzMemoryMBDiskMB has only the first three.
const (
	cpuDimension = iota
	memoryDimension
	diskDimension
	coresDimension
	allocsDimension
	descriptorsDimension
	pidsDimension
	pipesDimension
)

// resourceDimensions are the resources that allocations share. attribute is the node attribute with the total amount, scale the
// number of attribute units in one job file unit, and remedy the advice to a user when the resource is exhausted.
var resourceDimensions = [...]struct {
	name, unit, attribute string
	scale                 float64
	remedy                string
}{
	cpuDimension:         {"cpu", "MHz", "cpu.usablecompute", 1, demandLess},
	memoryDimension:      {"memory", "MB", "memory.totalbytes", 1 << 20, demandLess},
	diskDimension:        {"disk", "MB", "unique.storage.bytestotal", 1 << 20, demandLess},
	coresDimension:       {"cores", "cores", "cpu.reservablecores", 1, demandLess},
	allocsDimension:      {"max allocation exceeded", "allocations", "", 1, "stop a job, lower the count, or raise client.node_max_allocs in the configuration of the agent"}, // the limit is PlacementNode.MaxAllocs; the name is Nomad's
	descriptorsDimension: {"descriptors", "descriptors", descriptors.AttributeDescriptors, 1, "stop a job, lower the count, or raise the hard limit of open files of the agent (ulimit -Hn, LimitNOFILE= of its service) and restart it"},
	pidsDimension:        {"pids", "processes", descriptors.AttributeProcesses, 1, "stop a job, lower the count, or raise kernel.pid_max, kernel.threads-max and pids.max of the cgroup, for an agent that is not root also the limit of processes (ulimit -u), and restart the agent"},
	pipesDimension:       {"pipes", "pipes", descriptors.AttributePipes, 1, "stop a job, lower the count, or raise fs.pipe-user-pages-hard, and restart the agent"},
}

const demandLess = "ask for less in the resources of its tasks, or lower the count"

// Each task's demand for resources that a job file cannot request. It is a task's minimum use: the kernel counts threads as
// processes, and a task has one pipe for stdout and one for stderr.
const (
	processesPerTask = 2
	pipesPerTask     = 2
)

// allocatableNodeCapacity returns the node's amounts for allocations: total minus reserved. A resource without a node attribute
// is unlimited.
func allocatableNodeCapacity(node PlacementNode) resourceAmounts {
	var c resourceAmounts
	for i, d := range resourceDimensions {
		c[i] = math.Inf(1)
		if n, err := strconv.ParseFloat(node.Attributes[d.attribute], 64); err == nil && n > 0 {
			c[i] = n / d.scale
			if i < len(node.ReservedCPUMHzMemoryMBDiskMB) {
				c[i] -= node.ReservedCPUMHzMemoryMBDiskMB[i]
			}
		}
	}
	if node.MaxAllocs > 0 {
		c[allocsDimension] = float64(node.MaxAllocs)
	}
	return c
}

// addMultiple adds times*amount to r; a negative times subtracts.
func (r *resourceAmounts) addMultiple(amount resourceAmounts, times float64) {
	for i := range r {
		r[i] += times * amount[i]
	}
}

// coreMHz returns the MHz of one core on a node, or 0 if unknown. Without a frequency attribute, coreMHz divides the node's
// usable CPU by its core count.
func coreMHz(node PlacementNode) float64 {
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

// taskCPUMHz returns a task's requested CPU in MHz. A task with reserved cores gets the CPU of these cores.
func taskCPUMHz(t *api.Task, coreMHz float64) float64 {
	if cores := pointer.Value(t.Resources.Cores); cores > 0 {
		return float64(cores) * coreMHz
	}
	return float64(*t.Resources.CPU)
}

// maxConcurrentGroupDemand returns the largest amounts that a group's tasks use at one time. Prestart, main and poststop tasks
// run one after the other: the result is the maximum over these stages, plus the sidecars.
func maxConcurrentGroupDemand(g *api.TaskGroup, coreMHz float64) resourceAmounts {
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
		stage[cpuDimension] += taskCPUMHz(t, coreMHz)
		stage[coresDimension] += float64(pointer.Value(t.Resources.Cores))
		stage[memoryDimension] += float64(*t.Resources.MemoryMB)
		stage[descriptorsDimension] += descriptors.PerTask
		stage[pidsDimension] += processesPerTask
		stage[pipesDimension] += pipesPerTask
	}
	var maxDemand resourceAmounts
	for i := range maxDemand {
		maxDemand[i] = max(prestartDemand[i], mainDemand[i], poststopDemand[i]) + sidecarDemand[i]
	}
	maxDemand[diskDimension] = float64(*g.EphemeralDisk.SizeMB)
	maxDemand[allocsDimension] = 1
	return maxDemand
}
