package job

import (
	"context"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/runtime/job/jobspec"
)

type exportOptions struct {
	clientFlags       apiclient.Flags
	versionOrNegative int64
}

func newExportCommand(s *cli.Streams) *cobra.Command {
	var o exportOptions
	cmd := &cobra.Command{
		Use:   "export [flags] JOB",
		Short: "Print a job for submission to another agent",
		Long: `Print the JSON of a job without what only this agent knows about it, so that
another agent, or a Nomad cluster, can run it with 'job run -json -'.`,
		Example: `  nomad-lite job export web > web.json
  nomad-lite job export web | nomad job run -json -
  nomad-lite job export web | nomad-lite job run -address https://nomad.example.com:4646 -json -`,
		Args:              apiclient.RequireOneJobArg,
		ValidArgsFunction: cli.CompleteArgsByPosition(o.clientFlags.CompleteJobs("")),
		RunE: func(cmd *cobra.Command, args []string) error {
			return printJobForImport(cmd.Context(), o, args[0], s)
		},
	}
	o.clientFlags.Register(cmd)
	cmd.Flags().Int64Var(&o.versionOrNegative, "version", -1, "the job as it was in this `version`")
	return cmd
}

func printJobForImport(ctx context.Context, o exportOptions, jobIDPrefix string, s *cli.Streams) error {
	_, job, err := findJobVersion(ctx, &o.clientFlags, jobIDPrefix, o.versionOrNegative)
	if err != nil {
		return err
	}
	clearFieldsSetByServer(job)
	return jobspec.EncodeJobRunOutput(s.JSONOutput(), job)
}

// clearFieldsSetByServer clears the fields of a job that an agent sets, so that another agent accepts the job.
func clearFieldsSetByServer(job *api.Job) {
	job.Stop, job.Status, job.StatusDescription, job.Stable = nil, nil, nil, nil
	job.Version, job.VersionTag, job.SubmitTime = nil, nil, nil
	job.CreateIndex, job.ModifyIndex, job.JobModifyIndex = nil, nil, nil
	job.NomadTokenID, job.ConsulNamespace, job.VaultNamespace = nil, nil, nil
	job.Dispatched, job.DispatchIdempotencyToken = false, nil
}
