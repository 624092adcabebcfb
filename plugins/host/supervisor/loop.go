package supervisor

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/device"
)

// pluginLoop runs in the goroutine of one plugin, and keeps the plugin running.
type pluginLoop struct {
	s      *Supervisor
	plugin *managedPlugin
	logger hclog.Logger
}

// run launches the plugin, and launches it again when its process exits, until ctx ends or
// the plugin has a replacement. It adds the goroutines that it does not wait for to wg.
func (l *pluginLoop) run(ctx context.Context, wg *sync.WaitGroup) {
	m := l.plugin
	defer m.cancel(nil)
	defer l.s.updateAndNotify(func() {
		m.loopRunning = false
		if m.removed {
			l.s.registry.deleteRemovedPlugin(m)
		}
	})
	if !l.waitForConfiguredPlugin(ctx) {
		return
	}
	if err := m.entry.Err; err != nil {
		err = fmt.Errorf("%s: %w", m.entry, err)
		l.logger.Warn("plugin is not started", "plugin", m.entry.Name, "error", err)
		l.recordFailure(eventLaunchRejected, err, time.Time{})
		return
	}
	if !l.waitForPromptPlugins(ctx) || !l.waitForFirstRequest(ctx) {
		return
	}
	var consecutiveFailures failureCounter
	for ctx.Err() == nil && !l.hasSuccessor() {
		result := l.runOnce(ctx, wg)
		switch {
		case ctx.Err() != nil, l.hasSuccessor():
		case result.streamErr != nil:
			l.logger.Warn("device plugin has stopped reporting devices, not started again", "plugin", m.entry.Name, "error", result.streamErr)
			l.recordFailure(eventStreamEnded, fmt.Errorf("%w; the plugin is not started again until it has changed or the agent is restarted", result.streamErr), time.Time{})
			return
		case result.launchRequested != nil:
			consecutiveFailures = 0
			select {
			case <-result.launchRequested:
			case <-ctx.Done():
			}
		case result.restartRequested:
			consecutiveFailures = 0
		default:
			l.backOff(ctx, result, consecutiveFailures.nextLaunchDelay(result))
		}
	}
}

// runOnce launches the plugin, and returns when the process has exited or is unused, or ctx
// has ended. When ctx ends, a process with tasks is detached and continues.
func (l *pluginLoop) runOnce(ctx context.Context, wg *sync.WaitGroup) pluginRunResult {
	launched := time.Now()
	inst, err := l.launch(ctx)
	if err != nil {
		l.updateDriverInfo((*DriverInfo).markFingerprintFailed)
		return pluginRunResult{err: err}
	}
	stopped := l.watchProcess(ctx, inst)
	switch {
	case stopped.launchRequested != nil, stopped.streamErr != nil:
		l.stopPlugin(ctx, inst)
		return stopped
	case stopped.restartRequested:
		l.s.updateAndNotify(func() {
			l.plugin.applyEvent(eventExited)
			l.plugin.inst = nil
		})
		l.stopPlugin(ctx, inst)
		return stopped
	}
	if !hasExited(inst) {
		l.s.updateAndNotify(func() { l.plugin.inst = nil })
		l.stopOrDetach(ctx, inst)
		return pluginRunResult{}
	}
	result := pluginRunResult{err: inst.WaitExit(), started: true, uptime: time.Since(launched), crashedInCall: l.crashedInCall(launched)}
	l.s.updateAndNotify(func() { l.plugin.exits = processExits{l.plugin.exits.count + 1, result.err, time.Now()} })
	// Close is called later, because a child of the plugin may still write to the plugin's
	// stderr.
	wg.Go(func() {
		select {
		case <-inst.StderrClosed():
		case <-ctx.Done():
		}
		inst.Close()
	})
	return result
}

