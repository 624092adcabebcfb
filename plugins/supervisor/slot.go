package supervisor

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/base"
)

// manage keeps one plugin running until ctx ends or the plugin is retired.
func (s *Supervisor) manage(ctx context.Context, wg *sync.WaitGroup, sl *managedPlugin) {
	if !s.waitForOverride(ctx, sl) {
		return
	}
	if err := sl.entry.Err; err != nil {
		err = fmt.Errorf("%s: %w", sl.entry, err)
		s.logger.Warn("plugin is not started", "plugin", sl.entry.Name, "error", err)
		s.fail(sl, err, time.Time{})
		return
	}
	if !s.waitForDemand(ctx, sl) {
		return
	}
	var past failures
	for ctx.Err() == nil && !s.superseded(sl) {
		was := s.live(ctx, wg, sl)
		switch {
		case ctx.Err() != nil, s.superseded(sl):
		case was.wanted != nil:
			past = 0
			select {
			case <-was.wanted:
			case <-ctx.Done():
			}
		default:
			s.backOff(ctx, sl, was.err, past.delay(was))
		}
	}
}

// live launches the plugin of a slot, and returns when the process has ended, or ctx has. When
// ctx ends, a process with tasks is detached and continues.
func (s *Supervisor) live(ctx context.Context, wg *sync.WaitGroup, sl *managedPlugin) runResult {
	launched := time.Now()
	inst, err := s.up(ctx, sl)
	if err != nil {
		s.setInfo(sl, sl.info.Name, (*Info).lost)
		return runResult{err: err}
	}
	if wanted := s.serve(ctx, sl, inst); wanted != nil {
		s.end(ctx, sl, inst)
		return runResult{wanted: wanted}
	}
	if !ended(inst) {
		s.update(func() { sl.inst = nil })
		s.leave(ctx, sl, inst)
		return runResult{}
	}
	l := runResult{err: inst.Exit(), began: true, lasted: time.Since(launched), overCall: s.crashedInCall(sl, launched)}
	// Close is delayed: a child of the plugin may still write to the plugin's stderr.
	wg.Go(func() {
		select {
		case <-inst.StderrClosed():
		case <-ctx.Done():
		}
		inst.Close()
	})
	return l
}

// backOff reports that a plugin is down, and waits before the next launch.
func (s *Supervisor) backOff(ctx context.Context, sl *managedPlugin, why error, delay time.Duration) {
	s.logger.Warn("plugin is down", "plugin", sl.entry.Name, "error", why, "delay", delay)
	if delay == 0 {
		s.update(func() { sl.inst = nil })
		return
	}
	s.fail(sl, why, time.Now().Add(delay))
	if sleep(ctx, delay) {
		s.update(func() { sl.err = nil })
	}
}

// crashedInCall reports whether a hook was requested since began, so that it may have died in
// a call. One allocation may be the cause, and other allocations must not wait for long.
func (s *Supervisor) crashedInCall(sl *managedPlugin, began time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return sl.info.Type == base.TypeHook && !sl.lastAcquired.Before(began)
}

// waitForDemand blocks until a builtin hook is requested: most nodes never need it. A hook
// that an earlier supervisor has left running is started at once. It returns false when ctx
// has ended.
func (s *Supervisor) waitForDemand(ctx context.Context, sl *managedPlugin) bool {
	if !sl.entry.Builtin || sl.entry.Type != base.TypeHook || s.recorded.mayRun(sl.entry) {
		return true
	}
	wanted := make(chan struct{})
	s.update(func() {
		sl.tried, sl.fingerprinted, sl.wanted = true, true, wanted // a hook has no fingerprint
		s.settleLocked()
	})
	select {
	case <-wanted:
		return true
	case <-ctx.Done():
		return false
	}
}

// waitForOverride blocks until it is certain that no configured plugin replaces a builtin. It
// returns false when ctx has ended.
func (s *Supervisor) waitForOverride(ctx context.Context, sl *managedPlugin) bool {
	for {
		s.mu.Lock()
		held, stateChanged := s.awaitingOverrideLocked(sl), s.stateChanged
		s.mu.Unlock()
		if !held {
			return ctx.Err() == nil
		}
		select {
		case <-stateChanged:
		case <-ctx.Done():
			return false
		}
	}
}

