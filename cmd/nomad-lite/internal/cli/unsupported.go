package cli

import (
	"fmt"

	"github.com/spf13/cobra"
)

// These are reasons why nomad-lite does not have a command.
const (
	NoServersReason      = "there are no servers to look after; for a cluster use Nomad's own command line"
	EnterpriseOnlyReason = "it belongs to Nomad Enterprise"
)

// NewUnsupportedCommand returns a command of Nomad that nomad-lite does not have. It prints what
// to use instead.
func NewUnsupportedCommand(name, instead string) *cobra.Command {
	return &cobra.Command{
		Use:                name,
		Hidden:             true,
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return fmt.Errorf("%s: nomad-lite has no such command: %s", cmd.CommandPath(), instead)
		},
	}
}
