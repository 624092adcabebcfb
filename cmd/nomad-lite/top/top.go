package top

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/tables"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/terminal"
)

const topHelp = `Show jobs, their allocations and tasks in a table that follows every change: the
health of jobs with the reason, state, processor, memory, restarts, ports and the
last event. Keys sort and filter the table, show the output of a task or a time
line, open a shell in a task, restart and stop. The key ? lists them.

When the table has more rows than the terminal, it starts with jobs only; Enter
shows the allocations and tasks of one.

When the agent cannot be reached, the table stays, and the command connects again.

Without a terminal, and with -once, -json or -t, the table is printed once.
Stopped jobs and replaced allocations are left out unless -all is given.

q or Ctrl-C ends the command. Exit codes: 0, or 1 when the agent cannot be
reached at the start.`

const topExamples = `  nomad-lite top
  nomad-lite top -once -all
  nomad-lite top -t '{{range .}}{{println .ID .Status}}{{end}}'`

type options struct {
	clientFlags            apiclient.Flags
	formatFlags            output.FormatFlags
	usageInterval          time.Duration
	printOnce              bool
	followTask             FollowTaskFunc
	showStoppedAndReplaced bool
}

// minInterval is the least time between two requests for the usage of an allocation.
const minInterval = 200 * time.Millisecond

// FollowTaskFunc calls show with the last lines of a task's output and with new lines, until the allocation has ended or ctx ends. It
// calls showMessage with a text why output cannot be read. Calls can be concurrent, and lines are valid until show returns.
type FollowTaskFunc func(ctx context.Context, c *api.Client, alloc *api.Allocation, task string, tailLines int, show func(isStderr bool, lines []byte), showMessage func(text string)) error

// NewCommand returns the command "top", which reads the output of tasks by followTask.
func NewCommand(s *cli.Streams, followTask FollowTaskFunc) *cobra.Command {
	o := options{followTask: followTask}
	cmd := &cobra.Command{
		Use:     "top [flags]",
		Short:   "Show jobs, allocations and tasks in a live table",
		Long:    topHelp,
		Example: topExamples,
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.usageInterval < minInterval {
				return cli.UsageError(cmd, fmt.Errorf("-interval takes a duration of at least %v", minInterval))
			}
			return runTop(cmd.Context(), o, s)
		},
	}
	o.clientFlags.Register(cmd)
	o.formatFlags.Register(cmd)
	cmd.Flags().DurationVar(&o.usageInterval, "interval", 2*time.Second, "`duration` between two measurements of processor and memory")
	cmd.Flags().BoolVar(&o.printOnce, "once", false, "print the table once; the default without a terminal")
	cmd.Flags().BoolVar(&o.showStoppedAndReplaced, "all", false, "show stopped jobs and replaced allocations, too")
	return cmd
}

func runTop(ctx context.Context, o options, s *cli.Streams) error {
	c, err := o.clientFlags.Client()
	if err != nil {
		return err
	}
	listed, err := readJobAndAllocLists(ctx, c)
	if err != nil {
		return err
	}
	in, hasInput := s.In.(*os.File)
	out, hasOutput := terminal.FileOfStream(s.Out)
	if o.printOnce || o.formatFlags.IsSet() || !hasInput || !hasOutput || !terminal.IsTerminal(in) || !terminal.SupportsCursor(out) {
		return printTableOrJSONOnce(ctx, c, listed, o, s)
	}
	return newUI(c, s, o).runUntilQuit(ctx, in, out, listed)
}

