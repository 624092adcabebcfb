package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
)

type jobPeriodicForceOptions struct {
	client clientFlags
	watch  watchFlags
}

func newJobPeriodicCommand(s *streams) *cobra.Command {
	return group("periodic", "Look after periodic jobs", newJobPeriodicForceCommand(s))
}

func newJobPeriodicForceCommand(s *streams) *cobra.Command {
	var o jobPeriodicForceOptions
	cmd := &cobra.Command{
		Use:   "force [flags] JOB",
		Short: "Run a periodic job now",
		Long: `Run a periodic job now, even if prohibit_overlap forbids it and an instance
runs.

Exit codes: those of 'job run'.`,
		Example:           `  nomad-lite job periodic force backup`,
		Args:              oneJob,
		ValidArgsFunction: firstArg(o.client.completeJobs(onlyPeriodic)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return forcePeriodic(cmd.Context(), o, args[0], s)
		},
	}
	o.client.register(cmd)
	o.watch.register(cmd)
	return cmd
}

func forcePeriodic(ctx context.Context, o jobPeriodicForceOptions, prefix string, s *streams) error {
	c, id, namespace, err := o.client.findJob(ctx, prefix, onlyPeriodic)
	if err != nil {
		return err
	}
	evalID, _, err := c.Jobs().PeriodicForce(id, write(ctx, namespace))
	if err != nil {
		return failed(fmt.Sprintf("force periodic job %q", id), err)
	}
	if o.watch.detach {
		fmt.Fprintln(s.out, "Force periodic successful")
	}
	return o.watch.watch(ctx, s, c, namespace, evalID)
}
