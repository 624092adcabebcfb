package main

import (
	"context"
	"fmt"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
)

type jobStartOptions struct {
	client clientFlags
	watch  watchFlags
}

func newJobStartCommand(s *streams) *cobra.Command {
	var o jobStartOptions
	cmd := &cobra.Command{
		Use:   "start [flags] JOB",
		Short: "Run a job again that was stopped",
		Long: `Run a job again that was stopped, as it was in its last version.

Exit codes: those of 'job run'.`,
		Example:           `  nomad-lite job start web`,
		Args:              oneJob,
		ValidArgsFunction: firstArg(o.client.completeJobs("Stop == true")),
		RunE: func(cmd *cobra.Command, args []string) error {
			return startJob(cmd.Context(), o, args[0], s)
		},
	}
	o.client.register(cmd)
	o.watch.register(cmd)
	return cmd
}

func startJob(ctx context.Context, o jobStartOptions, prefix string, s *streams) error {
	c, job, err := o.client.readJob(ctx, prefix, -1)
	if err != nil {
		return err
	}
	id, namespace := valueOf(job.ID), valueOf(job.Namespace)
	if !valueOf(job.Stop) {
		hint := "To restart its tasks: nomad-lite job restart " + id
		if valueOf(job.Status) == "dead" {
			hint = "To run again what has failed: nomad-lite job eval -force-reschedule " + id
		}
		return fmt.Errorf("job %q was not stopped: its status is %q\n%s", id, valueOf(job.Status), hint)
	}
	// The new version keeps the source of the version that is started again.
	source, _, err := c.Jobs().Submission(id, int(valueOf(job.Version)), query(ctx, namespace))
	if err != nil || source == nil || source.Source == "" {
		source = nil
	}
	job.Stop = new(false)
	out, _, err := c.Jobs().RegisterOpts(job, &api.RegisterOptions{Submission: source}, write(ctx, namespace))
	if err != nil {
		return failed(fmt.Sprintf("start job %q", id), err)
	}
	return o.watch.watch(ctx, s, c, namespace, out.EvalID)
}
