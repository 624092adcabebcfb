package alloc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/pluginstatus"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/ports"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/tables"
	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/runtime/explain/reason"
)

const statusHelp = `Show an allocation: its job, and the states and events of its tasks. Without an
argument, list the allocations.

ALLOC is the id of an allocation, or the begin of it.

Exit codes: 0, or 1 when there is no such allocation, or several.`

const statusExamples = `  nomad-lite alloc status                  all allocations
  nomad-lite alloc status -filter 'ClientStatus == "failed"'
  nomad-lite alloc status 8ba85cef         one of them
  nomad-lite alloc status -stats 8ba85cef  with what its tasks use
  nomad-lite alloc status -timeline 8ba85cef  what happened, and how long it took
  nomad-lite alloc status -transitions 8ba85cef  what each task waits for
  nomad-lite alloc status -t '{{.ClientStatus}}' 8ba85cef`

type statusOptions struct {
	clientFlags apiclient.Flags
	formatFlags output.FormatFlags
	short       bool
	showStats   bool
	verbose     bool
	filter      string

	showTimeline    bool
	showTransitions bool
}

func newStatusCommand(s *cli.Streams) *cobra.Command {
	var o statusOptions
	cmd := &cobra.Command{
		Use:     "status [flags] [ALLOC]",
		Short:   "Show allocations, or one allocation",
		Long:    statusHelp,
		Example: statusExamples,
		Args:    cli.RequireArgCount(0, 1, "an allocation, or nothing for all"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return listAllocs(cmd.Context(), o, s)
			}
			return showAlloc(cmd.Context(), o, args[0], s)
		},
		ValidArgsFunction: cli.CompleteArgsByPosition(apiclient.CompleteID(&o.clientFlags, &apiclient.AllocationLookup)),
	}
	o.clientFlags.Register(cmd)
	o.formatFlags.Register(cmd)
	cmd.Flags().BoolVar(&o.short, "short", false, "one line per task, without events and resources")
	cmd.Flags().BoolVar(&o.showStats, "stats", false, "show in detail what the tasks use")
	cmd.Flags().BoolVar(&o.verbose, "verbose", false, "whole ids, points in time, and how the allocation was placed")
	cmd.Flags().BoolVar(&o.showTimeline, "timeline", false, "show what happened in the allocation and how long it took: a bar for each task; with -verbose all hooks, driver calls, waits, runs and events")
	cmd.Flags().BoolVar(&o.showTransitions, "transitions", false, "show the last steps of each task: which step has ended how, and which one followed")
	cmd.MarkFlagsMutuallyExclusive("timeline", "transitions")
	cmd.Flags().StringVar(&o.filter, "filter", "", "list those only for which this `expression` is true")
	return cmd
}

func listAllocs(ctx context.Context, o statusOptions, s *cli.Streams) error {
	c, err := o.clientFlags.Client()
	if err != nil {
		return err
	}
	q := apiclient.QueryOptions(ctx, "")
	q.Filter = o.filter
	allocs, _, err := c.Allocations().List(q)
	if err != nil {
		return apiclient.WrapErrorWithAdvice("list allocations", err)
	}
	return o.formatFlags.PrintValueOrPage(s, allocs, func(p *output.Page) {
		t := output.NewTable("ID", "Job ID", "Task Group", "Node ID", "Version", "Desired", "Status", "Created", "Modified")
		for _, a := range allocs {
			t.AddRow(output.ShortIDUnlessVerbose(a.ID, o.verbose), a.JobID, a.TaskGroup, output.ShortIDUnlessVerbose(a.NodeID, o.verbose), a.JobVersion, a.DesiredStatus,
				output.StatusCell(a.ClientStatus), output.FormatAgeUnlessVerbose(a.CreateTime, o.verbose), output.FormatAgeUnlessVerbose(a.ModifyTime, o.verbose))
		}
		p.AddTableOrMessage(t, "No allocations")
	})
}

