package importjob

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/runtime/job/importer/compose"
)

const composeHelp = `Print a job file with the services of compose files, as tasks of the driver docker.

Several files are merged, as docker compose merges the files of its flag -f.
Variables are replaced by those of the environment and of the file .env beside the
first file, and environment files are read: their values are in the job file.
Nothing is started, built or pulled.

The containers share a network namespace, in which each service has the address
127.0.0.1, so that services find each other at their names. This needs an agent of
root. With -docker-network each container joins a network of Docker with an address
of its own.

Each part without a counterpart, or with a changed meaning, is a warning with its
place on standard error. The blocks that the configuration of the agent needs
follow under "The agent needs:".

Exit codes: 0 when a job file was printed, also with warnings, or 1 when a file
cannot be read or is no valid compose file.`

func newComposeCommand(s *cli.Streams) *cobra.Command {
	var o compose.Options
	cmd := &cobra.Command{
		Use:   "compose [flags] FILE...",
		Short: "Print a job file for files of Docker Compose",
		Long:  composeHelp,
		Example: `  nomad-lite import compose compose.yaml >shop.nomad.hcl
  nomad-lite import compose -profile debug compose.yaml compose.override.yaml`,
		Args: cli.RequireArgCount(1, -1, "compose files"),
		RunE: func(_ *cobra.Command, args []string) error {
			o.Files, o.Environ, o.MachineMemoryMB = args, os.Environ(), machineMemoryMB()
			result, err := compose.Convert(o)
			return printResult(s, result, err)
		},
		ValidArgsFunction: completeFiles("yaml", "yml"),
	}
	cmd.Flags().StringVar(&o.JobName, "name", "", "`name` of the job, instead of that of the project")
	cmd.Flags().StringArrayVar(&o.Profiles, "profile", nil, "include the services of this `profile`, or * for all; can be repeated")
	cmd.Flags().StringArrayVar(&o.EnvFiles, "env-file", nil, "read variables from this `file` instead of .env; can be repeated")
	cmd.Flags().StringVar(&o.DockerNetwork, "docker-network", "", "let the containers join this `network` of Docker")
	return cmd
}

// machineMemoryMB returns the memory of this machine, or 0 on a system without /proc.
func machineMemoryMB() int {
	text, _ := os.ReadFile("/proc/meminfo")
	var kibibytes int
	_, _ = fmt.Sscanf(string(text), "MemTotal: %d kB", &kibibytes) // kibibytes stays 0
	return kibibytes >> 10
}

// completeFiles completes the names of files with these extensions.
func completeFiles(extensions ...string) cli.Completer {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return extensions, cobra.ShellCompDirectiveFilterFileExt
	}
}
