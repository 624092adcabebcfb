//go:build !linux

package root

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
)

func newLinuxOnlyCommands(*cli.Streams) linuxOnlyCommands {
	return linuxOnlyCommands{
		agent: newLinuxOnlyStub("agent"), config: newLinuxOnlyStub("config"), plugin: newLinuxOnlyStub("plugin"), run: newLinuxOnlyStub("run"),
		state: newLinuxOnlyStub("state"), snapshotSubcommands: []*cobra.Command{newLinuxOnlyStub("inspect"), newLinuxOnlyStub("redact"), newLinuxOnlyStub("restore"), newLinuxOnlyStub("state")}, validate: newLinuxOnlyStub("validate"),
		jobSubcommands: []*cobra.Command{newLinuxOnlyStub("schema"), newLinuxOnlyStub("validate")},
	}
}

// newLinuxOnlyStub returns a command that fails and says where to run it, for a system on which nomad-lite can only
// send requests to an agent.
func newLinuxOnlyStub(name string) *cobra.Command {
	return &cobra.Command{
		Use:                name,
		Short:              "Only on Linux",
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return fmt.Errorf("%s: agents, jobs and plugins run on Linux, and not on %s: run the command on a machine with Linux; 'nomad-lite job run' sends a job to an agent that -address or NOMAD_ADDR names", cmd.CommandPath(), runtime.GOOS)
		},
	}
}

// findHelperProcessMain returns nil, because only agents, which run on Linux, start helper processes.
func findHelperProcessMain([]string, *cli.Streams) func() error { return nil }

// newAgentCommandOrNil returns nil, because agents run on Linux.
func newAgentCommandOrNil(string, *cli.Streams) *cobra.Command { return nil }
