package main

import (
	"context"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// completer suggests values for an argument; cobra calls it.
type completer = func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective)

// isCompletion reports whether the command line is a completion request of a shell.
func isCompletion(args []string) bool {
	return len(args) > 0 && strings.HasPrefix(args[0], cobra.ShellCompRequestCmd)
}

// unquoteFlags removes the backquotes from the descriptions of flags. Help finds the name
// of a value by them; a shell would show them.
func unquoteFlags(cmd *cobra.Command) {
	unquote := func(f *pflag.Flag) { _, f.Usage = pflag.UnquoteUsage(f) }
	cmd.Flags().VisitAll(unquote)
	cmd.PersistentFlags().VisitAll(unquote)
	for _, child := range cmd.Commands() {
		unquoteFlags(child)
	}
}

// signalDebounce is the timeout of a completion request.
const signalDebounce = 2 * time.Second

// suggest asks the agent for values. Without an agent it suggests none, because a shell
// that completes cannot show an error.
func (f *clientFlags) suggest(ctx context.Context, ask func(context.Context, *api.Client) ([]string, error)) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(ctx, signalDebounce)
	defer cancel()
	c, err := f.client()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	values, _ := ask(ctx, c)
	return values, cobra.ShellCompDirectiveNoFileComp
}

// firstArg completes the first argument only.
func firstArg(complete completer) completer {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return complete(cmd, args, begun)
	}
}

// completeJobs suggests the jobs that match a filter.
func (f *clientFlags) completeJobs(filter string) completer {
	return func(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
		return f.suggestJobs(cmd.Context(), begun, filter)
	}
}

func (f *clientFlags) suggestJobs(ctx context.Context, begun, filter string) ([]string, cobra.ShellCompDirective) {
	return f.suggest(ctx, func(ctx context.Context, c *api.Client) (ids []string, err error) {
		q := query(ctx, "")
		q.Prefix, q.Filter = begun, filter
		jobs, _, err := c.Jobs().List(q)
		for _, j := range jobs {
			ids = append(ids, cobra.CompletionWithDesc(j.ID, jobType(j)+", "+j.Status))
		}
		return ids, err
	})
}

func (f *clientFlags) completeNamespaces(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
	return f.suggest(cmd.Context(), func(ctx context.Context, c *api.Client) (names []string, err error) {
		q := query(ctx, "")
		q.Prefix = begun
		all, _, err := c.Namespaces().List(q)
		for _, n := range all {
			names = append(names, cobra.CompletionWithDesc(n.Name, n.Description))
		}
		return names, err
	})
}
