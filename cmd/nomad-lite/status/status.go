package status

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"
	"github.com/hashicorp/nomad/api/contexts"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
)

// statusCommands maps each kind of object that a search finds to the command that shows it.
var statusCommands = map[contexts.Context][]string{
	contexts.Jobs:        {"job", "status"},
	contexts.Allocs:      {"alloc", "status"},
	contexts.Evals:       {"eval", "status"},
	contexts.Deployments: {"deployment", "status"},
	contexts.Nodes:       {"node", "status"},
	contexts.Namespaces:  {"namespace", "status"},
	contexts.Volumes:     {"volume", "status"},
	contexts.HostVolumes: {"volume", "status"},
}

// NewCommand returns the command "status".
func NewCommand() *cobra.Command {
	var o struct {
		client  apiclient.Flags
		format  output.FormatFlags
		verbose bool
	}
	cmd := &cobra.Command{
		Use:   "status [flags] [ID]",
		Short: "Show the job, allocation, node or other object with this ID",
		Long: `Show the object with this id, or with an id that starts with it: a job, an allocation,
an evaluation, a deployment, a node… Without an id, list the jobs.`,
		Example: `  nomad-lite status
  nomad-lite status web
  nomad-lite status 8ba85cef`,
		Args:              cli.RequireArgCount(0, 1, "an id, or nothing for all jobs"),
		ValidArgsFunction: cli.CompleteArgsByPosition(completeObjectIDs(&o.client)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return runOtherCommandWithFlagsOf(cmd, statusCommands[contexts.Jobs], nil)
			}
			c, err := o.client.Client()
			if err != nil {
				return err
			}
			kind, err := findKindByIDPrefix(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			return runOtherCommandWithFlagsOf(cmd, statusCommands[kind], args)
		},
	}
	o.client.Register(cmd)
	o.format.Register(cmd)
	cmd.Flags().BoolVar(&o.verbose, "verbose", false, "print whole ids and times")
	cmd.Flags().Bool("ui", false, "open the web page about it in a browser")
	return cmd
}

// runOtherCommandWithFlagsOf runs the command with this path in place of the status command, with its flags and with
// args.
func runOtherCommandWithFlagsOf(cmd *cobra.Command, otherCommandPath, args []string) error {
	other, _, err := cmd.Root().Find(otherCommandPath)
	if err != nil {
		return err
	}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if err == nil {
			err = other.Flags().Set(f.Name, f.Value.String())
		}
	})
	if err != nil {
		return cli.UsageError(other, err)
	}
	other.SetContext(cmd.Context())
	return other.RunE(other, args)
}

// findKindByIDPrefix returns the kind of the only object whose ID has this prefix. An object with exactly this ID takes
// precedence.
func findKindByIDPrefix(ctx context.Context, c *api.Client, prefix string) (contexts.Context, error) {
	answer, _, err := c.Search().PrefixSearch(prefix, contexts.All, apiclient.QueryOptions(ctx, ""))
	if err != nil {
		return "", apiclient.WrapErrorWithAdvice(fmt.Sprintf("look for %q", prefix), err)
	}
	var prefixMatches, exactMatches []contexts.Context
	for _, kind := range slices.Sorted(maps.Keys(answer.Matches)) {
		if ids := answer.Matches[kind]; statusCommands[kind] != nil && len(ids) > 0 {
			prefixMatches = append(prefixMatches, kind)
			if slices.Contains(ids, prefix) {
				exactMatches = append(exactMatches, kind)
			}
		}
	}
	switch {
	case len(exactMatches) == 1:
		return exactMatches[0], nil
	case len(prefixMatches) == 1:
		return prefixMatches[0], nil
	case len(prefixMatches) == 0:
		//lint:ignore ST1005 the text is Nomad's
		return "", fmt.Errorf("Unable to resolve ID: %q\nList the jobs: nomad-lite job status%s", prefix, apiclient.AllNamespacesFlag)
	}
	return "", newAmbiguousIDError(prefix, prefixMatches, answer.Matches)
}

// newAmbiguousIDError returns the error for a prefix that several IDs have. It lists the IDs by kind, as Nomad's
// command line does.
func newAmbiguousIDError(prefix string, kinds []contexts.Context, idsByKind map[contexts.Context][]string) error {
	text := fmt.Sprintf("Multiple matches found for id %q\n", prefix)
	for _, kind := range kinds {
		title := string(kind)
		text += fmt.Sprintf("\n%s:\n%s\n", strings.ToUpper(title[:1])+title[1:], strings.Join(idsByKind[kind], ", "))
	}
	return errors.New(strings.TrimSuffix(text, "\n"))
}

// completeObjectIDs suggests ids of objects that status can show.
func completeObjectIDs(f *apiclient.Flags) cli.Completer {
	return func(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
		return f.CompleteFromAgent(cmd.Context(), func(ctx context.Context, c *api.Client) (ids []string, err error) {
			answer, _, err := c.Search().PrefixSearch(begun, contexts.All, apiclient.QueryOptions(ctx, ""))
			if err != nil {
				return nil, err
			}
			for kind, matches := range answer.Matches {
				if path := statusCommands[kind]; path != nil {
					for _, id := range matches {
						ids = append(ids, cobra.CompletionWithDesc(id, path[0]))
					}
				}
			}
			return ids, nil
		})
	}
}
