package main

import "github.com/spf13/cobra"

func newPluginCommand(s *streams) *cobra.Command {
	return group("plugin", "Write, check and list plugins",
		newPluginNewCommand(s),
		newPluginTestCommand(s),
		newPluginListCommand(s),
		newPluginStatusCommand(s),
	)
}
