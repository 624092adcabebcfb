package main

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/hookplugin"
	"github.com/nomad-lite/nomad-lite/runtime/hooks"
)

// hookStatus is a hook as its agent reports it. It is part of the agent's configuration in
// agent self, because Nomad's clients have no other field for it.
type hookStatus struct {
	Name        string
	Version     string
	Health      string
	Description string   // reason for the status
	HookPoints  []string // nil until the plugin has reported them
	AllAllocs   bool
	Rule        *hookRule `json:",omitempty"`
	Allocs      []string  // ids of running allocations that the hook takes part in
}

// hookRule is a hook block of the agent's configuration.
type hookRule struct {
	Order   int
	OnError string
	Timeout string `json:",omitempty"`
	Matches bool   // the block has a match block
	Place   string
}

// hooks returns the hooks of the agent in the order of their plugins, followed by hooks
// that only a hook block names.
func (r *runningAgent) hooks() []hookStatus {
	list := []hookStatus{}
	rules := r.settings().Hooks
	for _, p := range r.agent.Plugins() {
		name := p.Serves.Name
		switch {
		case p.Superseded != "":
			continue
		case p.Serves.Type == base.TypeHook:
		case name == "" && (p.Builtin && builtins[p.Name].kind == base.TypeHook || named(rules, p.Name)):
			name = p.Name // the plugin has not been up
		default:
			continue
		}
		row := pluginRowOf(p, supervisor.Info{})
		h := hookStatus{Name: name, Version: row.Version, Health: row.Health}
		if p.Takes == nil {
			h.Description = row.Note
		} else {
			h.AllAllocs = p.Takes.AllAllocs
			for _, m := range p.Takes.Subscriptions {
				h.HookPoints = append(h.HookPoints, m.Point.String())
			}
		}
		if p.Err != nil {
			h.Description = p.Err.Error()
		}
		list = append(list, h)
	}
	for _, rule := range rules {
		at := slices.IndexFunc(list, func(h hookStatus) bool { return h.Name == rule.Name })
		if at < 0 {
			at = len(list)
			list = append(list, hookStatus{Name: rule.Name, Health: "missing", Description: "there is a hook block, and no plugin"})
		}
		list[at].Rule = hookRuleOf(rule)
	}
	for i, h := range list {
		list[i].Allocs = r.agent.HookUsers(h.Name)
	}
	return list
}

func named(rules []hookplugin.Rule, name string) bool {
	return slices.ContainsFunc(rules, func(r hookplugin.Rule) bool { return r.Name == name })
}

func hookRuleOf(rule hookplugin.Rule) *hookRule {
	shown := &hookRule{Order: rule.Order, OnError: "fail", Matches: rule.Match != nil, Place: rule.Range.String()}
	if shown.Order == 0 {
		shown.Order = hooks.OrderPlugin
	}
	if rule.Warn {
		shown.OnError = "warn"
	}
	if rule.Timeout > 0 {
		shown.Timeout = rule.Timeout.String()
	}
	return shown
}

// agentHooks returns the hooks of the agent, or only the hook with this name. It returns
// none for an agent without hook support.
func agentHooks(c *api.Client, name string) []hookStatus {
	self, err := agentSelf(c)
	if err != nil {
		return nil
	}
	text, err := json.Marshal(self.Config["Hooks"])
	if err != nil {
		return nil
	}
	var list []hookStatus
	if json.Unmarshal(text, &list) != nil {
		return nil
	}
	return slices.DeleteFunc(list, func(h hookStatus) bool { return name != "" && h.Name != name })
}

// hookTable returns a table with one line per hook.
func hookTable(list []hookStatus) *table {
	t := newTable("Hook", "Version", "Health", "Allocs", "Message", "Hook points")
	for _, h := range list {
		t.row(h.Name, h.Version, statusCell(h.Health), len(h.Allocs), h.Description, strings.Join(h.HookPoints, ", "))
	}
	return t
}

// hookDetails shows one hook.
func (p *page) hookDetails(h hookStatus, verbose bool) {
	called := "where a job attaches it, by meta lite_hook_" + h.Name
	switch {
	case hookplugin.CheckName(h.Name) != nil:
		called = "of tasks with " + h.Name + " blocks"
	case h.Rule != nil && h.Rule.Matches:
		called = "where the hook block matches, or a job attaches it"
	case h.AllAllocs:
		called = "of every allocation"
	}
	rows := pairs{
		{"Hook", h.Name}, {"Version", h.Version}, {"Health", statusCell(h.Health)}, {"Message", h.Description},
		{"Hook points", strings.Join(h.HookPoints, ", ")}, {"Called", called},
	}
	if r := h.Rule; r != nil {
		rows = append(rows, pairs{{"Hook Block", r.Place}, {"Order", r.Order}, {"On Error", r.OnError}, {"Timeout", r.Timeout}}...)
	}
	p.pairs(rows)
	if len(h.Allocs) == 0 {
		return
	}
	p.section("Allocations in which it takes part")
	for _, id := range h.Allocs {
		p.line("%s", shortID(id, verbose))
	}
}
