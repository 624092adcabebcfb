package pluginstatus

import (
	"strings"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
)

// Hook is a hook as its agent reports it in the configuration of /v1/agent/self. The Go client of Nomad's API has no
// other field for it.
type Hook struct {
	Name        string
	Version     string
	Health      string
	Description string   // reason for the health
	HookPoints  []string // nil until the plugin has reported them
	AllAllocs   bool
	ByBlocks    bool      `json:",omitempty"` // only blocks of tasks attach the hook
	Rule        *HookRule `json:",omitempty"`
	Allocs      []string  // IDs of running allocations for which the hook is called
}

// HookRule is a hook block of the agent's configuration.
type HookRule struct {
	Order   int
	OnError string
	Timeout string `json:",omitempty"`
	Matches bool   // whether the hook block contains a match block
	Place   string
}

// NewHookTable returns a table with one line per hook.
func NewHookTable(list []Hook) *output.Table {
	t := output.NewTable("Hook", "Version", "Health", "Allocs", "Message", "Hook points")
	for _, h := range list {
		t.AddRow(h.Name, h.Version, output.StatusCell(h.Health), len(h.Allocs), h.Description, strings.Join(h.HookPoints, ", "))
	}
	return t
}

// PrintHook shows one hook.
func PrintHook(p *output.Page, h Hook, verbose bool) {
	called := "where a job attaches it, by meta lite_hook_" + h.Name
	switch {
	case h.ByBlocks:
		called = "of tasks with " + h.Name + " blocks"
	case h.Rule != nil && h.Rule.Matches:
		called = "where the hook block matches, or a job attaches it"
	case h.AllAllocs:
		called = "of every allocation"
	}
	rows := output.Pairs{
		{"Hook", h.Name}, {"Version", h.Version}, {"Health", output.StatusCell(h.Health)}, {"Message", h.Description},
		{"Hook points", strings.Join(h.HookPoints, ", ")}, {"Called", called},
	}
	if r := h.Rule; r != nil {
		rows = append(rows, output.Pairs{{"Hook Block", r.Place}, {"Order", r.Order}, {"On Error", r.OnError}, {"Timeout", r.Timeout}}...)
	}
	p.AddPairs(rows)
	if len(h.Allocs) == 0 {
		return
	}
	p.AddSectionTitle("Allocations in which it takes part")
	for _, id := range h.Allocs {
		p.AddLine("%s", output.ShortIDUnlessVerbose(id, verbose))
	}
}
