package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
)

const allocStatsHelp = `Show what the tasks of an allocation use of processor and memory, now. Those that
do not run use nothing.

Exit codes: 0, or 1 when it is not known.`

const allocStatsExamples = `  nomad-lite alloc stats 8ba85cef
  nomad-lite alloc stats -task server 8ba85cef
  nomad-lite alloc stats -json 8ba85cef`

type allocStatsOptions struct {
	client clientFlags
	format formatFlags
	task   string
}

func newAllocStatsCommand(s *streams) *cobra.Command {
	var o allocStatsOptions
	cmd := &cobra.Command{
		Use:     "stats [flags] ALLOC",
		Short:   "Show what the tasks of an allocation use",
		Long:    allocStatsHelp,
		Example: allocStatsExamples,
		Args:    oneAlloc,
		RunE: func(cmd *cobra.Command, args []string) error {
			return allocStats(cmd.Context(), o, args[0], s)
		},
	}
	o.client.register(cmd)
	o.format.register(cmd)
	cmd.Flags().StringVar(&o.task, "task", "", "show this `task` only")
	return cmd
}

func allocStats(ctx context.Context, o allocStatsOptions, id string, s *streams) error {
	c, alloc, err := o.client.findAlloc(ctx, id)
	if err != nil {
		return err
	}
	tasks := tasksOf(alloc)
	if o.task != "" {
		if _, err := chooseTask(alloc, o.task); err != nil {
			return err
		}
		tasks = slices.DeleteFunc(tasks, func(t *api.Task) bool { return t.Name != o.task })
	}
	usage, err := c.Allocations().Stats(alloc, query(ctx, alloc.Namespace))
	if err != nil {
		return failed(fmt.Sprintf("read what allocation %q uses (it is %s)", short(alloc.ID), alloc.ClientStatus), err)
	}
	if o.format.wanted() {
		if o.task != "" {
			return o.format.print(s, usage.Tasks[o.task])
		}
		return o.format.print(s, usage)
	}
	p := s.page()
	t := newTable("Task", "CPU", "CPU %", "Memory", "Processes")
	for _, task := range tasks {
		used := usage.Tasks[task.Name]
		if used == nil || used.ResourceUsage == nil {
			t.row(task.Name, "-", "-", "-", "-")
			continue
		}
		cpu, memory := valueOf(used.ResourceUsage.CpuStats), valueOf(used.ResourceUsage.MemoryStats)
		t.row(task.Name, fmt.Sprintf("%.0f MHz", cpu.TotalTicks), fmt.Sprintf("%.1f %%", cpu.Percent), byteSize(residentMemory(&memory)), len(used.Pids))
	}
	p.table(t)
	for _, task := range tasks {
		if used := usage.Tasks[task.Name]; used != nil && used.ResourceUsage != nil {
			p.section(fmt.Sprintf("Task %q", task.Name))
			p.usage(used.ResourceUsage)
		}
	}
	return s.show(p)
}

// usage shows the measured resource usage of a task.
func (p *page) usage(used *api.ResourceUsage) {
	if m := used.MemoryStats; m != nil {
		p.measured("Memory Stats", m.Measured, map[string]string{
			"RSS":              byteSize(m.RSS),
			"Cache":            byteSize(m.Cache),
			"Swap":             byteSize(m.Swap),
			"Usage":            byteSize(m.Usage),
			"Max Usage":        byteSize(m.MaxUsage),
			"Kernel Usage":     byteSize(m.KernelUsage),
			"Kernel Max Usage": byteSize(m.KernelMaxUsage),
		})
	}
	if c := used.CpuStats; c != nil {
		p.measured("CPU Stats", c.Measured, map[string]string{
			"Percent":           fmt.Sprintf("%.2f%%", c.Percent),
			"System Mode":       fmt.Sprintf("%.2f%%", c.SystemMode),
			"User Mode":         fmt.Sprintf("%.2f%%", c.UserMode),
			"Throttled Periods": fmt.Sprint(c.ThrottledPeriods),
			"Throttled Time":    fmt.Sprint(c.ThrottledTime),
		})
	}
}

// measured adds a table of one line with the values that were measured.
func (p *page) measured(title string, names []string, values map[string]string) {
	t := newTable()
	var row []any
	for _, name := range names {
		if value, known := values[name]; known {
			t.head = append(t.head, name)
			row = append(row, value)
		}
	}
	if row == nil {
		return
	}
	t.row(row...)
	p.line("%s", title)
	p.table(t)
	p.line("")
}

// residentMemory returns the resident memory of a task, or the usage of its cgroup where
// resident memory is not measured.
func residentMemory(m *api.MemoryStats) uint64 {
	if m.RSS == 0 && !slices.Contains(m.Measured, "RSS") {
		return m.Usage
	}
	return m.RSS
}

// byteSize formats a number of bytes.
func byteSize(n uint64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	value, unit := float64(n), 0
	for value >= 1024 && unit < len(units)-1 {
		value, unit = value/1024, unit+1
	}
	if unit == 0 || value >= 10 {
		return fmt.Sprintf("%.0f %s", value, units[unit])
	}
	return fmt.Sprintf("%.1f %s", value, units[unit])
}

func mebibytes(n int64) string { return byteSize(uint64(max(n, 0)) << 20) }
