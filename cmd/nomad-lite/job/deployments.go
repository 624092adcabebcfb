package job

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/tables"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/taskreason"
)

type deploymentsOptions struct {
	clientFlags              apiclient.Flags
	formatFlags              output.FormatFlags
	onlyLatest               bool
	includeEarlierSameIDJobs bool
	verbose                  bool
}

func newDeploymentsCommand(s *cli.Streams) *cobra.Command {
	var o deploymentsOptions
	cmd := &cobra.Command{
		Use:   "deployments [flags] JOB",
		Short: "List the deployments of a job",
		Long:  `List the deployments of a job, the newest first, or show the latest one.`,
		Example: `  nomad-lite job deployments web
  nomad-lite job deployments -latest web`,
		Args:              apiclient.RequireOneJobArg,
		ValidArgsFunction: cli.CompleteArgsByPosition(o.clientFlags.CompleteJobs("")),
		RunE: func(cmd *cobra.Command, args []string) error {
			return listJobDeployments(cmd.Context(), o, args[0], s)
		},
	}
	o.clientFlags.Register(cmd)
	o.formatFlags.Register(cmd)
	cmd.Flags().BoolVar(&o.onlyLatest, "latest", false, "show the latest one only, and how far it is")
	cmd.Flags().BoolVar(&o.includeEarlierSameIDJobs, "all", false, "list also the deployments of an earlier job with this id")
	cmd.Flags().BoolVar(&o.verbose, "verbose", false, "print whole ids")
	return cmd
}

func listJobDeployments(ctx context.Context, o deploymentsOptions, jobIDPrefix string, s *cli.Streams) error {
	c, id, namespace, err := o.clientFlags.FindJob(ctx, jobIDPrefix, "")
	if err != nil {
		return err
	}
	p := output.NewPage(s)
	if o.onlyLatest {
		d, _, err := c.Jobs().LatestDeployment(id, apiclient.QueryOptions(ctx, namespace))
		switch {
		case err != nil:
			return apiclient.WrapErrorWithAdvice(fmt.Sprintf("read deployment of job %q", id), err)
		case o.formatFlags.IsSet():
			return o.formatFlags.Print(s, d)
		case d == nil || d.ID == "":
			tables.PrintDeployments(p, nil, false)
		default:
			job, _, err := c.Jobs().Info(id, apiclient.QueryOptions(ctx, namespace))
			if err != nil {
				return apiclient.WrapErrorWithAdvice(fmt.Sprintf("read job %q", id), err)
			}
			failure := taskreason.DescribeFailedDeployment(ctx, c, d, job)
			tables.PrintDeployment(p, d, failure.Reason, failure.Remedy, o.verbose)
		}
		return output.PrintPage(s, p)
	}
	all, _, err := c.Jobs().Deployments(id, o.includeEarlierSameIDJobs, apiclient.QueryOptions(ctx, namespace))
	if err != nil {
		return apiclient.WrapErrorWithAdvice(fmt.Sprintf("list deployments of job %q", id), err)
	}
	if o.formatFlags.IsSet() {
		return o.formatFlags.Print(s, all)
	}
	tables.PrintDeployments(p, all, o.verbose)
	return output.PrintPage(s, p)
}