// backOff records that the plugin has no process, and waits before the next launch.
func (l *pluginLoop) backOff(ctx context.Context, result pluginRunResult, delay time.Duration) {
	m := l.plugin
	l.logger.Warn("plugin is down", "plugin", m.entry.Name, "error", result.err, "delay", delay)
	if delay == 0 || l.takeRestartRequest() {
		l.s.updateAndNotify(func() {
			m.applyEvent(eventExited)
			m.inst = nil
		})
		return
	}
	cause := eventExitedEarly
	if !result.started {
		cause = eventLaunchFailed
	}
	l.recordFailure(cause, result.err, time.Now().Add(delay))
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-m.requests.restart:
	case <-ctx.Done():
		return
	}
	l.s.updateAndNotify(func() { m.applyEvent(eventLaunchStarted) })
}

// takeRestartRequest reports whether Restart was called during the launch.
func (l *pluginLoop) takeRestartRequest() bool {
	select {
	case <-l.plugin.requests.restart:
		return true
	default:
		return false
	}
}

// recordFailure records why the plugin has no process. If retryAt is zero, the plugin is not
// launched again.
func (l *pluginLoop) recordFailure(e pluginEvent, err error, retryAt time.Time) {
	m := l.plugin
	l.s.updateAndNotify(func() {
		m.applyEvent(e)
		m.inst = nil
		l.s.registry.setDevices(m, nil, nil)
		m.launchAttempted = true
		if m.state != stateSuperseded {
			m.lastFailure = launchFailure{err, retryAt}
		}
		l.s.registry.updateFirstLaunchesDone()
	})
}

// crashedInCall reports whether the plugin is a hook that was requested after the time
// launched. Such a hook may have died in a call for one allocation, and calls for other
// allocations must not wait long for the next launch.
func (l *pluginLoop) crashedInCall(launched time.Time) bool {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	return l.plugin.info.Type == base.TypeHook && !l.plugin.lastAcquired.Before(launched)
}

// hasSuccessor reports whether a changed plugin waits for the exit of this plugin's process.
func (l *pluginLoop) hasSuccessor() bool {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	return l.plugin.replacement != nil
}

// waitForConfiguredPlugin blocks as long as a configured plugin can still replace a
// builtin. It returns false when ctx has ended.
func (l *pluginLoop) waitForConfiguredPlugin(ctx context.Context) bool {
	for {
		l.s.mu.Lock()
		awaiting, stateChanged := l.s.registry.awaitsConfiguredPlugin(l.plugin), l.s.stateChanged
		l.s.mu.Unlock()
		if !awaiting {
			return ctx.Err() == nil
		}
		select {
		case <-stateChanged:
		case <-ctx.Done():
			return false
		}
	}
}

// waitForPromptPlugins blocks before the launch of a builtin with a slow fingerprint until the other plugins have
// reported their state, or for readyTimeout: the fingerprint uses the processor, and the node is ready without it. It does
// not block for a plugin that an earlier supervisor has left running. It returns false when ctx has ended.
func (l *pluginLoop) waitForPromptPlugins(ctx context.Context) bool {
	m := l.plugin
	if !m.entry.SlowFingerprint || l.s.recordedPlugins.mayBeRunning(m.entry) {
		return true
	}
	l.s.updateAndNotify(func() {
		m.launchAttempted = true
		l.s.registry.updateFirstLaunchesDone()
	})
	limit := time.NewTimer(readyTimeout)
	defer limit.Stop()
	return l.s.waitFor(ctx, (*registry).promptStatesKnown, limit.C) == nil
}

// waitForFirstRequest blocks until a builtin hook is requested, because most nodes never need it.
// It does not block for other plugins, and for a hook that an earlier supervisor has left
// running. It returns false when ctx has ended.
func (l *pluginLoop) waitForFirstRequest(ctx context.Context) bool {
	m := l.plugin
	if !m.entry.Builtin || m.entry.Type != base.TypeHook || l.s.recordedPlugins.mayBeRunning(m.entry) {
		l.s.mu.Lock()
		defer l.s.mu.Unlock()
		m.applyEvent(eventLaunchStarted)
		return true
	}
	requested := make(chan struct{})
	l.s.updateAndNotify(func() {
		m.applyEvent(eventPluginUnused)
		m.launchAttempted, m.fingerprinted, m.requests.use = true, true, requested // a hook has no fingerprint
		l.s.registry.updateFirstLaunchesDone()
	})
	select {
	case <-requested:
		return true
	case <-ctx.Done():
		return false
	}
}

