package operator

import (
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/cli"
)

// NewCommand returns the command "operator" with its subcommands.
func NewCommand(s *cli.Streams) *cobra.Command {
	return cli.Group("operator", "Look after a node",
		newAPICommand(s),
		newDebugCommand(s),
		newMetricsCommand(s),
		newRootCommand(s),
		cli.Group("state", "Look at a state file",
			newStateInspectCommand(s),
			newStateVerifyCommand(s),
		),
		cli.UnsupportedCommand("client-state", "'nomad-lite operator state inspect DATA-DIR' shows the state of an agent that does not run"),
		cli.UnsupportedCommand("snapshot", "stop the agent, which leaves the tasks running, and copy its data directory"),
		cli.UnsupportedCommand("raft", cli.NoServers),
		cli.UnsupportedCommand("autopilot", cli.NoServers),
		cli.UnsupportedCommand("scheduler", cli.NoServers),
		cli.UnsupportedCommand("gossip", cli.NoServers),
	)
}
