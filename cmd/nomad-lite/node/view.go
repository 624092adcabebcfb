package node

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/tables"
	"github.com/nomad-lite/nomad-lite/internal/pointer"
)

// nodeStatusPairs returns the description and status of a node as pairs. host can be nil. The order and the names of
// the first fields, which depend on short, are Nomad's.
func nodeStatusPairs(node *api.Node, host *api.HostStats, short bool) output.Pairs {
	head := output.Pairs{
		{"ID", node.ID},
		{"Name", node.Name},
		{"Node Pool", node.NodePool},
		{"Class", node.NodeClass},
		{"DC", node.Datacenter},
		{"Drain", formatDrain(node)},
		{"Eligibility", output.StatusCell(node.SchedulingEligibility)},
		{"Status", output.StatusCell(node.Status)},
		{"CSI Controllers", output.JoinSortedKeys(node.CSIControllerPlugins)},
		{"CSI Drivers", output.JoinSortedKeys(node.CSINodePlugins)},
	}
	if host != nil && !short {
		head = append(head, [2]any{"Uptime", output.FormatDuration(time.Duration(host.Uptime) * time.Second)})
	}
	drivers := "Driver Status"
	if short {
		drivers = "Drivers"
	}
	head = append(head, output.Pairs{
		{"Host Volumes", output.JoinSortedKeys(node.HostVolumes)},
		{"Host Networks", output.JoinSortedKeys(node.HostNetworks)},
		{"CSI Volumes", ""},
		{drivers, formatDetectedDrivers(node)},
	}...)
	if node.StatusDescription != "" {
		head = append(head, [2]any{"Status Description", node.StatusDescription})
	}
	if last := node.LastDrain; last != nil && last.Status != "" && node.DrainStrategy == nil {
		head = append(head, [2]any{"Last Drain", fmt.Sprintf("%s %s", last.Status, output.FormatTimestamp(last.UpdatedAt))})
	}
	return head
}

// formatDrain returns whether a node drains, with the details of an active drain.
func formatDrain(node *api.Node) string {
	if node.DrainStrategy == nil {
		return fmt.Sprint(node.Drain)
	}
	drainStatus := "true; "
	switch d := node.DrainStrategy; {
	case d.Deadline < 0:
		drainStatus += "force drain"
	case d.ForceDeadline.IsZero():
		drainStatus += "no deadline"
	default:
		drainStatus += "deadline " + output.FormatTimestamp(d.ForceDeadline)
	}
	if node.DrainStrategy.IgnoreSystemJobs {
		drainStatus += ", system jobs stay"
	}
	return drainStatus
}

// formatDetectedDrivers lists the drivers of a node, and marks the unhealthy ones.
func formatDetectedDrivers(node *api.Node) string {
	var drivers []string
	for _, name := range slices.Sorted(maps.Keys(node.Drivers)) {
		switch d := node.Drivers[name]; {
		case d == nil || !d.Detected:
		case d.Healthy:
			drivers = append(drivers, name)
		default:
			drivers = append(drivers, name+"(unhealthy)")
		}
	}
	return strings.Join(drivers, ",")
}

func printHostVolumes(p *output.Page, node *api.Node) {
	p.AddSectionTitle("Host Volumes")
	t := output.NewTable("Name", "ID", "ReadOnly", "Source")
	for _, name := range slices.Sorted(maps.Keys(node.HostVolumes)) {
		if v := node.HostVolumes[name]; v != nil {
			t.AddRow(name, v.ID, v.ReadOnly, v.Path)
		}
	}
	p.AddTable(t)
}

func printNodeEvents(p *output.Page, node *api.Node, verbose bool) {
	p.AddSectionTitle("Node Events")
	head := []string{"Time", "Subsystem", "Message"}
	if verbose {
		head = append(head, "Details")
	}
	t := output.NewTable(head...)
	for _, e := range slices.Backward(node.Events) {
		if e == nil {
			continue
		}
		subsystem := e.Subsystem
		if driver := e.Details["driver"]; driver != "" {
			subsystem += ": " + driver
		}
		row := []any{output.FormatTimestamp(e.Timestamp), subsystem, e.Message}
		if verbose {
			var eventDetails []string
			for _, name := range slices.Sorted(maps.Keys(e.Details)) {
				eventDetails = append(eventDetails, name+"="+e.Details[name])
			}
			row = append(row, strings.Join(eventDetails, " "))
		}
		t.AddRow(row...)
	}
	if len(t.Rows) == 0 {
		p.AddLine("none")
		return
	}
	p.AddTable(t)
}

