package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
)

const allocSignalHelp = `Send a signal to a task of an allocation, or to all of its tasks.

Exit codes: 0, or 1 when a task does not run.`

const allocSignalExamples = `  nomad-lite alloc signal -s SIGHUP 8ba85cef server
  nomad-lite alloc signal -s SIGUSR1 8ba85cef   to all tasks`

type allocSignalOptions struct {
	client clientFlags
	task   string
	signal string
}

func newAllocSignalCommand(s *streams) *cobra.Command {
	var o allocSignalOptions
	cmd := &cobra.Command{
		Use:     "signal [flags] ALLOC [TASK]",
		Short:   "Send a signal to the tasks of an allocation",
		Long:    allocSignalHelp,
		Example: allocSignalExamples,
		Args:    allocThenTask,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if o.task, err = taskArgument(o.task, args[1:]); err != nil {
				return err
			}
			return signalAlloc(cmd.Context(), o, args[0], s)
		},
		ValidArgsFunction: firstArg(allocKind.complete(&o.client)),
	}
	o.client.register(cmd)
	cmd.Flags().StringVar(&o.task, "task", "", "`task` to signal; may be the last argument as well")
	cmd.Flags().StringVarP(&o.signal, "signal", "s", "SIGKILL", "`signal` to send, such as SIGHUP")
	return cmd
}

func signalAlloc(ctx context.Context, o allocSignalOptions, id string, s *streams) error {
	c, alloc, what, err := o.client.findTask(ctx, id, o.task)
	if err != nil {
		return err
	}
	if err := c.Allocations().Signal(alloc, query(ctx, alloc.Namespace), o.task, o.signal); err != nil {
		return failed(fmt.Sprintf("send %s to %s", o.signal, what), err)
	}
	_, err = fmt.Fprintf(s.out, "Sent %s to %s\n", o.signal, what)
	return err
}