// printTableOrJSONOnce prints all rows with the usage of all running allocations, for a terminal that cannot show the
// live table and for programs.
func printTableOrJSONOnce(ctx context.Context, c *api.Client, listed *jobAndAllocLists, o options, s *cli.Streams) error {
	state := newCluster()
	state.replaceAllKeepingUsage(listed.jobs, listed.allocs)
	state.setHealth(apiclient.ReadHealthOfAllJobs(ctx, c))
	var running []*api.Allocation
	for _, a := range state.allocsByID {
		if a.isRunning() {
			running = append(running, copyAllocForRequests(a))
		}
	}
	for _, used := range readAllocUsage(ctx, c, running, func() {}) {
		state.setAllocUsage(used.allocID, used.usage)
	}
	rows := (&table{sortedBy: byName, showStoppedAndReplaced: o.showStoppedAndReplaced}).selectAndSortRows(state)
	if o.formatFlags.IsSet() {
		return o.formatFlags.Print(s, newJobJSONOutputs(rows))
	}
	tables.WarnOfConditions(s, apiclient.ReadConditions(ctx, c))
	return printTable(s, rows)
}

// printTable prints rows in columns that are as wide as their cells.
func printTable(s *cli.Streams, rows []row) error {
	if len(rows) == 0 {
		_, err := fmt.Fprintln(s.Out, "No jobs")
		return err
	}
	lines := [][]cell{titleCells(terminal.ColourBold)}
	for _, r := range rows {
		lines = append(lines, r.cells(time.Now()))
	}
	placed := layOutAllColumns(lines)
	var b strings.Builder
	for _, cells := range lines {
		b.WriteString(formatLine(placed, cells, "  ", s.SupportsColours(s.Out)) + "\n")
	}
	_, err := s.Out.Write([]byte(b.String()))
	return err
}

// jobJSONOutput is a job in the JSON output.
type jobJSONOutput struct {
	ID          string
	Namespace   string
	Status      string
	Stop        bool
	Health      *apiclient.JobHealth // null if the agent does not report it
	Allocations []*allocJSONOutput
}

type allocJSONOutput struct {
	ID            string
	Name          string
	TaskGroup     string
	NodeID        string
	ClientStatus  string
	DesiredStatus string
	Ports         string
	Tasks         []*taskJSONOutput
}

// taskJSONOutput is a task in the JSON output. The usage is null if it was not measured.
type taskJSONOutput struct {
	Name       string
	State      string
	Failed     bool
	Restarts   uint64
	StartedAt  *time.Time
	TotalTicks *float64 // MHz
	Percent    *float64
	Memory     *uint64 // bytes
	LastEvent  string
}

func newJobJSONOutputs(rows []row) []*jobJSONOutput {
	jobs := []*jobJSONOutput{}
	now := time.Now()
	for _, r := range rows {
		switch {
		case r.alloc == nil:
			jobs = append(jobs, &jobJSONOutput{ID: r.job.id, Namespace: r.job.namespace, Status: r.job.status, Stop: r.job.isStopped, Health: r.job.health, Allocations: []*allocJSONOutput{}})
		case r.task == nil:
			a := r.alloc
			j := jobs[len(jobs)-1]
			j.Allocations = append(j.Allocations, &allocJSONOutput{
				ID: a.ID, Name: a.Name, TaskGroup: a.TaskGroup, NodeID: a.NodeID, ClientStatus: a.ClientStatus, DesiredStatus: a.DesiredStatus,
				Ports: a.formattedPorts, Tasks: []*taskJSONOutput{},
			})
		default:
			allocs := jobs[len(jobs)-1].Allocations
			a := allocs[len(allocs)-1]
			a.Tasks = append(a.Tasks, newTaskJSONOutput(r, now))
		}
	}
	return jobs
}

func newTaskJSONOutput(r row, now time.Time) *taskJSONOutput {
	t := r.task
	shown := &taskJSONOutput{Name: t.name, State: t.state.State, Failed: t.state.Failed, Restarts: t.state.Restarts, LastEvent: taskReasonOrEventCell(*t, now).text}
	if !t.state.StartedAt.IsZero() {
		shown.StartedAt = &t.state.StartedAt
	}
	if sum := r.totals(); sum.hasUsageOfRunningTasks {
		shown.TotalTicks, shown.Percent, shown.Memory = &sum.cpuMHz, &sum.cpuPercent, &sum.memoryBytes
	}
	return shown
}
