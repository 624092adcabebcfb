package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/runtime/jobspec"
)

const jobRunHelp = `Give a job to an agent, and watch until it is placed, or deployed.

FILE is a path, or - for standard input. A job that the agent knows becomes a
new version of it.

With -output the JSON of the job is printed, as the HTTP API takes it, and
nothing is run: no default is filled in, and nothing is checked beyond its form.

Ctrl-C ends only the watching: the agent goes on. To run a job on this machine
without an agent, use 'nomad-lite run FILE'.

Exit codes: 0 the job is placed, and deployed if it has deployments; 1 it was
refused, or the deployment failed; 2 not all of it could be placed.`

type jobRunOptions struct {
	file     jobFileFlags
	client   clientFlags
	watch    watchFlags
	output   bool
	register api.RegisterOptions
}

func newJobRunCommand(s *streams) *cobra.Command {
	var o jobRunOptions
	cmd := &cobra.Command{
		Use:   "run [flags] FILE",
		Short: "Give a job to an agent, or print its JSON",
		Long:  jobRunHelp,
		Example: `  nomad-lite job run web.nomad.hcl
  nomad-lite job run -var image=web:2 -check-index 12 web.nomad.hcl
  nomad-lite job run -detach - < web.nomad.hcl
  nomad-lite job run -output web.nomad.hcl > web.json`,
		Args: oneJobFile,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.register.EnforceIndex = cmd.Flags().Changed("check-index")
			job, err := o.file.read(s, args[0], 1)
			if err != nil {
				return err
			}
			if o.output {
				return jobspec.Encode(s.out, job.job)
			}
			return submit(cmd.Context(), o, job, args[0], s)
		},
	}
	o.file.register(cmd)
	o.client.register(cmd)
	o.watch.register(cmd)
	flags := cmd.Flags()
	flags.BoolVar(&o.output, "output", false, "print the JSON of the job and do not run it")
	flags.Uint64Var(&o.register.ModifyIndex, "check-index", 0, "refuse the job unless its modify `index` is this one; 0 means that it must be new")
	flags.IntVar(&o.register.EvalPriority, "eval-priority", 0, "`priority` of the evaluation, if it is not to be that of the job")
	flags.BoolVar(&o.register.PreserveCounts, "preserve-counts", false, "keep the counts of groups that run already, whatever the file says")
	flags.BoolVar(&o.register.PreserveResources, "preserve-resources", false, "keep the resources of tasks that run already, whatever the file says")
	flags.BoolVar(&o.register.PolicyOverride, "policy-override", false, "override soft policies, where there are any")
	return cmd
}

func submit(ctx context.Context, o jobRunOptions, job *jobFile, path string, s *streams) error {
	if good, err := job.checkPorts(s); err != nil || !good {
		return errors.Join(&exitError{code: 1}, err)
	}
	client, err := o.client.client()
	if err != nil {
		return err
	}
	namespace := valueOf(job.job.Namespace)
	o.client.goTo(client, job.job)
	o.register.Submission = o.submission(job)
	out, _, err := client.Jobs().RegisterOpts(job.job, &o.register, write(ctx, namespace))
	if err != nil {
		const conflict = api.RegisterEnforceIndexErrPrefix
		if _, reason, found := strings.Cut(err.Error(), conflict); found {
			return fmt.Errorf("%s%s\nJob not updated", conflict, strings.TrimSuffix(reason, ")"))
		}
		return job.placed(failed("submit job "+path, err))
	}
	s.warn(out.Warnings)
	if out.EvalID == "" {
		_, err := fmt.Fprintf(s.out, "Job registration successful\n%s", awaits(job.job))
		return err
	}
	if o.watch.detach {
		fmt.Fprintln(s.out, "Job registration successful")
	}
	return o.watch.watch(ctx, s, client, namespace, out.EvalID)
}

// awaits returns how a job starts that does not start when it is registered, else "".
func awaits(job *api.Job) string {
	switch {
	case job.Periodic != nil:
		return fmt.Sprintf("Next launch: %s\n", nextLaunch(job.Periodic))
	case job.ParameterizedJob != nil:
		return fmt.Sprintf("To run an instance of it: nomad-lite job dispatch %s\n", valueOf(job.ID))
	}
	return ""
}

// warn shows the warnings of an agent about a job.
func (s *streams) warn(warnings string) {
	if warnings != "" {
		fmt.Fprintf(s.err, "Job Warnings:\n%s\n", printable([]byte(strings.TrimRight(warnings, "\n")), false))
	}
}

// submission returns the source of the job, which the agent stores with it.
func (o jobRunOptions) submission(job *jobFile) *api.JobSubmission {
	if job.source == nil {
		return nil
	}
	submission := &api.JobSubmission{Source: string(job.source), Format: "hcl2"}
	if o.file.json {
		submission.Format = "json"
	}
	flags := make(map[string]string)
	for _, v := range o.file.vars {
		name, value, _ := strings.Cut(v, "=")
		flags[name] = value
	}
	if len(flags) > 0 {
		submission.VariableFlags = flags
	}
	var files []string
	for _, name := range slices.Sorted(maps.Keys(job.file.Texts)) {
		if slices.Contains(o.file.varFiles, name) {
			files = append(files, string(job.file.Texts[name]))
		}
	}
	submission.Variables = strings.Join(files, "\n")
	return submission
}
