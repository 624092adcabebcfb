package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
)

const jobStopHelp = `Stop jobs: their tasks end in order, and the agent keeps the records, so that
'job start' can run them again.

With -purge a job is forgotten as well.`

type jobStopOptions struct {
	client          clientFlags
	watch           watchFlags
	purge           bool
	global          bool
	yes             bool
	noShutdownDelay bool
	evalPriority    int
}

func newJobStopCommand(s *streams) *cobra.Command {
	var o jobStopOptions
	cmd := &cobra.Command{
		Use:   "stop [flags] JOB...",
		Short: "Stop jobs",
		Long:  jobStopHelp,
		Example: `  nomad-lite job stop web
  nomad-lite job stop -purge -yes web db`,
		Args:              argCount(1, -1, "the ids of one or more jobs"),
		ValidArgsFunction: o.client.completeJobs("Stop == false"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return stopJobs(cmd.Context(), o, args, s)
		},
	}
	o.client.register(cmd)
	o.watch.register(cmd)
	cmd.Flags().BoolVar(&o.purge, "purge", false, "forget the job as well")
	cmd.Flags().BoolVar(&o.global, "global", false, "stop a job of several regions in all of them")
	cmd.Flags().BoolVar(&o.yes, "yes", false, "do not ask when an argument is only the beginning of an id")
	cmd.Flags().BoolVar(&o.noShutdownDelay, "no-shutdown-delay", false, "do not wait for the shutdown_delay of groups and tasks")
	cmd.Flags().IntVar(&o.evalPriority, "eval-priority", 0, "`priority` of the evaluation, if it is not to be that of the job")
	return cmd
}

func oneJob(cmd *cobra.Command, args []string) error {
	return argCount(1, 1, "one argument: the id of a job, or its beginning")(cmd, args)
}

func stopJobs(ctx context.Context, o jobStopOptions, prefixes []string, s *streams) error {
	c, err := o.client.client()
	if err != nil {
		return err
	}
	// All jobs are looked up before the first is stopped.
	var jobs []*api.Job
	for _, prefix := range slices.Compact(slices.Sorted(slices.Values(prefixes))) {
		id, namespace, err := findJob(ctx, c, prefix, "")
		if err != nil {
			return err
		}
		if id != prefix && !o.yes {
			if err := s.confirm(fmt.Sprintf("Stop job %q?", id)); err != nil {
				return err
			}
		}
		job, _, err := c.Jobs().Info(id, query(ctx, namespace))
		if err != nil {
			return failed(fmt.Sprintf("stop job %q", id), err)
		}
		jobs = append(jobs, job)
	}
	evals := make([]string, len(jobs))
	for i, job := range jobs {
		evals[i], _, err = c.Jobs().DeregisterOpts(valueOf(job.ID), &api.DeregisterOptions{
			Purge: o.purge, Global: o.global, NoShutdownDelay: o.noShutdownDelay, EvalPriority: o.evalPriority,
		}, write(ctx, valueOf(job.Namespace)))
		if err != nil {
			return failed(fmt.Sprintf("stop job %q", valueOf(job.ID)), err)
		}
	}
	for i, job := range jobs {
		switch {
		case evals[i] == "": // nothing was left to stop, so there is no evaluation
		case o.watch.detach:
			_, err = fmt.Fprintln(s.out, evals[i])
		default:
			err = newMonitor(s, c, valueOf(job.Namespace), o.watch.verbose).evaluation(ctx, evals[i])
		}
		if err != nil {
			return err
		}
	}
	return nil
}
