package taskreason

import (
	"context"
	"maps"
	"slices"
	"sort"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/runtime/explain/reason"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// maxCheckedAllocs is the number of allocations whose checks printFailingChecks reads.
const maxCheckedAllocs = 20

// printFailingChecks adds a section with the failing service checks of running allocations, if there are any. It leaves
// out an allocation whose checks cannot be read.
func printFailingChecks(ctx context.Context, p *output.Page, c *api.Client, job *api.Job, allocs []*api.AllocationListStub, verbose bool) {
	if !hasAgentRunChecks(job) {
		return
	}
	running := slices.DeleteFunc(slices.Clone(allocs), func(a *api.AllocationListStub) bool {
		return a.ClientStatus != api.AllocClientStatusRunning
	})
	t := output.NewTable("Alloc ID", "Check", "Reason")
	for _, a := range running[:min(len(running), maxCheckedAllocs)] {
		checks, err := c.Allocations().Checks(a.ID, apiclient.QueryOptions(ctx, a.Namespace))
		if err != nil {
			continue
		}
		failing := slices.DeleteFunc(slices.Collect(maps.Values(checks)), func(check api.AllocCheckStatus) bool {
			return check.Status != model.CheckFailure
		})
		sort.Slice(failing, func(i, j int) bool { return failing[i].Check < failing[j].Check })
		for _, check := range failing {
			t.AddRow(output.ShortIDUnlessVerbose(a.ID, verbose), check.Check, reason.OfFailingCheck(&check))
		}
	}
	if len(t.Rows) > 0 {
		p.AddSectionTitle("Failing Checks")
		p.AddTable(t)
	}
}

// hasAgentRunChecks reports whether a job has a service check that the agent itself runs, that is, one of a service of
// the provider nomad. The job can be nil.
func hasAgentRunChecks(job *api.Job) bool {
	if job == nil {
		return false
	}
	found := false
	for _, group := range job.TaskGroups {
		apiclient.ForEachService(group, func(s *api.Service, _ string) {
			found = found || s.Provider == model.ProviderNomad && len(s.Checks) > 0
		})
	}
	return found
}
