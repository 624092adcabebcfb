package alloc

import (
	"context"
	"fmt"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
)

const restartHelp = `Restart an allocation where it is: the tasks that run now, one task, or with
-all-tasks all tasks in the order of their lifecycle. It does not count against
the restart policy. On success nothing is printed.

Exit codes: 0, or 1 when a named task does not run.`

const restartExamples = `  nomad-lite alloc restart 8ba85cef          the tasks that run
  nomad-lite alloc restart 8ba85cef server   one of them
  nomad-lite alloc restart -all-tasks 8ba85cef`

type restartOptions struct {
	clientFlags apiclient.Flags
	task        string
	allTasks    bool
}

func newRestartCommand() *cobra.Command {
	var o restartOptions
	cmd := &cobra.Command{
		Use:     "restart [flags] ALLOC [TASK]",
		Short:   "Restart the tasks of an allocation",
		Long:    restartHelp,
		Example: restartExamples,
		Args:    allocAndTaskArgs,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if o.task, err = taskNameFromFlagOrArgs(o.task, args[1:]); err != nil {
				return err
			}
			if o.task != "" && o.allTasks {
				return cli.UsageError(cmd, fmt.Errorf("-all-tasks and a task exclude each other"))
			}
			return restartAlloc(cmd.Context(), o, args[0])
		},
		ValidArgsFunction: apiclient.CompleteAllocAndTask(&o.clientFlags),
	}
	o.clientFlags.Register(cmd)
	cmd.Flags().StringVar(&o.task, "task", "", "`task` to restart; may be the last argument as well")
	cli.MustSetFlagCompletion(cmd, "task", apiclient.CompleteTask(&o.clientFlags))
	cmd.Flags().BoolVar(&o.allTasks, "all-tasks", false, "restart all tasks, those that have ended as well")
	return cmd
}

func restartAlloc(ctx context.Context, o restartOptions, allocIDPrefix string) error {
	c, alloc, what, err := findAllocAndCheckTask(ctx, &o.clientFlags, allocIDPrefix, o.task)
	if err != nil {
		return err
	}
	switch status := alloc.ClientStatus; {
	case status == api.AllocClientStatusFailed:
		return fmt.Errorf("restart %s: it has failed for good\nTo have another in its place: nomad-lite job eval -force-reschedule %s", what, alloc.JobID)
	case status == api.AllocClientStatusComplete, status == api.AllocClientStatusLost:
		return fmt.Errorf("restart %s: it is %s, and does not start again", what, status)
	case status != api.AllocClientStatusRunning && !o.allTasks:
		return fmt.Errorf("restart %s: it is %s; -all-tasks also starts tasks that have ended", what, status)
	}
	if o.allTasks {
		err = c.Allocations().RestartAllTasks(alloc, apiclient.QueryOptions(ctx, alloc.Namespace))
	} else {
		err = c.Allocations().Restart(alloc, o.task, apiclient.QueryOptions(ctx, alloc.Namespace))
	}
	if err != nil {
		return apiclient.WrapErrorWithAdvice("restart "+what, err)
	}
	return nil
}
