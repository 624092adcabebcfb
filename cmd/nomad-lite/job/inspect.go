package job

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/terminal"
	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/internal/shellquote"
)

type inspectOptions struct {
	clientFlags       apiclient.Flags
	formatFlags       output.FormatFlags
	versionOrNegative int64
	printSource       bool
	includeVars       bool
}

// NewInspectCommand returns the command "inspect".
func NewInspectCommand(s *cli.Streams) *cobra.Command {
	var o inspectOptions
	cmd := &cobra.Command{
		Use:   "inspect [flags] JOB",
		Short: "Print the specification of a job, or its job file",
		Long: `Print the specification of a job: JSON with all default values, as the value of
"Job". With -json, print the job alone.

With -hcl its source is printed, byte for byte as it was run, if the agent has
kept it.`,
		Example: `  nomad-lite job inspect web
  nomad-lite job inspect -hcl web > web.nomad.hcl
  nomad-lite job inspect -version 3 -t '{{(index .TaskGroups 0).Count}}' web`,
		Args:              apiclient.RequireOneJobArg,
		ValidArgsFunction: cli.CompleteArgsByPosition(o.clientFlags.CompleteJobs("")),
		RunE: func(cmd *cobra.Command, args []string) error {
			return inspectJob(cmd.Context(), o, args[0], s)
		},
	}
	o.clientFlags.Register(cmd)
	o.formatFlags.Register(cmd)
	cmd.Flags().Int64Var(&o.versionOrNegative, "version", -1, "the job as it was in this `version`")
	cmd.Flags().BoolVar(&o.printSource, "hcl", false, "print the source")
	cmd.Flags().BoolVar(&o.includeVars, "with-vars", false, "with -hcl: print the values of its variables to standard error")
	return cmd
}

func inspectJob(ctx context.Context, o inspectOptions, jobIDPrefix string, s *cli.Streams) error {
	c, job, err := findJobVersion(ctx, &o.clientFlags, jobIDPrefix, o.versionOrNegative)
	if err != nil {
		return err
	}
	switch {
	case o.printSource && o.formatFlags.IsSet():
		return errors.New("-hcl excludes -json and -t")
	case o.printSource:
		return printJobSource(ctx, o, c, job, s)
	case o.formatFlags.IsSet():
		return o.formatFlags.Print(s, job)
	}
	return output.PrintJSON(s, struct{ Job *api.Job }{job})
}

// findJobVersion finds a job by its id or prefix, and reads the given version; a negative version means the current
// one.
func findJobVersion(ctx context.Context, f *apiclient.Flags, jobIDPrefix string, versionOrNegative int64) (*api.Client, *api.Job, error) {
	c, id, namespace, err := f.FindJob(ctx, jobIDPrefix, "")
	if err != nil {
		return nil, nil, err
	}
	job, err := readJobVersion(ctx, c, id, namespace, versionOrNegative)
	return c, job, err
}

// readJobVersion reads the given version of a job; a negative version means the current one.
func readJobVersion(ctx context.Context, c *api.Client, id, namespace string, versionOrNegative int64) (*api.Job, error) {
	if versionOrNegative < 0 {
		job, _, err := c.Jobs().Info(id, apiclient.QueryOptions(ctx, namespace))
		if err != nil {
			return nil, apiclient.WrapErrorWithAdvice(fmt.Sprintf("read job %q", id), err)
		}
		return job, nil
	}
	versions, _, _, err := c.Jobs().Versions(id, false, apiclient.QueryOptions(ctx, namespace))
	if err != nil {
		return nil, apiclient.WrapErrorWithAdvice(fmt.Sprintf("read versions of job %q", id), err)
	}
	for _, job := range versions {
		if job != nil && pointer.Value(job.Version) == uint64(versionOrNegative) {
			return job, nil
		}
	}
	return nil, fmt.Errorf("job %q has no version %d\nSee those that there are: nomad-lite job history %s", id, versionOrNegative, id)
}

func printJobSource(ctx context.Context, o inspectOptions, c *api.Client, job *api.Job, s *cli.Streams) error {
	id, version := pointer.Value(job.ID), pointer.Value(job.Version)
	source, _, err := c.Jobs().Submission(id, int(version), apiclient.QueryOptions(ctx, pointer.Value(job.Namespace)))
	switch answer := new(api.UnexpectedResponseError); {
	case errors.As(err, answer) && answer.StatusCode() == 404, err == nil && (source == nil || source.Source == ""):
		return fmt.Errorf("the agent has not kept the source of version %d of job %q: it was not run from a file, or that was too large\nPrint the job without -hcl", version, id)
	case err != nil:
		return apiclient.WrapErrorWithAdvice(fmt.Sprintf("read the source of job %q", id), err)
	}
	if o.includeVars {
		printSubmittedVariables(source, s)
	}
	_, err = io.WriteString(s.Out, source.Source)
	return err
}

// printSubmittedVariables prints the variables with which a job file was run to standard error: the text of the
// variable files, and then the values of -var as flags. Standard output has only the job file.
func printSubmittedVariables(source *api.JobSubmission, s *cli.Streams) {
	if source.Variables != "" {
		fmt.Fprintf(s.Err, "%s\n", terminal.SanitizeText([]byte(strings.TrimRight(source.Variables, "\n")), false))
	}
	var flagArgs []string
	for _, name := range slices.Sorted(maps.Keys(source.VariableFlags)) {
		flagArgs = append(flagArgs, "-var "+shellquote.QuoteIfNeeded(name+"="+source.VariableFlags[name]))
	}
	if flagArgs != nil {
		fmt.Fprintf(s.Err, "%s\n", terminal.SanitizeText([]byte(strings.Join(flagArgs, " ")), false))
	}
}
