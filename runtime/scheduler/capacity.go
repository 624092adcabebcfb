package scheduler

import (
	"math"
	"strconv"

	"github.com/hashicorp/nomad/api"
)

// A capacity is an amount of what allocations share: what the node has left, or
// what a group needs.
type capacity [len(dimensions)]float64

// dimensions are what a capacity consists of, with the attribute of the node that
// says how much there is, and how many of its units make one of the job file.
var dimensions = [...]struct {
	name, unit, attribute string
	scale                 float64
}{
	{"cpu", "MHz", "cpu.usablecompute", 1},
	{"memory", "MB", "memory.totalbytes", 1 << 20},
	{"disk", "MB", "unique.storage.bytestotal", 1 << 20},
}

// capacityOf reads what the node has. What it does not say has no limit.
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

// add adds an amount so many times.
func (c *capacity) add(amount capacity, times float64) {
	for i := range c {
		c[i] += times * amount[i]
	}
}

// needOf is the most that the tasks of a group use at one time: those of one
// stage after the other, and the sidecars beside them.
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
