package main

import (
	"maps"
	"slices"

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
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			c, err := client.client()
			if err != nil {
				return err
			}
			self, err := c.Agent().Self()
			if err != nil {
				return failed("ask the agent", err)
			}
			if format.wanted() {
				return format.print(s, self)
			}
			p := s.page()
			for _, name := range slices.Sorted(maps.Keys(self.Stats)) {
				p.line("%s", name)
				for _, pair := range sortedPairs(self.Stats[name]) {
					p.line("  %s = %s", pair[0], pair[1])
				}
			}
			return s.show(p)
		},
	}
	client.register(cmd)
	format.register(cmd)
	return cmd
}
