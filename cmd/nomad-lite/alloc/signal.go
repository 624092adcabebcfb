package alloc

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
)

const signalHelp = `Send a signal to a task of an allocation, or to all of its tasks. On success
nothing is printed.

Exit codes: 0, or 1 when a task does not run.`

const signalExamples = `  nomad-lite alloc signal -s SIGHUP 8ba85cef server
  nomad-lite alloc signal -s SIGUSR1 8ba85cef   to all tasks`

type signalOptions struct {
	clientFlags apiclient.Flags
	task        string
	signal      string
}

func newSignalCommand() *cobra.Command {
	var o signalOptions
	cmd := &cobra.Command{
		Use:     "signal [flags] ALLOC [TASK]",
		Short:   "Send a signal to the tasks of an allocation",
		Long:    signalHelp,
		Example: signalExamples,
		Args:    allocAndTaskArgs,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if o.task, err = taskNameFromFlagOrArgs(o.task, args[1:]); err != nil {
				return err
			}
			return signalAlloc(cmd.Context(), o, args[0])
		},
		ValidArgsFunction: apiclient.CompleteAllocAndTask(&o.clientFlags),
	}
	o.clientFlags.Register(cmd)
	cmd.Flags().StringVar(&o.task, "task", "", "`task` to signal; may be the last argument as well")
	cli.MustSetFlagCompletion(cmd, "task", apiclient.CompleteTask(&o.clientFlags))
	cmd.Flags().StringVarP(&o.signal, "signal", "s", "SIGKILL", "`signal` to send, such as SIGHUP")
	return cmd
}

func signalAlloc(ctx context.Context, o signalOptions, allocIDPrefix string) error {
	c, alloc, what, err := findAllocAndCheckTask(ctx, &o.clientFlags, allocIDPrefix, o.task)
	if err != nil {
		return err
	}
	if err := c.Allocations().Signal(alloc, apiclient.QueryOptions(ctx, alloc.Namespace), o.task, o.signal); err != nil {
		return apiclient.WrapErrorWithAdvice(fmt.Sprintf("send %s to %s", o.signal, what), err)
	}
	return nil
}