func showAlloc(ctx context.Context, o statusOptions, allocIDPrefix string, s *cli.Streams) error {
	c, alloc, err := o.clientFlags.FindAlloc(ctx, allocIDPrefix)
	if errors.Is(err, apiclient.ErrAmbiguousPrefix) {
		_, err := fmt.Fprintln(s.Out, err) // the exit code is 0 in this command, as in Nomad
		return err
	}
	if err != nil {
		return err
	}
	cli.SetPageForUIFlag(ctx, "allocations/"+alloc.ID)
	if o.showTimeline {
		return showTimeline(ctx, c, alloc, o, s)
	}
	if o.showTransitions {
		return showTransitions(ctx, c, alloc, o, s)
	}
	if o.formatFlags.IsSet() {
		return o.formatFlags.Print(s, alloc)
	}
	q := apiclient.QueryOptions(ctx, alloc.Namespace)
	p := output.NewPage(s)
	if o.short {
		p.AddPairs(output.Pairs{
			{"ID", alloc.ID},
			{"Name", alloc.Name},
			{"Created", output.FormatAgeUnlessVerbose(alloc.CreateTime, o.verbose)},
			{"Modified", output.FormatAgeUnlessVerbose(alloc.ModifyTime, o.verbose)},
		})
		p.AddSectionTitle("Tasks")
		p.AddTable(taskTable(alloc, o.verbose))
		return output.PrintPage(s, p)
	}
	p.AddPairs(allocOverviewFields(ctx, c, alloc, o.verbose))
	printGroupPortAddresses(p, alloc)

	// An error of the services or the checks does not prevent the output of the rest of the status.
	if services, _, err := c.Allocations().Services(alloc.ID, q); err == nil && len(services) > 0 {
		p.AddSectionTitle("Services")
		p.AddTable(tables.NewServiceTable(services, o.verbose))
	}
	if checks, err := c.Allocations().Checks(alloc.ID, q); err == nil && len(checks) > 0 {
		p.AddSectionTitle("Nomad Service Checks:")
		t := output.NewTable("Service", "Task", "Name", "Mode", "Status")
		for _, check := range sortChecksByService(checks) {
			t.AddRow(check.Service, cmp.Or(check.Task, "(group)"), check.Check, check.Mode, output.StatusCell(check.Status))
		}
		p.AddTable(t)
	}

	var usage *api.AllocResourceUsage
	if alloc.ClientStatus == api.AllocClientStatusRunning && alloc.DesiredStatus == api.AllocDesiredStatusRun {
		if usage, err = c.Allocations().Stats(alloc, q); err != nil {
			usage = nil
			fmt.Fprintln(s.Err, apiclient.WrapErrorWithAdvice("what the tasks use is not known", err))
		}
	}
	for _, task := range apiclient.TasksInDisplayOrder(alloc) {
		printTask(p, alloc, task, usage, o)
	}
	if o.verbose && alloc.Metrics != nil {
		p.AddSectionTitle("Placement Metrics")
		printPlacementMetrics(p, alloc.Metrics)
	}
	return output.PrintPage(s, p)
}

