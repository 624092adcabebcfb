package agent

import (
	"context"
	"maps"

	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// everyFact is the record of the hooks that take part in every allocation, by the
// names of their plugins.
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

// keepEvery keeps the record for the next agent, until ctx ends.
func (a *Agent) keepEvery(ctx context.Context) {
	stored := a.everyBefore
	for {
		changed := a.supervisor.Changed()
		now := make(map[string]string)
		for _, p := range a.supervisor.Plugins() {
			switch {
			case p.Retired != "":
			case p.Takes != nil && p.Takes.EveryAlloc:
				now[p.Name] = p.Serves.Name
			case p.Serves.Name == "" && a.everyBefore[p.Name] != "":
				now[p.Name] = a.everyBefore[p.Name] // it is to come
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
