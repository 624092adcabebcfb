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
		cmd.AddCommand(elsewhere(name, "a node is in the pool that the client block of its configuration names"))
	}
	return cmd
}

type nodePoolOptions struct {
	client clientFlags
	format formatFlags
}

func newNodePoolListCommand(s *streams) *cobra.Command {
	var o nodePoolOptions
	var page pageFlags
	cmd := &cobra.Command{
		Use:               "list [flags]",
		Short:             "List node pools",
		Args:              takes(0, 0, "no arguments"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := o.client.client()
			if err != nil {
				return err
			}
			all, meta, err := c.NodePools().List(page.query(cmd.Context()))
			if err != nil {
				return failed("list node pools", err)
			}
			if o.format.wanted() {
				return o.format.print(s, all)
			}
			t := newTable("Name", "Description")
			for _, pool := range all {
				t.row(pool.Name, pool.Description)
			}
			p := s.page()
			p.table(t)
			p.more(meta)
			return s.show(p)
		},
	}
	o.client.register(cmd)
	o.format.register(cmd)
	page.register(cmd)
	return cmd
}

var oneNodePool = takes(1, 1, "the name of a node pool; 'nomad-lite node pool list' lists them")

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

func newNodePoolInfoCommand(s *streams) *cobra.Command {
	var o nodePoolOptions
	cmd := &cobra.Command{
		Use:               "info [flags] POOL",
		Short:             "Show a node pool",
		Args:              oneNodePool,
		ValidArgsFunction: once(o.client.completePools),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.client.client()
			if err != nil {
				return err
			}
			pool, _, err := c.NodePools().Info(args[0], query(cmd.Context(), ""))
			if err != nil {
				return failed(fmt.Sprintf("read node pool %q", args[0]), err)
			}
			if o.format.wanted() {
				return o.format.print(s, pool)
			}
			p := s.page()
			p.pairs(pairs{{"Name", pool.Name}, {"Description", pool.Description}})
			if len(pool.Meta) > 0 {
				p.section("Metadata")
				p.pairs(sortedPairs(pool.Meta))
			}
			return s.show(p)
		},
	}
	o.client.register(cmd)
	o.format.register(cmd)
	return cmd
}

func newNodePoolNodesCommand(s *streams) *cobra.Command {
	var o nodePoolOptions
	var verbose bool
	cmd := &cobra.Command{
		Use:               "nodes [flags] POOL",
		Short:             "List the nodes of a pool",
		Args:              oneNodePool,
		ValidArgsFunction: once(o.client.completePools),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.client.client()
			if err != nil {
				return err
			}
			nodes, _, err := c.NodePools().ListNodes(args[0], query(cmd.Context(), ""))
			if err != nil {
				return failed(fmt.Sprintf("list the nodes of pool %q", args[0]), err)
			}
			if o.format.wanted() {
				return o.format.print(s, nodes)
			}
			t := newTable("ID", "Name", "Datacenter", "Drain", "Eligibility", "Status")
			for _, n := range nodes {
				t.row(shortID(n.ID, verbose), n.Name, n.Datacenter, n.Drain, n.SchedulingEligibility, statusCell(n.Status))
			}
			p := s.page()
			p.tableOr(t, "No nodes in this pool")
			return s.show(p)
		},
	}
	o.client.register(cmd)
	o.format.register(cmd)
	cmd.Flags().BoolVar(&verbose, "verbose", false, "print whole ids")
	return cmd
}

func newNodePoolJobsCommand(s *streams) *cobra.Command {
	var o nodePoolOptions
	var page pageFlags
	cmd := &cobra.Command{
		Use:               "jobs [flags] POOL",
		Short:             "List the jobs that run on a pool",
		Args:              oneNodePool,
		ValidArgsFunction: once(o.client.completePools),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.client.client()
			if err != nil {
				return err
			}
			jobs, meta, err := c.NodePools().ListJobs(args[0], page.query(cmd.Context()))
			if err != nil {
				return failed(fmt.Sprintf("list the jobs of pool %q", args[0]), err)
			}
			if o.format.wanted() {
				return o.format.print(s, jobs)
			}
			p := s.page()
			p.jobs(jobs, "No jobs in this pool")
			p.more(meta)
			return s.show(p)
		},
	}
	o.client.register(cmd)
	o.format.register(cmd)
	page.register(cmd)
	return cmd
}
