package job

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/jobfile"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/monitor"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/taskreason"
	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/runtime/job/jobspec"
)

const runHelp = `Submit a job to an agent, and monitor its placement and its deployment.

FILE is a path, or - for standard input. A job that the agent knows becomes a
new version of it.

With -output the JSON of the job is printed, as the HTTP API takes it, and
nothing is run: no default is filled in, and nothing is checked beyond its form.

With -wait, for a job of type batch or sysbatch, the command ends when the job
has ended, and -logs shows what its tasks write.

Ctrl-C ends only this command; the job continues in the agent. To run a job on
this machine without an agent, use 'nomad-lite run FILE'.

Exit codes: 0 the job is placed, and deployed if it has deployments; 1 it was
refused, or the deployment failed; 2 not all of it could be placed. With -wait:
0 every task ended successfully; 1 it was refused, a task failed, or the job was
stopped; 2 nothing of it could be placed. A deployment with a group that has no
place waits for one, as in Nomad: 'timeout 300 nomad-lite job run FILE' ends. If
the file is unchanged and its deployment had failed before, the exit code is 0 if
the job runs this version by now and passes its checks.`

type runOptions struct {
	jobFileFlags    jobfile.Flags
	clientFlags     apiclient.Flags
	monitorFlags    monitor.Flags
	waitFlags       monitor.WaitFlags
	printJSON       bool
	registerOptions api.RegisterOptions
}

func newRunCommand(s *cli.Streams, printLogs monitor.FollowLogsFunc) *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run [flags] FILE",
		Short: "Submit a job to an agent, or print its JSON",
		Long:  runHelp,
		Example: `  nomad-lite job run web.nomad.hcl
  nomad-lite job run -var image=web:2 -check-index 12 web.nomad.hcl
  nomad-lite job run -detach - < web.nomad.hcl
  nomad-lite job run -wait -logs backup.nomad.hcl   and its success is the exit code
  nomad-lite job run -output web.nomad.hcl > web.json`,
		Args: jobfile.RequireOneFileArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.waitFlags.CheckCombination(o.monitorFlags.Detach); err != nil {
				return cli.UsageError(cmd, err)
			}
			o.registerOptions.EnforceIndex = cmd.Flags().Changed("check-index")
			job, err := o.jobFileFlags.Read(s, args[0], cli.Failed)
			if err != nil {
				return err
			}
			if o.printJSON {
				return jobspec.EncodeJobRunOutput(s.JSONOutput(), job.Job)
			}
			return submitJob(cmd.Context(), o, job, args[0], s, printLogs)
		},
	}
	o.jobFileFlags.Register(cmd)
	o.clientFlags.Register(cmd)
	o.monitorFlags.Register(cmd)
	o.waitFlags.Register(cmd)
	flags := cmd.Flags()
	flags.BoolVar(&o.printJSON, "output", false, "print the JSON of the job and do not run it")
	flags.Uint64Var(&o.registerOptions.ModifyIndex, "check-index", 0, "refuse the job unless its modify `index` is this one; 0 means that it must be new")
	flags.IntVar(&o.registerOptions.EvalPriority, "eval-priority", 0, "`priority` of the evaluation (default: the priority of the job)")
	flags.BoolVar(&o.registerOptions.PreserveCounts, "preserve-counts", false, "keep the counts of groups that run already, whatever the file says")
	flags.BoolVar(&o.registerOptions.PreserveResources, "preserve-resources", false, "keep the resources of tasks that run already, whatever the file says")
	flags.BoolVar(&o.registerOptions.PolicyOverride, "policy-override", false, "override soft policies, where there are any")
	return cmd
}

