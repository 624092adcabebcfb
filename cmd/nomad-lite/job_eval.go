package main

import (
	"context"
	"fmt"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
)

type jobEvalOptions struct {
	client     clientFlags
	watch      watchFlags
	reschedule bool
}

func newJobEvalCommand(s *streams) *cobra.Command {
	var o jobEvalOptions
	cmd := &cobra.Command{
		Use:   "eval [flags] JOB",
		Short: "Let the scheduler look at a job again",
		Long: `Let the scheduler look at a job again.

With -force-reschedule failed allocations are replaced at once, even if their
policy says later or never.

Exit codes: those of 'job run'.`,
		Example:           `  nomad-lite job eval -force-reschedule web`,
		Args:              oneJob,
		ValidArgsFunction: firstArg(o.client.completeJobs("")),
		RunE: func(cmd *cobra.Command, args []string) error {
			return evalJob(cmd.Context(), o, args[0], s)
		},
	}
	o.client.register(cmd)
	o.watch.register(cmd)
	cmd.Flags().BoolVar(&o.reschedule, "force-reschedule", false, "replace failed allocations now")
	return cmd
}

func evalJob(ctx context.Context, o jobEvalOptions, prefix string, s *streams) error {
	c, id, namespace, err := o.client.findJob(ctx, prefix, "")
	if err != nil {
		return err
	}
	evalID, _, err := c.Jobs().EvaluateWithOpts(id, api.EvalOptions{ForceReschedule: o.reschedule}, write(ctx, namespace))
	if err != nil {
		return failed(fmt.Sprintf("evaluate job %q", id), err)
	}
	return o.watch.watch(ctx, s, c, namespace, evalID)
}
