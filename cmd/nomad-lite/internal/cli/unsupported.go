package cli

import (
	"fmt"

	"github.com/spf13/cobra"
)

// These reasons are the texts for NewUnsupportedCommand that several commands share.
const (
	NoServersReason      = "there are no servers to look after; for a cluster use Nomad's own command line"
	EnterpriseOnlyReason = "it belongs to Nomad Enterprise"
)

// NewUnsupportedCommand returns a hidden command for a command that only Nomad has. The command fails with the text
// reasonOrReplacement.
func NewUnsupportedCommand(name, reasonOrReplacement string) *cobra.Command {
	return &cobra.Command{
		Use:                name,
		Hidden:             true,
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return fmt.Errorf("%s: nomad-lite has no such command: %s", cmd.CommandPath(), reasonOrReplacement)
		},
	}
}
