package job

import (
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/monitor"
)

// NewCommand returns the command "job" with the subcommands that send requests to an agent; package root adds the others.
// printLogs is called for the flag -logs.
func NewCommand(s *cli.Streams, printLogs monitor.FollowLogsFunc) *cobra.Command {
	return cli.NewGroupCommand("job", "Run, update and inspect jobs on an agent",
		NewActionCommand(s),
		newAllocsCommand(s),
		newDeploymentsCommand(s),
		newDispatchCommand(s, printLogs),
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
		newRunCommand(s, printLogs),
		newScaleCommand(s),
		newScalingEventsCommand(s),
		NewStartCommand(s),
		newStatusCommand(s),
		NewStopCommand(s),
		newTagCommand(s),
	)
}
