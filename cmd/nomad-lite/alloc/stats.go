package alloc

import (
	"context"
	"fmt"
	"slices"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/tables"
	"github.com/nomad-lite/nomad-lite/internal/pointer"
)

const statsHelp = `Show the CPU, memory and device usage of the running tasks of an allocation.

Exit codes: 0, or 1 when it is not known.`

const statsExamples = `  nomad-lite alloc stats 8ba85cef
  nomad-lite alloc stats -task server 8ba85cef
  nomad-lite alloc stats -json 8ba85cef`

type statsOptions struct {
	clientFlags apiclient.Flags
	formatFlags output.FormatFlags
	task        string
}

func newStatsCommand(s *cli.Streams) *cobra.Command {
	var o statsOptions
	cmd := &cobra.Command{
		Use:     "stats [flags] ALLOC",
		Short:   "Show the resource usage of the tasks of an allocation",
		Long:    statsHelp,
		Example: statsExamples,
		Args:    oneAllocArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			return showAllocStats(cmd.Context(), o, args[0], s)
		},
	}
	o.clientFlags.Register(cmd)
	o.formatFlags.Register(cmd)
	cmd.Flags().StringVar(&o.task, "task", "", "show this `task` only")
	return cmd
}

func showAllocStats(ctx context.Context, o statsOptions, allocIDPrefix string, s *cli.Streams) error {
	c, alloc, err := o.clientFlags.FindAlloc(ctx, allocIDPrefix)
	if err != nil {
		return err
	}
	tasks := apiclient.TasksInDisplayOrder(alloc)
	if o.task != "" {
		if _, err := checkTaskNameOrUseOnlyTask(alloc, o.task); err != nil {
			return err
		}
		tasks = slices.DeleteFunc(tasks, func(t *api.Task) bool { return t.Name != o.task })
	}
	usage, err := c.Allocations().Stats(alloc, apiclient.QueryOptions(ctx, alloc.Namespace))
	if err != nil {
		return apiclient.WrapErrorWithAdvice(fmt.Sprintf("read what allocation %q uses (it is %s)", output.TruncateID(alloc.ID), alloc.ClientStatus), err)
	}
	if o.formatFlags.IsSet() {
		if o.task != "" {
			return o.formatFlags.Print(s, usage.Tasks[o.task])
		}
		return o.formatFlags.Print(s, usage)
	}
	p := output.NewPage(s)
	t := output.NewTable("Task", "CPU", "CPU %", "Memory", "Processes")
	for _, task := range tasks {
		used := usage.Tasks[task.Name]
		if used == nil || used.ResourceUsage == nil {
			t.AddRow(task.Name, "-", "-", "-", "-")
			continue
		}
		cpu, memory := pointer.Value(used.ResourceUsage.CpuStats), pointer.Value(used.ResourceUsage.MemoryStats)
		t.AddRow(task.Name, fmt.Sprintf("%.0f MHz", cpu.TotalTicks), fmt.Sprintf("%.1f %%", cpu.Percent), output.FormatBytes(tables.ResidentOrUsedMemoryBytes(&memory)), len(used.Pids))
	}
	p.AddTable(t)
	for _, task := range tasks {
		if used := usage.Tasks[task.Name]; used != nil && used.ResourceUsage != nil {
			p.AddSectionTitle(fmt.Sprintf("Task %q", task.Name))
			printResourceUsage(p, used.ResourceUsage)
		}
	}
	return output.PrintPage(s, p)
}

// printResourceUsage adds the measured resource usage of a task to the page.
func printResourceUsage(p *output.Page, used *api.ResourceUsage) {
	if m := used.MemoryStats; m != nil {
		printMeasuredValues(p, "Memory Stats", m.Measured, map[string]string{
			"RSS":              output.FormatBytes(m.RSS),
			"Cache":            output.FormatBytes(m.Cache),
			"Swap":             output.FormatBytes(m.Swap),
			"Usage":            output.FormatBytes(m.Usage),
			"Max Usage":        output.FormatBytes(m.MaxUsage),
			"Kernel Usage":     output.FormatBytes(m.KernelUsage),
			"Kernel Max Usage": output.FormatBytes(m.KernelMaxUsage),
		})
	}
	if c := used.CpuStats; c != nil {
		printMeasuredValues(p, "CPU Stats", c.Measured, map[string]string{
			"Percent":           fmt.Sprintf("%.2f%%", c.Percent),
			"System Mode":       fmt.Sprintf("%.2f%%", c.SystemMode),
			"User Mode":         fmt.Sprintf("%.2f%%", c.UserMode),
			"Throttled Periods": fmt.Sprint(c.ThrottledPeriods),
			"Throttled Time":    fmt.Sprint(c.ThrottledTime),
		})
	}
	if devices := tables.NewDeviceStatsByName(used.DeviceStats); len(devices) > 0 {
		p.AddLine("Device Stats")
		devices.PrintStatsOf(p, devices.Names())
		p.AddLine("")
	}
}

// printMeasuredValues adds a table with one row to the page: the values that the driver has measured, whose names are
// in measuredNames.
func printMeasuredValues(p *output.Page, title string, measuredNames []string, formattedValueByName map[string]string) {
	t := output.NewTable()
	var row []any
	for _, name := range measuredNames {
		if value, known := formattedValueByName[name]; known {
			t.Titles = append(t.Titles, name)
			row = append(row, value)
		}
	}
	if row == nil {
		return
	}
	t.AddRow(row...)
	p.AddLine("%s", title)
	p.AddTable(t)
	p.AddLine("")
}
