package tables

import (
	"cmp"
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
)

// SortAllocationsNewestFirst returns a sorted copy of a list. Allocations of the same create index are sorted by name.
func SortAllocationsNewestFirst(allocs []*api.AllocationListStub) []*api.AllocationListStub {
	return slices.SortedStableFunc(slices.Values(allocs), func(a, b *api.AllocationListStub) int {
		return cmp.Or(cmp.Compare(b.CreateIndex, a.CreateIndex), cmp.Compare(a.Name, b.Name))
	})
}

// PrintAllocations adds a table of allocations, the newest first.
func PrintAllocations(p *output.Page, allocs []*api.AllocationListStub, verbose bool) {
	PrintAllocationsWithPorts(p, allocs, nil, verbose)
}

// PrintAllocationsWithPorts adds a table of allocations, the newest first. portsByAllocID maps allocation IDs to their
// formatted ports. If portsByAllocID is empty, the table is the one of PrintAllocations.
func PrintAllocationsWithPorts(p *output.Page, allocs []*api.AllocationListStub, portsByAllocID map[string]string, verbose bool) {
	AllocationTable{Verbose: verbose, ShowEvalID: verbose, ShowNodeName: verbose, PortsByAllocID: portsByAllocID}.Print(p, allocs)
}

// AllocationTable selects the columns of a table of allocations. Nomad's commands show different columns.
type AllocationTable struct {
	Verbose                             bool              // show whole IDs, and dates instead of ages
	ShowEvalID, ShowNodeName, ShowJobID bool              // show this column
	PortsByAllocID                      map[string]string // allocation ID -> formatted ports; if not empty, the table has a column for them
}

// Print adds a table of allocations, the newest first.
func (al AllocationTable) Print(p *output.Page, allocs []*api.AllocationListStub) {
	columns := []struct {
		title string
		shown bool
		cell  func(*api.AllocationListStub) any
	}{
		{"ID", true, func(a *api.AllocationListStub) any { return output.ShortIDUnlessVerbose(a.ID, al.Verbose) }},
		{"Eval ID", al.ShowEvalID, func(a *api.AllocationListStub) any { return output.ShortIDUnlessVerbose(a.EvalID, al.Verbose) }},
		{"Node ID", true, func(a *api.AllocationListStub) any { return output.ShortIDUnlessVerbose(a.NodeID, al.Verbose) }},
		{"Node Name", al.ShowNodeName, func(a *api.AllocationListStub) any { return a.NodeName }},
		{"Task Group", true, func(a *api.AllocationListStub) any { return a.TaskGroup }},
		{"Version", true, func(a *api.AllocationListStub) any { return a.JobVersion }},
		{"Desired", true, func(a *api.AllocationListStub) any { return a.DesiredStatus }},
		{"Status", true, func(a *api.AllocationListStub) any { return output.StatusCell(a.ClientStatus) }},
		{"Created", true, func(a *api.AllocationListStub) any { return output.FormatAgeUnlessVerbose(a.CreateTime, al.Verbose) }},
		{"Modified", true, func(a *api.AllocationListStub) any { return output.FormatAgeUnlessVerbose(a.ModifyTime, al.Verbose) }},
		{"Ports", len(al.PortsByAllocID) > 0, func(a *api.AllocationListStub) any { return al.PortsByAllocID[a.ID] }},
		{"Job ID", al.ShowJobID, func(a *api.AllocationListStub) any { return a.JobID }},
	}
	t := output.NewTable()
	for _, c := range columns {
		if c.shown {
			t.Titles = append(t.Titles, c.title)
		}
	}
	for _, a := range SortAllocationsNewestFirst(allocs) {
		var row []any
		for _, c := range columns {
			if c.shown {
				row = append(row, c.cell(a))
			}
		}
		t.AddRow(row...)
	}
	p.AddTableOrMessage(t, "No allocations placed")
}
