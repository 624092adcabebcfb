package importjob

import (
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/runtime/job/importer/systemd"
)

const systemdHelp = `Print a job file with the services of systemd units, as tasks of the driver raw_exec.

UNIT is a path, or a name that is searched where systemd searches units of the
machine. The drop-in directories of a unit are read too. Services that are named
together become tasks of one job, which start in the order of After and Before. A
timer becomes a periodic job that runs its service.

Environment files are read: their values are in the job file. Variables and
specifiers in command lines are replaced. Nothing is started, and systemd is not
asked.

Each part without a counterpart, or with a changed meaning, is a warning with its
place on standard error.

Exit codes: 0 when a job file was printed, also with warnings, or 1 when a unit
cannot be read or cannot be a job.`

func newSystemdCommand(s *cli.Streams) *cobra.Command {
	var o systemd.Options
	cmd := &cobra.Command{
		Use:   "systemd [flags] UNIT...",
		Short: "Print a job file for units of systemd",
		Long:  systemdHelp,
		Example: `  nomad-lite import systemd web.service >web.nomad.hcl
  nomad-lite import systemd /etc/systemd/system/backup.timer >backup.nomad.hcl`,
		Args: cli.RequireArgCount(1, -1, "units"),
		RunE: func(_ *cobra.Command, args []string) error {
			o.Units = args
			result, err := systemd.Convert(o)
			return printResult(s, result, err)
		},
		ValidArgsFunction: completeFiles("service", "timer"),
	}
	cmd.Flags().StringVar(&o.JobName, "name", "", "`name` of the job, instead of that of the first unit")
	cmd.Flags().StringVar(&o.Driver, "driver", "raw_exec", "`driver` of the tasks: raw_exec, or exec, which isolates them")
	cli.MustSetFlagCompletion(cmd, "driver", cobra.FixedCompletions([]string{"raw_exec", "exec"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}
