package taskreason

import (
	"context"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/tables"
	"github.com/nomad-lite/nomad-lite/runtime/explain/reason"
)

// PrintPlacementFailure adds a section with the groups of a job that have unplaced allocations and the reasons, if
// there are any. evals are all evaluations of the job. The job can be nil.
func PrintPlacementFailure(ctx context.Context, p *output.Page, c *api.Client, job *api.Job, evals []*api.Evaluation) {
	blocked := reason.NewestUnplacedEval(evals)
	if blocked == nil {
		return
	}
	p.AddSectionTitle("Placement Failure")
	tables.PrintPlacementFailures(p, "", blocked.FailedTGAllocs, reason.MissingDriverReasonsByGroup(apiclient.FindOnlyNode(ctx, c), job))
	if text := reason.OfUnplacedEval(evals, blocked); text != "" {
		p.AddLine("%s", strings.ReplaceAll(text, `; group "`, "\n"+`group "`)) // one line for each group
	}
}
