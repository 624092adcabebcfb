package main

import (
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/plugins/keeper"
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