// launch starts or reattaches a process, and registers it for its driver or hook.
func (l *pluginLoop) launch(ctx context.Context) (pluginInstance, error) {
	m := l.plugin
	if err := l.s.recordedPlugins.killOrphans(); err != nil {
		return nil, fmt.Errorf("%s: %w", m.entry, err)
	}
	inst, err := l.s.launchPlugin(ctx, m.entry)
	if err != nil {
		return nil, err
	}
	if err := l.s.recordedPlugins.killUnmanagedPlugin(servedKey(inst.Info())); err != nil {
		inst.Detach() // the process is not killed, because it can have tasks; the next launch reattaches it
		return nil, fmt.Errorf("%s: %w", m.entry, err)
	}
	if err := l.register(inst); err != nil {
		l.stopPlugin(context.WithoutCancel(ctx), inst)
		return nil, err
	}
	return inst, nil
}

// register registers a new process for the driver or hook that it serves.
func (l *pluginLoop) register(inst pluginInstance) (err error) {
	m, info := l.plugin, inst.Info()
	l.s.updateAndNotify(func() {
		if err = l.s.registry.registerOwner(m, info); err != nil {
			return
		}
		m.applyEvent(eventLaunched)
		if m.removed {
			m.applyEvent(eventPluginRemoved)
		}
		m.inst, m.info, m.lastFailure, m.launchAttempted = inst, info, launchFailure{}, true
		if m.driver = nil; info.Type == base.TypeDriver {
			m.driver = &watchedDriver{Driver: inst.Driver(), callWatch: l.s.newCallWatch(m, inst)}
		}
		_, m.hookDescription = inst.Hook()
		m.fingerprinted = m.fingerprinted || info.Type == base.TypeHook // a hook has no fingerprint
		l.s.registry.updateFirstLaunchesDone()
	})
	return err
}

// watchProcess reads the streams of a process until the process ends, ctx ends, or the process must be stopped: a
// restart is requested, it is unused, or it is a device plugin that reports no further devices. The result has the
// reason for which it must be stopped, or is zero.
func (l *pluginLoop) watchProcess(ctx context.Context, inst pluginInstance) (stopped pluginRunResult) {
	m, served := l.plugin, servedKey(inst.Info())
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	var wg sync.WaitGroup
	streamEnded := make(chan error, 1)
	switch served.Type {
	case base.TypeDevice:
		devices := deviceStream{inst: inst, onChange: func(groups []device.Group) { l.setDevices(inst, groups) }, logger: l.logger}
		wg.Go(func() {
			if err := devices.run(ctx); err != nil {
				streamEnded <- err
			}
		})
	case base.TypeDriver:
		fingerprints := fingerprintStream{inst: inst, driver: served.Name, plugin: m.entry.Name, onChange: l.updateDriverInfo, logger: l.logger}
		events := taskEventStream{inst: inst, driver: served.Name, onEvent: l.s.cfg.OnTaskEvent, logger: l.logger}
		l.s.mu.Lock()
		calls := m.driver.callWatch
		l.s.mu.Unlock()
		wg.Go(func() { fingerprints.run(ctx) })
		wg.Go(func() { events.run(ctx) })
		if !l.s.cfg.NoCallTimeouts {
			wg.Go(func() { calls.run(ctx) })
		}
	}
	var idleCheck <-chan time.Time
	if m.entry.Builtin && l.s.cfg.HasTasks != nil {
		ticker := time.NewTicker(idleTimeout)
		defer ticker.Stop()
		idleCheck = ticker.C
	}
	var demandCheck <-chan time.Time
	if m.entry.OnDemand && idleCheck != nil {
		timer := time.NewTimer(demandTimeout)
		defer timer.Stop()
		demandCheck = timer.C
	}
	for done := false; !done; {
		select {
		case <-inst.Done():
			done = true
		case <-ctx.Done():
			done = true
		case stopped.streamErr = <-streamEnded:
			done = true
		case <-m.requests.restart:
			stopped.restartRequested, done = true, true
		case <-idleCheck:
			stopped.launchRequested = l.releaseIfIdle(served)
			done = stopped.launchRequested != nil
		case <-demandCheck:
			if l.driverIsHealthy() {
				stopped.launchRequested = l.releaseIfIdle(served)
				done = stopped.launchRequested != nil
			}
		}
	}
	cancel()
	wg.Wait()
	if stopped.launchRequested == nil {
		l.updateDriverInfo((*DriverInfo).markFingerprintFailed)
	}
	return stopped
}

