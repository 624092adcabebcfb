package main

import (
	"context"

	"github.com/spf13/cobra"
)

type deploymentStatusOptions struct {
	client  clientFlags
	format  formatFlags
	monitor bool
	verbose bool
}

func newDeploymentStatusCommand(s *streams) *cobra.Command {
	var o deploymentStatusOptions
	cmd := &cobra.Command{
		Use:   "status [flags] [DEPLOYMENT]",
		Short: "Show one deployment, and how far it is",
		Long: `Show one deployment, and how far it is; without an id, list all of them.

With -monitor it is watched until it ends; the exit code is then 0 if it
succeeded, else 1.`,
		Example: `  nomad-lite deployment status 8fd7b6dd
  nomad-lite deployment status -monitor 8fd7b6dd`,
		Args:              argCount(0, 1, "at most one argument: the id of a deployment, or its beginning"),
		ValidArgsFunction: firstArg(deploymentKind.complete(&o.client)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return listDeployments(cmd.Context(), deploymentListOptions{client: o.client, format: o.format, verbose: o.verbose}, s)
			}
			return showDeployment(cmd.Context(), o, args[0], s)
		},
	}
	o.client.register(cmd)
	o.format.register(cmd)
	cmd.Flags().BoolVar(&o.monitor, "monitor", false, "watch until it ends")
	cmd.Flags().BoolVar(&o.verbose, "verbose", false, "print whole ids, and the allocations")
	return cmd
}

func showDeployment(ctx context.Context, o deploymentStatusOptions, prefix string, s *streams) error {
	c, err := o.client.client()
	if err != nil {
		return err
	}
	d, err := deploymentKind.find(ctx, c, prefix)
	if err != nil {
		return err
	}
	if o.format.wanted() {
		return o.format.print(s, d)
	}
	m := newMonitor(s, c, d.Namespace, o.verbose)
	if o.monitor {
		return m.deployment(ctx, d.ID)
	}
	p := s.page()
	if err := m.state(ctx, p, d); err != nil {
		return err
	}
	return s.show(p)
}
