package tables

import (
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/output"
)

// PrintJobs adds a line for each job, or a line that there is none.
func PrintJobs(p *output.Page, jobs []*api.JobListStub, nothing string) {
	wild := slices.ContainsFunc(jobs, func(j *api.JobListStub) bool { return apiclient.NamespaceOf(j) != apiclient.NamespaceOf(jobs[0]) })
	t := output.NewTable("ID", "Type", "Priority", "Status", "Submit Date")
	if wild {
		t.Head = append(t.Head, "Namespace")
	}
	for _, j := range jobs {
		row := []any{j.ID, apiclient.JobType(j), j.Priority, JobStatus(j.Status, j.Stop), output.Date(j.SubmitTime)}
		if wild {
			row = append(row, apiclient.NamespaceOf(j))
		}
		t.Row(row...)
	}
	p.TableOr(t, nothing)
}

// JobStatus returns the status of a job in its colour.
func JobStatus(text string, stopped bool) output.ColoredCell {
	if stopped {
		text += " (stopped)"
	}
	return output.StatusCell(text)
}