// releaseIfIdle checks whether a process is unused. If it is, Driver and Hook no longer
// return it, and releaseIfIdle returns a channel that is closed when the plugin is
// requested again. Otherwise releaseIfIdle returns nil.
func (l *pluginLoop) releaseIfIdle(served PluginKey) (requested chan struct{}) {
	if l.s.cfg.HasTasks(served) {
		return nil
	}
	// A driver becomes busy before its task requests it. If it was not busy above, the
	// request follows after this update, and starts a new process.
	l.s.updateAndNotify(func() {
		if m := l.plugin; time.Since(m.lastAcquired) >= idleTimeout {
			requested = make(chan struct{})
			m.applyEvent(eventPluginUnused)
			m.inst, m.requests.use = nil, requested
		}
	})
	return requested
}

// driverIsHealthy reports whether the driver that the plugin serves has reported that it is healthy.
func (l *pluginLoop) driverIsHealthy() bool {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	return l.s.registry.drivers[l.plugin.info.Name].Healthy
}

// updateDriverInfo changes the DriverInfo of the driver that the plugin serves.
func (l *pluginLoop) updateDriverInfo(change func(*DriverInfo)) {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	if l.s.registry.updateDriverInfo(l.plugin, change) {
		l.s.notifyLocked()
	}
}

// setDevices sets the devices that a process of the plugin has reported.
func (l *pluginLoop) setDevices(reporter pluginInstance, groups []device.Group) {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	l.plugin.fingerprinted = true
	if l.s.registry.setDevices(l.plugin, reporter, groups) {
		l.s.notifyStateLocked()
	}
}

// stopOrDetach detaches a plugin that has tasks if the supervisor stops, and stops the
// plugin otherwise. It is called after ctx has ended.
func (l *pluginLoop) stopOrDetach(ctx context.Context, inst pluginInstance) {
	cfg := l.s.cfg
	l.s.mu.Lock()
	served, wanted := servedKey(l.plugin.info), l.plugin.state != stateSuperseded && !errors.Is(context.Cause(ctx), errRemoved)
	l.s.mu.Unlock()
	ctx = context.WithoutCancel(ctx)
	if cfg.Records != nil && cfg.KeepRunning != nil && wanted && served.Type != base.TypeDevice && cfg.KeepRunning(served, inst.PID()) {
		inst.Detach()
		return
	}
	l.stopPlugin(ctx, inst)
}

// stopPlugin stops a plugin gracefully and deletes its record.
func (l *pluginLoop) stopPlugin(ctx context.Context, inst pluginInstance) {
	inst.Stop(ctx)
	if l.s.cfg.Records != nil {
		l.s.recordedPlugins.deleteRecord(recordKey(l.plugin.entry))
	}
}

// stopWhenUnused waits until no task needs a removed plugin, and then stops its pluginLoop.
func (l *pluginLoop) stopWhenUnused(ctx context.Context) {
	for logged := false; l.servesTasks(); logged = true {
		if !logged {
			l.logger.Info("plugin continues unchanged until no task needs it", "plugin", l.plugin.entry.Name)
		}
		if wait.Sleep(ctx, idleTimeout) != nil {
			return
		}
	}
	l.plugin.cancel(errRemoved)
}

// servesTasks reports whether the plugin has a process that tasks use.
func (l *pluginLoop) servesTasks() bool {
	m := l.plugin
	l.s.mu.Lock()
	served, up := servedKey(m.info), m.loopRunning && m.inst != nil && !hasExited(m.inst)
	l.s.mu.Unlock()
	return up && l.s.cfg.HasTasks != nil && l.s.cfg.HasTasks(served)
}