// allocOverviewFields returns the fields of an allocation that are not about one of its tasks.
func allocOverviewFields(ctx context.Context, c *api.Client, alloc *api.Allocation, verbose bool) output.Pairs {
	var jobVersion any = "<unknown>"
	if alloc.Job != nil && alloc.Job.Version != nil {
		jobVersion = *alloc.Job.Version
	}
	head := output.Pairs{
		{"ID", alloc.ID},
		{"Eval ID", output.ShortIDUnlessVerbose(alloc.EvalID, verbose)},
		{"Name", alloc.Name},
		{"Node ID", output.ShortIDUnlessVerbose(alloc.NodeID, verbose)},
		{"Node Name", alloc.NodeName},
		{"Job ID", alloc.JobID},
		{"Job Version", jobVersion},
		{"Client Status", output.StatusCell(alloc.ClientStatus)},
		{"Client Description", alloc.ClientDescription},
		{"Desired Status", alloc.DesiredStatus},
		{"Desired Description", alloc.DesiredDescription},
		{"Created", output.FormatAgeUnlessVerbose(alloc.CreateTime, verbose)},
		{"Modified", output.FormatAgeUnlessVerbose(alloc.ModifyTime, verbose)},
	}
	add := func(name string, value any) { head = append(head, [2]any{name, value}) }
	if alloc.DeploymentID != "" {
		add("Deployment ID", output.ShortIDUnlessVerbose(alloc.DeploymentID, verbose))
		if d := alloc.DeploymentStatus; d != nil && d.Canary {
			add("Canary", true)
		}
		add("Deployment Health", formatDeploymentHealth(alloc.DeploymentStatus))
	}
	if events := alloc.RescheduleTracker; events != nil && len(events.Events) > 0 {
		add("Reschedule Attempts", formatRescheduleAttempts(alloc))
	}
	if alloc.FollowupEvalID != "" {
		q := apiclient.QueryOptions(ctx, alloc.Namespace)
		if eval, _, err := c.Evaluations().Info(alloc.FollowupEvalID, q); err == nil && time.Until(eval.WaitUntil) > 0 {
			add("Reschedule Eligibility", output.FormatAgeUnlessVerbose(eval.WaitUntil.UnixNano(), verbose))
		}
	}
	if m := alloc.Metrics; m != nil && verbose {
		head = append(head, output.Pairs{
			{"Evaluated Nodes", m.NodesEvaluated},
			{"Filtered Nodes", m.NodesFiltered},
			{"Exhausted Nodes", m.NodesExhausted},
			{"Allocation Time", m.AllocationTime},
			{"Failures", m.CoalescedFailures},
		}...)
	}
	if hooks := hookNamesWithHealth(c, alloc); len(hooks) > 0 {
		add("Hooks", strings.Join(hooks, ", "))
	}
	for _, other := range [][2]string{
		{"Replacement Alloc ID", alloc.NextAllocation},
		{"Previous Alloc ID", alloc.PreviousAllocation},
		{"Preempted by Alloc ID", alloc.PreemptedByAllocation},
	} {
		if other[1] != "" {
			add(other[0], output.ShortIDUnlessVerbose(other[1], verbose))
		}
	}
	return head
}

func formatDeploymentHealth(d *api.AllocDeploymentStatus) string {
	switch {
	case d == nil || d.Healthy == nil:
		return "unset"
	case *d.Healthy:
		return "healthy"
	}
	return "unhealthy"
}

// hookNamesWithHealth returns the names and the health of the hook plugins of an allocation that is pending or running.
func hookNamesWithHealth(c *api.Client, alloc *api.Allocation) (names []string) {
	if alloc.ClientStatus != api.AllocClientStatusRunning && alloc.ClientStatus != api.AllocClientStatusPending {
		return nil
	}
	for _, h := range pluginstatus.ReadReportOrEmpty(c).Hooks {
		if slices.Contains(h.Allocs, alloc.ID) {
			names = append(names, fmt.Sprintf("%s (%s)", h.Name, h.Health))
		}
	}
	return names
}

// formatRescheduleAttempts returns how often an allocation was rescheduled, and the limit if the policy has one.
func formatRescheduleAttempts(alloc *api.Allocation) string {
	if group := apiclient.TaskGroupOf(alloc); group != nil && group.ReschedulePolicy != nil {
		policy := group.ReschedulePolicy
		if policy.Attempts != nil && policy.Interval != nil && !pointer.Value(policy.Unlimited) {
			used, allowed := alloc.RescheduleInfo(time.Now())
			return fmt.Sprintf("%d/%d", used, allowed)
		}
	}
	return fmt.Sprint(len(alloc.RescheduleTracker.Events))
}

