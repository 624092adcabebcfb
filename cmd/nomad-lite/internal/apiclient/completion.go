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

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
)

// completionTimeout limits a request for completions, because the shell is blocked until the response.
const completionTimeout = 2 * time.Second

// CompleteFromAgent completes with the values that fetchValues returns from the agent. On an error it suggests nothing,
// because a shell that completes cannot show the error.
func (f *Flags) CompleteFromAgent(ctx context.Context, fetchValues func(context.Context, *api.Client) ([]string, error)) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(ctx, completionTimeout)
	defer cancel()
	c, err := f.Client()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	values, _ := fetchValues(ctx, c)
	return values, cobra.ShellCompDirectiveNoFileComp
}

// CompleteJobs suggests IDs of the jobs that match a filter expression of the API, or of all jobs if the filter is "".
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

// CompleteNamespaces suggests the names of the agent's namespaces.
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

// allocFlagsTypedSoFar returns the values of the flags -job and -group that the command line to complete has so far, or
// zero values for a command without these flags.
func allocFlagsTypedSoFar(cmd *cobra.Command) *AllocFlags {
	var a AllocFlags
	a.ArgIsJobID, _ = cmd.Flags().GetBool("job")
	a.Group, _ = cmd.Flags().GetString("group")
	return &a
}

// CompleteAlloc suggests allocation IDs, or job IDs if the command line has the flag -job of [AllocFlags].
func CompleteAlloc(f *Flags) cli.Completer {
	return func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
		if allocFlagsTypedSoFar(cmd).ArgIsJobID {
			return f.suggestJobs(cmd.Context(), toComplete, "")
		}
		return CompleteID(f, &AllocationLookup)(cmd, args, toComplete)
	}
}

// CompleteAllocAndTask suggests an allocation or a job as the first argument, as CompleteAlloc does, and a task of that
// allocation as the second.
func CompleteAllocAndTask(f *Flags) cli.Completer {
	return cli.CompleteArgsByPosition(CompleteAlloc(f), CompleteTask(f))
}

// CompleteTask suggests the tasks of the allocation that the first argument selects. Before the user has typed
// an argument, it suggests the tasks of all running allocations.
func CompleteTask(f *Flags) cli.Completer {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		return f.CompleteFromAgent(cmd.Context(), func(ctx context.Context, c *api.Client) ([]string, error) {
			tasks := make(map[string]*api.TaskState)
			if len(args) > 0 {
				_, alloc, err := allocFlagsTypedSoFar(cmd).FindAlloc(ctx, f, args[0])
				if err != nil {
					return nil, err
				}
				tasks = alloc.TaskStates
			} else {
				q := QueryOptions(ctx, "")
				q.Filter = fmt.Sprintf("ClientStatus == %q", api.AllocClientStatusRunning)
				allocs, _, err := c.Allocations().List(q)
				if err != nil {
					return nil, err
				}
				for _, a := range allocs {
					maps.Copy(tasks, a.TaskStates)
				}
			}
			return slices.Sorted(maps.Keys(tasks)), nil
		})
	}
}

// CompleteAllocAndPath suggests an allocation or a job as the first argument, as CompleteAlloc does, and a path in the
// directory of that allocation as the second. The path of a directory ends in a slash, after which the user can
// complete the names in the directory.
func CompleteAllocAndPath(f *Flags) cli.Completer {
	return cli.CompleteArgsByPosition(CompleteAlloc(f), func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
		paths, directive := f.CompleteFromAgent(cmd.Context(), func(ctx context.Context, _ *api.Client) ([]string, error) {
			c, alloc, err := allocFlagsTypedSoFar(cmd).FindAlloc(ctx, f, args[0])
			if err != nil {
				return nil, err
			}
			return completeAllocPaths(ctx, c, alloc, toComplete)
		})
		return paths, directive | cobra.ShellCompDirectiveNoSpace
	})
}

func completeAllocPaths(ctx context.Context, c *api.Client, alloc *api.Allocation, toComplete string) (paths []string, err error) {
	dir := toComplete[:strings.LastIndexByte(toComplete, '/')+1]
	files, _, err := c.AllocFS().List(alloc, "/"+dir, QueryOptions(ctx, alloc.Namespace))
	for _, file := range files {
		path := dir + file.Name
		if file.IsDir {
			path += "/"
		}
		paths = append(paths, path)
	}
	return paths, err
}
