package job

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/monitor"
)

type periodicForceOptions struct {
	clientFlags  apiclient.Flags
	monitorFlags monitor.Flags
}

func newPeriodicCommand(s *cli.Streams) *cobra.Command {
	return cli.NewGroupCommand("periodic", "Manage periodic jobs", newPeriodicForceCommand(s))
}

func newPeriodicForceCommand(s *cli.Streams) *cobra.Command {
	var o periodicForceOptions
	cmd := &cobra.Command{
		Use:   "force [flags] JOB",
		Short: "Launch a periodic job now",
		Long: `Launch a periodic job now, even if an instance runs and prohibit_overlap is set.

Exit codes: as for 'job run'.`,
		Example:           `  nomad-lite job periodic force backup`,
		Args:              apiclient.RequireOneJobArg,
		ValidArgsFunction: cli.CompleteArgsByPosition(o.clientFlags.CompleteJobs(apiclient.PeriodicJobsFilter)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return forcePeriodicLaunch(cmd.Context(), o, args[0], s)
		},
	}
	o.clientFlags.Register(cmd)
	o.monitorFlags.Register(cmd)
	return cmd
}

func forcePeriodicLaunch(ctx context.Context, o periodicForceOptions, jobIDPrefix string, s *cli.Streams) error {
	c, id, namespace, err := o.clientFlags.FindJob(ctx, jobIDPrefix, apiclient.PeriodicJobsFilter)
	if err != nil {
		return err
	}
	evalID, _, err := c.Jobs().PeriodicForce(id, apiclient.WriteOptions(ctx, namespace))
	if err != nil {
		return apiclient.WrapErrorWithAdvice(fmt.Sprintf("force periodic job %q", id), err)
	}
	if o.monitorFlags.Detach {
		fmt.Fprintln(s.Out, "Force periodic successful")
	}
	return o.monitorFlags.WatchEvaluationOrPrintID(ctx, s, c, namespace, evalID)
}
