package job

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/execsession"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
)

type actionOptions struct {
	clientFlags  apiclient.Flags
	jobID        string
	allocID      string
	group        string
	task         string
	sessionFlags execsession.Flags
}

// NewActionCommand returns the command "job action", which is also "action".
func NewActionCommand(s *cli.Streams) *cobra.Command {
	var o actionOptions
	cmd := &cobra.Command{
		Use:   "action [flags] ACTION",
		Short: "Run an action of a job",
		Long: `Run an action of a job, which is the command of an action block of one of its tasks.
The command runs in a running task of the job that -job names, or in the allocation
that -alloc names. 'job status' lists the actions.

Exit codes: the exit code of the command; 1 when it could not be run; 128 plus the
number of the signal when a signal ended the session.`,
		Example: `  nomad-lite job action -job web -task server flush-cache
  nomad-lite job action -alloc 8ba85cef flush-cache`,
		Args: cli.RequireArgCount(1, 1, "one argument: the name of an action"),
		ValidArgsFunction: cli.CompleteArgsByPosition(func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			return completeActions(&o.clientFlags, cmd, o.jobID)
		}),
		RunE: func(cmd *cobra.Command, args []string) error {
			if (o.jobID == "") == (o.allocID == "") {
				return cli.UsageError(cmd, errors.New("of which job? Give -job or -alloc"))
			}
			if err := o.sessionFlags.SetDefaultsAndValidate(cmd, s); err != nil {
				return err
			}
			return runAction(cmd.Context(), o, args[0], s)
		},
	}
	o.clientFlags.Register(cmd)
	o.sessionFlags.Register(cmd)
	cmd.Flags().StringVar(&o.jobID, "job", "", "`id` of the job")
	cmd.Flags().StringVar(&o.allocID, "alloc", "", "`id` of an allocation, instead of a job")
	cmd.Flags().StringVar(&o.group, "group", "", "with -job: in an allocation of this `group`")
	cmd.Flags().StringVar(&o.task, "task", "", "`task` that offers it; not needed if there is only one")
	cli.MustSetFlagCompletion(cmd, "job", o.clientFlags.CompleteJobs("Stop == false"))
	cli.MustSetFlagCompletion(cmd, "alloc", apiclient.CompleteID(&o.clientFlags, &apiclient.AllocationLookup))
	return cmd
}

func runAction(ctx context.Context, o actionOptions, action string, s *cli.Streams) error {
	find := apiclient.AllocFlags{ArgIsJobID: o.jobID != "", Group: o.group}
	c, alloc, err := find.FindAlloc(ctx, &o.clientFlags, cmp.Or(o.jobID, o.allocID))
	if err != nil {
		return err
	}
	task, err := findTaskWithAction(alloc, o.task, action)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("run action %q in task %q of allocation %q", action, task, output.TruncateID(alloc.ID))
	return o.sessionFlags.Run(ctx, s, what, func(ctx context.Context, e execsession.Session) (int, error) {
		return c.Jobs().ActionExec(ctx, alloc, alloc.JobID, task, o.sessionFlags.TTY, []string{}, action, e.Stdin, e.Stdout, e.Stderr, e.TerminalSizes, apiclient.QueryOptions(ctx, alloc.Namespace))
	})
}

// findTaskWithAction returns the name of the only task that has the action. If onlyTaskName is not empty, it considers
// only the task with this name.
func findTaskWithAction(alloc *api.Allocation, onlyTaskName, action string) (string, error) {
	var tasksWithAction, descriptions []string
	for _, task := range apiclient.TasksInDisplayOrder(alloc) {
		for _, a := range task.Actions {
			if a == nil || onlyTaskName != "" && onlyTaskName != task.Name {
				continue
			}
			descriptions = append(descriptions, a.Name)
			if a.Name == action {
				tasksWithAction = append(tasksWithAction, task.Name)
			}
		}
	}
	switch {
	case len(tasksWithAction) == 1:
		return tasksWithAction[0], nil
	case len(tasksWithAction) > 1:
		return "", fmt.Errorf("several tasks offer action %q; name one with -task: %s", action, strings.Join(tasksWithAction, ", "))
	case len(descriptions) > 0:
		return "", fmt.Errorf("no task of allocation %q offers action %q, but %s", output.TruncateID(alloc.ID), action, strings.Join(descriptions, ", "))
	}
	return "", fmt.Errorf("no task of allocation %q offers an action\nActions come from action blocks in the tasks of a job", output.TruncateID(alloc.ID))
}

// completeActions returns the actions of a job's tasks as completions, with the names of the tasks.
func completeActions(f *apiclient.Flags, cmd *cobra.Command, jobID string) ([]string, cobra.ShellCompDirective) {
	return f.CompleteFromAgent(cmd.Context(), func(ctx context.Context, c *api.Client) (names []string, err error) {
		if jobID == "" {
			return nil, nil
		}
		j, _, err := c.Jobs().Info(jobID, apiclient.QueryOptions(ctx, ""))
		if err != nil {
			return nil, err
		}
		t := actionTable(j)
		for _, row := range t.Rows {
			names = append(names, cobra.CompletionWithDesc(fmt.Sprint(row[0]), fmt.Sprint(row[2])))
		}
		return names, nil
	})
}
