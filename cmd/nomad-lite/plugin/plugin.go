package plugin

import (
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
)

// NewCommand returns the command "plugin" with its subcommands. devCommand is the subcommand "plugin dev", which
// package run provides because it runs a job.
func NewCommand(s *cli.Streams, devCommand *cobra.Command) *cobra.Command {
	return cli.NewGroupCommand("plugin", "Write, check, install and list plugins",
		newNewCommand(s),
		devCommand,
		newTestCommand(s),
		newInstallCommand(s),
		newVerifyCommand(s),
		newListCommand(s),
		newInspectCommand(s),
		newStatusCommand(s),
		newRestartCommand(s),
	)
}
