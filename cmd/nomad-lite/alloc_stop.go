package main

import (
	"context"
	"fmt"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
)

const allocStopHelp = `Stop an allocation. Its job is still wanted, so another one takes its place; to
stop the job: nomad-lite job stop.

What comes of it is watched, as after 'job run'.

Exit codes: 0; 1 when there is no such allocation or a deployment failed; 2 when
no other one could be placed.`

const allocStopExamples = `  nomad-lite alloc stop 8ba85cef
  nomad-lite alloc stop -detach 8ba85cef   and do not watch`

type allocStopOptions struct {
	client          clientFlags
	watch           watchFlags
	noShutdownDelay bool
}

func newAllocStopCommand(s *streams) *cobra.Command {
	var o allocStopOptions
	cmd := &cobra.Command{
		Use:     "stop [flags] ALLOC",
		Short:   "Stop an allocation, so that another takes its place",
		Long:    allocStopHelp,
		Example: allocStopExamples,
		Args:    oneAlloc,
		RunE: func(cmd *cobra.Command, args []string) error {
			return stopAlloc(cmd.Context(), o, args[0], s)
		},
		ValidArgsFunction: firstArg(allocKind.complete(&o.client)),
	}
	o.client.register(cmd)
	o.watch.register(cmd)
	cmd.Flags().BoolVar(&o.noShutdownDelay, "no-shutdown-delay", false, "do not wait for the shutdown_delay of the tasks")
	return cmd
}

func stopAlloc(ctx context.Context, o allocStopOptions, id string, s *streams) error {
	c, alloc, err := o.client.findAlloc(ctx, id)
	if err != nil {
		return err
	}
	q := query(ctx, alloc.Namespace)
	q.Params = map[string]string{}
	if o.noShutdownDelay {
		q.Params["no_shutdown_delay"] = "true"
	}
	if alloc.Job != nil && valueOf(alloc.Job.Type) == api.JobTypeBatch {
		q.Params["reschedule"] = "true" // without it, an allocation of a batch job is not replaced
	}
	answer, err := c.Allocations().Stop(alloc, q)
	if err != nil {
		return failed(fmt.Sprintf("stop allocation %q", short(alloc.ID)), err)
	}
	return o.watch.watch(ctx, s, c, alloc.Namespace, answer.EvalID)
}
