package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
)

type jobAllocsOptions struct {
	client  clientFlags
	format  formatFlags
	all     bool
	verbose bool
}

func newJobAllocsCommand(s *streams) *cobra.Command {
	var o jobAllocsOptions
	cmd := &cobra.Command{
		Use:   "allocs [flags] JOB",
		Short: "List the allocations of a job",
		Long: `List the allocations of a job, the newest first.

Those of an earlier job with the same name are left out, unless -all asks for
them.`,
		Example: `  nomad-lite job allocs web
  nomad-lite job allocs -t '{{range .}}{{println .ID .ClientStatus}}{{end}}' web`,
		Args:              oneJob,
		ValidArgsFunction: firstArg(o.client.completeJobs("")),
		RunE: func(cmd *cobra.Command, args []string) error {
			return jobAllocs(cmd.Context(), o, args[0], s)
		},
	}
	o.client.register(cmd)
	o.format.register(cmd)
	cmd.Flags().BoolVar(&o.all, "all", false, "list also those of an earlier job with this id")
	cmd.Flags().BoolVar(&o.verbose, "verbose", false, "print whole ids and times")
	return cmd
}

func jobAllocs(ctx context.Context, o jobAllocsOptions, prefix string, s *streams) error {
	c, id, namespace, err := o.client.findJob(ctx, prefix, "")
	if err != nil {
		return err
	}
	allocs, _, err := c.Jobs().Allocations(id, o.all, query(ctx, namespace))
	if err != nil {
		return failed(fmt.Sprintf("list allocations of job %q", id), err)
	}
	return o.format.show(s, allocs, func(p *page) {
		p.allocations(allocs, o.verbose)
	})
}

// allocations adds a table of allocations, the newest first.
func (p *page) allocations(allocs []*api.AllocationListStub, verbose bool) {
	allocs = slices.Clone(allocs)
	slices.SortStableFunc(allocs, func(a, b *api.AllocationListStub) int {
		return cmp.Or(cmp.Compare(b.CreateIndex, a.CreateIndex), cmp.Compare(a.Name, b.Name))
	})
	var t *table
	if verbose {
		t = newTable("ID", "Eval ID", "Node ID", "Node Name", "Task Group", "Version", "Desired", "Status", "Created", "Modified")
		for _, a := range allocs {
			t.row(a.ID, a.EvalID, a.NodeID, a.NodeName, a.TaskGroup, a.JobVersion, a.DesiredStatus, statusCell(a.ClientStatus), date(a.CreateTime), date(a.ModifyTime))
		}
	} else {
		t = newTable("ID", "Node ID", "Task Group", "Version", "Desired", "Status", "Created", "Modified")
		for _, a := range allocs {
			t.row(short(a.ID), short(a.NodeID), a.TaskGroup, a.JobVersion, a.DesiredStatus, statusCell(a.ClientStatus), when(a.CreateTime, false), when(a.ModifyTime, false))
		}
	}
	p.tableOr(t, "No allocations placed")
}
