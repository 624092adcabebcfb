package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
)

type evalDeleteOptions struct {
	client clientFlags
	filter string
	yes    bool
}

func newEvalDeleteCommand(s *streams) *cobra.Command {
	var o evalDeleteOptions
	cmd := &cobra.Command{
		Use:   "delete [flags] [EVALUATION]",
		Short: "Delete evaluations of a cluster whose scheduler is overwhelmed",
		Long: `Delete one evaluation, or all that a filter is true of.

This is for a Nomad cluster whose scheduler is overwhelmed: it must have been
paused first, with 'nomad operator scheduler set-config -pause-eval-broker true'.
An agent of nomad-lite forgets old evaluations by itself; 'nomad-lite system gc'
makes it do so now.`,
		Example: `  nomad-lite eval delete 2ae0e6a5
  nomad-lite eval delete -yes -filter 'Status == "pending" and JobID == "web"'`,
		Args:              argCount(0, 1, "the id of an evaluation, or -filter"),
		ValidArgsFunction: firstArg(evalKind.complete(&o.client)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if (len(args) == 1) == (o.filter != "") {
				return usageError(cmd, errors.New("takes either the id of an evaluation, or -filter"))
			}
			return deleteEvals(cmd.Context(), o, args, s)
		},
	}
	o.client.register(cmd)
	cmd.Flags().StringVar(&o.filter, "filter", "", "delete what this `expression` is true of")
	cmd.Flags().BoolVar(&o.yes, "yes", false, "do not ask")
	return cmd
}

func deleteEvals(ctx context.Context, o evalDeleteOptions, args []string, s *streams) error {
	c, err := o.client.client()
	if err != nil {
		return err
	}
	config, _, err := c.Operator().SchedulerGetConfiguration(query(ctx, ""))
	if err != nil {
		return failed("read the configuration of the scheduler", err)
	}
	if config.SchedulerConfig == nil || !config.SchedulerConfig.PauseEvalBroker {
		return errors.New("delete evaluations: the scheduler is not paused, so they might be at work\nPause it first: nomad operator scheduler set-config -pause-eval-broker true")
	}
	if o.filter == "" {
		eval, err := evalKind.find(ctx, c, args[0])
		if err != nil {
			return err
		}
		if _, err := c.Evaluations().Delete([]string{eval.ID}, write(ctx, eval.Namespace)); err != nil {
			return failed(fmt.Sprintf("delete evaluation %q", eval.ID), err)
		}
		_, err = fmt.Fprintln(s.out, "Successfully deleted 1 evaluation")
		return err
	}
	q := query(ctx, "")
	q.Filter = o.filter
	count, _, err := c.Evaluations().Count(q)
	if err != nil {
		return failed("count evaluations", err)
	}
	if !o.yes {
		if err := s.confirm(fmt.Sprintf("Delete %s?", counted(count.Count, "evaluation"))); err != nil {
			return err
		}
	}
	out, _, err := c.Evaluations().DeleteOpts(&api.EvalDeleteRequest{Filter: o.filter}, write(ctx, ""))
	if err != nil {
		return failed("delete evaluations", err)
	}
	_, err = fmt.Fprintf(s.out, "Successfully deleted %s\n", counted(out.Count, "evaluation"))
	return err
}
