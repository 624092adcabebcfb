package job

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/jobfile"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/localplugins"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/terminal"
	"github.com/nomad-lite/nomad-lite/runtime/model"
)

// NewValidateCommand returns the command "validate".
func NewValidateCommand(s *cli.Streams) *cobra.Command {
	var file jobfile.Flags
	var plugins localplugins.Flags
	var jsonOutput bool
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

With -json-output the errors and warnings are printed as one JSON object on
standard output: Valid, Diagnostics with the places in the file, and Messages.

Exit codes: 0 when the job can run here, 1 when it cannot.`,
		Example: `  nomad-lite job validate web.nomad.hcl
  nomad-lite job validate -plugin-dir ./plugins -var image=web:2 web.nomad.hcl`,
		Args: jobfile.OneFileArg,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			s := s
			if jsonOutput {
				report := jobfile.NewReport()
				defer func(out *cli.Streams) { err = report.Print(out, err) }(s)
				s = report.Streams(s)
			}
			job, err := file.Read(s, args[0], 1)
			if err != nil {
				return err
			}
			local, err := plugins.Read(s)
			if err != nil {
				return err
			}
			drivers, err := local.DriverNames(job.DriverNames())
			if err != nil {
				return err
			}
			valid, err := job.CheckJob(s)
			if err != nil {
				return err
			}
			if err := job.WarnAgentOnlyParts(s); err != nil {
				return err
			}
			runs, err := job.CheckSupported(s, drivers, false)
			if err != nil {
				return err
			}
			fits, err := job.CheckNodeAndDriverConfigs(cmd.Context(), local, drivers, valid && runs, s)
			if err != nil {
				return err
			}
			hooked, err := job.CheckHooks(cmd.Context(), local, s)
			if err != nil {
				return err
			}
			if !valid || !runs || !fits || !hooked {
				return &cli.ExitError{Code: 1}
			}
			if gates := model.DescribeStartOrder(job.Job); gates != "" {
				fmt.Fprintf(s.Out, "%s\n", terminal.SanitizeText([]byte(gates), false))
			}
			_, err = fmt.Fprintln(s.Out, "Job validation successful")
			return err
		},
	}
	file.Register(cmd)
	plugins.Register(cmd)
	cmd.Flags().BoolVar(&jsonOutput, "json-output", false, "print the errors and warnings as JSON")
	return cmd
}
