package job

import (
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
)

func TestPlanOmitsEmptyFields(t *testing.T) {
	diff := &api.JobDiff{
		Type: diffEdited, ID: "web",
		Fields: []*api.FieldDiff{
			{Type: diffEdited, Name: "Priority", Old: "50", New: "60"},
			{Type: diffNone, Name: "VaultToken"},
		},
		Objects: []*api.ObjectDiff{
			{Type: diffNone, Name: "UI", Fields: []*api.FieldDiff{{Type: diffNone, Name: "Description"}}},
			{Type: diffAdded, Name: "Update", Fields: []*api.FieldDiff{
				{Type: diffAdded, Name: "Canary", New: "1"},
				{Type: diffAdded, Name: "HealthCheck"},
			}},
			{Type: diffDeleted, Name: "Sidecar", Fields: []*api.FieldDiff{{Type: diffDeleted, Name: "Port"}}},
		},
	}
	p := output.NewPage(&cli.Streams{})
	diffPage{Page: p}.writeJob(diff)
	const want = `+/- Job: "web"
  +/- Priority: "50" => "60"
  +   Update {
      + Canary: "1"
      }
  -   Sidecar {
      }
`
	if got := p.Text.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
