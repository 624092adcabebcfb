package apiclient

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/cli"
)

// completionTimeout is the timeout of a completion request.
const completionTimeout = 2 * time.Second

// CompleteFromAgent requests suggestions from the agent. Without an agent it suggests nothing,
// because a shell that completes cannot show an error.
func (f *Flags) CompleteFromAgent(ctx context.Context, ask func(context.Context, *api.Client) ([]string, error)) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(ctx, completionTimeout)
	defer cancel()
	c, err := f.Client()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	values, _ := ask(ctx, c)
	return values, cobra.ShellCompDirectiveNoFileComp
}

// CompleteJobs suggests the jobs that match a filter.
func (f *Flags) CompleteJobs(filter string) cli.Completer {
	return func(cmd *cobra.Command, _ []string, toComplete string) ([]string, cobra.ShellCompDirective) {
		return f.suggestJobs(cmd.Context(), toComplete, filter)
	}
}

func (f *Flags) suggestJobs(ctx context.Context, toComplete, filter string) ([]string, cobra.ShellCompDirective) {
	return f.CompleteFromAgent(ctx, func(ctx context.Context, c *api.Client) (ids []string, err error) {
		q := QueryOptions(ctx, "")
		q.Prefix, q.Filter = toComplete, filter
		jobs, _, err := c.Jobs().List(q)
		for _, j := range jobs {
			ids = append(ids, cobra.CompletionWithDesc(j.ID, JobType(j)+", "+j.Status))
		}
		return ids, err
	})
}

// CompleteNamespaces suggests namespaces.
func (f *Flags) CompleteNamespaces(cmd *cobra.Command, _ []string, toComplete string) ([]string, cobra.ShellCompDirective) {
	return f.CompleteFromAgent(cmd.Context(), func(ctx context.Context, c *api.Client) (names []string, err error) {
		q := QueryOptions(ctx, "")
		q.Prefix = toComplete
		all, _, err := c.Namespaces().List(q)
		for _, n := range all {
			names = append(names, cobra.CompletionWithDesc(n.Name, n.Description))
		}
		return names, err
	})
}

// CompleteAllocAndTask suggests allocations as first argument, and the tasks of the allocation as second.
func CompleteAllocAndTask(f *Flags) cli.Completer {
	return cli.CompleteArgs(CompleteID(f, &AllocationLookup), CompleteTask(f))
}

// CompleteTask suggests the tasks of the allocation that is the first argument. Before the user has typed an
// argument, it suggests the tasks of all running allocations.
func CompleteTask(f *Flags) cli.Completer {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		return f.CompleteFromAgent(cmd.Context(), func(ctx context.Context, c *api.Client) ([]string, error) {
			allocs, err := listCompletedAllocs(ctx, c, args)
			tasks := make(map[string]bool)
			for _, a := range allocs {
				for name := range a.TaskStates {
					tasks[name] = true
				}
			}
			return slices.Sorted(maps.Keys(tasks)), err
		})
	}
}

// listCompletedAllocs returns the allocation that is the first argument, or all running allocations.
func listCompletedAllocs(ctx context.Context, c *api.Client, args []string) ([]*api.AllocationListStub, error) {
	if len(args) == 0 {
		q := QueryOptions(ctx, "")
		q.Filter = fmt.Sprintf("ClientStatus == %q", api.AllocClientStatusRunning)
		allocs, _, err := c.Allocations().List(q)
		return allocs, err
	}
	alloc, err := FindOneByPrefix(ctx, c, &AllocationLookup, args[0])
	if err != nil {
		return nil, err
	}
	return []*api.AllocationListStub{alloc}, nil
}

// CompleteAllocAndPath suggests allocations as first argument, and files and directories of the allocation as
// second. A directory ends in a slash, after which the user can complete its entries.
func CompleteAllocAndPath(f *Flags) cli.Completer {
	return cli.CompleteArgs(CompleteID(f, &AllocationLookup), func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
		paths, directive := f.CompleteFromAgent(cmd.Context(), func(ctx context.Context, c *api.Client) ([]string, error) {
			return listAllocPaths(ctx, c, args[0], toComplete)
		})
		return paths, directive | cobra.ShellCompDirectiveNoSpace
	})
}

func listAllocPaths(ctx context.Context, c *api.Client, allocPrefix, toComplete string) (paths []string, err error) {
	found, err := FindOneByPrefix(ctx, c, &AllocationLookup, allocPrefix)
	if err != nil {
		return nil, err
	}
	dir := toComplete[:strings.LastIndexByte(toComplete, '/')+1]
	files, _, err := c.AllocFS().List(&api.Allocation{ID: found.ID, NodeID: found.NodeID}, "/"+dir, QueryOptions(ctx, found.Namespace))
	for _, file := range files {
		path := dir + file.Name
		if file.IsDir {
			path += "/"
		}
		paths = append(paths, path)
	}
	return paths, err
}
