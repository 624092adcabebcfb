package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
)

const nodeStatusHelp = `Show the nodes, or one node: its state, its drivers, what is reserved and used on
it, and its allocations.

Exit codes: 0, or 1 when there is no such node, or several.`

const nodeStatusExamples = `  nomad-lite node status                the nodes
  nomad-lite node status -self          that of the agent
  nomad-lite node status -self -stats   with what each processor and disk does
  nomad-lite node status -t '{{range .}}{{println .ID .Status}}{{end}}'`

type nodeStatusOptions struct {
	client  clientFlags
	format  formatFlags
	node    nodeFlags
	short   bool
	stats   bool
	allocs  bool
	os      bool
	quiet   bool
	verbose bool
	page    pageFlags
}

func newNodeStatusCommand(s *streams) *cobra.Command {
	var o nodeStatusOptions
	cmd := &cobra.Command{
		Use:     "status [flags] [NODE]",
		Short:   "Show nodes, or one node",
		Long:    nodeStatusHelp,
		Example: nodeStatusExamples,
		Args:    takes(0, 1, "a node, or nothing for all"),
		RunE: func(cmd *cobra.Command, args []string) error {
			one := o.node.self || len(args) > 0
			if one {
				if err := o.node.check(cmd, args); err != nil {
					return err
				}
			}
			if one {
				return showNode(cmd.Context(), o, args, s)
			}
			return listNodes(cmd.Context(), o, s)
		},
		ValidArgsFunction: once(nodeKind.complete(&o.client)),
	}
	o.client.register(cmd)
	o.format.register(cmd)
	o.node.register(cmd)
	o.page.register(cmd)
	cmd.Flags().BoolVar(&o.short, "short", false, "leave out resources and events")
	cmd.Flags().BoolVar(&o.stats, "stats", false, "show what each processor and each disk does")
	cmd.Flags().BoolVar(&o.allocs, "allocs", false, "count the running allocations of each node")
	cmd.Flags().BoolVar(&o.os, "os", false, "show the operating system of each node")
	cmd.Flags().BoolVarP(&o.quiet, "quiet", "q", false, "print ids only")
	cmd.Flags().BoolVar(&o.verbose, "verbose", false, "whole ids, points in time, attributes and metadata")
	return cmd
}

func listNodes(ctx context.Context, o nodeStatusOptions, s *streams) error {
	c, err := o.client.client()
	if err != nil {
		return err
	}
	q := o.page.query(ctx)
	if o.os {
		q.Params = map[string]string{"os": "true"}
	}
	all, meta, err := c.Nodes().List(q)
	if err != nil {
		return failed("list nodes", err)
	}
	if o.format.wanted() {
		return o.format.print(s, all)
	}
	p := s.page()
	if o.quiet {
		for _, n := range all {
			p.line("%s", shortID(n.ID, o.verbose))
		}
		return s.show(p)
	}
	if len(all) == 0 {
		p.line("No nodes")
		return s.show(p)
	}
	head := []string{"ID", "Node Pool", "DC", "Name", "Class"}
	if o.os {
		head = append(head, "OS")
	}
	if o.verbose {
		head = append(head, "Address", "Version")
	}
	head = append(head, "Drain", "Eligibility", "Status")
	if o.allocs {
		head = append(head, "Running Allocs")
	}
	t := newTable(head...)
	for _, n := range all {
		row := []any{shortID(n.ID, o.verbose), n.NodePool, n.Datacenter, n.Name, n.NodeClass}
		if o.os {
			row = append(row, n.Attributes["os.name"])
		}
		if o.verbose {
			row = append(row, n.Address, n.Version)
		}
		row = append(row, n.Drain, statusCell(n.SchedulingEligibility), statusCell(n.Status))
		if o.allocs {
			allocs, _, err := c.Nodes().Allocations(n.ID, query(ctx, ""))
			if err != nil {
				return failed(fmt.Sprintf("list allocations of node %q", short(n.ID)), err)
			}
			row = append(row, len(runningOf(allocs)))
		}
		t.row(row...)
	}
	p.table(t)
	p.more(meta)
	return s.show(p)
}

