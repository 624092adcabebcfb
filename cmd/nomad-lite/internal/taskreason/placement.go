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

// PrintPlacementFailure adds a section with the groups of a job that have unplaced allocations and the reasons, if
// there are any. evals are all evaluations of the job. The job can be nil.
func PrintPlacementFailure(ctx context.Context, p *output.Page, c *api.Client, job *api.Job, evals []*api.Evaluation) {
	blocked := findNewestUnplacedEval(evals)
	if blocked == nil {
		return
	}
	p.AddSectionTitle("Placement Failure")
	tables.PrintPlacementFailures(p, "", blocked.FailedTGAllocs, MissingDriverReasonsByGroup(apiclient.FindOnlyNode(ctx, c), job))
	if text := explainBlockedEval(evals, blocked); text != "" {
		p.AddLine("%s", strings.ReplaceAll(text, `; group "`, "\n"+`group "`)) // one line for each group
	}
}

// findNewestUnplacedEval returns the newest evaluation with unplaced allocations that is not complete, or nil if there
// is none.
func findNewestUnplacedEval(evals []*api.Evaluation) *api.Evaluation {
	var newest *api.Evaluation
	for _, e := range evals {
		if e.Status != api.EvalStatusComplete && len(e.FailedTGAllocs) > 0 && (newest == nil || e.CreateIndex > newest.CreateIndex) {
			newest = e
		}
	}
	return newest
}

// explainBlockedEval returns the description of the placement failures of a blocked evaluation. An agent of nomad-lite
// stores this description in the evaluation that has created the blocked one. If the blocked evaluation has failed
// again for other reasons, the description is outdated, and explainBlockedEval returns "".
func explainBlockedEval(evals []*api.Evaluation, blocked *api.Evaluation) string {
	i := slices.IndexFunc(evals, func(e *api.Evaluation) bool { return e.ID == blocked.PreviousEval })
	if i < 0 || !reflect.DeepEqual(evals[i].FailedTGAllocs, blocked.FailedTGAllocs) {
		return ""
	}
	return evals[i].StatusDescription
}
