package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

// elsewhere is a command of Nomad that is not here: who types it learns what to do
// instead.
func elsewhere(name, instead string) *cobra.Command {
	return &cobra.Command{
		Use:                name,
		Hidden:             true,
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return fmt.Errorf("%s: nomad-lite has no such command: %s", cmd.CommandPath(), instead)
		},
	}
}
