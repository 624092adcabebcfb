package root

import (
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/agent"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/plugin"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/run"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/statefile"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/validate"
)

func newLinuxOnlyCommands(s *cli.Streams) linuxOnlyCommands {
	return linuxOnlyCommands{
		agent: agent.NewCommand(s), config: agent.NewConfigCommand(s), plugin: plugin.NewCommand(s, run.NewPluginDevCommand(s)), run: run.NewCommand(s),
		state: statefile.NewCommand(s), snapshotSubcommands: statefile.NewSnapshotCommands(s), validate: validate.NewCommand(s),
		jobSubcommands: []*cobra.Command{validate.NewSchemaCommand(s), validate.NewCommand(s)},
	}
}

// newAgentCommandOrNil returns the command with the given name if the command is an agent, and nil otherwise.
func newAgentCommandOrNil(name string, s *cli.Streams) *cobra.Command {
	switch name {
	case "agent":
		return agent.NewCommand(s)
	case "run":
		return run.NewCommand(s)
	}
	return nil
}
