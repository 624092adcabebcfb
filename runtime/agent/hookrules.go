package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
)

// checkHookRules implements Agent.CheckHookRules.
func (p *pluginManager) checkHookRules(ctx context.Context) (ruleErrs []error) {
	for _, rule := range p.hookPlugins.Rules() {
		meanwhile := "until then allocations fail that it might apply to"
		if rule.WarnOnError {
			meanwhile = "until then each of its hook points is only an event"
		}
		_, takes, err := p.supervisor.Hook(ctx, rule.Name, time.Time{})
		switch {
		case errors.Is(err, supervisor.ErrNoHook):
			err = fmt.Errorf("%w; %s, or remove the hook block: %s", err, missingHookHint, meanwhile)
		case err != nil:
			err = fmt.Errorf("%w; %s", err, meanwhile)
		default:
			if err = rule.ValidateAgainstDescription(takes); err != nil {
				err = fmt.Errorf("hook %q: %w; correct the config of the hook block: %s", rule.Name, err, meanwhile)
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

// logHookRuleErrors logs the errors from checkHookRules when it is called and after each rule change, until ctx ends.
func (p *pluginManager) logHookRuleErrors(ctx context.Context) {
	for {
		for _, err := range p.checkHookRules(ctx) {
			p.logger.Warn("hook block does not work", "error", err)
		}
		select {
		case <-p.hookRulesChanged:
		case <-ctx.Done():
			return
		}
	}
}
