package main

import (
	"context"
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

To run a job on this machine without an agent, use 'nomad-lite run FILE'.

Exit codes: 0 the job is placed, and deployed if it has deployments; 1 it was
refused, or the deployment failed; 2 not all of it could be placed.`

type jobRunOptions struct {
	file       jobFileFlags
	client     clientFlags
	output     bool
	detach     bool
	checkIndex uint64
	checks     bool
}

func newJobRunCommand(s *streams) *cobra.Command {
	var o jobRunOptions
	cmd := &cobra.Command{
		Use:   "run [flags] FILE",
		Short: "Give a job to an agent, or print its JSON",
		Long:  jobRunHelp,
		Args:  oneJobFile,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.checks = cmd.Flags().Changed("check-index")
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
	cmd.Flags().BoolVar(&o.output, "output", false, "print the JSON of the job and do not run it")
	cmd.Flags().BoolVar(&o.detach, "detach", false, "do not watch: print the id of the evaluation and return")
	cmd.Flags().Uint64Var(&o.checkIndex, "check-index", 0, "refuse the job unless its modify `index` is this one; 0 means that it must be new")
	return cmd
}

func submit(ctx context.Context, o jobRunOptions, job *jobFile, path string, s *streams) error {
	client, err := o.client.client()
	if err != nil {
		return err
	}
	out, _, err := client.Jobs().RegisterOpts(job.job, &api.RegisterOptions{
		EnforceIndex: o.checks,
		ModifyIndex:  o.checkIndex,
		Submission:   o.submission(job),
	}, (&api.WriteOptions{}).WithContext(ctx))
	if err != nil {
		const conflict = api.RegisterEnforceIndexErrPrefix
		if _, reason, found := strings.Cut(err.Error(), conflict); found {
			return fmt.Errorf("%s%s\nJob not updated", conflict, strings.TrimSuffix(reason, ")"))
		}
		return failed("submit job "+path, err)
	}
	if out.Warnings != "" {
		fmt.Fprintf(s.err, "Job Warnings:\n%s\n", strings.TrimRight(out.Warnings, "\n"))
	}
	switch {
	case out.EvalID == "":
		_, err := fmt.Fprintln(s.out, "Job registration successful")
		return err
	case o.detach:
		_, err := fmt.Fprintf(s.out, "Job registration successful\nEvaluation ID: %s\n", out.EvalID)
		return err
	}
	m := &monitor{client: client, out: s.out}
	if job.job.Namespace != nil {
		m.namespace = *job.job.Namespace
	}
	return m.evaluation(ctx, out.EvalID)
}

// submission is the source of the job, for those who want to read it again.
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
