package importjob

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/runtime/job/importer"
)

// NewCommand returns the command "import" with its subcommands.
func NewCommand(s *cli.Streams) *cobra.Command {
	return cli.NewGroupCommand("import", "Print a job file made from files of other programs", newComposeCommand(s), newSystemdCommand(s))
}

// printResult prints the job to standard output, and to standard error the warnings and what the configuration of the
// agent needs.
func printResult(s *cli.Streams, result *importer.Result, err error) error {
	if err != nil {
		return fmt.Errorf("import: %w", err)
	}
	for _, warning := range result.Warnings {
		fmt.Fprintf(s.Err, "warning: %s\n", warning)
	}
	if len(result.AgentConfig) > 0 {
		fmt.Fprintf(s.Err, "\nThe agent needs:\n%s", result.AgentConfig)
	}
	_, err = s.Out.Write(result.Job)
	return err
}
