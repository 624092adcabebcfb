package deployment

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/monitor"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
)

type statusOptions struct {
	clientFlags apiclient.Flags
	formatFlags output.FormatFlags
	monitor     bool
	verbose     bool
}

func newStatusCommand(s *cli.Streams) *cobra.Command {
	var o statusOptions
	cmd := &cobra.Command{
		Use:   "status [flags] [DEPLOYMENT]",
		Short: "Show the status of a deployment",
		Long: `Show the status of a deployment; without an id, list all deployments.

With -monitor it is watched until it ends; the exit code is then 0 if it
succeeded, else 1.`,
		Example: `  nomad-lite deployment status 8fd7b6dd
  nomad-lite deployment status -monitor 8fd7b6dd`,
		Args:              cli.RequireArgCount(0, 1, "at most one argument: the id of a deployment, or its beginning"),
		ValidArgsFunction: cli.CompleteArgsByPosition(apiclient.CompleteID(&o.clientFlags, &apiclient.DeploymentLookup)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return listDeployments(cmd.Context(), listOptions{clientFlags: o.clientFlags, formatFlags: o.formatFlags, verbose: o.verbose}, s)
			}
			return showDeployment(cmd.Context(), o, args[0], s)
		},
	}
	o.clientFlags.Register(cmd)
	o.formatFlags.Register(cmd)
	cmd.Flags().BoolVar(&o.monitor, "monitor", false, "watch until it ends")
	cmd.Flags().BoolVar(&o.verbose, "verbose", false, "print whole ids, and the allocations")
	return cmd
}

func showDeployment(ctx context.Context, o statusOptions, deploymentIDPrefix string, s *cli.Streams) error {
	c, d, err := apiclient.ConnectAndFind(ctx, &o.clientFlags, &apiclient.DeploymentLookup, deploymentIDPrefix)
	if err != nil {
		return err
	}
	cli.SetPageForUIFlag(ctx, cli.JobWebPagePath(d.JobID, d.Namespace)+"/deployments")
	if o.formatFlags.IsSet() {
		return o.formatFlags.Print(s, d)
	}
	m := monitor.New(s, c, d.Namespace, o.verbose)
	if o.monitor {
		return m.WatchDeploymentAndRollback(ctx, d.ID)
	}
	p := output.NewPage(s)
	if err := m.AddDeploymentState(ctx, p, d, time.Now()); err != nil {
		return err
	}
	return output.PrintPage(s, p)
}
