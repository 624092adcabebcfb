package job

import (
	"context"
	"fmt"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/monitor"
	"github.com/nomad-lite/nomad-lite/internal/pointer"
)

type startOptions struct {
	clientFlags  apiclient.Flags
	monitorFlags monitor.Flags
}

// NewStartCommand returns the command "job start", which is also "start".
func NewStartCommand(s *cli.Streams) *cobra.Command {
	var o startOptions
	cmd := &cobra.Command{
		Use:   "start [flags] JOB",
		Short: "Start a stopped job",
		Long: `Start a stopped job in its last version.

Exit codes: as for 'job run'.`,
		Example:           `  nomad-lite job start web`,
		Args:              apiclient.RequireOneJobArg,
		ValidArgsFunction: cli.CompleteArgsByPosition(o.clientFlags.CompleteJobs("Stop == true")),
		RunE: func(cmd *cobra.Command, args []string) error {
			return startJob(cmd.Context(), o, args[0], s)
		},
	}
	o.clientFlags.Register(cmd)
	o.monitorFlags.Register(cmd)
	return cmd
}

func startJob(ctx context.Context, o startOptions, jobIDPrefix string, s *cli.Streams) error {
	c, job, err := findJobVersion(ctx, &o.clientFlags, jobIDPrefix, -1)
	if err != nil {
		return err
	}
	id, namespace := pointer.Value(job.ID), pointer.Value(job.Namespace)
	if !pointer.Value(job.Stop) {
		hint := "To restart its tasks: nomad-lite job restart " + id
		if pointer.Value(job.Status) == "dead" {
			hint = "To run again what has failed: nomad-lite job eval -force-reschedule " + id
		}
		//lint:ignore ST1005 the text is Nomad's
		return fmt.Errorf("Job %q has not been stopped: its status is %q\n%s", id, pointer.Value(job.Status), hint)
	}
	// The registration makes a new version of the job, which gets the job file of the stopped version.
	source, _, err := c.Jobs().Submission(id, int(pointer.Value(job.Version)), apiclient.QueryOptions(ctx, namespace))
	if err != nil || source == nil || source.Source == "" {
		source = nil
	}
	job.Stop = new(false)
	out, _, err := c.Jobs().RegisterOpts(job, &api.RegisterOptions{Submission: source}, apiclient.WriteOptions(ctx, namespace))
	if err != nil {
		return apiclient.WrapErrorWithAdvice(fmt.Sprintf("start job %q", id), err)
	}
	if o.monitorFlags.Detach {
		fmt.Fprintln(s.Out, "Job start successful")
	}
	return o.monitorFlags.WatchEvaluationOrPrintID(ctx, s, c, namespace, out.EvalID)
}
