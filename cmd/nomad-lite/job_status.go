package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
)

const jobStatusHelp = `Show the jobs of an agent, or one job with its allocations.`

func newJobStatusCommand(s *streams) *cobra.Command {
	var client clientFlags
	cmd := &cobra.Command{
		Use:   "status [flags] [JOB]",
		Short: "Show jobs, or one job",
		Long:  jobStatusHelp,
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := client.client()
			if err != nil {
				return err
			}
			if len(args) == 0 {
				return listJobs(cmd.Context(), c, s.out)
			}
			return showJob(cmd.Context(), c, args[0], s.out)
		},
	}
	client.register(cmd)
	return cmd
}

func listJobs(ctx context.Context, c *api.Client, out io.Writer) error {
	jobs, _, err := c.Jobs().List((&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		return failed("list jobs", err)
	}
	if len(jobs) == 0 {
		_, err := fmt.Fprintln(out, "No running jobs")
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tType\tPriority\tStatus\tSubmit Date")
	for _, j := range jobs {
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\n", j.ID, j.Type, j.Priority, statusText(j.Status, j.Stop), date(j.SubmitTime))
	}
	return w.Flush()
}

func statusText(status string, stopped bool) string {
	if stopped {
		return status + " (stopped)"
	}
	return status
}

func showJob(ctx context.Context, c *api.Client, id string, out io.Writer) error {
	query := (&api.QueryOptions{}).WithContext(ctx)
	job, _, err := c.Jobs().Info(id, query)
	if err != nil {
		return failed(fmt.Sprintf("read job %q", id), err)
	}
	summary, _, err := c.Jobs().Summary(id, query)
	if err != nil {
		return failed(fmt.Sprintf("read summary of job %q", id), err)
	}
	allocs, _, err := c.Jobs().Allocations(id, false, query)
	if err != nil {
		return failed(fmt.Sprintf("read allocations of job %q", id), err)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, row := range [][2]string{
		{"ID", *job.ID}, {"Name", *job.Name}, {"Submit Date", date(*job.SubmitTime)}, {"Type", *job.Type},
		{"Priority", fmt.Sprint(*job.Priority)}, {"Version", fmt.Sprint(*job.Version)}, {"Namespace", *job.Namespace},
		{"Status", statusText(*job.Status, *job.Stop)},
	} {
		fmt.Fprintf(w, "%s\t= %s\n", row[0], row[1])
	}
	fmt.Fprintln(w, "\nSummary\nTask Group\tQueued\tStarting\tRunning\tFailed\tComplete\tLost")
	for _, name := range slices.Sorted(maps.Keys(summary.Summary)) {
		g := summary.Summary[name]
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%d\n", name, g.Queued, g.Starting, g.Running, g.Failed, g.Complete, g.Lost)
	}
	if len(allocs) > 0 {
		fmt.Fprintln(w, "\nAllocations\nID\tTask Group\tVersion\tDesired\tStatus\tCreated")
		slices.SortStableFunc(allocs, func(a, b *api.AllocationListStub) int { return cmp.Compare(b.CreateIndex, a.CreateIndex) })
		for _, a := range allocs {
			fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%s\n", short(a.ID), a.TaskGroup, a.JobVersion, a.DesiredStatus, a.ClientStatus, date(a.CreateTime))
		}
	}
	return w.Flush()
}
