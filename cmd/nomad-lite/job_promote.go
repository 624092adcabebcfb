package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
)

type jobPromoteOptions struct {
	client clientFlags
	watch  watchFlags
	groups []string
}

func newJobPromoteCommand(s *streams) *cobra.Command {
	var o jobPromoteOptions
	cmd := &cobra.Command{
		Use:   "promote [flags] JOB",
		Short: "Let the canaries of a job take over",
		Long: `Let the canaries of a job take over: the old allocations are replaced by the
new version. All canaries must be healthy.

Exit codes: those of 'job run'.`,
		Example: `  nomad-lite job promote web
  nomad-lite job promote -group frontend web`,
		Args:              oneJob,
		ValidArgsFunction: firstArg(o.client.completeJobs("")),
		RunE: func(cmd *cobra.Command, args []string) error {
			return promoteJob(cmd.Context(), o, args[0], s)
		},
	}
	o.client.register(cmd)
	o.watch.register(cmd)
	cmd.Flags().StringArrayVar(&o.groups, "group", nil, "only this `group`; may be repeated")
	return cmd
}

func promoteJob(ctx context.Context, o jobPromoteOptions, prefix string, s *streams) error {
	c, id, namespace, err := o.client.findJob(ctx, prefix, "")
	if err != nil {
		return err
	}
	d, _, err := c.Jobs().LatestDeployment(id, query(ctx, namespace))
	if err != nil {
		return failed(fmt.Sprintf("read deployment of job %q", id), err)
	}
	if d == nil || d.ID == "" {
		return fmt.Errorf("job %q has no deployment to promote\nCanaries come from 'canary' in an update block of the job", id)
	}
	out, _, err := promote(c.Deployments(), d, o.groups, write(ctx, namespace))
	if err != nil {
		return failed(fmt.Sprintf("promote deployment %q of job %q", short(d.ID), id), err)
	}
	return o.watch.watch(ctx, s, c, namespace, out.EvalID)
}
