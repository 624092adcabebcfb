package job

import (
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/cli"
)

// NewCommand returns the command "job" with its subcommands.
func NewCommand(s *cli.Streams) *cobra.Command {
	return cli.NewGroupCommand("job", "Run jobs on an agent, change them and look at them",
		NewActionCommand(s),
		newAllocsCommand(s),
		newDeploymentsCommand(s),
		newDispatchCommand(s),
		newEvalCommand(s),
		newExportCommand(s),
		newHistoryCommand(s),
		NewInitCommand(s),
		NewInspectCommand(s),
		newPeriodicCommand(s),
		NewPlanCommand(s),
		newPromoteCommand(s),
		newRestartCommand(s),
		newRevertCommand(s),
		newRunCommand(s),
		newScaleCommand(s),
		newScalingEventsCommand(s),
		NewStartCommand(s),
		newStatusCommand(s),
		NewStopCommand(s),
		newTagCommand(s),
		NewValidateCommand(s),
	)
}
