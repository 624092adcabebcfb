package apiclient

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
)

// AllocFlags select the allocation of a command. The command's argument is the ID of the allocation or, with -job, the
// ID of the job to which the allocation belongs.
type AllocFlags struct {
	ArgIsJobID bool
	Group      string
}

// Register adds the flags to a command.
func (f *AllocFlags) Register(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.ArgIsJobID, "job", false, "select an allocation of the named job, a running one if there is any")
	cmd.Flags().StringVar(&f.Group, "group", "", "with -job, take one of this `group`")
}

// FindAlloc returns the allocation that allocOrJobID selects, and a client of its agent.
func (f *AllocFlags) FindAlloc(ctx context.Context, client *Flags, allocOrJobID string) (*api.Client, *api.Allocation, error) {
	if !f.ArgIsJobID {
		return client.FindAlloc(ctx, allocOrJobID)
	}
	c, job, namespace, err := client.FindJob(ctx, allocOrJobID, "")
	if err != nil {
		return nil, nil, err
	}
	allocs, _, err := c.Jobs().Allocations(job, false, QueryOptions(ctx, namespace))
	if err != nil {
		return nil, nil, WrapErrorWithAdvice(fmt.Sprintf("list allocations of job %q", job), err)
	}
	if f.Group != "" {
		allocs = slices.DeleteFunc(allocs, func(a *api.AllocationListStub) bool { return a.TaskGroup != f.Group })
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

// FindAlloc returns the only allocation with this ID or ID prefix, and a client of its agent.
func (f *Flags) FindAlloc(ctx context.Context, idPrefix string) (*api.Client, *api.Allocation, error) {
	c, err := f.Client()
	if err != nil {
		return nil, nil, err
	}
	found, err := FindOneByPrefix(ctx, c, &AllocationLookup, idPrefix)
	if err != nil {
		return nil, nil, err
	}
	alloc, err := readAlloc(ctx, c, found)
	return c, alloc, err
}

func readAlloc(ctx context.Context, c *api.Client, found *api.AllocationListStub) (*api.Allocation, error) {
	alloc, _, err := c.Allocations().Info(found.ID, QueryOptions(ctx, found.Namespace))
	if err != nil {
		return nil, WrapErrorWithAdvice(fmt.Sprintf("read allocation %q", output.TruncateID(found.ID)), err)
	}
	return alloc, nil
}

// TasksInDisplayOrder returns the tasks of an allocation in the order of Nomad's command line: first prestart,
// poststart and poststop tasks that are no sidecars, then sidecars, then main tasks. Tasks of the same kind are sorted
// by lifecycle hook and name.
func TasksInDisplayOrder(alloc *api.Allocation) []*api.Task {
	var tasks []*api.Task
	if group := TaskGroupOf(alloc); group != nil {
		tasks = slices.Clone(group.Tasks)
	}
	if len(tasks) == 0 { // the response has no job
		for _, name := range slices.Sorted(maps.Keys(alloc.TaskStates)) {
			tasks = append(tasks, &api.Task{Name: name})
		}
	}
	hooks := []string{api.TaskLifecycleHookPrestart, api.TaskLifecycleHookPoststart, api.TaskLifecycleHookPoststop, ""}
	slices.SortFunc(tasks, func(a, b *api.Task) int {
		return cmp.Or(
			cmp.Compare(lifecycleSortKey(a), lifecycleSortKey(b)),
			cmp.Compare(slices.Index(hooks, LifecycleHookOf(a)), slices.Index(hooks, LifecycleHookOf(b))),
			strings.Compare(a.Name, b.Name),
		)
	})
	return tasks
}

// lifecycleSortKey returns 0 for a task with a lifecycle hook that is no sidecar, 1 for a sidecar, and 2 for a main
// task.
func lifecycleSortKey(task *api.Task) int {
	switch {
	case LifecycleHookOf(task) == "":
		return 2
	case task.Lifecycle.Sidecar:
		return 1
	}
	return 0
}

// TaskGroupOf returns the task group of an allocation, or nil if the allocation has no job, as in a list.
func TaskGroupOf(alloc *api.Allocation) *api.TaskGroup {
	return FindTaskGroup(alloc.Job, alloc.TaskGroup)
}

// FindTaskGroup returns the task group of this name, or nil if the job is nil or has no such group.
func FindTaskGroup(job *api.Job, name string) *api.TaskGroup {
	if job == nil {
		return nil
	}
	for _, group := range job.TaskGroups {
		if group != nil && group.Name != nil && *group.Name == name {
			return group
		}
	}
	return nil
}

// LifecycleHookOf returns the lifecycle hook of a task, "" for a main task.
func LifecycleHookOf(task *api.Task) string {
	if task.Lifecycle == nil {
		return ""
	}
	return task.Lifecycle.Hook
}
