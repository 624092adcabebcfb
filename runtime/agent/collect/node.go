package collect

import (
	"cmp"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/hoststats"
	"github.com/nomad-lite/nomad-lite/internal/metrics"
	"github.com/nomad-lite/nomad-lite/runtime/explain/conditions"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

func (r *metricSetBuilder) newNodeLabels(n *api.Node) metrics.Labels {
	return r.hostLabel.With(
		"node_id", n.ID, "datacenter", n.Datacenter, "node_class", cmp.Or(n.NodeClass, "none"), "node_pool", n.NodePool,
		"node_status", n.Status, "node_scheduling_eligibility", n.SchedulingEligibility,
	)
}

// allocatedResources is the sum of allocations' resources.
type allocatedResources struct{ cpuShares, memoryMB, maxMemoryMB, diskMB int64 }

func (a *allocatedResources) addResources(given *api.AllocatedResources) {
	if given == nil {
		return
	}
	a.diskMB += given.Shared.DiskMB
	for _, task := range given.Tasks {
		a.cpuShares += task.Cpu.CpuShares
		a.memoryMB += task.Memory.MemoryMB
		a.maxMemoryMB += max(task.Memory.MemoryMaxMB, task.Memory.MemoryMB)
	}
}

// addConditions adds the number of existing conditions for each kind.
func (r *metricSetBuilder) addConditions(report conditions.Report) {
	count := make(map[string]int)
	for _, c := range report.Conditions {
		count[c.Kind]++
	}
	for _, k := range conditions.Kinds() {
		r.Add("nomad_lite_condition", float64(count[k.Kind]), metrics.NewLabels("condition", k.Kind, "severity", string(k.Severity)))
	}
}

// addNode adds the node's allocations and tasks by state, and its resources.
func (r *metricSetBuilder) addNode(n *api.Node, s *store.Snapshot, allocs []*api.Allocation) {
	labels := r.newNodeLabels(n)
	var sum allocatedResources
	var pending, blocked, running, terminal int
	tasks := map[string]int{model.TaskPending: 0, model.TaskRunning: 0, model.TaskDead: 0}
	for _, alloc := range allocs {
		for _, state := range alloc.TaskStates {
			tasks[state.State]++
		}
		switch {
		case alloc.ClientTerminalStatus():
			terminal++
			continue
		case alloc.ClientStatus == api.AllocClientStatusRunning:
			running++
		default:
			pending++
			if waitsForPreviousAlloc(s, alloc) {
				blocked++
			}
		}
		sum.addResources(alloc.AllocatedResources)
	}
	for state, count := range tasks {
		r.Add("nomad_lite_tasks", float64(count), metrics.NewLabels("state", state))
	}
	// Always 0: a previous allocation's data is moved by renaming directories, which takes almost no time.
	r.Add("nomad.client.allocations.migrating", 0, labels)
	r.Add("nomad.client.allocations.blocked", float64(blocked), labels)
	r.Add("nomad.client.allocations.pending", float64(pending), labels)
	r.Add("nomad.client.allocations.start", float64(pending-blocked), labels)
	r.Add("nomad.client.allocations.running", float64(running), labels)
	r.Add("nomad.client.allocations.terminal", float64(terminal), labels)
	r.Add("nomad.client.tasks.running", float64(tasks[model.TaskRunning]), labels)
	r.Add("nomad.client.tasks.pending", float64(tasks[model.TaskPending]), labels)
	r.Add("nomad.client.tasks.dead", float64(tasks[model.TaskDead]), labels)
	r.Add("nomad.client.allocated.cpu", float64(sum.cpuShares), labels)
	r.Add("nomad.client.allocated.memory", float64(sum.memoryMB), labels)
	r.Add("nomad.client.allocated.max_memory", float64(sum.maxMemoryMB), labels)
	r.Add("nomad.client.allocated.disk", float64(sum.diskMB), labels)
	if has, kept := n.NodeResources, n.ReservedResources; has != nil && kept != nil {
		r.Add("nomad.client.unallocated.cpu", float64(has.Cpu.CpuShares-int64(kept.Cpu.CpuShares)-sum.cpuShares), labels)
		r.Add("nomad.client.unallocated.memory", float64(has.Memory.MemoryMB-int64(kept.Memory.MemoryMB)-sum.memoryMB), labels)
		r.Add("nomad.client.unallocated.disk", float64(has.Disk.DiskMB-int64(kept.Disk.DiskMB)-sum.diskMB), labels)
	}
}

// waitsForPreviousAlloc reports whether a pending allocation waits until the allocation it replaces has ended.
func waitsForPreviousAlloc(s *store.Snapshot, alloc *api.Allocation) bool {
	id := alloc.PreviousAllocation
	return id != "" && s.Allocation(nil, id) != nil && !s.AllocationEnded(id)
}

// addHost adds the machine's resource usage, without values missing on this system.
func (r *metricSetBuilder) addHost(n *api.Node, s *hoststats.Stats) {
	labels := r.newNodeLabels(n)
	if s.Uptime > 0 {
		r.Add("nomad.client.uptime", float64(s.Uptime), labels)
	}
	for _, c := range s.CPU {
		if !c.Measured {
			continue
		}
		one := labels.With("cpu", c.CPU)
		r.Add("nomad.client.host.cpu.user", c.User, one)
		r.Add("nomad.client.host.cpu.system", c.System, one)
		r.Add("nomad.client.host.cpu.idle", c.Idle, one)
		r.Add("nomad.client.host.cpu.total", c.TotalPercent, one)
		r.Add("nomad.client.host.cpu.total_percent", c.TotalPercent, one)
		if n.NodeResources != nil && n.NodeResources.Cpu.CpuShares > 0 { // 0 means unknown CPU frequency
			r.Add("nomad.client.host.cpu.total_ticks", c.TotalTicks, one)
		}
	}
	if s.CPUTicksTotal > 0 {
		r.Add("nomad.client.host.cpu.total_ticks_count", s.CPUTicksTotal, labels)
	}
	if memory := s.Memory; memory != nil && memory.Total > 0 {
		r.Add("nomad.client.host.memory.total", float64(memory.Total), labels)
		r.Add("nomad.client.host.memory.available", float64(memory.Available), labels)
		r.Add("nomad.client.host.memory.used", float64(memory.Used), labels)
		r.Add("nomad.client.host.memory.free", float64(memory.Free), labels)
	}
	for _, d := range s.DiskStats {
		one := labels.With("disk", d.Device)
		r.Add("nomad.client.host.disk.size", float64(d.Size), one)
		r.Add("nomad.client.host.disk.used", float64(d.Used), one)
		r.Add("nomad.client.host.disk.available", float64(d.Available), one)
		r.Add("nomad.client.host.disk.used_percent", d.UsedPercent, one)
		if d.InodesUsedPercent > 0 { // 0 means no inodes on the file system, because otherwise at least one is in use
			r.Add("nomad.client.host.disk.inodes_percent", d.InodesUsedPercent, one)
		}
	}
}
