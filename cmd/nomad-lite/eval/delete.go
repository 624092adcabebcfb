package eval

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
)

type deleteOptions struct {
	clientFlags      apiclient.Flags
	filter           string
	skipConfirmation bool
}

func newDeleteCommand(s *cli.Streams) *cobra.Command {
	var o deleteOptions
	cmd := &cobra.Command{
		Use:   "delete [flags] [EVALUATION]",
		Short: "Delete evaluations while their processing is paused",
		Long: `Delete one evaluation, or all evaluations that match a filter.

The scheduler must have been paused first, with 'nomad-lite operator scheduler
set-config -pause-eval-broker=true'. A pending evaluation that is deleted is
never processed. Evaluations that have ended need no pause: they are deleted
after some time, and at once with 'nomad-lite system gc'.`,
		Example: `  nomad-lite eval delete 2ae0e6a5
  nomad-lite eval delete -yes -filter 'Status == "pending" and JobID == "web"'`,
		Args:              cli.RequireArgCount(0, 1, "the id of an evaluation, or -filter"),
		ValidArgsFunction: cli.CompleteArgsByPosition(apiclient.CompleteID(&o.clientFlags, &apiclient.EvaluationLookup)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if (len(args) == 1) == (o.filter != "") {
				return cli.UsageError(cmd, errors.New("takes either the id of an evaluation, or -filter"))
			}
			return deleteEvals(cmd.Context(), o, args, s)
		},
	}
	o.clientFlags.Register(cmd)
	cmd.Flags().StringVar(&o.filter, "filter", "", "delete what this `expression` is true of")
	cmd.Flags().BoolVar(&o.skipConfirmation, "yes", false, "do not ask")
	return cmd
}

func deleteEvals(ctx context.Context, o deleteOptions, evalIDArgs []string, s *cli.Streams) error {
	c, err := o.clientFlags.Client()
	if err != nil {
		return err
	}
	config, _, err := c.Operator().SchedulerGetConfiguration(apiclient.QueryOptions(ctx, ""))
	if err != nil {
		return apiclient.WrapErrorWithAdvice("read the configuration of the scheduler", err)
	}
	if config.SchedulerConfig == nil || !config.SchedulerConfig.PauseEvalBroker {
		return errors.New("delete evaluations: the scheduler is not paused, so it may be processing them\nTo pause it: nomad-lite operator scheduler set-config -pause-eval-broker=true\nEvaluations that have ended are deleted without a pause by nomad-lite system gc")
	}
	if o.filter == "" {
		eval, err := apiclient.FindOneByPrefix(ctx, c, &apiclient.EvaluationLookup, evalIDArgs[0])
		if err != nil {
			return err
		}
		if _, err := c.Evaluations().Delete([]string{eval.ID}, apiclient.WriteOptions(ctx, eval.Namespace)); err != nil {
			return apiclient.WrapErrorWithAdvice(fmt.Sprintf("delete evaluation %q", eval.ID), err)
		}
		_, err = fmt.Fprintln(s.Out, "Successfully deleted 1 evaluation")
		return err
	}
	q := apiclient.QueryOptions(ctx, "")
	q.Filter = o.filter
	count, _, err := c.Evaluations().Count(q)
	if err != nil {
		return apiclient.WrapErrorWithAdvice("count evaluations", err)
	}
	if !o.skipConfirmation {
		question := fmt.Sprintf("Are you sure you want to delete %s?", output.FormatCount(count.Count, "evaluation"))
		if err := s.Confirm(question, "Cancelling eval deletion"); err != nil {
			return err
		}
	}
	out, _, err := c.Evaluations().DeleteOpts(&api.EvalDeleteRequest{Filter: o.filter}, apiclient.WriteOptions(ctx, ""))
	if err != nil {
		return apiclient.WrapErrorWithAdvice("delete evaluations", err)
	}
	_, err = fmt.Fprintf(s.Out, "Successfully deleted %s\n", output.FormatCount(out.Count, "evaluation"))
	return err
}
