package job

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/monitor"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/terminal"
	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/runtime/job/admission"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

const stopHelp = `Stop jobs: their tasks end in order, and the agent keeps the records, so that
'job start' can run them again. With -purge the agent removes the records as well.

The command prints which tasks it stops and how they end, and returns when the
last task has ended, poststop tasks too. With -detach it prints only the ids of
the evaluations, one per line. Ctrl-C ends only the command: the agent stops the
jobs all the same.

With -all it stops all jobs of the namespace, or with -namespace '*' of all
namespaces, and asks before it does so. It stops the jobs that launch others first.

Exit codes: 0, or 1 if a job could not be stopped. The other jobs are stopped all
the same.`

type stopOptions struct {
	all              bool
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
		Use:   "stop [flags] [JOB...]",
		Short: "Stop jobs",
		Long:  stopHelp,
		Example: `  nomad-lite job stop web
  nomad-lite job stop -purge -yes web db
  nomad-lite job stop -all -namespace '*'`,
		Args: func(cmd *cobra.Command, args []string) error {
			if o.all {
				return cli.RequireArgCount(0, 0, "no arguments with -all")(cmd, args)
			}
			return cli.RequireArgCount(1, -1, "the ids of one or more jobs, or -all")(cmd, args)
		},
		ValidArgsFunction: o.clientFlags.CompleteJobs("Stop == false"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.all {
				return stopAllJobs(cmd.Context(), o, s)
			}
			return stopNamedJobs(cmd.Context(), o, args, s)
		},
	}
	o.clientFlags.Register(cmd)
	o.monitorFlags.Register(cmd)
	cmd.Flags().BoolVar(&o.all, "all", false, "stop all jobs of the namespace that have not ended; with -purge forget those that have, too")
	cmd.Flags().BoolVar(&o.purge, "purge", false, "forget the job as well")
	cmd.Flags().BoolVar(&o.allRegions, "global", false, "stop a job of several regions in all of them")
	cmd.Flags().BoolVar(&o.skipConfirmation, "yes", false, "do not ask when an argument is only the beginning of an id, or with -all")
	cmd.Flags().BoolVar(&o.noShutdownDelay, "no-shutdown-delay", false, "do not wait for the shutdown_delay of groups and tasks")
	cmd.Flags().IntVar(&o.evalPriority, "eval-priority", 0, "`priority` of the evaluation (default: the priority of the job)")
	return cmd
}

// stopNamedJobs stops the jobs with these ids, or beginnings of ids. All jobs are looked up before the first is stopped, so that
// an unknown name stops no job.
func stopNamedJobs(ctx context.Context, o stopOptions, jobIDPrefixes []string, s *cli.Streams) error {
	c, err := o.clientFlags.Client()
	if err != nil {
		return err
	}
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
		jobs = append(jobs, jobBeingStopped{id: id, namespace: pointer.Value(job.Namespace)})
	}
	return stopJobs(ctx, o, c, jobs, s)
}

// stopAllJobs stops all jobs of the namespace of the flags, or of all namespaces. It stops the jobs that launch others first,
// and then the jobs that these have launched meanwhile, too.
func stopAllJobs(ctx context.Context, o stopOptions, s *cli.Streams) error {
	c, err := o.clientFlags.Client()
	if err != nil {
		return err
	}
	launchers, others, err := o.listJobsToStop(ctx, c)
	if err != nil {
		return err
	}
	count := len(launchers) + len(others)
	if count == 0 {
		_, err := fmt.Fprintln(s.Out, "No jobs to stop")
		return err
	}
	if !o.skipConfirmation {
		var ids []string
		for _, j := range slices.Concat(launchers, others) {
			ids = append(ids, j.id)
		}
		question := fmt.Sprintf("Are you sure you want to stop %d job(s): %s?", count, terminal.SanitizeText([]byte(admission.JoinTruncated(ids)), false))
		if err := s.Confirm(question, "Cancelling job stop"); err != nil {
			return err
		}
	}
	err = stopJobs(ctx, o, c, launchers, s)
	if len(launchers) > 0 {
		_, launched, listErr := o.listJobsToStop(ctx, c)
		if listErr != nil {
			return errors.Join(err, listErr)
		}
		for _, j := range launched {
			if slices.ContainsFunc(launchers, func(l jobBeingStopped) bool { return l.id == j.parentID && l.namespace == j.namespace }) &&
				!slices.ContainsFunc(others, func(o jobBeingStopped) bool { return o.id == j.id && o.namespace == j.namespace }) {
				others = append(others, j)
			}
		}
	}
	return errors.Join(err, stopJobs(ctx, o, c, others, s))
}

// listJobsToStop returns the jobs that have not ended, and with -purge also those that have. launchers are the periodic and
// parameterized jobs.
func (o *stopOptions) listJobsToStop(ctx context.Context, c *api.Client) (launchers, others []jobBeingStopped, err error) {
	jobs, _, err := c.Jobs().List(apiclient.QueryOptions(ctx, ""))
	if err != nil {
		return nil, nil, apiclient.WrapErrorWithAdvice("list jobs", err)
	}
	for _, j := range jobs {
		switch stopped := (jobBeingStopped{id: j.ID, namespace: apiclient.JobNamespace(j), parentID: j.ParentID}); {
		case j.Status == model.JobDead && !o.purge:
		case j.ParentID == "" && (j.Periodic || j.ParameterizedJob):
			launchers = append(launchers, stopped)
		default:
			others = append(others, stopped)
		}
	}
	return launchers, others, nil
}

// stopJobs stops jobs and prints how they end. An error of one job does not keep the others running: the errors of all are
// returned.
func stopJobs(ctx context.Context, o stopOptions, c *api.Client, jobs []jobBeingStopped, s *cli.Streams) error {
	var errs []error
	var stopped []jobBeingStopped
	for _, j := range jobs {
		err := j.stop(ctx, o, c)
		if err == nil {
			stopped = append(stopped, j)
		}
		errs = append(errs, err)
	}
	for _, j := range stopped {
		if ctx.Err() != nil {
			break
		}
		errs = append(errs, j.watchStopOrPrintEvalID(ctx, o, c, s))
	}
	return errors.Join(errs...)
}

// jobBeingStopped is a job that the command stops, with what it needs to watch the stop.
type jobBeingStopped struct {
	id, namespace string
	parentID      string                    // id of the job that has launched the job; set by listJobsToStop
	allocsToWatch []*api.AllocationListStub // allocations whose end the command waits for
	evalID        string                    // evaluation of the stop; empty if there is none
}

// stop requests the stop of the job.
func (j *jobBeingStopped) stop(ctx context.Context, o stopOptions, c *api.Client) (err error) {
	if !o.monitorFlags.Detach {
		if j.allocsToWatch, err = monitor.ListAllocsWithUnendedTasks(ctx, c, j.namespace, j.id); err != nil {
			return err
		}
	}
	j.evalID, _, err = c.Jobs().DeregisterOpts(j.id, &api.DeregisterOptions{
		Purge: o.purge, Global: o.allRegions, NoShutdownDelay: o.noShutdownDelay, EvalPriority: o.evalPriority,
	}, apiclient.WriteOptions(ctx, j.namespace))
	if err != nil {
		return apiclient.WrapErrorWithAdvice(fmt.Sprintf("stop job %q", j.id), err)
	}
	return nil
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
