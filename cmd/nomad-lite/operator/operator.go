package operator

import (
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
)

// NewCommand returns the command "operator" with the subcommands that send requests.
func NewCommand(s *cli.Streams) *cobra.Command {
	return cli.NewGroupCommand("operator", "Troubleshoot and configure an agent",
		newAPICommand(s),
		newDebugCommand(s),
		newMetricsCommand(s),
		newRootKeyringCommand(s),
		newSchedulerCommand(s),
		cli.NewUnsupportedCommand("client-state", "'nomad-lite operator state inspect DATA-DIR' shows the state of an agent that does not run"),
		cli.NewUnsupportedCommand("raft", cli.NoServersReason),
		cli.NewUnsupportedCommand("autopilot", cli.NoServersReason),
		cli.NewUnsupportedCommand("gossip", cli.NoServersReason),
		cli.NewUnsupportedCommand("utilization", cli.EnterpriseOnlyReason),
	)
}
