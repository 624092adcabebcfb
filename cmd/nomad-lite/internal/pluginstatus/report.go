package pluginstatus

import (
	"encoding/json"
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
)

// Report has the plugins of an agent, as they are in the agent's configuration.
type Report struct {
	Hooks     []Hook
	Processes []Process `json:"Plugins"`
}

// Read returns the report of the agent. It is empty for an agent of Nomad, and for one that does not answer.
func Read(c *api.Client) Report {
	self, err := apiclient.ReadAgentSelf(c)
	if err != nil {
		return Report{}
	}
	text, err := json.Marshal(self.Config)
	if err != nil {
		return Report{}
	}
	var r Report
	if json.Unmarshal(text, &r) != nil { // Nomad has other objects at these names
		return Report{}
	}
	r.Processes = slices.DeleteFunc(r.Processes, func(p Process) bool { return p.State == "" })
	return r
}

// Named returns only the hook with this name, and the processes that serve a driver, a hook or devices with this name,
// or whose file has this name.
func (r Report) Named(name string) Report {
	return Report{
		Hooks:     slices.DeleteFunc(slices.Clone(r.Hooks), func(h Hook) bool { return h.Name != name }),
		Processes: slices.DeleteFunc(slices.Clone(r.Processes), func(p Process) bool { return p.Name != name && p.Serves != name }),
	}
}
