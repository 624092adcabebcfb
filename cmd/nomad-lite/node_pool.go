package main

import (
	"context"
	"fmt"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
)

// newNodePoolCommand holds the commands that look at node pools.
func newNodePoolCommand(s *streams) *cobra.Command {
	cmd := group("pool", "Look at node pools", newNodePoolListCommand(s), newNodePoolInfoCommand(s), newNodePoolNodesCommand(s), newNodePoolJobsCommand(s))
	for _, name := range []string{"apply", "delete", "init"} {
		cmd.AddCommand(clusterCommands(name, "a node is in the pool that the client block of its configuration names"))
	}
	return cmd
}

func newNodePoolListCommand(s *streams) *cobra.Command {
	var client clientFlags
	var format formatFlags
	var part pageFlags
	cmd := &cobra.Command{
		Use:               "list [flags]",
		Short:             "List node pools",
		Args:              argCount(0, 0, "no arguments"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := client.client()
			if err != nil {
				return err
			}
			all, meta, err := c.NodePools().List(part.query(cmd.Context()))
			if err != nil {
				return failed("list node pools", err)
			}
			return format.show(s, all, func(p *page) {
				t := newTable("Name", "Description")
				for _, pool := range all {
					t.row(pool.Name, pool.Description)
				}
				p.table(t)
				p.more(meta)
			})
		},
	}
	client.register(cmd)
	format.register(cmd)
	part.register(cmd)
	return cmd
}

var oneNodePool = argCount(1, 1, "the name of a node pool; 'nomad-lite node pool list' lists them")

// completePools suggests names.
func (f *clientFlags) completePools(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
	return f.suggest(cmd.Context(), func(ctx context.Context, c *api.Client) (names []string, err error) {
		all, _, err := c.NodePools().PrefixList(begun, query(ctx, ""))
		for _, pool := range all {
			names = append(names, pool.Name)
		}
		return names, err
	})
}

// onePool returns a command that reads and shows something of a pool. doing names the
// operation in errors.
func onePool(s *streams, use, short, doing string, read func(ctx context.Context, c *api.Client, name string) (found any, show func(*page), err error)) *cobra.Command {
	var client clientFlags
	var format formatFlags
	cmd := &cobra.Command{
		Use:               use,
		Short:             short,
		Args:              oneNodePool,
		ValidArgsFunction: firstArg(client.completePools),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := client.client()
			if err != nil {
				return err
			}
			found, show, err := read(cmd.Context(), c, args[0])
			if err != nil {
				return failed(fmt.Sprintf("%s %q", doing, args[0]), err)
			}
			return format.show(s, found, show)
		},
	}
	client.register(cmd)
	format.register(cmd)
	return cmd
}

func newNodePoolInfoCommand(s *streams) *cobra.Command {
	return onePool(s, "info [flags] POOL", "Show a node pool", "read node pool", func(ctx context.Context, c *api.Client, name string) (any, func(*page), error) {
		pool, _, err := c.NodePools().Info(name, query(ctx, ""))
		return pool, func(p *page) {
			p.pairs(pairs{{"Name", pool.Name}, {"Description", pool.Description}})
			if len(pool.Meta) > 0 {
				p.section("Metadata")
				p.pairs(sortedPairs(pool.Meta))
			}
		}, err
	})
}

func newNodePoolNodesCommand(s *streams) *cobra.Command {
	var verbose bool
	cmd := onePool(s, "nodes [flags] POOL", "List the nodes of a pool", "list the nodes of pool", func(ctx context.Context, c *api.Client, name string) (any, func(*page), error) {
		nodes, _, err := c.NodePools().ListNodes(name, query(ctx, ""))
		return nodes, func(p *page) {
			t := newTable("ID", "Name", "Datacenter", "Drain", "Eligibility", "Status")
			for _, n := range nodes {
				t.row(shortID(n.ID, verbose), n.Name, n.Datacenter, n.Drain, n.SchedulingEligibility, statusCell(n.Status))
			}
			p.tableOr(t, "No nodes in this pool")
		}, err
	})
	cmd.Flags().BoolVar(&verbose, "verbose", false, "print whole ids")
	return cmd
}

func newNodePoolJobsCommand(s *streams) *cobra.Command {
	var part pageFlags
	cmd := onePool(s, "jobs [flags] POOL", "List the jobs that run on a pool", "list the jobs of pool", func(ctx context.Context, c *api.Client, name string) (any, func(*page), error) {
		jobs, meta, err := c.NodePools().ListJobs(name, part.query(ctx))
		return jobs, func(p *page) {
			p.jobs(jobs, "No jobs in this pool")
			p.more(meta)
		}, err
	})
	part.register(cmd)
	return cmd
}
