package main

import (
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/plugins/keeper"
	"github.com/nomad-lite/nomad-lite/runtime/jobspec/confined"
	"github.com/nomad-lite/nomad-lite/runtime/logs"
)

// newKeeperCommand is the keeper process; plugins/keeper starts it.
func newKeeperCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "keeper",
		Short:  "Hold what must outlive nomad-lite; started by nomad-lite itself",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE:   func(cmd *cobra.Command, _ []string) error { return keeper.Serve(cmd.Context()) },
	}
}

// newJobParserCommand is the process that reads one job file for the API, with
// limits; runtime/jobspec/confined starts it.
func newJobParserCommand(s *streams) *cobra.Command {
	return &cobra.Command{
		Use:    jobParser,
		Short:  "Read a job file for the agent; started by nomad-lite itself",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if code := confined.Serve(s.in, s.out, s.err); code != 0 {
				return &exitError{code: code}
			}
			return nil
		},
	}
}

// jobParser is the name of that command.
const jobParser = "job-parser"

// newLogCollectorCommand is the log collector process; runtime/logs starts it.
func newLogCollectorCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "log-collector",
		Short:  "Collect the output of tasks; started by nomad-lite itself",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE:   func(cmd *cobra.Command, _ []string) error { return logs.Serve(cmd.Context()) },
	}
}
