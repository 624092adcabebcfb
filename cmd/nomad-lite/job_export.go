package main

import (
	"context"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/runtime/jobspec"
)

type jobExportOptions struct {
	client  clientFlags
	version int64
}

func newJobExportCommand(s *streams) *cobra.Command {
	var o jobExportOptions
	cmd := &cobra.Command{
		Use:   "export [flags] JOB",
		Short: "Print a job so that another agent can run it",
		Long: `Print the JSON of a job without what only this agent knows about it, so that
another agent, or a Nomad cluster, can run it with 'job run -json -'.`,
		Example: `  nomad-lite job export web > web.json
  nomad-lite job export web | nomad job run -json -
  nomad-lite job export web | nomad-lite job run -address https://nomad.example.com:4646 -json -`,
		Args:              oneJob,
		ValidArgsFunction: firstArg(o.client.completeJobs("")),
		RunE: func(cmd *cobra.Command, args []string) error {
			return exportJob(cmd.Context(), o, args[0], s)
		},
	}
	o.client.register(cmd)
	cmd.Flags().Int64Var(&o.version, "version", -1, "the job as it was in this `version`")
	return cmd
}

func exportJob(ctx context.Context, o jobExportOptions, prefix string, s *streams) error {
	_, job, err := o.client.readJob(ctx, prefix, o.version)
	if err != nil {
		return err
	}
	forget(job)
	return jobspec.Encode(s.out, job)
}

// forget removes the fields that an agent has set from a job.
func forget(job *api.Job) {
	job.Stop, job.Status, job.StatusDescription, job.Stable = nil, nil, nil, nil
	job.Version, job.VersionTag, job.SubmitTime = nil, nil, nil
	job.CreateIndex, job.ModifyIndex, job.JobModifyIndex = nil, nil, nil
	job.NomadTokenID, job.ConsulNamespace, job.VaultNamespace = nil, nil, nil
	job.Dispatched, job.DispatchIdempotencyToken = false, nil
}
