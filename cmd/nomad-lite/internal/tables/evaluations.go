package tables

import (
	"maps"
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/runtime/explain/reason"
)

// PrintEvaluations adds a table of evaluations.
func PrintEvaluations(p *output.Page, evals []*api.Evaluation, verbose bool) {
	t := output.NewTable("ID", "Priority", "Triggered By", "Status", "Placement Failures")
	for _, e := range evals {
		t.AddRow(output.ShortIDUnlessVerbose(e.ID, verbose), e.Priority, e.TriggeredBy, output.StatusCell(e.Status), apiclient.PlacementFailureCell(e))
	}
	p.AddTable(t)
}

// PrintPlacementFailures adds the reasons why groups could not be placed. moreLinesByGroup maps a group name to further
// lines for that group; it can be nil.
func PrintPlacementFailures(p *output.Page, indent string, metricByGroup map[string]*api.AllocationMetric, moreLinesByGroup map[string][]string) {
	for _, name := range slices.Sorted(maps.Keys(metricByGroup)) {
		metric := metricByGroup[name]
		if metric == nil {
			metric = new(api.AllocationMetric)
		}
		p.AddLine(indent+"Task Group %q (failed to place %s):", name, output.FormatCount(metric.CoalescedFailures+1, "allocation"))
		for _, line := range reason.PlacementFailureLines(metric) {
			p.AddLine(indent+"  * %s", line)
		}
		for _, line := range moreLinesByGroup[name] {
			p.AddLine(indent+"  * %s", line)
		}
	}
}
