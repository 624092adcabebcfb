package pluginstatus

import (
	"encoding/json"
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
)

// Report is the part of an agent's configuration in /v1/agent/self that describes the agent's plugins.
type Report struct {
	Hooks     []Hook
	Processes []Process `json:"Plugins"`
}

// ReadReportOrEmpty returns the report of the agent about its plugins and hooks. The report is empty for an agent of
// Nomad, and if the request fails.
func ReadReportOrEmpty(c *api.Client) Report {
	self, err := apiclient.ReadAgentSelf(c)
	if err != nil {
		return Report{}
	}
	text, err := json.Marshal(self.Config)
	if err != nil {
		return Report{}
	}
	var r Report
	if json.Unmarshal(text, &r) != nil { // Nomad's configuration has other types for these names
		return Report{}
	}
	r.Processes = slices.DeleteFunc(r.Processes, func(p Process) bool { return p.State == "" })
	return r
}

// FilterByName returns only the hook with this name, and the processes that serve a driver, a hook or devices with this name,
// or whose file has this name.
func (r Report) FilterByName(name string) Report {
	return Report{
		Hooks:     slices.DeleteFunc(slices.Clone(r.Hooks), func(h Hook) bool { return h.Name != name }),
		Processes: slices.DeleteFunc(slices.Clone(r.Processes), func(p Process) bool { return p.Name != name && p.Serves != name }),
	}
}
