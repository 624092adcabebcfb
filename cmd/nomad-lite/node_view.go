package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
)

// nodeHead returns the description and status of a node; host can be nil.
func nodeHead(node *api.Node, host *api.HostStats) pairs {
	head := pairs{
		{"ID", node.ID},
		{"Name", node.Name},
		{"Node Pool", node.NodePool},
		{"Class", node.NodeClass},
		{"DC", node.Datacenter},
		{"Drain", drainText(node)},
		{"Eligibility", statusCell(node.SchedulingEligibility)},
		{"Status", statusCell(node.Status)},
	}
	if node.StatusDescription != "" {
		head = append(head, [2]any{"Status Description", node.StatusDescription})
	}
	if host != nil {
		head = append(head, [2]any{"Uptime", span(time.Duration(host.Uptime) * time.Second)})
	}
	return append(head, pairs{
		{"Host Volumes", names(node.HostVolumes)},
		{"Host Networks", names(node.HostNetworks)},
		{"Driver Status", driverText(node)},
	}...)
}

// drainText returns whether a node drains, and the result of the last drain.
func drainText(node *api.Node) string {
	if node.DrainStrategy == nil {
		if node.LastDrain != nil && node.LastDrain.Status != "" {
			return fmt.Sprintf("%v; the last one, %s: %s", node.Drain, pointInTime(node.LastDrain.UpdatedAt), node.LastDrain.Status)
		}
		return fmt.Sprint(node.Drain)
	}
	text := "true; "
	switch d := node.DrainStrategy; {
	case d.Deadline < 0:
		text += "force drain"
	case d.ForceDeadline.IsZero():
		text += "no deadline"
	default:
		text += "deadline " + pointInTime(d.ForceDeadline)
	}
	if node.DrainStrategy.IgnoreSystemJobs {
		text += ", system jobs stay"
	}
	return text
}

// driverText lists the drivers of a node, and marks the unhealthy ones.
func driverText(node *api.Node) string {
	var text []string
	for _, name := range slices.Sorted(maps.Keys(node.Drivers)) {
		switch d := node.Drivers[name]; {
		case d == nil || !d.Detected:
		case d.Healthy:
			text = append(text, name)
		default:
			text = append(text, name+" (unhealthy)")
		}
	}
	return strings.Join(text, ", ")
}

func (p *page) nodeEvents(node *api.Node, verbose bool) {
	p.section("Node Events")
	head := []string{"Time", "Subsystem", "Message"}
	if verbose {
		head = append(head, "Details")
	}
	t := newTable(head...)
	for _, e := range slices.Backward(node.Events) {
		if e == nil {
			continue
		}
		subsystem := e.Subsystem
		if driver := e.Details["driver"]; driver != "" {
			subsystem += ": " + driver
		}
		row := []any{pointInTime(e.Timestamp), subsystem, e.Message}
		if verbose {
			var details []string
			for _, name := range slices.Sorted(maps.Keys(e.Details)) {
				details = append(details, name+"="+e.Details[name])
			}
			row = append(row, strings.Join(details, " "))
		}
		t.row(row...)
	}
	if len(t.rows) == 0 {
		p.line("none")
		return
	}
	p.table(t)
}

