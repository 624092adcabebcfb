package pluginstatus

import "github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"

// Capability is a capability as a driver reports it, and its effect under the agent.
type Capability struct {
	Name     string
	Reported string
	Effect   string
}

func printCapabilities(page *output.Page, list []Capability) {
	if len(list) == 0 {
		return
	}
	page.AddSectionTitle("Capabilities")
	t := output.NewTable("Capability", "Reported", "Effect on This Machine")
	for _, c := range list {
		t.AddRow(c.Name, c.Reported, c.Effect)
	}
	page.AddTable(t)
}
