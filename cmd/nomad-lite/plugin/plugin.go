package plugin

import (
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/cli"
)

// NewCommand returns the command "plugin" with its subcommands.
func NewCommand(s *cli.Streams) *cobra.Command {
	return cli.NewGroupCommand("plugin", "Write, check, install and list plugins",
		newNewCommand(s),
		newTestCommand(s),
		newInstallCommand(s),
		newVerifyCommand(s),
		newListCommand(s),
		newInspectCommand(s),
		newStatusCommand(s),
	)
}
