package alloc

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
)

const pauseHelp = `Change or show the schedule of a task. Task schedules are a feature of Nomad
Enterprise: an agent without them refuses.`

type pauseOptions struct {
	clientFlags   apiclient.Flags
	task          string
	newState      string
	onlyShowState bool
}

func newPauseCommand(s *cli.Streams) *cobra.Command {
	var o pauseOptions
	cmd := &cobra.Command{
		Use:   "pause [flags] ALLOC [TASK]",
		Short: "Change the schedule of a task (Nomad Enterprise)",
		Long:  pauseHelp,
		Args:  allocAndTaskArgs,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if o.task, err = taskNameFromFlagOrArgs(o.task, args[1:]); err != nil {
				return err
			}
			return changeOrShowPauseState(cmd.Context(), o, args[0], s)
		},
	}
	o.clientFlags.Register(cmd)
	cmd.Flags().StringVar(&o.task, "task", "", "`task` to pause; not needed if there is only one")
	cmd.Flags().StringVar(&o.newState, "state", "pause", "`state` to set: pause, run or scheduled")
	cmd.Flags().BoolVar(&o.onlyShowState, "status", false, "show the state and leave it")
	return cmd
}

func changeOrShowPauseState(ctx context.Context, o pauseOptions, allocIDPrefix string, s *cli.Streams) error {
	c, alloc, err := o.clientFlags.FindAlloc(ctx, allocIDPrefix)
	if err != nil {
		return err
	}
	task, err := checkTaskNameOrUseOnlyTask(alloc, o.task)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("schedule of task %q of allocation %q", task, output.TruncateID(alloc.ID))
	if o.onlyShowState {
		state, _, err := c.Allocations().GetPauseState(alloc, apiclient.QueryOptions(ctx, alloc.Namespace), task)
		if err != nil {
			return apiclient.WrapErrorWithAdvice("read "+what, err)
		}
		if state == "" {
			state = "run"
		}
		_, err = fmt.Fprintln(s.Out, state)
		return err
	}
	if err := c.Allocations().SetPauseState(alloc, apiclient.QueryOptions(ctx, alloc.Namespace), task, o.newState); err != nil {
		return apiclient.WrapErrorWithAdvice("change "+what, err)
	}
	return nil
}
