package alloc

import (
	"context"
	"fmt"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/monitor"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/internal/pointer"
)

const stopHelp = `Stop an allocation. The scheduler replaces it, because its job still runs; to
stop the job: nomad-lite job stop.

What comes of it is watched, as after 'job run'.

Exit codes: 0; 1 when there is no such allocation or a deployment failed; 2 when
no other one could be placed.`

const stopExamples = `  nomad-lite alloc stop 8ba85cef
  nomad-lite alloc stop -detach 8ba85cef   and do not watch`

type stopOptions struct {
	clientFlags     apiclient.Flags
	monitorFlags    monitor.Flags
	noShutdownDelay bool
}

func newStopCommand(s *cli.Streams) *cobra.Command {
	var o stopOptions
	cmd := &cobra.Command{
		Use:     "stop [flags] ALLOC",
		Short:   "Stop and replace an allocation",
		Long:    stopHelp,
		Example: stopExamples,
		Args:    oneAllocArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			return stopAlloc(cmd.Context(), o, args[0], s)
		},
		ValidArgsFunction: cli.CompleteArgsByPosition(apiclient.CompleteID(&o.clientFlags, &apiclient.AllocationLookup)),
	}
	o.clientFlags.Register(cmd)
	o.monitorFlags.Register(cmd)
	cmd.Flags().BoolVar(&o.noShutdownDelay, "no-shutdown-delay", false, "do not wait for the shutdown_delay of the tasks")
	return cmd
}

func stopAlloc(ctx context.Context, o stopOptions, allocIDPrefix string, s *cli.Streams) error {
	c, alloc, err := o.clientFlags.FindAlloc(ctx, allocIDPrefix)
	if err != nil {
		return err
	}
	q := apiclient.QueryOptions(ctx, alloc.Namespace)
	q.Params = map[string]string{}
	if o.noShutdownDelay {
		q.Params["no_shutdown_delay"] = "true"
	}
	if alloc.Job != nil && pointer.Value(alloc.Job.Type) == api.JobTypeBatch {
		q.Params["reschedule"] = "true" // without this parameter, a stopped allocation of a batch job is not replaced
	}
	answer, err := c.Allocations().Stop(alloc, q)
	if err != nil {
		return apiclient.WrapErrorWithAdvice(fmt.Sprintf("stop allocation %q", output.TruncateID(alloc.ID)), err)
	}
	if o.monitorFlags.Detach {
		_, err := fmt.Fprintln(s.Out, answer.EvalID)
		return err
	}
	return o.monitorFlags.WatchEvaluationOrPrintID(ctx, s, c, alloc.Namespace, answer.EvalID)
}
