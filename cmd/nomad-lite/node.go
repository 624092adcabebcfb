package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
)

func newNodeCommand(s *streams) *cobra.Command {
	return group("node", "Look at nodes, and take them out of service",
		newNodeStatusCommand(s),
		newNodeDrainCommand(s),
		newNodeEligibilityCommand(s),
		newNodeMetaCommand(s),
		clusterCommands("config", noServers),
		clusterCommands("identity", noServers),
		newNodePoolCommand(s),
	)
}

// nodeFlags select the node of a command, beside its argument.
type nodeFlags struct {
	self bool
}

func (f *nodeFlags) register(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.self, "self", false, "take the node of the agent that is asked")
}

// check requires either -self or one argument.
func (f *nodeFlags) check(cmd *cobra.Command, args []string) error {
	switch {
	case f.self && len(args) > 0:
		return usageError(cmd, errors.New("-self and a node exclude each other"))
	case !f.self && len(args) != 1:
		return usageError(cmd, errors.New("takes the id of a node, or -self; 'nomad-lite node status' lists the nodes"))
	}
	return nil
}

// find returns the selected node, and a client of the agent that has it.
func (f *nodeFlags) find(ctx context.Context, client *clientFlags, args []string) (*api.Client, *api.Node, error) {
	c, err := client.client()
	if err != nil {
		return nil, nil, err
	}
	var id string
	if f.self {
		if id, err = ownNode(c); err != nil {
			return nil, nil, err
		}
	} else {
		found, err := nodeKind.find(ctx, c, args[0])
		if err != nil {
			return nil, nil, err
		}
		id = found.ID
	}
	node, _, err := c.Nodes().Info(id, query(ctx, ""))
	if err != nil {
		return nil, nil, failed(fmt.Sprintf("read node %q", short(id)), err)
	}
	return c, node, nil
}

// ownNode returns the node id of the client's agent.
func ownNode(c *api.Client) (string, error) {
	self, err := agentSelf(c)
	if err != nil {
		return "", err
	}
	if id := self.Stats["client"]["node_id"]; id != "" {
		return id, nil
	}
	return "", errors.New("the agent that was asked is not a node itself: name a node instead of -self")
}
