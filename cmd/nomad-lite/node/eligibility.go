package node

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
)

const eligibilityHelp = `Change whether new allocations can be placed on a node. Allocations of the node
continue; to move them away: nomad-lite node drain.

Exit codes: 0, or 1 when the node refuses, for instance because it drains.`

const eligibilityExamples = `  nomad-lite node eligibility -disable -self
  nomad-lite node eligibility -enable -self`

type eligibilityOptions struct {
	clientFlags apiclient.Flags
	nodeFlags   nodeFlags
	enable      bool
	disable     bool
}

func newEligibilityCommand(s *cli.Streams) *cobra.Command {
	var o eligibilityOptions
	cmd := &cobra.Command{
		Use:     "eligibility [flags] [NODE]",
		Short:   "Change the scheduling eligibility of a node",
		Long:    eligibilityHelp,
		Example: eligibilityExamples,
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.enable == o.disable {
				return cli.UsageError(cmd, errors.New("takes either -enable or -disable"))
			}
			if err := o.nodeFlags.requireSelfOrNodeArg(cmd, args); err != nil {
				return err
			}
			return setEligibility(cmd.Context(), o, args, s)
		},
		ValidArgsFunction: cli.CompleteArgsByPosition(apiclient.CompleteID(&o.clientFlags, &apiclient.NodeLookup)),
	}
	o.clientFlags.Register(cmd)
	o.nodeFlags.register(cmd)
	cmd.Flags().BoolVar(&o.enable, "enable", false, "place new allocations on it again")
	cmd.Flags().BoolVar(&o.disable, "disable", false, "place no new allocations on it")
	return cmd
}

func setEligibility(ctx context.Context, o eligibilityOptions, args []string, s *cli.Streams) error {
	c, node, err := o.nodeFlags.connectAndFindNode(ctx, &o.clientFlags, args)
	if err != nil {
		return err
	}
	if _, err := c.Nodes().ToggleEligibility(node.ID, o.enable, apiclient.WriteOptions(ctx, "")); err != nil {
		return apiclient.WrapErrorWithAdvice(fmt.Sprintf("change eligibility of node %q", output.TruncateID(node.ID)), err)
	}
	is := "eligible"
	if o.disable {
		is = "ineligible"
	}
	_, err = fmt.Fprintf(s.Out, "Node %q scheduling eligibility set: %s for scheduling\n", node.ID, is)
	return err
}
