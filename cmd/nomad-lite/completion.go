package main

import (
	"context"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// completer suggests values for an argument, as cobra asks for them.
type completer = func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective)

// isCompletion reports whether it is a shell that asks, what may come next.
func isCompletion(args []string) bool {
	return len(args) > 0 && strings.HasPrefix(args[0], cobra.ShellCompRequestCmd)
}

// unquoteFlags takes the backquotes out of what the flags say of themselves. Help
// finds the name of a value by them; a shell shows them as they are.
func unquoteFlags(cmd *cobra.Command) {
	unquote := func(f *pflag.Flag) { _, f.Usage = pflag.UnquoteUsage(f) }
	cmd.Flags().VisitAll(unquote)
	cmd.PersistentFlags().VisitAll(unquote)
	for _, child := range cmd.Commands() {
		unquoteFlags(child)
	}
}

// signalDebounce is how long somebody who has pressed the tab key waits.
const signalDebounce = 2 * time.Second

// suggest asks the agent for values. Without an agent there are none: a shell that
// completes is no place for an error.
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

// completeJobs suggests the jobs that a filter lets through.
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
