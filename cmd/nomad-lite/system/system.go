package system

import (
	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
)

const gCHelp = `Forget jobs, evaluations, deployments and allocations that have ended, and remove
the directories of the latter, now rather than when the agent does it by itself.`

const reconcileHelp = `Count the allocations of all jobs anew. The counts in 'job status' are right
without it.`

// NewCommand returns the command "system" with its subcommands.
func NewCommand() *cobra.Command {
	return cli.NewGroupCommand("system", "Clean up",
		newActionCommand("gc", "Forget what has ended", gCHelp, (*api.System).GarbageCollect),
		cli.NewGroupCommand("reconcile", "Put counts right",
			newActionCommand("summaries", "Count the allocations of all jobs anew", reconcileHelp, (*api.System).ReconcileSummaries)),
	)
}

// newActionCommand returns a command that starts one action of the agent, which
// continues in the background. Like Nomad's, the command prints nothing.
func newActionCommand(name, about, help string, action func(*api.System) error) *cobra.Command {
	var client apiclient.Flags
	cmd := &cobra.Command{
		Use:   name + " [flags]",
		Short: about,
		Long:  help,
		Args:  cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := client.Client()
			if err != nil {
				return err
			}
			if err := action(c.System()); err != nil {
				return apiclient.WrapError("system "+name, err)
			}
			return nil
		},
	}
	client.Register(cmd)
	return cmd
}
