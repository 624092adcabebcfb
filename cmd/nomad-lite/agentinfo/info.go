package agentinfo

import (
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
)

const infoHelp = `Show the version, the configuration, the node and the runtime statistics of the agent.`

// NewCommand returns the command "agent-info".
func NewCommand(s *cli.Streams) *cobra.Command {
	var client apiclient.Flags
	var format output.FormatFlags
	cmd := &cobra.Command{
		Use:   "agent-info [flags]",
		Short: "Show the configuration and the runtime statistics of the agent",
		Long:  infoHelp,
		Args:  cli.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			c, err := client.Client()
			if err != nil {
				return err
			}
			self, err := apiclient.ReadAgentSelf(c)
			if err != nil {
				return err
			}
			return format.PrintValueOrPage(s, self, func(p *output.Page) {
				for _, name := range slices.Sorted(maps.Keys(self.Stats)) {
					p.AddLine("%s", name)
					for _, pair := range output.SortedPairs(self.Stats[name]) {
						p.AddLine("  %s = %s", pair[0], pair[1])
					}
				}
			})
		},
	}
	client.Register(cmd)
	format.Register(cmd)
	return cmd
}
