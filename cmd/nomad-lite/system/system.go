package system

import (
	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
)

const gCHelp = `Garbage collect terminal jobs, evaluations, deployments and allocations, and remove
the directories of these allocations. The agent also does this periodically.`

const reconcileHelp = `Reconcile the summaries of all jobs. It has no effect on nomad-lite, which computes
the summaries at each request.`

// NewCommand returns the command "system" with its subcommands.
func NewCommand() *cobra.Command {
	return cli.NewGroupCommand("system", "Force garbage collection",
		newSystemActionCommand("gc", "Garbage collect terminal jobs, evaluations, deployments and allocations", gCHelp, (*api.System).GarbageCollect),
		cli.NewGroupCommand("reconcile", "Reconcile stored data",
			newSystemActionCommand("summaries", "Reconcile the summaries of all jobs", reconcileHelp, (*api.System).ReconcileSummaries)),
	)
}

// newSystemActionCommand returns a command that starts an action of the agent. The action continues in the background,
// and the command prints nothing, like Nomad's.
func newSystemActionCommand(name, short, help string, action func(*api.System) error) *cobra.Command {
	var client apiclient.Flags
	cmd := &cobra.Command{
		Use:   name + " [flags]",
		Short: short,
		Long:  help,
		Args:  cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := client.Client()
			if err != nil {
				return err
			}
			if err := action(c.System()); err != nil {
				return apiclient.WrapErrorWithAdvice("system "+name, err)
			}
			return nil
		},
	}
	client.Register(cmd)
	return cmd
}
