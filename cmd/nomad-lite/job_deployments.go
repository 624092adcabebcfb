package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
)

type jobDeploymentsOptions struct {
	client  clientFlags
	format  formatFlags
	latest  bool
	all     bool
	verbose bool
}

func newJobDeploymentsCommand(s *streams) *cobra.Command {
	var o jobDeploymentsOptions
	cmd := &cobra.Command{
		Use:   "deployments [flags] JOB",
		Short: "List the deployments of a job",
		Long:  `List the deployments of a job, the newest first, or show the latest one.`,
		Example: `  nomad-lite job deployments web
  nomad-lite job deployments -latest web`,
		Args:              oneJob,
		ValidArgsFunction: firstArg(o.client.completeJobs("")),
		RunE: func(cmd *cobra.Command, args []string) error {
			return jobDeployments(cmd.Context(), o, args[0], s)
		},
	}
	o.client.register(cmd)
	o.format.register(cmd)
	cmd.Flags().BoolVar(&o.latest, "latest", false, "show the latest one only, and how far it is")
	cmd.Flags().BoolVar(&o.all, "all", false, "list also those of an earlier job with this id")
	cmd.Flags().BoolVar(&o.verbose, "verbose", false, "print whole ids")
	return cmd
}

func jobDeployments(ctx context.Context, o jobDeploymentsOptions, prefix string, s *streams) error {
	c, id, namespace, err := o.client.findJob(ctx, prefix, "")
	if err != nil {
		return err
	}
	p := s.page()
	if o.latest {
		d, _, err := c.Jobs().LatestDeployment(id, query(ctx, namespace))
		switch {
		case err != nil:
			return failed(fmt.Sprintf("read deployment of job %q", id), err)
		case o.format.wanted():
			return o.format.print(s, d)
		case d == nil || d.ID == "":
			p.deployments(nil, false)
		default:
			p.deployment(d, o.verbose)
		}
		return s.show(p)
	}
	all, _, err := c.Jobs().Deployments(id, o.all, query(ctx, namespace))
	if err != nil {
		return failed(fmt.Sprintf("list deployments of job %q", id), err)
	}
	if o.format.wanted() {
		return o.format.print(s, all)
	}
	p.deployments(all, o.verbose)
	return s.show(p)
}
