package agentplugins

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/node/hooks/pluginhooks"
)

// CheckHookRules checks the operator's hook rules against the plugins and returns the reasons why rules have no effect. It waits
// for starting plugins.
func (p *Manager) CheckHookRules(ctx context.Context) (ruleErrs []error) {
	for _, rule := range p.Hooks.Rules() {
		meanwhile := "until then allocations fail that it might apply to"
		if rule.WarnOnError {
			meanwhile = "until then each of its hook points is only an event"
		}
		_, takes, err := p.Supervisor.Hook(ctx, rule.Name, time.Time{})
		switch {
		case errors.Is(err, supervisor.ErrNoHook):
			err = fmt.Errorf("%w; %s, or remove the hook block: %s", err, missingHookHint, meanwhile)
		case err != nil:
			err = fmt.Errorf("%w; %s", err, meanwhile)
		default:
			if err = rule.ValidateAgainstDescription(takes); err != nil {
				err = fmt.Errorf("hook %q: %w; correct the config of the hook block: %s", rule.Name, err, meanwhile)
			} else if rule.Name != pluginhooks.ScriptHook { // config warns of an unattached script
				err = rule.ErrorIfUnattached(takes.AllAllocs)
			}
		}
		if ctx.Err() != nil {
			break
		}
		if err != nil {
			ruleErrs = append(ruleErrs, rule.ErrorWithPosition(err))
		}
	}
	return ruleErrs
}

// logHookRuleErrors logs the errors from CheckHookRules when it is called and after each rule change, until ctx ends.
func (p *Manager) logHookRuleErrors(ctx context.Context) {
	for {
		for _, err := range p.CheckHookRules(ctx) {
			p.logger.Warn("hook block does not work", "error", err)
		}
		select {
		case <-p.hookRulesChanged:
		case <-ctx.Done():
			return
		}
	}
}