// awaitingOverrideLocked reports whether sl is a builtin that a configured plugin is expected
// to replace. If that plugin cannot be started, the builtin is not started either, because the
// configuration names the other plugin.
func (s *Supervisor) awaitingOverrideLocked(sl *managedPlugin) bool {
	if !sl.entry.Builtin {
		return false
	}
	for _, other := range s.slots {
		if !other.entry.Builtin && other.entry.Path != "" && other.retired == "" &&
			other.info.Name == "" && other.entry.DriverName() == sl.entry.Name {
			return true
		}
	}
	return false
}

// up launches the plugin of a slot and registers it for its driver or hook.
func (s *Supervisor) up(ctx context.Context, sl *managedPlugin) (instance, error) {
	if err := s.recorded.killOrphans(); err != nil {
		return nil, fmt.Errorf("%s: %w", sl.entry, err)
	}
	inst, err := s.start(ctx, sl.entry)
	if err != nil {
		return nil, err
	}
	if err := s.recorded.killUnmanaged(servedBy(inst.Info())); err != nil {
		inst.Detach() // the plugin can have tasks; the next launch reattaches it
		return nil, fmt.Errorf("%s: %w", sl.entry, err)
	}
	if err := s.admit(sl, inst); err != nil {
		s.end(context.WithoutCancel(ctx), sl, inst)
		return nil, err
	}
	return inst, nil
}

// admit registers a new process for the driver or hook that it serves, or returns an error.
func (s *Supervisor) admit(sl *managedPlugin, inst instance) (err error) {
	info := inst.Info()
	if info.Type != base.TypeDriver && info.Type != base.TypeHook {
		return fmt.Errorf("%s: it is a %s plugin, neither a task driver nor a hook", sl.entry, info.Type)
	}
	s.update(func() {
		if was, is := servedBy(sl.info), servedBy(info); sl.info.Name != "" && was != is {
			err = fmt.Errorf("%s: it was %s and calls itself %s now; start again to accept that", sl.entry, was, is)
			return
		}
		if err = s.claimLocked(sl, info); err != nil {
			return
		}
		sl.inst, sl.info, sl.err, sl.failure, sl.tried = inst, info, nil, nil, true
		if sl.driver = nil; info.Type == base.TypeDriver {
			sl.driver = &watchedDriver{inst.Driver(), s.newCallWatch(sl, inst)}
		}
		_, sl.takes = inst.Hook()
		sl.fingerprinted = sl.fingerprinted || info.Type != base.TypeDriver // a hook has no fingerprint
		_, sl.reattached = inst.(reattachedPlugin)
		s.settleLocked()
	})
	return err
}

// claimLocked makes sl the owner of the driver or hook in info. If several plugins offer it,
// claimLocked retires those that lose the arbitration; the error is errRetired if sl is one.
func (s *Supervisor) claimLocked(sl *managedPlugin, info base.Info) error {
	var others []*managedPlugin
	var rivals []candidate
	for _, other := range s.slots {
		if other != sl && other.retired == "" {
			others, rivals = append(others, other), append(rivals, other.candidate())
		}
	}
	replaced, winner := arbitrate(candidate{entry: sl.entry, order: sl.order, info: info}, rivals)
	for _, i := range replaced {
		s.retireLocked(others[i], sl, rivals[i].info, info)
	}
	if winner >= 0 {
		s.retireLocked(sl, others[winner], info, rivals[winner].info)
		return errRetired
	}
	s.owners[servedBy(info)] = sl
	return nil
}

// candidate returns the plugin as arbitrate compares it.
func (sl *managedPlugin) candidate() candidate {
	c := candidate{entry: sl.entry, order: sl.order, info: sl.info, inUse: sl.acquired}
	if c.info.Name == "" && sl.entry.Builtin {
		// A builtin's name is known without a call, perhaps before its launch.
		c.info = base.Info{Type: sl.entry.Type, Name: sl.entry.Name, Version: sl.entry.Version}
	}
	return c
}

func (s *Supervisor) retireLocked(loser, winner *managedPlugin, lost, won base.Info) {
	loser.retired = fmt.Sprintf("%s is served by %s, version %s", servedBy(won), winner.entry, won.Version)
	loser.err = nil
	loser.inst = nil
	loser.info = lost // the name that the plugin would serve
	if loser.cancel != nil {
		loser.cancel(errRetired)
	}
	s.logger.Info("multiple versions of plugin detected", won.Type.String(), won.Name,
		"used", winner.entry.String(), "used_version", won.Version,
		"ignored", loser.entry.String(), "ignored_version", lost.Version)
	s.settleLocked()
}

