package job

import (
	"context"
	"fmt"
	"slices"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/monitor"
	"github.com/nomad-lite/nomad-lite/internal/pointer"
)

const stopHelp = `Stop jobs: their tasks end in order, and the agent keeps the records, so that
'job start' can run them again. With -purge the agent removes the records as well.

The command prints which tasks it stops and how they end, and returns when the
last task has ended, poststop tasks too. With -detach it prints only the ids of
the evaluations, one per line. Ctrl-C ends only the command: the agent stops the
jobs all the same.`

type stopOptions struct {
	clientFlags      apiclient.Flags
	monitorFlags     monitor.Flags
	purge            bool
	allRegions       bool
	skipConfirmation bool
	noShutdownDelay  bool
	evalPriority     int
}

// NewStopCommand returns the command "stop".
func NewStopCommand(s *cli.Streams) *cobra.Command {
	var o stopOptions
	cmd := &cobra.Command{
		Use:   "stop [flags] JOB...",
		Short: "Stop jobs",
		Long:  stopHelp,
		Example: `  nomad-lite job stop web
  nomad-lite job stop -purge -yes web db`,
		Args:              cli.RequireArgCount(1, -1, "the ids of one or more jobs"),
		ValidArgsFunction: o.clientFlags.CompleteJobs("Stop == false"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return stopJobs(cmd.Context(), o, args, s)
		},
	}
	o.clientFlags.Register(cmd)
	o.monitorFlags.Register(cmd)
	cmd.Flags().BoolVar(&o.purge, "purge", false, "forget the job as well")
	cmd.Flags().BoolVar(&o.allRegions, "global", false, "stop a job of several regions in all of them")
	cmd.Flags().BoolVar(&o.skipConfirmation, "yes", false, "do not ask when an argument is only the beginning of an id")
	cmd.Flags().BoolVar(&o.noShutdownDelay, "no-shutdown-delay", false, "do not wait for the shutdown_delay of groups and tasks")
	cmd.Flags().IntVar(&o.evalPriority, "eval-priority", 0, "`priority` of the evaluation (default: the priority of the job)")
	return cmd
}

func stopJobs(ctx context.Context, o stopOptions, jobIDPrefixes []string, s *cli.Streams) error {
	c, err := o.clientFlags.Client()
	if err != nil {
		return err
	}
	// All jobs are looked up before the first is stopped, so that an unknown name stops no job.
	var jobs []jobBeingStopped
	for _, prefix := range slices.Compact(slices.Sorted(slices.Values(jobIDPrefixes))) {
		id, namespace, err := apiclient.FindJob(ctx, c, prefix, "")
		if err != nil {
			return err
		}
		if id != prefix && !o.skipConfirmation {
			if err := s.Confirm(fmt.Sprintf("Are you sure you want to stop job %q?", id), "Cancelling job stop"); err != nil {
				return err
			}
		}
		job, _, err := c.Jobs().Info(id, apiclient.QueryOptions(ctx, namespace))
		if err != nil {
			return apiclient.WrapErrorWithAdvice(fmt.Sprintf("stop job %q", id), err)
		}
		j := jobBeingStopped{id: id, namespace: pointer.Value(job.Namespace)}
		if !o.monitorFlags.Detach {
			if j.allocsToWatch, err = monitor.ListAllocsWithUnendedTasks(ctx, c, j.namespace, id); err != nil {
				return err
			}
		}
		jobs = append(jobs, j)
	}
	for i, j := range jobs {
		jobs[i].evalID, _, err = c.Jobs().DeregisterOpts(j.id, &api.DeregisterOptions{
			Purge: o.purge, Global: o.allRegions, NoShutdownDelay: o.noShutdownDelay, EvalPriority: o.evalPriority,
		}, apiclient.WriteOptions(ctx, j.namespace))
		if err != nil {
			return apiclient.WrapErrorWithAdvice(fmt.Sprintf("stop job %q", j.id), err)
		}
	}
	for _, j := range jobs {
		if err := j.watchStopOrPrintEvalID(ctx, o, c, s); err != nil {
			return err
		}
	}
	return nil
}

// jobBeingStopped is a job that the command stops, with what it needs to watch the stop.
type jobBeingStopped struct {
	id, namespace string
	allocsToWatch []*api.AllocationListStub // allocations whose end the command waits for
	evalID        string                    // evaluation of the stop; empty if there is none
}

// watchStopOrPrintEvalID prints how the tasks of the job end, until the last one has ended. With -detach, it prints the
// id of the evaluation instead.
func (j *jobBeingStopped) watchStopOrPrintEvalID(ctx context.Context, o stopOptions, c *api.Client, s *cli.Streams) error {
	if o.monitorFlags.Detach {
		if j.evalID == "" {
			return nil
		}
		_, err := fmt.Fprintln(s.Out, j.evalID)
		return err
	}
	return monitor.New(s, c, j.namespace, o.monitorFlags.Verbose).WatchJobStop(ctx, j.id, j.evalID, j.allocsToWatch)
}
