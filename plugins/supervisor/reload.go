package supervisor

import (
	"context"
	"slices"
	"sync"

	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/catalog"
)

// SetCatalog replaces the catalog. A new plugin is launched. A removed plugin is stopped as
// soon as it has no tasks. A changed plugin is replaced as soon as its process has no tasks or
// has died. SetCatalog does not block until then.
func (s *Supervisor) SetCatalog(c *catalog.Catalog) { s.setEntries(c.Entries()) }

func (s *Supervisor) setEntries(entries []catalog.Entry) {
	s.update(func() {
		fresh := make([]*managedPlugin, len(entries))
		for i, e := range entries {
			fresh[i] = &managedPlugin{entry: e, order: i}
		}
		before := slices.Clone(s.slots)
		for _, sl := range before {
			var next *managedPlugin
			if i := slices.IndexFunc(fresh, func(f *managedPlugin) bool { return f.entry.SamePlugin(sl.entry) }); i >= 0 {
				next = fresh[i]
				fresh = slices.Delete(fresh, i, i+1)
			}
			if sl.removed || next == nil || !next.entry.Same(sl.entry) {
				s.dismissLocked(sl, next)
			}
		}
		s.slots = append(s.slots, fresh...)
		if len(before) == 0 {
			return // at the start every plugin is new
		}
		s.sortLocked()
		for _, sl := range fresh {
			s.logger.Info("plugin is new", "plugin", sl.entry.Name)
		}
	})
}

// sortLocked sorts the slots in the order of a catalog.
func (s *Supervisor) sortLocked() {
	slices.SortStableFunc(s.slots, func(a, b *managedPlugin) int { return a.entry.Compare(&b.entry) })
}

// beginSlots starts the goroutines of new slots and of the removal of dismissed slots. The
// returned channel is closed when the slots may have changed.
func (s *Supervisor) beginSlots(ctx context.Context, wg *sync.WaitGroup) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sl := range s.slots {
		switch {
		case sl.cancel == nil && sl.retired == "":
			sl.running = true
			var slotCtx context.Context
			slotCtx, sl.cancel = context.WithCancelCause(ctx)
			wg.Go(func() { s.runSlot(slotCtx, wg, sl) })
		case sl.removed && !sl.draining:
			sl.draining = true
			wg.Go(func() { s.stopWhenUnused(ctx, sl) })
		}
	}
	return s.stateChanged
}

func (s *Supervisor) runSlot(ctx context.Context, wg *sync.WaitGroup, sl *managedPlugin) {
	defer sl.cancel(nil)
	s.manage(ctx, wg, sl)
	s.update(func() {
		sl.running = false
		if sl.removed {
			s.replaceLocked(sl)
		}
	})
}

// dismissLocked removes a slot, and replaces it by next unless next is nil.
func (s *Supervisor) dismissLocked(sl, next *managedPlugin) {
	switch {
	case next == nil:
		s.logger.Info("plugin is not in the configuration any more", "plugin", sl.entry.Name)
	case sl.next == nil:
		s.logger.Info("plugin has changed", "plugin", sl.entry.Name)
	}
	sl.removed, sl.next = true, next
	if !sl.running {
		s.replaceLocked(sl)
	}
}

// stopWhenUnused stops a dismissed slot as soon as its process is not needed.
func (s *Supervisor) stopWhenUnused(ctx context.Context, sl *managedPlugin) {
	for told := false; s.needed(sl); told = true {
		if !told {
			s.logger.Info("plugin goes on as it was until nothing needs it", "plugin", sl.entry.Name)
		}
		if !sleep(ctx, idleTimeout) {
			return
		}
	}
	sl.cancel(errDismissed)
}

// needed reports whether the process of a slot serves tasks.
func (s *Supervisor) needed(sl *managedPlugin) bool {
	s.mu.Lock()
	served, up := servedBy(sl.info), sl.running && sl.inst != nil && !ended(sl.inst)
	s.mu.Unlock()
	return up && s.cfg.Busy != nil && s.cfg.Busy(served)
}

// superseded reports whether another slot waits for the end of this slot's process.
func (s *Supervisor) superseded(sl *managedPlugin) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return sl.next != nil
}

// replaceLocked replaces a slot by its next slot, if there is one. Otherwise the plugins that
// were retired in its favour can be started again.
func (s *Supervisor) replaceLocked(sl *managedPlugin) {
	s.slots = slices.DeleteFunc(s.slots, func(other *managedPlugin) bool { return other == sl })
	if served := servedBy(sl.info); s.owners[served] == sl {
		delete(s.owners, served)
		if served.Type == base.TypeDriver && sl.next == nil {
			delete(s.drivers, served.Name)
		}
		for i, loser := range s.slots {
			if loser.retired != "" && !loser.running && servedBy(loser.info) == served {
				s.slots[i] = &managedPlugin{entry: loser.entry, order: loser.order}
			}
		}
	}
	if sl.next != nil {
		s.slots = append(s.slots, sl.next)
		s.sortLocked()
	}
}