// fail records why a slot has no process.
func (s *Supervisor) fail(sl *managedPlugin, err error, retryAt time.Time) {
	s.update(func() {
		sl.inst = nil
		sl.tried = true
		if sl.retired == "" {
			sl.err, sl.failure, sl.retryAt = err, err, retryAt
		}
		s.settleLocked()
	})
}

// serve reads the streams of a process until the process ends, ctx ends, or the process is
// unused. If it is unused, serve returns a channel that is closed when the plugin is requested
// again; otherwise nil.
func (s *Supervisor) serve(ctx context.Context, sl *managedPlugin, inst instance) (wanted <-chan struct{}) {
	served := servedBy(inst.Info())
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	var wg sync.WaitGroup
	if served.Type == base.TypeDriver {
		fingerprints := fingerprintStream{
			inst: inst, driver: served.Name, plugin: sl.entry.Name, logger: s.logger,
			onChange: func(change func(*Info)) { s.setInfo(sl, served.Name, change) },
		}
		events := eventStream{inst: inst, driver: served.Name, onEvent: s.cfg.OnTaskEvent, logger: s.logger}
		wg.Go(func() { fingerprints.run(ctx) })
		wg.Go(func() { events.run(ctx) })
		s.mu.Lock()
		calls := sl.driver.calls
		s.mu.Unlock()
		wg.Go(func() { calls.run(ctx) })
	}
	var look <-chan time.Time
	if sl.entry.Builtin && s.cfg.Busy != nil {
		ticker := time.NewTicker(idleTimeout)
		defer ticker.Stop()
		look = ticker.C
	}
	for done := false; !done; {
		select {
		case <-inst.Done():
			done = true
		case <-ctx.Done():
			done = true
		case <-look:
			wanted = s.rest(sl, served)
			done = wanted != nil
		}
	}
	cancel()
	wg.Wait()
	if wanted == nil {
		s.setInfo(sl, served.Name, (*Info).lost)
	}
	return wanted
}

// rest makes an unused process unavailable, and returns a channel that is closed when the
// plugin is requested again. It returns nil if the process is in use.
func (s *Supervisor) rest(sl *managedPlugin, served PluginKey) (wanted chan struct{}) {
	if s.cfg.Busy(served) {
		return nil
	}
	// A task makes its driver busy before it requests the driver. A task that has not done
	// so yet requests the driver after this update, and gets no process.
	s.update(func() {
		if time.Since(sl.lastAcquired) >= idleTimeout {
			wanted = make(chan struct{})
			sl.inst, sl.wanted = nil, wanted
		}
	})
	return wanted
}

// setInfo changes the recorded state of the driver that sl serves. It ignores a plugin that
// another plugin has replaced.
func (s *Supervisor) setInfo(sl *managedPlugin, name string, change func(*Info)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.owners[driverOf(name)] != sl {
		return // a hook, or another plugin serves the driver
	}
	sl.fingerprinted = true
	info := s.drivers[name]
	change(&info)
	info.UpdatedAt = time.Now()
	s.drivers[name] = info
	s.notifyLocked()
}

// leave stops or detaches a plugin when ctx has ended: when the supervisor stops, a plugin
// with tasks continues.
func (s *Supervisor) leave(ctx context.Context, sl *managedPlugin, inst instance) {
	s.mu.Lock()
	served, wanted := servedBy(sl.info), sl.retired == "" && !errors.Is(context.Cause(ctx), errDismissed)
	s.mu.Unlock()
	ctx = context.WithoutCancel(ctx)
	if s.cfg.Records != nil && s.cfg.Keep != nil && wanted && s.cfg.Keep(served, inst.PID()) {
		inst.Detach()
		return
	}
	s.end(ctx, sl, inst)
}

// end stops a plugin gracefully and deletes its record.
func (s *Supervisor) end(ctx context.Context, sl *managedPlugin, inst instance) {
	inst.Stop(ctx)
	if s.cfg.Records != nil {
		s.recorded.delete(key(sl.entry))
	}
}
