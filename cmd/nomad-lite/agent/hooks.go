package agent

import (
	"slices"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/builtins"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/pluginreport"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/pluginstatus"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/runtime/core"
	"github.com/nomad-lite/nomad-lite/runtime/core/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/node/hooks/pluginhooks"
)

// hookStatuses returns the states of the agent's hooks in the order of their plugins, followed by the hooks
// that have a hook block in the agent's configuration but no plugin.
func (r *runningAgent) hookStatuses() []pluginstatus.Hook {
	list := []pluginstatus.Hook{}
	rules := r.currentConfig().HookRules
	for _, p := range r.agent.Supervisor().Plugins() {
		name := p.Serves.Name
		switch {
		case p.SupersededBy != "":
			continue
		case p.Serves.Type == base.TypeHook:
		case name == "" && (p.Builtin && builtins.All[p.Name].Kind == base.TypeHook || hasHookRuleNamed(rules, p.Name)):
			name = p.Name // the plugin has never run and so has not reported the name of its hook
		default:
			continue
		}
		row := pluginreport.DescribePlugin(p, pluginreport.LatestFingerprints{})
		h := pluginstatus.Hook{Name: name, Version: row.Version, Health: row.Health, ByBlocks: pluginhooks.CheckNotBuiltinBlockHook(name) != nil}
		if p.HookDescription == nil {
			h.Description = row.Note
		} else {
			h.AllAllocs = p.HookDescription.AllAllocs
			for _, m := range p.HookDescription.Subscriptions {
				h.HookPoints = append(h.HookPoints, m.Point.String())
			}
		}
		if p.Err != nil {
			h.Description = p.Err.Error()
		}
		list = append(list, h)
	}
	for _, rule := range rules {
		at := slices.IndexFunc(list, func(h pluginstatus.Hook) bool { return h.Name == rule.Name })
		if at < 0 {
			at = len(list)
			list = append(list, pluginstatus.Hook{Name: rule.Name, Health: "missing", Description: "there is a hook block, and no plugin"})
		}
		list[at].Rule = describeHookRule(rule)
	}
	for i, h := range list {
		list[i].Allocs = r.agent.Allocs().AllocsUsingPlugin(core.Plugin{Type: base.TypeHook, Name: h.Name})
	}
	return list
}

func hasHookRuleNamed(rules []pluginhooks.OperatorRule, name string) bool {
	return slices.ContainsFunc(rules, func(r pluginhooks.OperatorRule) bool { return r.Name == name })
}

func describeHookRule(rule pluginhooks.OperatorRule) *pluginstatus.HookRule {
	shown := &pluginstatus.HookRule{Order: rule.Order, OnError: "fail", Matches: rule.Match != nil, Place: rule.ConfigRange.String()}
	if shown.Order == 0 {
		shown.Order = hooks.OrderPlugin
	}
	if rule.WarnOnError {
		shown.OnError = "warn"
	}
	if rule.Timeout > 0 {
		shown.Timeout = rule.Timeout.String()
	}
	return shown
}
