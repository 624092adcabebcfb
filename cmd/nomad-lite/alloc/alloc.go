package alloc

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
)

// NewCommand returns the command "alloc" with its subcommands.
func NewCommand(s *cli.Streams) *cobra.Command {
	return cli.NewGroupCommand("alloc", "Inspect and control allocations",
		newStatusCommand(s),
		newLogsCommand(s),
		NewExecCommand(s),
		NewFSCommand(s),
		newRestartCommand(),
		newSignalCommand(),
		newStopCommand(s),
		newChecksCommand(s),
		newStatsCommand(s),
		newPauseCommand(s),
	)
}

// checkTaskNameOrUseOnlyTask returns name if the allocation has a task with this name. If name is empty, it returns the
// name of the allocation's only task.
func checkTaskNameOrUseOnlyTask(alloc *api.Allocation, name string) (string, error) {
	var taskNames []string
	for _, task := range apiclient.TasksInDisplayOrder(alloc) {
		taskNames = append(taskNames, task.Name)
	}
	switch {
	case name != "" && (len(taskNames) == 0 || slices.Contains(taskNames, name)):
		return name, nil
	case name != "":
		return "", fmt.Errorf("allocation %q has no task %q; it has %s", output.TruncateID(alloc.ID), name, strings.Join(taskNames, ", "))
	case len(taskNames) == 1:
		return taskNames[0], nil
	case len(taskNames) == 0:
		return "", fmt.Errorf("allocation %q does not say which tasks it has; name one with -task", output.TruncateID(alloc.ID))
	}
	return "", fmt.Errorf("allocation %q has several tasks; name one with -task: %s", output.TruncateID(alloc.ID), strings.Join(taskNames, ", "))
}

// taskNameFromFlagOrArgs returns the name of a task from the flag -task or from the arguments after the allocation. It
// returns an error if they differ.
func taskNameFromFlagOrArgs(taskFlag string, argsAfterAlloc []string) (string, error) {
	switch {
	case len(argsAfterAlloc) == 0:
		return taskFlag, nil
	case taskFlag == "" || taskFlag == argsAfterAlloc[0]:
		return argsAfterAlloc[0], nil
	}
	return "", fmt.Errorf("-task says %q and the argument %q; leave one out", taskFlag, argsAfterAlloc[0])
}

// findAllocAndCheckTask finds an allocation by its id or prefix, and checks that the allocation has the task. An empty
// optionalTask means all tasks. description describes the allocation, or the task, for messages.
func findAllocAndCheckTask(ctx context.Context, f *apiclient.Flags, allocIDPrefix, optionalTask string) (c *api.Client, alloc *api.Allocation, description string, err error) {
	c, alloc, err = f.FindAlloc(ctx, allocIDPrefix)
	if err != nil {
		return nil, nil, "", err
	}
	description = fmt.Sprintf("allocation %q", output.TruncateID(alloc.ID))
	if optionalTask != "" {
		_, err = checkTaskNameOrUseOnlyTask(alloc, optionalTask)
		description = fmt.Sprintf("task %q of %s", optionalTask, description)
	}
	return c, alloc, description, err
}

var (
	oneAllocArg      = cli.RequireArgCount(1, 1, "the id of an allocation, or the begin of it; 'nomad-lite alloc status' lists them")
	allocAndTaskArgs = cli.RequireArgCount(1, 2, "an allocation, and perhaps a task; 'nomad-lite alloc status' lists the allocations")
)
