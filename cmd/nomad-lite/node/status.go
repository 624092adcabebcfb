package node

import (
	"context"
	"fmt"
	"slices"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/tables"
	"github.com/nomad-lite/nomad-lite/internal/pointer"
)

const statusHelp = `Show the nodes, or one node: its state, its drivers, what is reserved and used on
it, and its allocations.

Exit codes: 0, or 1 when there is no such node, or several.`

const statusExamples = `  nomad-lite node status                the nodes
  nomad-lite node status -self          the node of the agent
  nomad-lite node status -self -stats   with what each processor and disk does
  nomad-lite node status -t '{{range .}}{{println .ID .Status}}{{end}}'`

type statusOptions struct {
	clientFlags           apiclient.Flags
	formatFlags           output.FormatFlags
	nodeFlags             nodeFlags
	short                 bool
	showHostStats         bool
	showRunningAllocCount bool
	showOS                bool
	idsOnly               bool
	verbose               bool
	pageFlags             apiclient.PageFlags
}

func newStatusCommand(s *cli.Streams) *cobra.Command {
	var o statusOptions
	cmd := &cobra.Command{
		Use:     "status [flags] [NODE]",
		Short:   "Show nodes, or one node",
		Long:    statusHelp,
		Example: statusExamples,
		Args:    cli.RequireArgCount(0, 1, "a node, or nothing for all"),
		RunE: func(cmd *cobra.Command, args []string) error {
			one := o.nodeFlags.self || len(args) > 0
			if one {
				if err := o.nodeFlags.requireSelfOrNodeArg(cmd, args); err != nil {
					return err
				}
			}
			if one {
				return showNode(cmd.Context(), o, args, s)
			}
			return listNodes(cmd.Context(), o, s)
		},
		ValidArgsFunction: cli.CompleteArgsByPosition(apiclient.CompleteID(&o.clientFlags, &apiclient.NodeLookup)),
	}
	o.clientFlags.Register(cmd)
	o.formatFlags.Register(cmd)
	o.nodeFlags.register(cmd)
	o.pageFlags.Register(cmd)
	cmd.Flags().BoolVar(&o.short, "short", false, "leave out resources and events")
	cmd.Flags().BoolVar(&o.showHostStats, "stats", false, "show what each processor and each disk does")
	cmd.Flags().BoolVar(&o.showRunningAllocCount, "allocs", false, "count the running allocations of each node")
	cmd.Flags().BoolVar(&o.showOS, "os", false, "show the operating system of each node")
	cmd.Flags().BoolVarP(&o.idsOnly, "quiet", "q", false, "print only the ids of the nodes, whole; not with a node")
	cmd.Flags().BoolVar(&o.verbose, "verbose", false, "whole ids, points in time, attributes and metadata")
	return cmd
}

func listNodes(ctx context.Context, o statusOptions, s *cli.Streams) error {
	c, err := o.clientFlags.Client()
	if err != nil {
		return err
	}
	q := o.pageFlags.QueryOptions(ctx)
	if o.showOS {
		q.Params = map[string]string{"os": "true"}
	}
	all, meta, err := c.Nodes().List(q)
	if err != nil {
		return apiclient.WrapErrorWithAdvice("list nodes", err)
	}
	if o.formatFlags.IsSet() {
		return o.formatFlags.Print(s, all)
	}
	p := output.NewPage(s)
	if o.idsOnly {
		for _, n := range all {
			p.AddLine("%s", n.ID)
		}
		return output.PrintPage(s, p)
	}
	head := []string{"ID", "Node Pool", "DC", "Name", "Class"}
	if o.showOS {
		head = append(head, "OS")
	}
	if o.verbose {
		head = append(head, "Address", "Version")
	}
	head = append(head, "Drain", "Eligibility", "Status")
	if o.showRunningAllocCount {
		head = append(head, "Running Allocs")
	}
	t := output.NewTable(head...)
	for _, n := range all {
		row := []any{output.ShortIDUnlessVerbose(n.ID, o.verbose), n.NodePool, n.Datacenter, n.Name, n.NodeClass}
		if o.showOS {
			row = append(row, n.Attributes["os.name"])
		}
		if o.verbose {
			row = append(row, n.Address, n.Version)
		}
		row = append(row, n.Drain, output.StatusCell(n.SchedulingEligibility), output.StatusCell(n.Status))
		if o.showRunningAllocCount {
			allocs, _, err := c.Nodes().Allocations(n.ID, apiclient.QueryOptions(ctx, ""))
			if err != nil {
				return apiclient.WrapErrorWithAdvice(fmt.Sprintf("list allocations of node %q", output.TruncateID(n.ID)), err)
			}
			row = append(row, len(filterRunningAllocs(allocs)))
		}
		t.AddRow(row...)
	}
	p.AddTableOrMessage(t, "No nodes registered")
	p.AddNextPageHint(meta)
	return output.PrintPage(s, p)
}

