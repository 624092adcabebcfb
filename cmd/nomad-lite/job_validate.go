package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/runtime/model"
)

// newJobCommand holds the commands about job files.
func newJobCommand(s *streams) *cobra.Command {
	return group("job", "Run jobs on an agent, change them and look at them",
		newJobActionCommand(s),
		newJobAllocsCommand(s),
		newJobDeploymentsCommand(s),
		newJobDispatchCommand(s),
		newJobEvalCommand(s),
		newJobExportCommand(s),
		newJobHistoryCommand(s),
		newJobInitCommand(s),
		newJobInspectCommand(s),
		newJobPeriodicCommand(s),
		newJobPlanCommand(s),
		newJobPromoteCommand(s),
		newJobRestartCommand(s),
		newJobRevertCommand(s),
		newJobRunCommand(s),
		newJobScaleCommand(s),
		newJobScalingEventsCommand(s),
		newJobStartCommand(s),
		newJobStatusCommand(s),
		newJobStopCommand(s),
		newJobTagCommand(s),
		newJobValidateCommand(s),
	)
}

func newJobValidateCommand(s *streams) *cobra.Command {
	var file jobFileFlags
	var plugins pluginFlags
	cmd := &cobra.Command{
		Use:   "validate [flags] FILE",
		Short: "Say what is wrong with a job file",
		Long: `Say what is wrong with a job file, and where.

The job is checked as Nomad checks it, and then for what this build of
nomad-lite cannot run, and for what this machine does not have: constraints that
it does not satisfy, memory. What stands in the config blocks of its tasks is
compared with what the drivers take, and lite_hook_NAME of meta with what the
hooks take. The checks are those of nomad-lite run, except that ports may be in
use. No agent is asked. Of a job whose tasks wait for each other (lite_after and its
like in meta), the order is shown. FILE is a path, or - for standard input.

Exit codes: 0 when the job can run here, 1 when it cannot.`,
		Example: `  nomad-lite job validate web.nomad.hcl
  nomad-lite job validate -plugin-dir ./plugins -var image=web:2 web.nomad.hcl`,
		Args: oneJobFile,
		RunE: func(cmd *cobra.Command, args []string) error {
			job, err := file.read(s, args[0], 1)
			if err != nil {
				return err
			}
			local, err := plugins.read(s)
			if err != nil {
				return err
			}
			drivers, err := local.drivers(job.drivers())
			if err != nil {
				return err
			}
			valid, err := job.check(s)
			if err != nil {
				return err
			}
			if err := job.warnOfForeground(s); err != nil {
				return err
			}
			runs, err := job.refuse(s, drivers, false)
			if err != nil {
				return err
			}
			fits, err := job.checkNodeAndConfigs(cmd.Context(), local, drivers, valid && runs, s)
			if err != nil {
				return err
			}
			hooked, err := job.checkHooks(cmd.Context(), local, s)
			if err != nil {
				return err
			}
			if !valid || !runs || !fits || !hooked {
				return &exitError{code: 1}
			}
			if gates := model.GateGraph(job.job); gates != "" {
				fmt.Fprintf(s.out, "%s\n", printable([]byte(gates), false))
			}
			_, err = fmt.Fprintln(s.out, "Job validation successful")
			return err
		},
	}
	file.register(cmd)
	plugins.register(cmd)
	return cmd
}