// printNodeResources adds tables of the resources that are reserved for allocations, that allocations use, and that the
// host uses, as far as these values can be read.
func printNodeResources(ctx context.Context, p *output.Page, c *api.Client, node *api.Node, allocs []*api.Allocation, host *api.HostStats, s *cli.Streams) {
	running := filterRunningAllocs(allocs)
	if node.NodeResources == nil {
		return
	}
	reserved := pointer.Value(node.ReservedResources)
	cpu := node.NodeResources.Cpu.CpuShares - int64(reserved.Cpu.CpuShares)
	memory := node.NodeResources.Memory.MemoryMB - int64(reserved.Memory.MemoryMB)
	disk := node.NodeResources.Disk.DiskMB - int64(reserved.Disk.DiskMB)
	p.AddSectionTitle("Allocated Resources")
	var usedCPU, usedMemory, usedDisk int64
	for _, a := range running {
		c, m, d := allocatedResources(a)
		usedCPU, usedMemory, usedDisk = usedCPU+c, usedMemory+m, usedDisk+d
	}
	t := output.NewTable("CPU", "Memory", "Disk", "Alloc Count", "Cores")
	t.AddRow(fmt.Sprintf("%d/%d MHz", usedCPU, cpu), output.FormatMebibytes(usedMemory)+"/"+output.FormatMebibytes(memory), output.FormatMebibytes(usedDisk)+"/"+output.FormatMebibytes(disk), len(running), node.NodeResources.Cpu.TotalCpuCores)
	p.AddTable(t)

	p.AddSectionTitle("Allocation Resource Utilization")
	var cpuTicks float64
	var memoryBytes uint64
	for _, a := range running {
		usage, err := c.Allocations().Stats(a, apiclient.QueryOptions(ctx, a.Namespace))
		if err != nil {
			fmt.Fprintln(s.Err, apiclient.WrapErrorWithAdvice(fmt.Sprintf("what allocation %q uses is not known", output.TruncateID(a.ID)), err))
			continue
		}
		used := pointer.Value(usage.ResourceUsage)
		cpuTicks += pointer.Value(used.CpuStats).TotalTicks
		memory := pointer.Value(used.MemoryStats)
		memoryBytes += tables.ResidentOrUsedMemoryBytes(&memory)
	}
	t = output.NewTable("CPU", "Memory")
	t.AddRow(fmt.Sprintf("%.0f/%d MHz", cpuTicks, cpu), output.FormatBytes(memoryBytes)+"/"+output.FormatMebibytes(memory))
	p.AddTable(t)

	if host == nil {
		return
	}
	p.AddSectionTitle("Host Resource Utilization")
	row := []any{fmt.Sprintf("%.0f/%d MHz", host.CPUTicksConsumed, node.NodeResources.Cpu.CpuShares), "-", "-"}
	if m := host.Memory; m != nil {
		row[1] = output.FormatBytes(m.Used) + "/" + output.FormatBytes(m.Total)
	}
	for _, d := range host.DiskStats {
		if d != nil && d.Device == node.Attributes["unique.storage.volume"] {
			row[2] = output.FormatBytes(d.Used) + "/" + output.FormatBytes(d.Size)
		}
	}
	t = output.NewTable("CPU", "Memory", "Disk")
	t.AddRow(row...)
	p.AddTable(t)

	if devices := tables.NewDeviceStatsByName(host.DeviceStats); len(devices) > 0 {
		p.AddSectionTitle("Device Resource Utilization")
		p.AddPairs(devices.SummaryPairs(devices.Names()))
	}
}

// allocatedResources returns the resources reserved for an allocation: CPU in MHz, memory and disk
// in MB.
func allocatedResources(a *api.Allocation) (cpuMHz, memoryMB, diskMB int64) {
	if r := a.AllocatedResources; r != nil {
		for _, task := range r.Tasks {
			if task != nil {
				cpuMHz, memoryMB = cpuMHz+task.Cpu.CpuShares, memoryMB+task.Memory.MemoryMB
			}
		}
		return cpuMHz, memoryMB, r.Shared.DiskMB
	}
	r := pointer.Value(a.Resources)
	return int64(pointer.Value(r.CPU)), int64(pointer.Value(r.MemoryMB)), int64(pointer.Value(r.DiskMB))
}

func printHostStats(p *output.Page, host *api.HostStats) {
	p.AddSectionTitle("CPU Stats")
	t := output.NewTable("CPU", "User", "System", "Idle")
	for _, c := range host.CPU {
		if c != nil {
			t.AddRow(c.CPU, output.FormatPercent(c.User), output.FormatPercent(c.System), output.FormatPercent(c.Idle))
		}
	}
	p.AddTable(t)
	if m := host.Memory; m != nil {
		p.AddSectionTitle("Memory Stats")
		p.AddPairs(output.Pairs{{"Total", output.FormatBytes(m.Total)}, {"Available", output.FormatBytes(m.Available)}, {"Used", output.FormatBytes(m.Used)}, {"Free", output.FormatBytes(m.Free)}})
	}
	p.AddSectionTitle("Disk Stats")
	t = output.NewTable("Device", "MountPoint", "Size", "Used", "Available", "Used Percent", "Inodes Percent")
	for _, d := range host.DiskStats {
		if d != nil {
			t.AddRow(d.Device, d.Mountpoint, output.FormatBytes(d.Size), output.FormatBytes(d.Used), output.FormatBytes(d.Available), output.FormatPercent(d.UsedPercent), output.FormatPercent(d.InodesUsedPercent))
		}
	}
	p.AddTable(t)
	if devices := tables.NewDeviceStatsByName(host.DeviceStats); len(devices) > 0 {
		p.AddSectionTitle("Device Stats")
		devices.PrintStatsOf(p, devices.Names())
	}
}

// hasUnhealthyDevice reports whether a device of the node is unhealthy, so that no task can get it.
func hasUnhealthyDevice(node *api.Node) bool {
	for _, g := range pointer.Value(node.NodeResources).Devices {
		if slices.ContainsFunc(g.Instances, func(d *api.NodeDevice) bool { return !d.Healthy }) {
			return true
		}
	}
	return false
}

func hasUnhealthyDriverWithReason(node *api.Node) bool {
	for _, d := range node.Drivers {
		if d != nil && !d.Healthy && d.HealthDescription != "" {
			return true
		}
	}
	return false
}

// printDrivers adds a table of the drivers of a node: which are detected, which are healthy, and why not.
func printDrivers(p *output.Page, node *api.Node) {
	p.AddSectionTitle("Drivers")
	t := output.NewTable("Driver", "Detected", "Healthy", "Message", "Time")
	for _, name := range slices.Sorted(maps.Keys(node.Drivers)) {
		d := pointer.Value(node.Drivers[name])
		t.AddRow(name, d.Detected, d.Healthy, cmp.Or(d.HealthDescription, output.EmptyCell), output.FormatTimestamp(d.UpdateTime))
	}
	p.AddTable(t)
}
