package agent

import (
	"context"
	"maps"

	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// everyFact is the record of the plugins that have been up: by their names the hooks
// that take part in every allocation, and "" for all others.
const everyFact = "hooks_of_every_alloc"

// readEvery takes up what an earlier agent knew of such hooks.
func (a *Agent) readEvery() {
	if _, err := a.store.Snapshot().Fact(everyFact, &a.everyBefore); err != nil {
		a.logger.Warn("it is not known any more which hooks take part in every allocation, until their plugins are up", "error", err)
	}
}

// expectedHooks returns the hooks that took part in every allocation under an
// earlier agent, and whose plugins have not come up under this one. Allocations
// shall not miss their moments because a plugin is slow.
func (a *Agent) expectedHooks() (names []string) {
	for _, p := range a.supervisor.Plugins() {
		if name := a.everyBefore[p.Name]; name != "" && p.Serves.Name == "" && p.Retired == "" {
			names = append(names, name)
		}
	}
	return names
}

// unknownPlugins returns the plugins that have never been up on this node, with
// whether they are still being started for the first time. The channel is closed when
// there may be another answer.
func (a *Agent) unknownPlugins() (map[string]bool, <-chan struct{}) {
	changed := a.supervisor.Changed()
	var unknown map[string]bool
	for _, p := range a.supervisor.Plugins() {
		if _, known := a.everyBefore[p.Name]; known || p.Builtin || p.Serves.Name != "" {
			continue
		}
		if unknown == nil {
			unknown = make(map[string]bool)
		}
		unknown[p.Name] = !p.Tried
	}
	return unknown, changed
}

// keepEvery keeps the record for the next agent, until ctx ends.
func (a *Agent) keepEvery(ctx context.Context) {
	stored := a.everyBefore
	for {
		changed := a.supervisor.Changed()
		now := make(map[string]string)
		for _, p := range a.supervisor.Plugins() {
			switch {
			case p.Builtin:
			case p.Takes != nil && p.Takes.EveryAlloc && p.Retired == "":
				now[p.Name] = p.Serves.Name
			case p.Serves.Name != "":
				now[p.Name] = ""
			default:
				if name, known := a.everyBefore[p.Name]; known {
					now[p.Name] = name // it is to come
				}
			}
		}
		if !maps.Equal(now, stored) {
			if _, err := a.store.Update(ctx, func(tx *store.Txn) error {
				tx.PutFact(everyFact, now)
				return nil
			}); err == nil {
				stored = now
			} else if ctx.Err() == nil {
				a.logger.Error("hooks of every allocation not stored", "error", err)
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}
