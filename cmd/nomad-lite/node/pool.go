package node

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/tables"
	"github.com/nomad-lite/nomad-lite/internal/pointer"
)

// newPoolCommand returns the command "node pool" with its subcommands.
func newPoolCommand(s *cli.Streams) *cobra.Command {
	cmd := cli.NewGroupCommand("pool", "List and inspect node pools", newPoolListCommand(s), newPoolInfoCommand(s), newPoolNodesCommand(s), newPoolJobsCommand(s))
	for _, name := range []string{"apply", "delete", "init"} {
		cmd.AddCommand(cli.NewUnsupportedCommand(name, "a node is in the pool that the client block of its configuration names"))
	}
	return cmd
}

func newPoolListCommand(s *cli.Streams) *cobra.Command {
	var client apiclient.Flags
	var format output.FormatFlags
	var pageFlags apiclient.PageFlags
	cmd := &cobra.Command{
		Use:               "list [flags]",
		Short:             "List node pools",
		Args:              cli.RequireArgCount(0, 0, "no arguments"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := client.Client()
			if err != nil {
				return err
			}
			all, meta, err := c.NodePools().List(pageFlags.QueryOptions(cmd.Context()))
			if err != nil {
				return apiclient.WrapErrorWithAdvice("list node pools", err)
			}
			if format.JSON && format.Template == "" {
				return printPoolsJSON(s, all)
			}
			return format.PrintValueOrPage(s, all, func(p *output.Page) {
				t := output.NewTable("Name", "Description")
				for _, pool := range all {
					t.AddRow(pool.Name, pool.Description)
				}
				p.AddTable(t)
				p.AddNextPageHint(meta)
			})
		},
	}
	client.Register(cmd)
	format.Register(cmd)
	pageFlags.Register(cmd)
	return cmd
}

// printPoolsJSON prints node pools as a JSON list with one pool per line, as Nomad's command line does.
func printPoolsJSON(s *cli.Streams, pools []*api.NodePool) error {
	text := bytes.NewBufferString("[")
	for i, pool := range pools {
		indented, err := output.FormatJSON(pool)
		if err != nil {
			return err
		}
		if i > 0 {
			text.WriteByte(',')
		}
		text.WriteString("\n    ")
		if err := json.Compact(text, []byte(strings.TrimSpace(indented))); err != nil {
			return err
		}
	}
	if len(pools) > 0 {
		text.WriteByte('\n')
	}
	text.WriteString("]\n")
	_, err := s.JSONOutput().Write(text.Bytes())
	return err
}

var oneNodePoolArg = cli.RequireArgCount(1, 1, "the name of a node pool; 'nomad-lite node pool list' lists them")

// completePoolNames suggests the names of node pools.
func completePoolNames(f *apiclient.Flags) cli.Completer {
	return func(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
		return f.CompleteFromAgent(cmd.Context(), func(ctx context.Context, c *api.Client) (names []string, err error) {
			all, _, err := c.NodePools().PrefixList(begun, apiclient.QueryOptions(ctx, ""))
			for _, pool := range all {
				names = append(names, pool.Name)
			}
			return names, err
		})
	}
}

// resolvePoolName returns the name of the node pool that is called nameOrPrefix, or else of the only one whose name has
// this prefix.
func resolvePoolName(ctx context.Context, c *api.Client, nameOrPrefix string) (string, error) {
	all, _, err := c.NodePools().PrefixList(nameOrPrefix, apiclient.QueryOptions(ctx, ""))
	if err != nil {
		return "", apiclient.WrapErrorWithAdvice(fmt.Sprintf("look for node pool %q", nameOrPrefix), err)
	}
	t := output.NewTable("Name", "Description")
	for _, pool := range all {
		if pool.Name == nameOrPrefix {
			return nameOrPrefix, nil
		}
		t.AddRow(pool.Name, pool.Description)
	}
	switch len(all) {
	case 0:
		//lint:ignore ST1005 the text is Nomad's
		return "", fmt.Errorf("No node pool with prefix %q found\nList the node pools: nomad-lite node pool list", nameOrPrefix)
	case 1:
		return all[0].Name, nil
	}
	return "", apiclient.NewAmbiguousPrefixError("Prefix matched multiple node pools", t)
}

