package validate

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/jobcheck"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/jobfile"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/localplugins"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/terminal"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

const validateHelp = `Validate a job file, and print each error with its position.

The job is checked as Nomad checks it, and for parts that nomad-lite cannot run.
Its templates are parsed, its config blocks are compared with the schemas of the
drivers, lite_hook_NAME of meta with the schemas of the hooks, and its constraints
and resources with the node.

If an agent is named or found on this machine, its drivers and hooks and its node
count. Otherwise, and with -plugin-dir or -config, the builtin plugins and those
that the flags name, and this machine. Commands, users and the sources of templates
are looked up if the agent is on this machine, or there is none. A missing driver
and a missing command are warnings, because they can be installed before the job
runs.

With -schema the config blocks are compared with the schemas in a file that
nomad-lite job schema has written. No agent is asked, and the drivers in the file
need not be on this machine.

Of a job whose tasks wait for each other (lite_after and its like in meta), the
order is shown. FILE is a path, or - for standard input.

With -json-output the errors and warnings are printed as one JSON object on
standard output: Valid, Diagnostics with the places in the file, and Messages.

Exit codes: 0 when the job can run, 1 when it cannot.`

type validateOptions struct {
	jobFileFlags jobfile.Flags
	pluginFlags  localplugins.Flags
	clientFlags  apiclient.Flags
	schemaFile   string
	jsonOutput   bool
}

// NewCommand returns the command "validate".
func NewCommand(s *cli.Streams) *cobra.Command {
	var o validateOptions
	cmd := &cobra.Command{
		Use:   "validate [flags] FILE",
		Short: "Validate a job file",
		Long:  validateHelp,
		Example: `  nomad-lite job validate web.nomad.hcl
  nomad-lite job validate -plugin-dir ./plugins -var image=web:2 web.nomad.hcl`,
		Args: jobfile.RequireOneFileArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			if !o.jsonOutput {
				if err := validateJob(cmd.Context(), o, args[0], s); err != nil {
					return err
				}
				_, err := fmt.Fprintln(s.Out, "Job validation successful")
				return err
			}
			report := jobfile.NewCheckReport()
			return report.PrintJSON(s, validateJob(cmd.Context(), o, args[0], report.StreamsWritingToReport(s)))
		},
	}
	o.jobFileFlags.Register(cmd)
	o.pluginFlags.Register(cmd)
	o.clientFlags.Register(cmd)
	cmd.Flags().StringVar(&o.schemaFile, "schema", "", "take the schemas of drivers from this `file` of nomad-lite job schema")
	cmd.Flags().BoolVar(&o.jsonOutput, "json-output", false, "print the errors and warnings as JSON")
	return cmd
}

func validateJob(ctx context.Context, o validateOptions, path string, s *cli.Streams) error {
	job, err := o.jobFileFlags.Read(s, path, cli.Failed)
	if err != nil {
		return err
	}
	model.Canonicalize(job.Job)
	answer, err := o.validateWithAgentIfReachable(ctx, job, s)
	if err != nil {
		return err
	}
	var warnings string
	var good bool
	if answer == nil {
		warnings, good, err = o.checkWithLocalPlugins(ctx, job, s)
	} else {
		warnings = answer.Warnings()
		good, err = jobcheck.PrintValidationErrorsAndFit(ctx, job, s, answer)
		if err == nil && job.IsValid() {
			err = jobcheck.WarnUnsetReferences(job, s, jobcheck.EnvSources{HasOperatorHooks: answer.HasOperatorHooks()})
		}
	}
	if err != nil {
		return err
	}
	runsHere := answer == nil || !answer.ServersDecide() && o.clientFlags.AgentIsOnThisMachine()
	runnable, err := jobcheck.CheckTemplatesUsersCommands(job, s, runsHere)
	if err != nil {
		return err
	}
	if !good || !runnable {
		if err := job.PrintAPIWarningsWithPositions(s.Err, warnings); err != nil { // on standard error, because the command fails
			return err
		}
		return &cli.ExitError{Code: 1}
	}
	if err := job.PrintAPIWarningsWithPositions(s.Out, warnings); err != nil {
		return err
	}
	if gates := model.DescribeExtendedStartOrder(job.Job); gates != "" {
		fmt.Fprintf(s.Out, "%s\n", terminal.SanitizeText([]byte(gates), false))
	}
	return nil
}

// validateWithAgentIfReachable lets the agent validate the job. It returns nil if there is no agent, or if flags name
// plugins or schemas to use instead. If the flags name an agent that cannot be reached, it prints a warning and returns
// nil.
func (o *validateOptions) validateWithAgentIfReachable(ctx context.Context, job *jobfile.File, s *cli.Streams) (*jobfile.AgentValidation, error) {
	if o.schemaFile != "" || o.pluginFlags.IsAnySet() || !o.clientFlags.CanFindAgent() {
		return nil, nil
	}
	c, err := o.clientFlags.Client()
	if err != nil {
		return nil, err
	}
	o.clientFlags.UseJobRegion(c, job.Job)
	answer, err := job.ValidateWithAgent(ctx, c)
	if err != nil && o.clientFlags.HasAgentAddress() {
		fmt.Fprintln(s.Err, "Driver configuration not validated since connection to Nomad agent couldn't be established.")
		fmt.Fprintf(s.Err, "warning: the builtin drivers of this machine count: %v\n", apiclient.WrapErrorWithAdvice("ask the agent about the job", err))
	}
	if err != nil {
		return nil, nil
	}
	return answer, nil
}

// checkWithLocalPlugins checks a job against the builtin plugins and those that the flags name, and against this
// machine. It returns the warnings in the form of Nomad's API.
func (o *validateOptions) checkWithLocalPlugins(ctx context.Context, job *jobfile.File, s *cli.Streams) (warnings string, accepted bool, err error) {
	local, err := o.pluginFlags.ReadConfig(s)
	if err != nil {
		return "", false, err
	}
	drivers, err := local.BuiltinAndRequestedDriverNames(job.DriverNames())
	if err != nil {
		return "", false, err
	}
	saved, err := readDriverSchemaFile(o.schemaFile)
	if err != nil {
		return "", false, err
	}
	drivers = slices.AppendSeq(drivers, maps.Keys(saved))
	answer, accepted, err := jobcheck.CheckWithLocalPlugins(ctx, job, local, drivers, saved, s)
	return model.FormatWarnings(answer.Warnings), accepted, err
}
