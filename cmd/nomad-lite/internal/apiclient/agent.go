package apiclient

import (
	"context"
	"errors"

	"github.com/hashicorp/nomad/api"
)

// ReadAgentSelf returns the agent's description of itself. The Go client's own method panics on
// an empty answer.
func ReadAgentSelf(c *api.Client) (*api.AgentSelf, error) {
	var agentSelf api.AgentSelf
	if _, err := c.Raw().Query("/v1/agent/self", &agentSelf, nil); err != nil {
		return nil, WrapError("ask the agent about itself", err)
	}
	return &agentSelf, nil
}

// LocalNodeID returns the node id of the client's agent.
func LocalNodeID(c *api.Client) (string, error) {
	self, err := ReadAgentSelf(c)
	if err != nil {
		return "", err
	}
	if id := self.Stats["client"]["node_id"]; id != "" {
		return id, nil
	}
	return "", errors.New("the agent that was asked is not a node itself: name a node instead of -self")
}

// SingleNode returns the node of an agent. It returns nil for a cluster of several nodes, and for a
// client that cannot read nodes.
func SingleNode(ctx context.Context, c *api.Client) *api.Node {
	nodes, _, err := c.Nodes().List(QueryOptions(ctx, ""))
	if err != nil || len(nodes) != 1 {
		return nil
	}
	node, _, err := c.Nodes().Info(nodes[0].ID, QueryOptions(ctx, ""))
	if err != nil {
		return nil
	}
	return node
}