// printGroupPortAddresses adds the ports of an allocation's group to the page. As in Nomad, an asterisk marks them as
// ports of the group.
func printGroupPortAddresses(p *output.Page, alloc *api.Allocation) {
	if alloc.AllocatedResources == nil {
		return
	}
	mappings, mode := ports.GroupPortMappings(alloc.AllocatedResources), ""
	if len(mappings) == 0 {
		return
	}
	dynamic := map[string]bool{}
	for _, network := range alloc.AllocatedResources.Shared.Networks {
		if network == nil {
			continue
		}
		mode = network.Mode
		for _, port := range network.DynamicPorts {
			dynamic[port.Label] = true
		}
	}
	title := "Allocation Addresses"
	if mode != "" && mode != "host" {
		title += fmt.Sprintf(" (mode = %q)", mode)
	}
	p.AddSectionTitle(title + ":")
	t := output.NewTable("Label", "Dynamic", "Address")
	for _, port := range mappings {
		address := fmt.Sprintf("%s:%d", port.HostIP, port.Value)
		if port.To > 0 {
			address += fmt.Sprintf(" -> %d", port.To)
		}
		t.AddRow("*"+port.Label, formatYesNo(dynamic[port.Label]), address)
	}
	p.AddTable(t)
}

func formatYesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}

// taskTable returns a table with one line per task.
func taskTable(alloc *api.Allocation, verbose bool) *output.Table {
	t := output.NewTable("Name", "State", "Last Event", "Time", "Lifecycle")
	hasPorts := ports.FormatAllocationPorts(alloc.AllocatedResources, nil) != ""
	if hasPorts {
		t.Titles = append(t.Titles, "Ports")
	}
	for _, task := range apiclient.TasksInDisplayOrder(alloc) {
		state := pointer.Value(alloc.TaskStates[task.Name])
		var lastEvent api.TaskEvent
		if n := len(state.Events); n > 0 {
			lastEvent = pointer.Value(state.Events[n-1])
		}
		row := []any{task.Name, output.StatusCell(formatTaskState(state)), lastEvent.Type, output.FormatAgeUnlessVerbose(lastEvent.Time, verbose), cmp.Or(formatLifecycle(task), "main")}
		if hasPorts {
			row = append(row, ports.FormatTaskPorts(alloc, task))
		}
		t.AddRow(row...)
	}
	return t
}

// formatLifecycle returns the lifecycle hook of a task, with "sidecar" for a sidecar, or "" for a main
// task.
func formatLifecycle(task *api.Task) string {
	hook := apiclient.LifecycleHookOf(task)
	if hook != "" && task.Lifecycle.Sidecar {
		hook += " sidecar"
	}
	return hook
}

// formatTaskState returns the state of a task, "pending" if the agent has reported none yet.
func formatTaskState(state api.TaskState) string { return cmp.Or(state.State, "pending") }

// printTask adds one task to the page: its resources, their usage and its latest events. usage can be nil.
func printTask(p *output.Page, alloc *api.Allocation, task *api.Task, usage *api.AllocResourceUsage, o statusOptions) {
	state := pointer.Value(alloc.TaskStates[task.Name])
	title := fmt.Sprintf("Task %q is %q", task.Name, formatTaskState(state))
	if lifecycle := formatLifecycle(task); lifecycle != "" {
		title = fmt.Sprintf("Task %q (%s) is %q", task.Name, lifecycle, formatTaskState(state))
	}
	p.AddSectionTitle(title)

	var used *api.ResourceUsage
	if usage != nil && usage.Tasks[task.Name] != nil {
		used = usage.Tasks[task.Name].ResourceUsage
	}
	p.AddLine("Task Resources:")
	p.AddTable(taskResourceTable(alloc, task.Name, used))
	p.AddLine("")
	if devices := tables.AllocatedDeviceNames(alloc, task.Name); len(devices) > 0 {
		p.AddLine("Devices:")
		p.AddPairs(tables.NewDeviceStatsByName(pointer.Value(used).DeviceStats).SummaryPairs(devices))
		p.AddLine("")
	}
	if o.showStats && used != nil {
		printResourceUsage(p, used)
	}

	p.AddLine("Task Events:")
	p.AddPairs(output.Pairs{
		{"Started At", output.FormatTimestamp(state.StartedAt)},
		{"Finished At", output.FormatTimestamp(state.FinishedAt)},
		{"Total Restarts", state.Restarts},
		{"Last Restart", output.FormatTimestamp(state.LastRestart)},
	})
	p.AddLine("")
	p.AddLine("Recent Events:")
	if len(state.Events) == 0 {
		p.AddLine("none yet")
		return
	}
	t := output.NewTable("Time", "Type", "Description")
	for _, e := range slices.Backward(state.Events[max(0, len(state.Events)-maxTaskEvents):]) {
		if e != nil {
			t.AddRow(output.FormatDate(e.Time), e.Type, e.DisplayMessage)
		}
	}
	p.AddTable(t)
}

