package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
)

const nodeEligibilityHelp = `Say whether new allocations may be placed on a node. Those that are there go on; to
move them away: nomad-lite node drain.

Exit codes: 0, or 1 when the node refuses, for instance because it drains.`

const nodeEligibilityExamples = `  nomad-lite node eligibility -disable -self
  nomad-lite node eligibility -enable -self`

type nodeEligibilityOptions struct {
	client  clientFlags
	node    nodeFlags
	enable  bool
	disable bool
}

func newNodeEligibilityCommand(s *streams) *cobra.Command {
	var o nodeEligibilityOptions
	cmd := &cobra.Command{
		Use:     "eligibility [flags] [NODE]",
		Short:   "Say whether a node takes new allocations",
		Long:    nodeEligibilityHelp,
		Example: nodeEligibilityExamples,
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.enable == o.disable {
				return usageError(cmd, errors.New("takes either -enable or -disable"))
			}
			if err := o.node.check(cmd, args); err != nil {
				return err
			}
			return setEligibility(cmd.Context(), o, args, s)
		},
		ValidArgsFunction: firstArg(nodeKind.complete(&o.client)),
	}
	o.client.register(cmd)
	o.node.register(cmd)
	cmd.Flags().BoolVar(&o.enable, "enable", false, "place new allocations on it again")
	cmd.Flags().BoolVar(&o.disable, "disable", false, "place no new allocations on it")
	return cmd
}

func setEligibility(ctx context.Context, o nodeEligibilityOptions, args []string, s *streams) error {
	c, node, err := o.node.find(ctx, &o.client, args)
	if err != nil {
		return err
	}
	if _, err := c.Nodes().ToggleEligibility(node.ID, o.enable, write(ctx, "")); err != nil {
		return failed(fmt.Sprintf("change eligibility of node %q", short(node.ID)), err)
	}
	is := "eligible"
	if o.disable {
		is = "ineligible"
	}
	_, err = fmt.Fprintf(s.out, "Node %q scheduling eligibility set: %s for scheduling\n", node.ID, is)
	return err
}