func submitJob(ctx context.Context, o runOptions, job *jobfile.File, path string, s *cli.Streams, printLogs monitor.FollowLogsFunc) error {
	if o.waitFlags.UntilEnded {
		if err := checkJobEndsByItself(job.Job); err != nil {
			return err
		}
	}
	if good, err := job.CheckUnknownPortLabels(s); err != nil || !good {
		return errors.Join(&cli.ExitError{Code: 1}, err)
	}
	client, err := o.clientFlags.Client()
	if err != nil {
		return err
	}
	namespace := pointer.Value(job.Job.Namespace)
	o.clientFlags.UseJobRegion(client, job.Job)
	if good, err := job.CheckDriverConfigs(ctx, client, s); err != nil || !good {
		return errors.Join(&cli.ExitError{Code: 1}, err)
	}
	o.registerOptions.Submission = o.newSubmission(job)
	out, _, err := client.Jobs().RegisterOpts(job.Job, &o.registerOptions, apiclient.WriteOptions(ctx, namespace))
	if err != nil {
		const enforceIndexErrPrefix = api.RegisterEnforceIndexErrPrefix
		if _, reason, found := strings.Cut(err.Error(), enforceIndexErrPrefix); found {
			return fmt.Errorf("%s%s\nJob not updated", enforceIndexErrPrefix, strings.TrimSuffix(reason, ")"))
		}
		return job.AddSourceLinesToError(apiclient.WrapErrorWithAdvice("submit job "+path, err))
	}
	cli.SetPageForUIFlag(ctx, cli.JobWebPagePath(pointer.Value(job.Job.ID), cmp.Or(namespace, o.clientFlags.ClientConfig().Namespace, api.DefaultNamespace)))
	jobfile.PrintAPIWarnings(s.Out, out.Warnings)
	if out.EvalID == "" {
		return printWhenJobStarts(job.Job, s)
	}
	if o.monitorFlags.Detach {
		fmt.Fprintln(s.Out, "Job registration successful")
	}
	if o.waitFlags.UntilEnded {
		return o.waitFlags.WaitUntilJobEnded(ctx, monitor.New(s, client, namespace, o.monitorFlags.Verbose), pointer.Value(job.Job.ID), out.EvalID, printLogs)
	}
	return o.monitorFlags.WatchEvaluationOrPrintID(ctx, s, client, namespace, out.EvalID)
}

// checkJobEndsByItself returns an error for a job for which -wait would never end: a service or system job, and a
// periodic or parameterized job, because only its child jobs run.
func checkJobEndsByItself(job *api.Job) error {
	id := pointer.Value(job.ID)
	switch {
	case job.Periodic != nil:
		return fmt.Errorf("-wait: job %q is periodic, and does not end; to run it once: nomad-lite job periodic force %s", id, id)
	case job.IsParameterized():
		return fmt.Errorf("-wait: job %q is parameterized, and does not end; to run an instance of it: nomad-lite job dispatch -wait %s", id, id)
	case !taskreason.IsBatchOrSysbatch(job):
		return fmt.Errorf("-wait: job %q is of type %q, and does not end by itself: leave -wait out, or set type = \"batch\"", id, cmp.Or(pointer.Value(job.Type), api.JobTypeService))
	}
	return nil
}

// printWhenJobStarts prints a message for a job that does not start at its registration: when a periodic job starts
// next, or how to dispatch a parameterized job.
func printWhenJobStarts(job *api.Job, s *cli.Streams) error {
	_, err := fmt.Fprintln(s.Out, "Job registration successful")
	switch {
	case err != nil:
	case job.Periodic != nil:
		_, err = fmt.Fprintf(s.Out, "Approximate next launch time: %s\n", formatNextLaunch(job.Periodic))
	case job.ParameterizedJob != nil:
		_, err = fmt.Fprintf(s.Err, "To run an instance of it: nomad-lite job dispatch %s\n", pointer.Value(job.ID))
	}
	return err
}

// newSubmission returns the source of the job file and its variables, which the agent stores with the job.
func (o runOptions) newSubmission(job *jobfile.File) *api.JobSubmission {
	if job.SourceText == nil {
		return nil
	}
	submission := &api.JobSubmission{Source: string(job.SourceText), Format: "hcl2"}
	if o.jobFileFlags.FileIsJSON {
		submission.Format = "json"
	}
	flags := make(map[string]string)
	for _, v := range o.jobFileFlags.Vars {
		name, value, _ := strings.Cut(v, "=")
		flags[name] = value
	}
	if len(flags) > 0 {
		submission.VariableFlags = flags
	}
	var varFileTexts []string
	for _, name := range slices.Sorted(maps.Keys(job.Parsed.SourceTextByFileName)) {
		if slices.Contains(o.jobFileFlags.VarFiles, name) {
			varFileTexts = append(varFileTexts, string(job.Parsed.SourceTextByFileName[name]))
		}
	}
	submission.Variables = strings.Join(varFileTexts, "\n")
	return submission
}
