package job

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/monitor"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
)

type promoteOptions struct {
	clientFlags  apiclient.Flags
	monitorFlags monitor.Flags
	groups       []string
}

func newPromoteCommand(s *cli.Streams) *cobra.Command {
	var o promoteOptions
	cmd := &cobra.Command{
		Use:   "promote [flags] JOB",
		Short: "Promote the canaries of a job",
		Long: `Promote the canaries of a job: the old allocations are replaced by the
new version. All canaries must be healthy.

Exit codes: as for 'job run'.`,
		Example: `  nomad-lite job promote web
  nomad-lite job promote -group frontend web`,
		Args:              apiclient.RequireOneJobArg,
		ValidArgsFunction: cli.CompleteArgsByPosition(o.clientFlags.CompleteJobs("")),
		RunE: func(cmd *cobra.Command, args []string) error {
			return promoteLatestDeployment(cmd.Context(), o, args[0], s)
		},
	}
	o.clientFlags.Register(cmd)
	o.monitorFlags.Register(cmd)
	cmd.Flags().StringArrayVar(&o.groups, "group", nil, "only this `group`; may be repeated")
	return cmd
}

func promoteLatestDeployment(ctx context.Context, o promoteOptions, jobIDPrefix string, s *cli.Streams) error {
	c, id, namespace, err := o.clientFlags.FindJob(ctx, jobIDPrefix, "")
	if err != nil {
		return err
	}
	d, _, err := c.Jobs().LatestDeployment(id, apiclient.QueryOptions(ctx, namespace))
	if err != nil {
		return apiclient.WrapErrorWithAdvice(fmt.Sprintf("read deployment of job %q", id), err)
	}
	if d == nil || d.ID == "" {
		return fmt.Errorf("job %q has no deployment to promote\nCanaries come from 'canary' in an update block of the job", id)
	}
	out, _, err := apiclient.PromoteDeploymentGroupsOrAll(c.Deployments(), d, o.groups, apiclient.WriteOptions(ctx, namespace))
	if err != nil {
		return apiclient.WrapErrorWithAdvice(fmt.Sprintf("promote deployment %q of job %q", output.TruncateID(d.ID), id), err)
	}
	return o.monitorFlags.WatchEvaluationOrPrintID(ctx, s, c, namespace, out.EvalID)
}
