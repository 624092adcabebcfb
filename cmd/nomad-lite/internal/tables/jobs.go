package tables

import (
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
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
