package node

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

// NewCommand returns the command "node" with its subcommands.
func NewCommand(s *cli.Streams) *cobra.Command {
	return cli.NewGroupCommand("node", "Inspect, drain and configure nodes",
		newStatusCommand(s),
		newDrainCommand(s),
		newEligibilityCommand(s),
		newMetaCommand(s),
		cli.NewUnsupportedCommand("config", cli.NoServersReason),
		cli.NewUnsupportedCommand("identity", cli.NoServersReason),
		cli.NewUnsupportedCommand("intro", "a node of nomad-lite is its own agent, so no cluster needs to admit it"),
		newPoolCommand(s),
	)
}

// nodeFlags are the flags of a command whose node is selected either by -self or by the argument.
type nodeFlags struct {
	self bool
}

func (f *nodeFlags) register(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.self, "self", false, "take the node of the agent that is asked")
}

// requireSelfOrNodeArg returns an error unless the command line has either -self or the id of a node.
func (f *nodeFlags) requireSelfOrNodeArg(cmd *cobra.Command, args []string) error {
	switch {
	case f.self && len(args) > 0:
		return cli.UsageError(cmd, errors.New("-self and a node exclude each other"))
	case !f.self && len(args) != 1:
		return cli.UsageError(cmd, errors.New("takes the id of a node, or -self; 'nomad-lite node status' lists the nodes"))
	}
	return nil
}

// connectAndFindNode returns the selected node, and a client of the agent.
func (f *nodeFlags) connectAndFindNode(ctx context.Context, clientFlags *apiclient.Flags, args []string) (*api.Client, *api.Node, error) {
	c, err := clientFlags.Client()
	if err != nil {
		return nil, nil, err
	}
	var id string
	if f.self {
		if id, err = apiclient.LocalNodeID(c); err != nil {
			return nil, nil, err
		}
	} else {
		found, err := apiclient.FindOneByPrefix(ctx, c, &apiclient.NodeLookup, args[0])
		if err != nil {
			return nil, nil, err
		}
		id = found.ID
	}
	node, _, err := c.Nodes().Info(id, apiclient.QueryOptions(ctx, ""))
	if err != nil {
		return nil, nil, apiclient.WrapErrorWithAdvice(fmt.Sprintf("read node %q", output.TruncateID(id)), err)
	}
	return c, node, nil
}
