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

// A changed text of several lines is shown by its lines.
func TestPlanShowsChangedLines(t *testing.T) {
	p := output.NewPage(&cli.Streams{})
	diffPage{Page: p}.writeFields(2, []*api.FieldDiff{
		{Type: diffEdited, Name: "EmbeddedTmpl", Old: "a\nb\nc\nd\ne\nf\n", New: "a\nb\nc\nd\nE\x1b[2J\nf\n", Annotations: []string{"forces update"}},
		{Type: diffEdited, Name: "DestPath", Old: "x", New: "y"},
	}, nil)
	const want = `  +/- EmbeddedTmpl: (forces update)
        @@ -2,5 +2,5 @@
         b
         c
         d
        -e
        +E
         f
  +/- DestPath:     "x" => "y"
`
	if got := p.Text.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
