package apiclient

import (
	"context"
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
