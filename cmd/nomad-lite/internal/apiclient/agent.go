package apiclient

import (
	"context"
	"errors"
	"net/http"

	"github.com/hashicorp/nomad/api"
)

// ReadAgentSelf returns the agent's description of itself. It does not call api.Agent.Self, which panics on an empty
// response.
func ReadAgentSelf(c *api.Client) (*api.AgentSelf, error) {
	var agentSelf api.AgentSelf
	if _, err := c.Raw().Query("/v1/agent/self", &agentSelf, nil); err != nil {
		return nil, WrapErrorWithAdvice("ask the agent about itself", err)
	}
	return &agentSelf, nil
}

// LocalNodeID returns the ID of the node that the client's agent runs.
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

// ServersDecide reports whether the client's agent is a node of a cluster, so that its servers decide which jobs they accept and
// where they run. It also returns true if the token cannot read the agent, because only tokens of a cluster have such limits.
func ServersDecide(c *api.Client) bool {
	self, err := ReadAgentSelf(c)
	var refused api.UnexpectedResponseError
	if errors.As(err, &refused) {
		return refused.StatusCode() == http.StatusForbidden
	}
	return err == nil && self.Stats["nomad"] == nil && self.Stats["client"]["known_servers"] != ""
}

// FindOnlyNode returns the only node that the client's agent lists. It returns nil for a cluster of several nodes, and
// for a token that cannot read nodes.
func FindOnlyNode(ctx context.Context, c *api.Client) *api.Node {
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
