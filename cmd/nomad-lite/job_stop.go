package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
)

const jobStopHelp = `Stop a job: its tasks end in order, and the agent keeps its record.

With -purge the job is forgotten as well.`

type jobStopOptions struct {
	client          clientFlags
	purge           bool
	detach          bool
	noShutdownDelay bool
}

func newJobStopCommand(s *streams) *cobra.Command {
	var o jobStopOptions
	cmd := &cobra.Command{
		Use:   "stop [flags] JOB",
		Short: "Stop a job",
		Long:  jobStopHelp,
		Args:  oneJob,
		RunE: func(cmd *cobra.Command, args []string) error {
			return stopJob(cmd.Context(), o, args[0], s)
		},
	}
	o.client.register(cmd)
	cmd.Flags().BoolVar(&o.purge, "purge", false, "forget the job as well")
	cmd.Flags().BoolVar(&o.detach, "detach", false, "do not watch: print the id of the evaluation and return")
	cmd.Flags().BoolVar(&o.noShutdownDelay, "no-shutdown-delay", false, "do not wait for the shutdown_delay of the tasks")
	return cmd
}

func oneJob(cmd *cobra.Command, args []string) error {
	if len(args) == 1 {
		return nil
	}
	return usageError(cmd, errors.New("takes one argument: the id of a job"))
}

func stopJob(ctx context.Context, o jobStopOptions, id string, s *streams) error {
	client, err := o.client.client()
	if err != nil {
		return err
	}
	job, _, err := client.Jobs().Info(id, (&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		return failed(fmt.Sprintf("stop job %q", id), err)
	}
	namespace := *job.Namespace
	evalID, _, err := client.Jobs().DeregisterOpts(id, &api.DeregisterOptions{
		Purge: o.purge, NoShutdownDelay: o.noShutdownDelay,
	}, (&api.WriteOptions{Namespace: namespace}).WithContext(ctx))
	if err != nil {
		return failed(fmt.Sprintf("stop job %q", id), err)
	}
	switch {
	case evalID == "":
		return nil
	case o.detach:
		_, err := fmt.Fprintln(s.out, evalID)
		return err
	}
	m := &monitor{client: client, out: s.out, namespace: namespace}
	return m.evaluation(ctx, evalID)
}
