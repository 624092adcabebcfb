package tables

import (
	"fmt"
	"maps"
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
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
		for _, line := range PlacementFailureReasons(metric) {
			p.AddLine(indent+"  * %s", line)
		}
		for _, line := range moreLinesByGroup[name] {
			p.AddLine(indent+"  * %s", line)
		}
	}
}

// PlacementFailureReasons returns the reasons why a group could not be placed.
func PlacementFailureReasons(metric *api.AllocationMetric) []string {
	var reasons []string
	counted := func(format string, counts map[string]int) {
		for _, name := range slices.Sorted(maps.Keys(counts)) {
			reasons = append(reasons, fmt.Sprintf(format, name, counts[name]))
		}
	}
	if metric.NodesEvaluated == 0 {
		reasons = append(reasons, "No nodes were eligible for evaluation")
	}
	for _, name := range slices.Sorted(maps.Keys(metric.NodesAvailable)) {
		if metric.NodesAvailable[name] == 0 {
			reasons = append(reasons, fmt.Sprintf("No nodes are available in datacenter %q", name))
		}
	}
	counted("Class %q: %d nodes excluded by filter", metric.ClassFiltered)
	counted("Constraint %q: %d nodes excluded by filter", metric.ConstraintFiltered)
	if metric.NodesExhausted > 0 {
		reasons = append(reasons, fmt.Sprintf("Resources exhausted on %d nodes", metric.NodesExhausted))
	}
	counted("Class %q exhausted on %d nodes", metric.ClassExhausted)
	counted("Dimension %q exhausted on %d nodes", metric.DimensionExhausted)
	for _, quota := range metric.QuotaExhausted {
		reasons = append(reasons, fmt.Sprintf("Quota limit hit %q", quota))
	}
	return reasons
}
