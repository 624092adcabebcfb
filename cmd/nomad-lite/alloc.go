package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
)

func newAllocCommand(s *streams) *cobra.Command {
	return group("alloc", "Look at allocations, and into them",
		newAllocStatusCommand(s),
		newAllocLogsCommand(s),
		newAllocExecCommand(s),
		newAllocFSCommand(s),
		newAllocRestartCommand(s),
		newAllocSignalCommand(s),
		newAllocStopCommand(s),
		newAllocChecksCommand(s),
		newAllocStatsCommand(s),
		newAllocPauseCommand(s),
	)
}

// allocFlags select the allocation of a command: the allocation with the id, or an
// allocation of a job.
type allocFlags struct {
	job   bool
	group string
}

func (f *allocFlags) register(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.job, "job", false, "take an allocation of the job that is named instead, one that runs if there is any")
	cmd.Flags().StringVar(&f.group, "group", "", "with -job, take one of this `group`")
}

// find returns the allocation that the argument names, and the agent that has it.
func (f *allocFlags) find(ctx context.Context, client *clientFlags, name string) (*api.Client, *api.Allocation, error) {
	if !f.job {
		return client.findAlloc(ctx, name)
	}
	c, job, namespace, err := client.findJob(ctx, name, "")
	if err != nil {
		return nil, nil, err
	}
	allocs, _, err := c.Jobs().Allocations(job, false, query(ctx, namespace))
	if err != nil {
		return nil, nil, failed(fmt.Sprintf("list allocations of job %q", job), err)
	}
	if f.group != "" {
		allocs = slices.DeleteFunc(allocs, func(a *api.AllocationListStub) bool { return a.TaskGroup != f.group })
	}
	if len(allocs) == 0 {
		return nil, nil, fmt.Errorf("job %q has no such allocation; 'nomad-lite job status %s' says why", job, job)
	}
	// The allocations are sorted newest first.
	chosen := allocs[0]
	if i := slices.IndexFunc(allocs, func(a *api.AllocationListStub) bool {
		return a.ClientStatus == api.AllocClientStatusRunning
	}); i >= 0 {
		chosen = allocs[i]
	}
	alloc, err := readAlloc(ctx, c, chosen)
	return c, alloc, err
}

// findAlloc returns the only allocation with this id or id prefix, and a client of its
// agent.
func (f *clientFlags) findAlloc(ctx context.Context, id string) (*api.Client, *api.Allocation, error) {
	c, err := f.client()
	if err != nil {
		return nil, nil, err
	}
	found, err := allocKind.find(ctx, c, id)
	if err != nil {
		return nil, nil, err
	}
	alloc, err := readAlloc(ctx, c, found)
	return c, alloc, err
}

func readAlloc(ctx context.Context, c *api.Client, found *api.AllocationListStub) (*api.Allocation, error) {
	alloc, _, err := c.Allocations().Info(found.ID, query(ctx, found.Namespace))
	if err != nil {
		return nil, failed(fmt.Sprintf("read allocation %q", short(found.ID)), err)
	}
	return alloc, nil
}

// tasksOf returns the tasks of an allocation in the order in which they start; tasks of the
// same stage are sorted by name.
func tasksOf(alloc *api.Allocation) []*api.Task {
	var tasks []*api.Task
	if group := groupOf(alloc); group != nil {
		tasks = slices.Clone(group.Tasks)
	}
	if len(tasks) == 0 { // the answer has no job
		for _, name := range slices.Sorted(maps.Keys(alloc.TaskStates)) {
			tasks = append(tasks, &api.Task{Name: name})
		}
	}
	stages := []string{api.TaskLifecycleHookPrestart, "", api.TaskLifecycleHookPoststart, api.TaskLifecycleHookPoststop}
	slices.SortFunc(tasks, func(a, b *api.Task) int {
		if d := slices.Index(stages, stageOf(a)) - slices.Index(stages, stageOf(b)); d != 0 {
			return d
		}
		return strings.Compare(a.Name, b.Name)
	})
	return tasks
}

func groupOf(alloc *api.Allocation) *api.TaskGroup {
	if alloc.Job == nil {
		return nil
	}
	for _, group := range alloc.Job.TaskGroups {
		if group != nil && group.Name != nil && *group.Name == alloc.TaskGroup {
			return group
		}
	}
	return nil
}

// stageOf returns the lifecycle hook of a task, "" for a main task.
func stageOf(task *api.Task) string {
	if task.Lifecycle == nil {
		return ""
	}
	return task.Lifecycle.Hook
}

// chooseTask returns the named task, or the allocation's only task.
func chooseTask(alloc *api.Allocation, name string) (string, error) {
	var names []string
	for _, task := range tasksOf(alloc) {
		names = append(names, task.Name)
	}
	switch {
	case name != "" && (len(names) == 0 || slices.Contains(names, name)):
		return name, nil
	case name != "":
		return "", fmt.Errorf("allocation %q has no task %q; it has %s", short(alloc.ID), name, strings.Join(names, ", "))
	case len(names) == 1:
		return names[0], nil
	case len(names) == 0:
		return "", fmt.Errorf("allocation %q does not say which tasks it has; name one with -task", short(alloc.ID))
	}
	return "", fmt.Errorf("allocation %q has several tasks; name one with -task: %s", short(alloc.ID), strings.Join(names, ", "))
}

// taskArgument returns the task that the flag or an argument names.
func taskArgument(flag string, args []string) (string, error) {
	switch {
	case len(args) == 0:
		return flag, nil
	case flag == "" || flag == args[0]:
		return args[0], nil
	}
	return "", fmt.Errorf("-task says %q and the argument %q; leave one out", flag, args[0])
}

// findTask is findAlloc for a command about one task of an allocation, which must exist, or
// about all tasks. It also returns a description of the target for messages.
func (f *clientFlags) findTask(ctx context.Context, id, task string) (c *api.Client, alloc *api.Allocation, what string, err error) {
	c, alloc, err = f.findAlloc(ctx, id)
	if err != nil {
		return nil, nil, "", err
	}
	what = fmt.Sprintf("allocation %q", short(alloc.ID))
	if task != "" {
		_, err = chooseTask(alloc, task)
		what = fmt.Sprintf("task %q of %s", task, what)
	}
	return c, alloc, what, err
}

var (
	oneAlloc      = argCount(1, 1, "the id of an allocation, or the begin of it; 'nomad-lite alloc status' lists them")
	allocThenTask = argCount(1, 2, "an allocation, and perhaps a task; 'nomad-lite alloc status' lists the allocations")
)

// valueOf returns the value that a pointer of the API points to, or the zero value for nil.
func valueOf[T any](p *T) T {
	var zero T
	if p == nil {
		return zero
	}
	return *p
}
