package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
)

const allocPauseHelp = `Change or show the schedule of a task. Task schedules are a feature of Nomad
Enterprise: an agent without them refuses.`

type allocPauseOptions struct {
	client clientFlags
	task   string
	state  string
	status bool
}

func newAllocPauseCommand(s *streams) *cobra.Command {
	var o allocPauseOptions
	cmd := &cobra.Command{
		Use:   "pause [flags] ALLOC [TASK]",
		Short: "Change the schedule of a task (Nomad Enterprise)",
		Long:  allocPauseHelp,
		Args:  allocThenTask,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if o.task, err = taskArgument(o.task, args[1:]); err != nil {
				return err
			}
			return pauseTask(cmd.Context(), o, args[0], s)
		},
	}
	o.client.register(cmd)
	cmd.Flags().StringVar(&o.task, "task", "", "`task` to pause; not needed if there is only one")
	cmd.Flags().StringVar(&o.state, "state", "pause", "`state` to set: pause, run or scheduled")
	cmd.Flags().BoolVar(&o.status, "status", false, "show the state and leave it")
	return cmd
}

func pauseTask(ctx context.Context, o allocPauseOptions, id string, s *streams) error {
	c, alloc, err := o.client.findAlloc(ctx, id)
	if err != nil {
		return err
	}
	task, err := chooseTask(alloc, o.task)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("schedule of task %q of allocation %q", task, short(alloc.ID))
	if o.status {
		state, _, err := c.Allocations().GetPauseState(alloc, query(ctx, alloc.Namespace), task)
		if err != nil {
			return failed("read "+what, err)
		}
		if state == "" {
			state = "run"
		}
		_, err = fmt.Fprintln(s.out, state)
		return err
	}
	if err := c.Allocations().SetPauseState(alloc, query(ctx, alloc.Namespace), task, o.state); err != nil {
		return failed("change "+what, err)
	}
	return nil
}