func runningOf(allocs []*api.Allocation) []*api.Allocation {
	return slices.DeleteFunc(slices.Clone(allocs), func(a *api.Allocation) bool {
		return a.ClientStatus != api.AllocClientStatusRunning
	})
}

func showNode(ctx context.Context, o nodeStatusOptions, args []string, s *streams) error {
	c, node, err := o.node.find(ctx, &o.client, args)
	if err != nil {
		return err
	}
	if o.format.wanted() {
		return o.format.print(s, node)
	}
	p := s.page()
	if o.quiet {
		p.line("%s", shortID(node.ID, o.verbose))
		return s.show(p)
	}
	allocs, _, err := c.Nodes().Allocations(node.ID, query(ctx, ""))
	if err != nil {
		return failed(fmt.Sprintf("list allocations of node %q", short(node.ID)), err)
	}
	// Without the figures of the host there is still much to show.
	host, err := c.Nodes().Stats(node.ID, query(ctx, ""))
	if err != nil {
		host = nil
		fmt.Fprintln(s.err, failed("what the host uses is not known", err))
	}
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
	head = append(head, pairs{
		{"Host Volumes", names(node.HostVolumes)},
		{"Host Networks", names(node.HostNetworks)},
		{"Driver Status", driverText(node)},
	}...)
	p.pairs(head)

	if !o.short {
		p.nodeEvents(node, o.verbose)
		p.nodeResources(ctx, c, node, allocs, host, s)
		if host != nil && o.stats {
			p.hostStats(host)
		}
	}
	if o.verbose {
		p.drivers(node)
	}
	p.section("Allocations")
	if len(allocs) == 0 {
		p.line("No allocations placed")
	} else {
		t := newTable("ID", "Job ID", "Task Group", "Version", "Desired", "Status", "Created", "Modified")
		for _, a := range allocs {
			var version any = "?"
			if a.Job != nil && a.Job.Version != nil {
				version = *a.Job.Version
			}
			t.row(shortID(a.ID, o.verbose), a.JobID, a.TaskGroup, version, a.DesiredStatus, statusCell(a.ClientStatus),
				when(a.CreateTime, o.verbose), when(a.ModifyTime, o.verbose))
		}
		p.table(t)
	}
	if o.verbose {
		p.section("Attributes")
		p.pairs(sortedPairs(node.Attributes))
		p.section("Meta")
		p.pairs(sortedPairs(node.Meta))
	}
	return s.show(p)
}

// drainText says whether a node drains, and how the last drain went.
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

// names are the keys of a map, in order.
func names[T any](m map[string]T) string {
	return strings.Join(slices.Sorted(maps.Keys(m)), ", ")
}

// driverText lists the drivers that a node has; those that do not work say so.
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

func sortedPairs(m map[string]string) pairs {
	var all pairs
	for _, name := range slices.Sorted(maps.Keys(m)) {
		all = append(all, [2]any{name, m[name]})
	}
	return all
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

// nodeResources are what is promised to allocations, what these use, and what the
// host uses, each of what there is.
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
		c, m, d := promised(a)
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

// promised is what an allocation may use: MHz, and MB of memory and of disk.
func promised(a *api.Allocation) (cpu, memory, disk int64) {
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

func percent(f float64) string { return strconv.FormatFloat(f, 'f', 2, 64) + "%" }

// drivers are all drivers of a node with what they say of themselves.
func (p *page) drivers(node *api.Node) {
	p.section("Drivers")
	t := newTable("Driver", "Detected", "Healthy", "Message", "Time")
	for _, name := range slices.Sorted(maps.Keys(node.Drivers)) {
		d := valueOf(node.Drivers[name])
		t.row(name, d.Detected, d.Healthy, cmp.Or(d.HealthDescription, none), pointInTime(d.UpdateTime))
	}
	p.table(t)
}
