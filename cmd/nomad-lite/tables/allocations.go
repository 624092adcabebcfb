package tables

import (
	"cmp"
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/output"
)

// SortAllocationsNewestFirst returns a sorted copy of a list. Allocations of the same age are sorted by
// name.
func SortAllocationsNewestFirst(allocs []*api.AllocationListStub) []*api.AllocationListStub {
	return slices.SortedStableFunc(slices.Values(allocs), func(a, b *api.AllocationListStub) int {
		return cmp.Or(cmp.Compare(b.CreateIndex, a.CreateIndex), cmp.Compare(a.Name, b.Name))
	})
}

// PrintAllocations adds a table of allocations, the newest first.
func PrintAllocations(p *output.Page, allocs []*api.AllocationListStub, verbose bool) {
	PrintAllocationsWithPorts(p, allocs, nil, verbose)
}

// PrintAllocationsWithPorts adds a table of allocations, the newest first, with their ports by id. Without
// any ports it is the table of PrintAllocations.
func PrintAllocationsWithPorts(p *output.Page, allocs []*api.AllocationListStub, ports map[string]string, verbose bool) {
	allocs = SortAllocationsNewestFirst(allocs)
	var t *output.Table
	if verbose {
		t = output.NewTable("ID", "Eval ID", "Node ID", "Node Name", "Task Group", "Version", "Desired", "Status", "Created", "Modified")
		for _, a := range allocs {
			t.Row(a.ID, a.EvalID, a.NodeID, a.NodeName, a.TaskGroup, a.JobVersion, a.DesiredStatus, output.StatusCell(a.ClientStatus), output.FormatDate(a.CreateTime), output.FormatDate(a.ModifyTime))
		}
	} else {
		t = output.NewTable("ID", "Node ID", "Task Group", "Version", "Desired", "Status", "Created", "Modified")
		for _, a := range allocs {
			t.Row(output.TruncateID(a.ID), output.TruncateID(a.NodeID), a.TaskGroup, a.JobVersion, a.DesiredStatus, output.StatusCell(a.ClientStatus), output.FormatAge(a.CreateTime, false), output.FormatAge(a.ModifyTime, false))
		}
	}
	if len(ports) > 0 {
		t.Titles = append(t.Titles, "Ports")
		for i, a := range allocs {
			t.Rows[i] = append(t.Rows[i], ports[a.ID])
		}
	}
	p.TableOrMessage(t, "No allocations placed")
}