// newPoolViewCommand returns a command about one node pool. read requests an object from the agent and returns it with
// a function that prints it for people. operationForErrors is the operation in error texts.
func newPoolViewCommand(s *cli.Streams, use, short, operationForErrors string, read func(ctx context.Context, f *apiclient.Flags, c *api.Client, name string) (response any, printText func(*output.Page), err error)) *cobra.Command {
	var client apiclient.Flags
	var format output.FormatFlags
	cmd := &cobra.Command{
		Use:               use,
		Short:             short,
		Args:              oneNodePoolArg,
		ValidArgsFunction: cli.CompleteArgsByPosition(completePoolNames(&client)),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := client.Client()
			if err != nil {
				return err
			}
			name, err := resolvePoolName(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			found, show, err := read(cmd.Context(), &client, c, name)
			if err != nil {
				return apiclient.WrapErrorWithAdvice(fmt.Sprintf("%s %q", operationForErrors, name), err)
			}
			return format.PrintValueOrPage(s, found, show)
		},
	}
	client.Register(cmd)
	format.Register(cmd)
	return cmd
}

func newPoolInfoCommand(s *cli.Streams) *cobra.Command {
	return newPoolViewCommand(s, "info [flags] POOL", "Show a node pool", "read node pool", func(ctx context.Context, _ *apiclient.Flags, c *api.Client, name string) (any, func(*output.Page), error) {
		pool, _, err := c.NodePools().Info(name, apiclient.QueryOptions(ctx, ""))
		return pool, func(p *output.Page) {
			p.AddPairs(output.Pairs{{"Name", pool.Name}, {"Description", pool.Description}, {"Node Identity TTL", pool.NodeIdentityTTL}})
			p.AddSectionTitle("Metadata")
			if len(pool.Meta) == 0 {
				p.AddLine("No metadata")
			}
			p.AddPairs(output.SortedPairs(pool.Meta))
			p.AddSectionTitle("Scheduler Configuration")
			if c := pool.SchedulerConfiguration; c == nil {
				p.AddLine("No scheduler configuration")
			} else {
				p.AddPairs(output.Pairs{{"Scheduler Algorithm", c.SchedulerAlgorithm}, {"Memory Oversubscription", pointer.Value(c.MemoryOversubscriptionEnabled)}})
			}
		}, err
	})
}

func newPoolNodesCommand(s *cli.Streams) *cobra.Command {
	var verbose bool
	var pageFlags apiclient.PageFlags
	cmd := newPoolViewCommand(s, "nodes [flags] POOL", "List the nodes of a pool", "list the nodes of pool", func(ctx context.Context, _ *apiclient.Flags, c *api.Client, name string) (any, func(*output.Page), error) {
		nodes, meta, err := c.NodePools().ListNodes(name, pageFlags.QueryOptions(ctx))
		return nodes, func(p *output.Page) {
			t := output.NewTable("ID", "DC", "Name", "Class", "Drain", "Eligibility", "Status")
			for _, n := range nodes {
				t.AddRow(output.ShortIDUnlessVerbose(n.ID, verbose), n.Datacenter, n.Name, n.NodeClass, n.Drain, output.StatusCell(n.SchedulingEligibility), output.StatusCell(n.Status))
			}
			p.AddTableOrMessage(t, "No nodes registered")
			p.AddNextPageHint(meta)
		}, err
	})
	pageFlags.Register(cmd)
	cmd.Flags().BoolVar(&verbose, "verbose", false, "print whole ids")
	return cmd
}

func newPoolJobsCommand(s *cli.Streams) *cobra.Command {
	var pageFlags apiclient.PageFlags
	cmd := newPoolViewCommand(s, "jobs [flags] POOL", "List the jobs of a pool", "list the jobs of pool", func(ctx context.Context, f *apiclient.Flags, c *api.Client, name string) (any, func(*output.Page), error) {
		jobs, meta, err := c.NodePools().ListJobs(name, pageFlags.QueryOptions(ctx))
		return jobs, func(p *output.Page) {
			tables.PrintJobs(p, jobs, f.ReadsAllNamespaces(), "No running jobs")
			p.AddNextPageHint(meta)
		}, err
	})
	pageFlags.Register(cmd)
	return cmd
}
