package taskreason

import (
	"context"
	"reflect"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/tables"
)

// PrintPlacementFailure adds a section with the groups of a job that have unplaced allocations, and why, if
// there are any. evals has all evaluations of the job. The job can be nil.
func PrintPlacementFailure(ctx context.Context, p *output.Page, c *api.Client, job *api.Job, evals []*api.Evaluation) {
	blocked := findBlockedEval(evals)
	if blocked == nil {
		return
	}
	p.Section("Placement Failure")
	tables.PrintPlacementFailures(p, "", blocked.FailedTGAllocs, MissingDrivers(apiclient.SingleNode(ctx, c), job))
	if text := explainBlockedEval(evals, blocked); text != "" {
		p.Line("%s", strings.ReplaceAll(text, `; group "`, "\n"+`group "`)) // one line for each group
	}
}

// findBlockedEval returns the newest evaluation that waits until its allocations can be placed, or nil.
func findBlockedEval(evals []*api.Evaluation) *api.Evaluation {
	var newest *api.Evaluation
	for _, e := range evals {
		if e.Status != api.EvalStatusComplete && len(e.FailedTGAllocs) > 0 && (newest == nil || e.CreateIndex > newest.CreateIndex) {
			newest = e
		}
	}
	return newest
}

// explainBlockedEval returns the description of the placement failures of a blocked evaluation. An agent of
// nomad-lite writes it into the evaluation that has created the blocked one. It is outdated if the blocked
// evaluation has failed again since, for other reasons.
func explainBlockedEval(evals []*api.Evaluation, blocked *api.Evaluation) string {
	i := slices.IndexFunc(evals, func(e *api.Evaluation) bool { return e.ID == blocked.PreviousEval })
	if i < 0 || !reflect.DeepEqual(evals[i].FailedTGAllocs, blocked.FailedTGAllocs) {
		return ""
	}
	return evals[i].StatusDescription
}
