package apiclient

import (
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
