package scheduler

import (
	"math"
	"strconv"

	"github.com/hashicorp/nomad/api"
)

// A capacity is an amount of each shared resource: free on the node, or needed by a
// group.
type capacity [len(dimensions)]float64

// dimensions are the resources of a capacity, each with the node attribute that has
// the total, and the number of attribute units in one unit of the job file.
var dimensions = [...]struct {
	name, unit, attribute string
	scale                 float64
}{
	{"cpu", "MHz", "cpu.usablecompute", 1},
	{"memory", "MB", "memory.totalbytes", 1 << 20},
	{"disk", "MB", "unique.storage.bytestotal", 1 << 20},
}

// capacityOf returns the capacity of a node. A missing attribute means no limit.
func capacityOf(node Node) capacity {
	var c capacity
	for i, d := range dimensions {
		c[i] = math.Inf(1)
		if n, err := strconv.ParseFloat(node.Attributes[d.attribute], 64); err == nil && n > 0 {
			c[i] = n/d.scale - node.Reserved[i]
		}
	}
	return c
}

// add adds times the amount.
func (c *capacity) add(amount capacity, times float64) {
	for i := range c {
		c[i] += times * amount[i]
	}
}

// needOf returns the largest amount that the tasks of a group use at one time: the
// maximum over the stages, which run one after the other, plus the sidecars.
func needOf(g *api.TaskGroup) capacity {
	var before, during, after, beside capacity
	for _, t := range g.Tasks {
		stage := &during
		switch l := t.Lifecycle; {
		case l == nil:
		case l.Hook == api.TaskLifecycleHookPoststop:
			stage = &after
		case l.Sidecar:
			stage = &beside
		case l.Hook == api.TaskLifecycleHookPrestart:
			stage = &before
		}
		stage[0] += float64(*t.Resources.CPU)
		stage[1] += float64(*t.Resources.MemoryMB)
	}
	var need capacity
	for i := range need {
		need[i] = max(before[i], during[i], after[i]) + beside[i]
	}
	need[2] = float64(*g.EphemeralDisk.SizeMB)
	return need
}
