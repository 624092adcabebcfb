package main

import (
	"cmp"
	"context"
	"slices"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
)

type deploymentListOptions struct {
	client  clientFlags
	format  formatFlags
	page    pageFlags
	verbose bool
}

func newDeploymentListCommand(s *streams) *cobra.Command {
	var o deploymentListOptions
	cmd := &cobra.Command{
		Use:   "list [flags]",
		Short: "List deployments",
		Long:  `List the deployments of all jobs, the newest first.`,
		Example: `  nomad-lite deployment list
  nomad-lite deployment list -filter 'Status == "running"'`,
		Args:              argCount(0, 0, "no arguments"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return listDeployments(cmd.Context(), o, s)
		},
	}
	o.client.register(cmd)
	o.format.register(cmd)
	o.page.register(cmd)
	cmd.Flags().BoolVar(&o.verbose, "verbose", false, "print whole ids")
	return cmd
}

func listDeployments(ctx context.Context, o deploymentListOptions, s *streams) error {
	c, err := o.client.client()
	if err != nil {
		return err
	}
	all, meta, err := c.Deployments().List(o.page.query(ctx))
	if err != nil {
		return failed("list deployments", err)
	}
	return o.format.show(s, all, func(p *page) {
		p.deployments(all, o.verbose)
		p.more(meta)
	})
}

// deployments adds a table of deployments, the newest first.
func (p *page) deployments(all []*api.Deployment, verbose bool) {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b *api.Deployment) int { return cmp.Compare(b.CreateIndex, a.CreateIndex) })
	t := newTable("ID", "Job ID", "Job Version", "Status", "Description")
	for _, d := range all {
		t.row(shortID(d.ID, verbose), d.JobID, d.JobVersion, statusCell(d.Status), d.StatusDescription)
	}
	p.tableOr(t, "No deployments found")
}