func filterRunningAllocs(allocs []*api.Allocation) []*api.Allocation {
	return slices.DeleteFunc(slices.Clone(allocs), func(a *api.Allocation) bool {
		return a.ClientStatus != api.AllocClientStatusRunning
	})
}

func showNode(ctx context.Context, o statusOptions, args []string, s *cli.Streams) error {
	c, node, err := o.nodeFlags.connectAndFindNode(ctx, &o.clientFlags, args)
	if err != nil {
		return err
	}
	cli.SetPageForUIFlag(ctx, "clients/"+node.ID)
	if o.formatFlags.IsSet() {
		return o.formatFlags.Print(s, node)
	}
	p := output.NewPage(s)
	allocs, _, err := c.Nodes().Allocations(node.ID, apiclient.QueryOptions(ctx, ""))
	if err != nil {
		return apiclient.WrapErrorWithAdvice(fmt.Sprintf("list allocations of node %q", output.TruncateID(node.ID)), err)
	}
	// The resource usage of the host is optional: if it cannot be read, showNode prints the other parts of the status.
	host, err := c.Nodes().Stats(node.ID, apiclient.QueryOptions(ctx, ""))
	if err != nil {
		host = nil
		fmt.Fprintln(s.Err, apiclient.WrapErrorWithAdvice("what the host uses is not known", err))
	}
	p.AddPairs(nodeStatusPairs(node, host, o.short))
	if o.nodeFlags.self {
		tables.PrintConditions(p, apiclient.ReadConditions(ctx, c))
	}

	if o.verbose || !o.short && hasUnhealthyDriverWithReason(node) {
		printDrivers(p, node)
	}
	if o.verbose && len(node.HostVolumes) > 0 {
		printHostVolumes(p, node)
	}
	if devices := pointer.Value(node.NodeResources).Devices; len(devices) > 0 && (o.verbose || !o.short && hasUnhealthyDevice(node)) {
		tables.PrintNodeDevices(p, devices, allocs)
	}
	if !o.short {
		printNodeEvents(p, node, o.verbose)
		printNodeResources(ctx, p, c, node, allocs, host, s)
		if host != nil && o.showHostStats {
			printHostStats(p, host)
		}
	}
	p.AddSectionTitle("Allocations")
	stubs := make([]*api.AllocationListStub, len(allocs))
	for i, a := range allocs {
		stubs[i] = a.Stub()
	}
	tables.AllocationTable{Verbose: o.verbose, ShowEvalID: o.verbose, ShowJobID: true}.Print(p, stubs)
	if o.verbose {
		p.AddSectionTitle("Attributes")
		p.AddPairs(output.SortedPairs(node.Attributes))
		p.AddSectionTitle("Meta")
		p.AddPairs(output.SortedPairs(node.Meta))
	}
	return output.PrintPage(s, p)
}
