package eval

import (
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
)

// NewCommand returns the command "eval" with its subcommands.
func NewCommand(s *cli.Streams) *cobra.Command {
	return cli.NewGroupCommand("eval", "Inspect evaluations",
		newListCommand(s),
		newStatusCommand(s),
		newDeleteCommand(s),
	)
}