// nodeResources adds the resources that are reserved for allocations, that allocations use,
// and that the host uses, as far as they are available.
func (p *page) nodeResources(ctx context.Context, c *api.Client, node *api.Node, allocs []*api.Allocation, host *api.HostStats, s *streams) {
	running := runningOf(allocs)
	if node.NodeResources == nil {
		return
	}
	reserved := valueOf(node.ReservedResources)
	cpu := node.NodeResources.Cpu.CpuShares - int64(reserved.Cpu.CpuShares)
	memory := node.NodeResources.Memory.MemoryMB - int64(reserved.Memory.MemoryMB)
	disk := node.NodeResources.Disk.DiskMB - int64(reserved.Disk.DiskMB)
	if cores := node.NodeResources.Cpu.TotalCpuCores; cores > 0 {
		p.section(fmt.Sprintf("Allocated Resources (%d cores)", cores))
	} else {
		p.section("Allocated Resources")
	}
	var usedCPU, usedMemory, usedDisk int64
	for _, a := range running {
		c, m, d := allocated(a)
		usedCPU, usedMemory, usedDisk = usedCPU+c, usedMemory+m, usedDisk+d
	}
	t := newTable("CPU", "Memory", "Disk")
	t.row(fmt.Sprintf("%d/%d MHz", usedCPU, cpu), mebibytes(usedMemory)+"/"+mebibytes(memory), mebibytes(usedDisk)+"/"+mebibytes(disk))
	p.table(t)

	p.section("Allocation Resource Utilization")
	var ticks float64
	var bytes uint64
	for _, a := range running {
		usage, err := c.Allocations().Stats(a, query(ctx, a.Namespace))
		if err != nil {
			fmt.Fprintln(s.err, failed(fmt.Sprintf("what allocation %q uses is not known", short(a.ID)), err))
			continue
		}
		used := valueOf(usage.ResourceUsage)
		ticks += valueOf(used.CpuStats).TotalTicks
		memory := valueOf(used.MemoryStats)
		bytes += residentMemory(&memory)
	}
	t = newTable("CPU", "Memory")
	t.row(fmt.Sprintf("%.0f/%d MHz", ticks, cpu), byteSize(bytes)+"/"+mebibytes(memory))
	p.table(t)

	if host == nil {
		return
	}
	p.section("Host Resource Utilization")
	row := []any{fmt.Sprintf("%.0f/%d MHz", host.CPUTicksConsumed, node.NodeResources.Cpu.CpuShares), "-", "-"}
	if m := host.Memory; m != nil {
		row[1] = byteSize(m.Used) + "/" + byteSize(m.Total)
	}
	for _, d := range host.DiskStats {
		if d != nil && d.Device == node.Attributes["unique.storage.volume"] {
			row[2] = byteSize(d.Used) + "/" + byteSize(d.Size)
		}
	}
	t = newTable("CPU", "Memory", "Disk")
	t.row(row...)
	p.table(t)
}

// allocated returns the resources reserved for an allocation: CPU in MHz, memory and disk
// in MB.
func allocated(a *api.Allocation) (cpu, memory, disk int64) {
	if r := a.AllocatedResources; r != nil {
		for _, task := range r.Tasks {
			if task != nil {
				cpu, memory = cpu+task.Cpu.CpuShares, memory+task.Memory.MemoryMB
			}
		}
		return cpu, memory, r.Shared.DiskMB
	}
	r := valueOf(a.Resources)
	return int64(valueOf(r.CPU)), int64(valueOf(r.MemoryMB)), int64(valueOf(r.DiskMB))
}

func (p *page) hostStats(host *api.HostStats) {
	p.section("CPU Stats")
	t := newTable("CPU", "User", "System", "Idle")
	for _, c := range host.CPU {
		if c != nil {
			t.row(c.CPU, percent(c.User), percent(c.System), percent(c.Idle))
		}
	}
	p.table(t)
	if m := host.Memory; m != nil {
		p.section("Memory Stats")
		p.pairs(pairs{{"Total", byteSize(m.Total)}, {"Available", byteSize(m.Available)}, {"Used", byteSize(m.Used)}, {"Free", byteSize(m.Free)}})
	}
	p.section("Disk Stats")
	t = newTable("Device", "MountPoint", "Size", "Used", "Available", "Used Percent", "Inodes Percent")
	for _, d := range host.DiskStats {
		if d != nil {
			t.row(d.Device, d.Mountpoint, byteSize(d.Size), byteSize(d.Used), byteSize(d.Available), percent(d.UsedPercent), percent(d.InodesUsedPercent))
		}
	}
	p.table(t)
}

// drivers adds all drivers of a node with their attributes.
func (p *page) drivers(node *api.Node) {
	p.section("Drivers")
	t := newTable("Driver", "Detected", "Healthy", "Message", "Time")
	for _, name := range slices.Sorted(maps.Keys(node.Drivers)) {
		d := valueOf(node.Drivers[name])
		t.row(name, d.Detected, d.Healthy, cmp.Or(d.HealthDescription, none), pointInTime(d.UpdateTime))
	}
	p.table(t)
}

func (p *page) nodeAllocations(allocs []*api.Allocation, verbose bool) {
	p.section("Allocations")
	t := newTable("ID", "Job ID", "Task Group", "Version", "Desired", "Status", "Created", "Modified")
	for _, a := range allocs {
		var version any = "?"
		if a.Job != nil && a.Job.Version != nil {
			version = *a.Job.Version
		}
		t.row(shortID(a.ID, verbose), a.JobID, a.TaskGroup, version, a.DesiredStatus, statusCell(a.ClientStatus),
			when(a.CreateTime, verbose), when(a.ModifyTime, verbose))
	}
	p.tableOr(t, "No allocations placed")
}
