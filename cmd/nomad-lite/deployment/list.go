package deployment

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/tables"
)

type listOptions struct {
	clientFlags apiclient.Flags
	formatFlags output.FormatFlags
	pageFlags   apiclient.PageFlags
	verbose     bool
}

func newListCommand(s *cli.Streams) *cobra.Command {
	var o listOptions
	cmd := &cobra.Command{
		Use:   "list [flags]",
		Short: "List deployments",
		Long:  `List the deployments of all jobs, the newest first.`,
		Example: `  nomad-lite deployment list
  nomad-lite deployment list -filter 'Status == "running"'`,
		Args:              cli.RequireArgCount(0, 0, "no arguments"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return listDeployments(cmd.Context(), o, s)
		},
	}
	o.clientFlags.Register(cmd)
	o.formatFlags.Register(cmd)
	o.pageFlags.Register(cmd)
	cmd.Flags().BoolVar(&o.verbose, "verbose", false, "print whole ids")
	return cmd
}

func listDeployments(ctx context.Context, o listOptions, s *cli.Streams) error {
	c, err := o.clientFlags.Client()
	if err != nil {
		return err
	}
	all, meta, err := c.Deployments().List(o.pageFlags.QueryOptions(ctx))
	if err != nil {
		return apiclient.WrapErrorWithAdvice("list deployments", err)
	}
	return o.formatFlags.PrintValueOrPage(s, all, func(p *output.Page) {
		tables.PrintDeployments(p, all, o.verbose)
		p.AddNextPageHint(meta)
	})
}
