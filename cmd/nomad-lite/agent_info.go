package main

import (
	"maps"
	"slices"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
)

const agentInfoHelp = `Show what the agent says of itself: its version, its node, and what it counts.`

func newAgentInfoCommand(s *streams) *cobra.Command {
	var client clientFlags
	var format formatFlags
	cmd := &cobra.Command{
		Use:   "agent-info [flags]",
		Short: "Show what the agent says of itself",
		Long:  agentInfoHelp,
		Args:  noArguments,
		RunE: func(*cobra.Command, []string) error {
			c, err := client.client()
			if err != nil {
				return err
			}
			self, err := agentSelf(c)
			if err != nil {
				return err
			}
			return format.show(s, self, func(p *page) {
				for _, name := range slices.Sorted(maps.Keys(self.Stats)) {
					p.line("%s", name)
					for _, pair := range sortedPairs(self.Stats[name]) {
						p.line("  %s = %s", pair[0], pair[1])
					}
				}
			})
		},
	}
	client.register(cmd)
	format.register(cmd)
	return cmd
}

// agentSelf returns the agent's description of itself. The Go client's own method panics on
// an empty answer.
func agentSelf(c *api.Client) (*api.AgentSelf, error) {
	var self api.AgentSelf
	if _, err := c.Raw().Query("/v1/agent/self", &self, nil); err != nil {
		return nil, failed("ask the agent about itself", err)
	}
	return &self, nil
}
