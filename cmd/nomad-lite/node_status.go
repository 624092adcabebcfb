package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
)

const nodeStatusHelp = `Show the nodes, or one node: its state, its drivers, what is reserved and used on
it, and its allocations.

Exit codes: 0, or 1 when there is no such node, or several.`

const nodeStatusExamples = `  nomad-lite node status                the nodes
  nomad-lite node status -self          that of the agent
  nomad-lite node status -self -stats   with what each processor and disk does
  nomad-lite node status -t '{{range .}}{{println .ID .Status}}{{end}}'`

type nodeStatusOptions struct {
	client  clientFlags
	format  formatFlags
	node    nodeFlags
	short   bool
	stats   bool
	allocs  bool
	os      bool
	quiet   bool
	verbose bool
	page    pageFlags
}

func newNodeStatusCommand(s *streams) *cobra.Command {
	var o nodeStatusOptions
	cmd := &cobra.Command{
		Use:     "status [flags] [NODE]",
		Short:   "Show nodes, or one node",
		Long:    nodeStatusHelp,
		Example: nodeStatusExamples,
		Args:    argCount(0, 1, "a node, or nothing for all"),
		RunE: func(cmd *cobra.Command, args []string) error {
			one := o.node.self || len(args) > 0
			if one {
				if err := o.node.check(cmd, args); err != nil {
					return err
				}
			}
			if one {
				return showNode(cmd.Context(), o, args, s)
			}
			return listNodes(cmd.Context(), o, s)
		},
		ValidArgsFunction: firstArg(nodeKind.complete(&o.client)),
	}
	o.client.register(cmd)
	o.format.register(cmd)
	o.node.register(cmd)
	o.page.register(cmd)
	cmd.Flags().BoolVar(&o.short, "short", false, "leave out resources and events")
	cmd.Flags().BoolVar(&o.stats, "stats", false, "show what each processor and each disk does")
	cmd.Flags().BoolVar(&o.allocs, "allocs", false, "count the running allocations of each node")
	cmd.Flags().BoolVar(&o.os, "os", false, "show the operating system of each node")
	cmd.Flags().BoolVarP(&o.quiet, "quiet", "q", false, "print ids only")
	cmd.Flags().BoolVar(&o.verbose, "verbose", false, "whole ids, points in time, attributes and metadata")
	return cmd
}

func listNodes(ctx context.Context, o nodeStatusOptions, s *streams) error {
	c, err := o.client.client()
	if err != nil {
		return err
	}
	q := o.page.query(ctx)
	if o.os {
		q.Params = map[string]string{"os": "true"}
	}
	all, meta, err := c.Nodes().List(q)
	if err != nil {
		return failed("list nodes", err)
	}
	if o.format.wanted() {
		return o.format.print(s, all)
	}
	p := s.page()
	if o.quiet {
		for _, n := range all {
			p.line("%s", shortID(n.ID, o.verbose))
		}
		return s.show(p)
	}
	head := []string{"ID", "Node Pool", "DC", "Name", "Class"}
	if o.os {
		head = append(head, "OS")
	}
	if o.verbose {
		head = append(head, "Address", "Version")
	}
	head = append(head, "Drain", "Eligibility", "Status")
	if o.allocs {
		head = append(head, "Running Allocs")
	}
	t := newTable(head...)
	for _, n := range all {
		row := []any{shortID(n.ID, o.verbose), n.NodePool, n.Datacenter, n.Name, n.NodeClass}
		if o.os {
			row = append(row, n.Attributes["os.name"])
		}
		if o.verbose {
			row = append(row, n.Address, n.Version)
		}
		row = append(row, n.Drain, statusCell(n.SchedulingEligibility), statusCell(n.Status))
		if o.allocs {
			allocs, _, err := c.Nodes().Allocations(n.ID, query(ctx, ""))
			if err != nil {
				return failed(fmt.Sprintf("list allocations of node %q", short(n.ID)), err)
			}
			row = append(row, len(runningOf(allocs)))
		}
		t.row(row...)
	}
	p.tableOr(t, "No nodes")
	p.more(meta)
	return s.show(p)
}

func runningOf(allocs []*api.Allocation) []*api.Allocation {
	return slices.DeleteFunc(slices.Clone(allocs), func(a *api.Allocation) bool {
		return a.ClientStatus != api.AllocClientStatusRunning
	})
}

func showNode(ctx context.Context, o nodeStatusOptions, args []string, s *streams) error {
	c, node, err := o.node.find(ctx, &o.client, args)
	if err != nil {
		return err
	}
	if o.format.wanted() {
		return o.format.print(s, node)
	}
	p := s.page()
	if o.quiet {
		p.line("%s", shortID(node.ID, o.verbose))
		return s.show(p)
	}
	allocs, _, err := c.Nodes().Allocations(node.ID, query(ctx, ""))
	if err != nil {
		return failed(fmt.Sprintf("list allocations of node %q", short(node.ID)), err)
	}
	// The figures of the host are optional.
	host, err := c.Nodes().Stats(node.ID, query(ctx, ""))
	if err != nil {
		host = nil
		fmt.Fprintln(s.err, failed("what the host uses is not known", err))
	}
	p.pairs(nodeHead(node, host))

	if !o.short {
		p.nodeEvents(node, o.verbose)
		p.nodeResources(ctx, c, node, allocs, host, s)
		if host != nil && o.stats {
			p.hostStats(host)
		}
	}
	if o.verbose {
		p.drivers(node)
	}
	p.nodeAllocations(allocs, o.verbose)
	if o.verbose {
		p.section("Attributes")
		p.pairs(sortedPairs(node.Attributes))
		p.section("Meta")
		p.pairs(sortedPairs(node.Meta))
	}
	return s.show(p)
}
