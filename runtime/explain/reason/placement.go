package reason

import (
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/hashicorp/nomad/api"
)

// PlacementFailureLines returns why a group could not be placed, one reason per line.
func PlacementFailureLines(metric *api.AllocationMetric) []string {
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

// NewestUnplacedEval returns the newest evaluation with unplaced allocations that is neither complete nor cancelled, or nil.
func NewestUnplacedEval(evals []*api.Evaluation) *api.Evaluation {
	var newest *api.Evaluation
	for _, e := range evals {
		// A complete evaluation has left its failures to a blocked one, and a later one has replaced a cancelled one.
		isOver := e.Status == api.EvalStatusComplete || e.Status == api.EvalStatusCancelled
		if !isOver && len(e.FailedTGAllocs) > 0 && (newest == nil || e.CreateIndex > newest.CreateIndex) {
			newest = e
		}
	}
	return newest
}

// OfUnplacedEval returns the placement failure description for a job's blocked evaluation. evals are the job's evaluations. A
// nomad-lite agent stores this description in the evaluation that created the blocked one. If the blocked evaluation has failed
// again for other reasons, the description is outdated, and OfUnplacedEval returns "".
func OfUnplacedEval(evals []*api.Evaluation, blocked *api.Evaluation) string {
	i := slices.IndexFunc(evals, func(e *api.Evaluation) bool { return e.ID == blocked.PreviousEval })
	if i < 0 || !reflect.DeepEqual(evals[i].FailedTGAllocs, blocked.FailedTGAllocs) {
		return ""
	}
	return evals[i].StatusDescription
}
