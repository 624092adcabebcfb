package job

import (
	"context"
	"fmt"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/monitor"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
)

type evalOptions struct {
	clientFlags     apiclient.Flags
	monitorFlags    monitor.Flags
	forceReschedule bool
}

func newEvalCommand(s *cli.Streams) *cobra.Command {
	var o evalOptions
	cmd := &cobra.Command{
		Use:   "eval [flags] JOB",
		Short: "Create an evaluation for a job",
		Long: `Create an evaluation, so that the scheduler processes a job again.

With -force-reschedule failed allocations are replaced at once, even if their
policy says later or never.

Exit codes: as for 'job run'.`,
		Example:           `  nomad-lite job eval -force-reschedule web`,
		Args:              apiclient.RequireOneJobArg,
		ValidArgsFunction: cli.CompleteArgsByPosition(o.clientFlags.CompleteJobs("")),
		RunE: func(cmd *cobra.Command, args []string) error {
			return createJobEvaluation(cmd.Context(), o, args[0], s)
		},
	}
	o.clientFlags.Register(cmd)
	o.monitorFlags.Register(cmd)
	cmd.Flags().BoolVar(&o.forceReschedule, "force-reschedule", false, "replace failed allocations now")
	return cmd
}

func createJobEvaluation(ctx context.Context, o evalOptions, jobIDPrefix string, s *cli.Streams) error {
	c, id, namespace, err := o.clientFlags.FindJob(ctx, jobIDPrefix, "")
	if err != nil {
		return err
	}
	evalID, _, err := c.Jobs().EvaluateWithOpts(id, api.EvalOptions{ForceReschedule: o.forceReschedule}, apiclient.WriteOptions(ctx, namespace))
	if err != nil {
		return apiclient.WrapErrorWithAdvice(fmt.Sprintf("evaluate job %q", id), err)
	}
	if o.monitorFlags.Detach {
		_, err := fmt.Fprintf(s.Out, "Created eval ID: %q \n", output.TruncateID(evalID)) // the space is Nomad's
		return err
	}
	return o.monitorFlags.WatchEvaluationOrPrintID(ctx, s, c, namespace, evalID)
}
