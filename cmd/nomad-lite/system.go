package main

import (
	"fmt"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
)

const systemGCHelp = `Forget jobs, evaluations, deployments and allocations that have ended, and remove
the directories of the latter, now rather than when the agent does it by itself.`

const systemReconcileHelp = `Count the allocations of all jobs anew. The counts in 'job status' are right
without it.`

func newSystemCommand(s *streams) *cobra.Command {
	return group("system", "Clean up",
		newSystemActionCommand(s, "gc", "Forget what has ended", systemGCHelp, (*api.System).GarbageCollect),
		group("reconcile", "Put counts right",
			newSystemActionCommand(s, "summaries", "Count the allocations of all jobs anew", systemReconcileHelp, (*api.System).ReconcileSummaries)),
	)
}

// newSystemActionCommand returns a command that starts one action of the agent, which
// continues in the background.
func newSystemActionCommand(s *streams, name, about, help string, action func(*api.System) error) *cobra.Command {
	var client clientFlags
	cmd := &cobra.Command{
		Use:   name + " [flags]",
		Short: about,
		Long:  help,
		Args:  noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := client.client()
			if err != nil {
				return err
			}
			if err := action(c.System()); err != nil {
				return failed("system "+name, err)
			}
			fmt.Fprintln(s.err, "The agent does it now")
			return nil
		},
	}
	client.register(cmd)
	return cmd
}
