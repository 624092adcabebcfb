package tables

import (
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/output"
)

// PrintJobs adds a table of jobs, or the given message if there are none.
func PrintJobs(p *output.Page, jobs []*api.JobListStub, nothing string) {
	wild := slices.ContainsFunc(jobs, func(j *api.JobListStub) bool { return apiclient.JobNamespace(j) != apiclient.JobNamespace(jobs[0]) })
	t := output.NewTable("ID", "Type", "Priority", "Status", "Submit Date")
	if wild {
		t.Titles = append(t.Titles, "Namespace")
	}
	for _, j := range jobs {
		row := []any{j.ID, apiclient.JobType(j), j.Priority, JobStatusCell(j.Status, j.Stop), output.FormatDate(j.SubmitTime)}
		if wild {
			row = append(row, apiclient.JobNamespace(j))
		}
		t.Row(row...)
	}
	p.TableOrMessage(t, nothing)
}

// JobStatusCell returns the status of a job in its colour.
func JobStatusCell(text string, stopped bool) output.ColoredCell {
	if stopped {
		text += " (stopped)"
	}
	return output.StatusCell(text)
}
