package agent

import (
	"testing"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/docpage"
)

func TestReferenceServices(t *testing.T) {
	table := docpage.NewTable("Service", "Agents", "Starts to work", "Ends")
	for _, s := range allServices {
		from, until := "", ""
		if s.Run != nil {
			from, until = s.From.String(), s.Until.String()
		}
		table.AddRow(s.Name, s.In.String(), from, until)
	}
	docpage.CheckPart(t, "explanation/processes.md", table.String())
}
