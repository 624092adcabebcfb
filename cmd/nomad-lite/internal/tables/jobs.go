package tables

import (
	"cmp"
	"maps"
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/terminal"
)

// PrintJobs adds a table of jobs, or emptyMessage if there are none. withNamespace adds a column with the namespace of
// each job.
func PrintJobs(p *output.Page, jobs []*api.JobListStub, withNamespace bool, emptyMessage string) {
	t := output.NewTable("ID", "Type", "Priority", "Status", "Submit Date")
	if withNamespace {
		t.Titles = slices.Insert(t.Titles, 1, "Namespace")
	}
	for _, j := range jobs {
		row := []any{j.ID, apiclient.JobType(j), j.Priority, JobStatusCell(j.Status, j.Stop), output.FormatDate(j.SubmitTime)}
		if withNamespace {
			row = slices.Insert(row, 1, any(apiclient.JobNamespace(j)))
		}
		t.AddRow(row...)
	}
	p.AddTableOrMessage(t, emptyMessage)
}

// JobStatusCell returns a cell with the status of a job in its colour, and with the suffix "(stopped)" for a stopped
// job.
func JobStatusCell(status string, stopped bool) output.ColouredCell {
	if stopped {
		status += " (stopped)"
	}
	return output.StatusCell(status)
}

// PrintJobsThatNeedAttention adds a table of the jobs that do not work with the reasons, unless there are none.
func PrintJobsThatNeedAttention(p *output.Page, healthByJob map[apiclient.JobKey]*apiclient.JobHealth, withNamespace bool) {
	t := output.NewTable("ID", "Health", "Reason")
	if withNamespace {
		t.Titles = slices.Insert(t.Titles, 1, "Namespace")
	}
	byKey := func(a, b apiclient.JobKey) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.ID, b.ID))
	}
	for _, key := range slices.SortedFunc(maps.Keys(healthByJob), byKey) {
		h := healthByJob[key]
		if !h.NeedsAttention {
			continue
		}
		row := []any{h.JobID, HealthCell(h.Health), h.Sentence()}
		if withNamespace {
			row = slices.Insert(row, 1, any(h.Namespace))
		}
		t.AddRow(row...)
	}
	if len(t.Rows) > 0 {
		p.AddSectionTitle("Jobs That Need Attention")
		p.AddTable(t)
	}
}

// HealthCell returns a cell with the health of a job in its colour.
func HealthCell(word string) output.ColouredCell {
	switch word {
	case "degraded", "waiting", "deploying":
		return output.ColouredCell{ColourEscape: terminal.ColourYellow, Text: word}
	case "blocked":
		return output.ColouredCell{ColourEscape: terminal.ColourRed, Text: word}
	}
	return output.StatusCell(word)
}