// maxTaskEvents is the number of events of a task that are shown, as in Nomad.
const maxTaskEvents = 10

// taskResourceTable returns a table of the resources of a task, with its current usage if that was
// measured.
func taskResourceTable(alloc *api.Allocation, taskName string, used *api.ResourceUsage) *output.Table {
	var cpu, memory, memoryMax, disk int64
	if all := alloc.AllocatedResources; all != nil {
		disk = all.Shared.DiskMB
		if r := all.Tasks[taskName]; r != nil {
			cpu, memory, memoryMax = r.Cpu.CpuShares, r.Memory.MemoryMB, r.Memory.MemoryMaxMB
		}
	} else if r := alloc.TaskResources[taskName]; r != nil {
		cpu, memory, memoryMax = int64(pointer.Value(r.CPU)), int64(pointer.Value(r.MemoryMB)), int64(pointer.Value(r.MemoryMaxMB))
		if alloc.Resources != nil {
			disk = int64(pointer.Value(alloc.Resources.DiskMB))
		}
	}
	cpuText, memoryText := fmt.Sprintf("%d MHz", cpu), output.FormatMebibytes(memory)
	if used != nil && used.CpuStats != nil {
		cpuText = fmt.Sprintf("%.0f/%s", used.CpuStats.TotalTicks, cpuText)
	}
	if used != nil && used.MemoryStats != nil {
		memoryText = output.FormatBytes(tables.ResidentOrUsedMemoryBytes(used.MemoryStats)) + "/" + memoryText
	}
	var addresses any = output.BlankCell
	if text := formatTaskNetworkPorts(alloc, taskName); text != "" {
		addresses = text
	}
	t := output.NewTable("CPU", "Memory", "Disk", "Addresses")
	t.AddRow(cpuText, memoryText, output.FormatMebibytes(disk), addresses)
	if memoryMax > 0 && memoryMax != memory {
		t.AddRow(output.BlankCell, "Max: "+output.FormatMebibytes(memoryMax), output.BlankCell, output.BlankCell)
	}
	return t
}

// formatTaskNetworkPorts returns the addresses of the ports in a network block of the task. Such a block is deprecated:
// the network block of the group replaces it.
func formatTaskNetworkPorts(alloc *api.Allocation, taskName string) string {
	if alloc.AllocatedResources == nil {
		return ""
	}
	var addresses []string
	for _, network := range pointer.Value(alloc.AllocatedResources.Tasks[taskName]).Networks {
		for _, port := range slices.Concat(network.ReservedPorts, network.DynamicPorts) {
			addresses = append(addresses, fmt.Sprintf("%s: %s:%d", port.Label, network.IP, port.Value))
		}
	}
	return strings.Join(addresses, ", ")
}

// printPlacementMetrics adds the scores of the nodes at the placement of an allocation to the page, and the reasons why
// nodes were not eligible.
func printPlacementMetrics(p *output.Page, m *api.AllocationMetric) {
	for _, line := range reason.PlacementFailureLines(m) {
		p.AddLine("* %s", line)
	}
	scorers := map[string]bool{}
	for _, node := range m.ScoreMetaData {
		for name := range node.Scores {
			scorers[name] = true
		}
	}
	names := slices.Sorted(maps.Keys(scorers))
	t := output.NewTable(append(append([]string{"Node"}, names...), "final score")...)
	for _, node := range m.ScoreMetaData {
		row := []any{node.NodeID}
		for _, name := range names {
			row = append(row, fmt.Sprintf("%.3g", node.Scores[name]))
		}
		t.AddRow(append(row, fmt.Sprintf("%.3g", node.NormScore))...)
	}
	p.AddTable(t)
}
