package root

import "github.com/spf13/cobra"

// linuxOnlyCommands are the commands that run an agent, jobs or plugins in their own process, or read the files of an
// agent. They work only on Linux. All other commands send requests to an agent, which can run on another machine.
type linuxOnlyCommands struct {
	agent, config, plugin, run, state, validate *cobra.Command
	jobSubcommands, snapshotSubcommands         []*cobra.Command
}
