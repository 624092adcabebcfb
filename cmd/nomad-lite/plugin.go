package main

import "github.com/spf13/cobra"

func newPluginCommand(s *streams) *cobra.Command {
	return group("plugin", "Write, check and list plugins",
		newPluginListCommand(s),
		newPluginServeCommand(s),
	)
}
