package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/supervisor"
)

// CheckHooks checks the operator's hook rules against the plugins and returns the
// reasons why rules do not work. It waits for plugins that are being started.
func (a *Agent) CheckHooks(ctx context.Context) (trouble []error) {
	for _, rule := range a.hooks.Rules() {
		meanwhile := "until then allocations fail that it might apply to"
		if rule.WarnOnError {
			meanwhile = "until then each of its hook points is only an event"
		}
		_, takes, err := a.supervisor.Hook(ctx, rule.Name, time.Time{})
		switch {
		case errors.Is(err, supervisor.ErrNoHook):
			err = fmt.Errorf("%w; %s, or remove the hook block: %s", err, missingHookHint, meanwhile)
		case err != nil:
			err = fmt.Errorf("%w; %s", err, meanwhile)
		default:
			if err = rule.Check(takes); err != nil {
				err = fmt.Errorf("hook %q: %w; correct the config of the hook block: %s", rule.Name, err, meanwhile)
			}
		}
		if ctx.Err() != nil {
			break
		}
		if err != nil {
			trouble = append(trouble, rule.AtPosition(err))
		}
	}
	return trouble
}

// logHookErrors logs the errors of CheckHooks at the start and after each change of
// the rules, until ctx ends.
func (a *Agent) logHookErrors(ctx context.Context) {
	for {
		for _, err := range a.CheckHooks(ctx) {
			a.logger.Warn("hook block does not work", "error", err)
		}
		select {
		case <-a.rulesChanged:
		case <-ctx.Done():
			return
		}
	}
}

// launchTimeout limits the wait of CheckAttachments for a plugin that has died: it waits
// only if the retry of the launch comes within this time.
const launchTimeout = time.Second
