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
	"github.com/nomad-lite/nomad-lite/plugins/host/launch"
)

// pluginLoop keeps one plugin running. Its method run is the goroutine of the plugin.
type pluginLoop struct {
	supervisor *Supervisor
	plugin     *managedPlugin
	logger     hclog.Logger
}

// run launches the plugin, and launches it again when its process exits, until ctx ends or
// the plugin has a replacement. It adds to wg the goroutines that still run when it returns.
func (l *pluginLoop) run(ctx context.Context, wg *sync.WaitGroup) {
	m := l.plugin
	defer m.cancelLoop(nil)
	defer l.supervisor.updateAndNotify(func() {
		m.loopRunning = false
		if m.mustStopWhenUnused {
			l.supervisor.registry.deletePluginAndAddReplacement(m)
		}
	})
	if !l.waitWhileReplacementExpected(ctx) {
		return
	}
	if err := m.entry.Err; err != nil {
		err = fmt.Errorf("%s: %w", m.entry, err)
		l.logger.Warn("plugin is not started", "plugin", m.entry.Name, "error", err)
		l.recordFailure(eventLaunchRejected, err, time.Time{})
		return
	}
	l.reportPredictedFingerprint()
	if !l.waitBeforeSlowFingerprint(ctx) || !l.waitForFirstBuiltinHookRequest(ctx) {
		return
	}
	var consecutiveFailures failureCounter
	for ctx.Err() == nil && !l.hasReplacement() {
		result := l.launchAndWatchOnce(ctx, wg)
		switch {
		case ctx.Err() != nil, l.hasReplacement():
		case result.deviceStreamErr != nil:
			l.logger.Warn("device plugin has stopped reporting devices, not started again", "plugin", m.entry.Name, "error", result.deviceStreamErr)
			l.recordFailure(eventStreamEnded, fmt.Errorf("%w; the plugin is not started again until it has changed or the agent is restarted", result.deviceStreamErr), time.Time{})
			return
		case result.relaunchRequested != nil:
			consecutiveFailures = 0
			select {
			case <-result.relaunchRequested:
			case <-ctx.Done():
			}
		case result.restartRequested:
			consecutiveFailures = 0
		default:
			l.backOff(ctx, result, consecutiveFailures.countFailureAndNextDelay(result))
		}
	}
}

// launchAndWatchOnce launches the plugin, and returns when the process has exited or is unused, or ctx
// has ended. When ctx ends, a process with tasks is detached and continues.
func (l *pluginLoop) launchAndWatchOnce(ctx context.Context, wg *sync.WaitGroup) pluginRunResult {
	launched := time.Now()
	l.takeRestartRequest() // a request that was made for the former process must not stop the next one
	inst, err := l.launchProcess(ctx)
	if err != nil {
		l.updateDriverInfo((*DriverInfo).markFingerprintFailed)
		return pluginRunResult{exitOrLaunchErr: err}
	}
	stopped := l.watchProcess(ctx, inst)
	switch {
	case stopped.relaunchRequested != nil, stopped.deviceStreamErr != nil:
		l.stopAndDeleteRecord(ctx, inst)
		return stopped
	case stopped.restartRequested:
		l.supervisor.updateAndNotify(func() {
			l.plugin.applyEvent(eventExited)
			l.plugin.inst = nil
		})
		l.stopAndDeleteRecord(ctx, inst)
		return stopped
	}
	if !hasExited(inst) {
		l.supervisor.updateAndNotify(func() { l.plugin.inst = nil })
		l.stopOrDetach(ctx, inst)
		return pluginRunResult{}
	}
	result := pluginRunResult{exitOrLaunchErr: inst.WaitForExitReason(), processStarted: true, uptime: time.Since(launched), mayHaveCrashedInCall: l.mayHaveCrashedInCall(launched)}
	l.supervisor.updateAndNotify(func() { l.plugin.exits = processExits{l.plugin.exits.count + 1, result.exitOrLaunchErr, time.Now()} })
	// Close is called later, because a child of the plugin may still write to the plugin's
	// stderr.
	wg.Go(func() {
		select {
		case <-inst.StderrClosed():
		case <-ctx.Done():
		}
		inst.KillAndRelease()
	})
	return result
}

// backOff records that the plugin has no process, and waits before the next launch.
func (l *pluginLoop) backOff(ctx context.Context, result pluginRunResult, delay time.Duration) {
	m := l.plugin
	if errors.As(result.exitOrLaunchErr, new(*launch.ConfigBlockError)) {
		l.logger.Error("plugin is down, because its configuration is invalid", "plugin", m.entry.Name, "error", result.exitOrLaunchErr, "delay", delay)
	} else {
		l.logger.Warn("plugin is down", "plugin", m.entry.Name, "error", result.exitOrLaunchErr, "delay", delay)
	}
	if delay == 0 || l.takeRestartRequest() {
		l.supervisor.updateAndNotify(func() {
			m.applyEvent(eventExited)
			m.inst = nil
		})
		return
	}
	cause := eventExitedEarly
	if !result.processStarted {
		cause = eventLaunchFailed
	}
	l.recordFailure(cause, result.exitOrLaunchErr, time.Now().Add(delay))
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-m.launchRequests.restartRequested:
	case <-ctx.Done():
		return
	}
	l.supervisor.updateAndNotify(func() { m.applyEvent(eventLaunchStarted) })
}

// takeRestartRequest takes the pending request for a restart, and reports whether there was one.
func (l *pluginLoop) takeRestartRequest() bool {
	select {
	case <-l.plugin.launchRequests.restartRequested:
		return true
	default:
		return false
	}
}

// recordFailure applies the event e to the state of the plugin, and records err as the reason why the plugin has no
// process. If retryAt is zero, the plugin is not launched again.
func (l *pluginLoop) recordFailure(e pluginEvent, err error, retryAt time.Time) {
	m := l.plugin
	l.supervisor.updateAndNotify(func() {
		m.applyEvent(e)
		m.inst = nil
		l.supervisor.registry.setReportedDevices(m, nil, device.Fingerprint{})
		if m.state != stateSuperseded {
			m.lastFailure = launchFailure{err, retryAt}
		}
		l.supervisor.registry.updateFirstLaunchesDone()
	})
}

// mayHaveCrashedInCall reports whether the plugin is a hook that Hook has returned to a caller since
// launchedAt. Such a hook may have died in a call for one allocation, and calls for other
// allocations must not wait long for the next launch.
func (l *pluginLoop) mayHaveCrashedInCall(launchedAt time.Time) bool {
	l.supervisor.mu.Lock()
	defer l.supervisor.mu.Unlock()
	return l.plugin.reportedInfo.Type == base.TypeHook && !l.plugin.lastAcquiredAt.Before(launchedAt)
}

// hasReplacement reports whether this plugin has changed: then its changed version replaces it after the exit of its
// process.
func (l *pluginLoop) hasReplacement() bool {
	l.supervisor.mu.Lock()
	defer l.supervisor.mu.Unlock()
	return l.plugin.replacement != nil
}

// waitWhileReplacementExpected blocks a builtin as long as an external plugin of the configuration may replace it. It
// returns false when ctx has ended.
func (l *pluginLoop) waitWhileReplacementExpected(ctx context.Context) (ctxActive bool) {
	for {
		l.supervisor.mu.Lock()
		awaiting, stateChanged := l.supervisor.registry.awaitsConfiguredReplacement(l.plugin), l.supervisor.stateChanged
		l.supervisor.mu.Unlock()
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

// reportPredictedFingerprint sets the driver's state to the predicted fingerprint, if there is one, until the process reports.
func (l *pluginLoop) reportPredictedFingerprint() {
	m := l.plugin
	if m.entry.PredictFingerprint == nil {
		return
	}
	f, ok := m.entry.PredictFingerprint()
	if !ok {
		return
	}
	l.supervisor.updateAndNotify(func() {
		info := base.Info{Type: m.entry.Type, Name: m.entry.Name, Version: m.entry.Version}
		if l.supervisor.registry.registerOwner(m, info) != nil {
			return // another plugin serves the driver
		}
		m.reportedInfo, m.predicted = info, true
		l.supervisor.registry.changeDriverInfo(info.Name, func(i *DriverInfo) { i.applyFingerprint(f) })
	})
}

// waitBeforeSlowFingerprint blocks before the launch of a builtin with a slow fingerprint until the other plugins are launched
// and have reported their state, or for readyTimeout: the fingerprint uses the processor, and the node is ready without it. It does
// not block for a plugin that an earlier supervisor has left running. It returns false when ctx has ended.
func (l *pluginLoop) waitBeforeSlowFingerprint(ctx context.Context) (ctxActive bool) {
	m := l.plugin
	if !m.entry.NodeReadyWithoutFingerprint || l.supervisor.recordedPlugins.mayBeRunning(m.entry) {
		return true
	}
	l.supervisor.updateAndNotify(func() {
		m.applyEvent(eventLaunchDeferred)
		l.supervisor.registry.updateFirstLaunchesDone()
	})
	limit := time.NewTimer(readyTimeout)
	defer limit.Stop()
	return l.supervisor.waitForReadiness(ctx, allProcessesButSlow, limit.C) == nil
}

// waitForFirstBuiltinHookRequest blocks until a builtin hook is requested, because most nodes never need it.
// It does not block for other plugins, and for a hook that an earlier supervisor has left
// running. It returns false when ctx has ended.
func (l *pluginLoop) waitForFirstBuiltinHookRequest(ctx context.Context) (ctxActive bool) {
	m := l.plugin
	if !m.entry.Builtin || m.entry.Type != base.TypeHook || l.supervisor.recordedPlugins.mayBeRunning(m.entry) {
		l.supervisor.mu.Lock()
		defer l.supervisor.mu.Unlock()
		m.applyEvent(eventLaunchStarted)
		return true
	}
	requested := make(chan struct{})
	l.supervisor.updateAndNotify(func() {
		m.applyEvent(eventPluginUnused)
		m.fingerprinted, m.launchRequests.idleLaunchRequested = true, requested // a hook has no fingerprint
		l.supervisor.registry.updateFirstLaunchesDone()
	})
	select {
	case <-requested:
		return true
	case <-ctx.Done():
		return false
	}
}

// launchProcess starts or reattaches a process of the plugin, and registers the process for the driver, hook or devices that it
// serves.
func (l *pluginLoop) launchProcess(ctx context.Context) (pluginInstance, error) {
	m := l.plugin
	if err := l.supervisor.recordedPlugins.killOrphans(); err != nil {
		return nil, fmt.Errorf("%s: %w", m.entry, err)
	}
	inst, err := l.supervisor.launchPlugin(ctx, m.entry)
	if err != nil {
		return nil, err
	}
	if err := l.supervisor.recordedPlugins.killUnmanagedPlugin(servedKey(inst.Info())); err != nil {
		inst.Detach() // the process can have tasks, and is not killed; the next launch reattaches it
		return nil, fmt.Errorf("%s: %w", m.entry, err)
	}
	if err := l.registerProcess(inst); err != nil {
		l.stopAndDeleteRecord(context.WithoutCancel(ctx), inst)
		return nil, err
	}
	return inst, nil
}

// registerProcess makes a new process the one that serves its driver, hook or devices. It returns an error if another plugin
// serves them.
func (l *pluginLoop) registerProcess(inst pluginInstance) (err error) {
	m, info := l.plugin, inst.Info()
	l.supervisor.updateAndNotify(func() {
		if err = l.supervisor.registry.registerOwner(m, info); err != nil {
			return
		}
		m.applyEvent(eventLaunched)
		if m.mustStopWhenUnused {
			m.applyEvent(eventPluginRemoved)
		}
		m.inst, m.reportedInfo, m.lastFailure = inst, info, launchFailure{}
		if m.driver = nil; info.Type == base.TypeDriver {
			m.driver = &watchedDriver{Driver: inst.Driver(), lateCallMonitor: l.supervisor.newLateCallMonitor(m, inst)}
		}
		_, m.hookDescription = inst.Hook()
		m.fingerprinted = m.fingerprinted || info.Type == base.TypeHook // a hook has no fingerprint
		l.supervisor.registry.updateFirstLaunchesDone()
	})
	return err
}

// watchProcess reads the streams of a process until the process exits, ctx ends, or the process must be stopped: a
// restart is requested, the plugin is unused, or the plugin is a device plugin that reports no further devices. The
// result has the reason for which the process must be stopped, or is zero.
func (l *pluginLoop) watchProcess(ctx context.Context, inst pluginInstance) (stopped pluginRunResult) {
	m, served := l.plugin, servedKey(inst.Info())
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	var wg sync.WaitGroup
	streamEnded := make(chan error, 1)
	switch served.Type {
	case base.TypeDevice:
		devices := deviceStream{inst: inst, onFingerprint: func(f device.Fingerprint) { l.setReportedDevices(inst, f) }, logger: l.logger}
		wg.Go(func() {
			if err := devices.run(ctx); err != nil {
				streamEnded <- err
			}
		})
	case base.TypeDriver:
		fingerprints := fingerprintStream{inst: inst, driverName: served.Name, pluginName: m.entry.Name, updateDriverInfo: l.updateDriverInfo, logger: l.logger}
		events := taskEventStream{inst: inst, driverName: served.Name, onEvent: l.supervisor.tasks.OnEvent, logger: l.logger}
		l.supervisor.mu.Lock()
		calls := m.driver.lateCallMonitor
		l.supervisor.mu.Unlock()
		wg.Go(func() { fingerprints.run(ctx) })
		wg.Go(func() { events.run(ctx) })
		if !l.supervisor.cfg.IgnoreLateCalls {
			wg.Go(func() { calls.run(ctx) })
		}
	}
	var idleCheck, demandCheck <-chan time.Time
	if m.entry.Builtin && l.supervisor.tasks.Use != nil {
		idleCheck = time.After(idleTimeout)
		if m.entry.StopsAfterFingerprint {
			demandCheck = time.After(demandTimeout)
		}
	}
	for done := false; !done; {
		select {
		case <-inst.Done():
			done = true
		case <-ctx.Done():
			done = true
		case stopped.deviceStreamErr = <-streamEnded:
			done = true
		case <-m.launchRequests.restartRequested:
			stopped.restartRequested, done = true, true
		case <-idleCheck:
			var nextCheck time.Duration
			stopped.relaunchRequested, nextCheck = l.releaseIfIdle(served)
			done, idleCheck = stopped.relaunchRequested != nil, time.After(nextCheck)
		case <-demandCheck:
			if l.driverIsHealthy() {
				stopped.relaunchRequested, _ = l.releaseIfIdle(served)
				done = stopped.relaunchRequested != nil
			}
		}
	}
	cancel()
	wg.Wait()
	if stopped.relaunchRequested == nil {
		l.updateDriverInfo((*DriverInfo).markFingerprintFailed)
	}
	return stopped
}

// releaseIfIdle checks whether a process is unused. If it is, Driver and Hook no longer
// return it, and releaseIfIdle returns a channel that is closed when the plugin is
// requested again. Otherwise releaseIfIdle returns nil, and the time after which the process can be unused at the earliest.
func (l *pluginLoop) releaseIfIdle(served PluginKey) (requestedAgain chan struct{}, nextCheck time.Duration) {
	nextCheck = idleTimeout
	if l.supervisor.tasks.Use(served) {
		return nil, nextCheck
	}
	// Tasks.Use reports a task before the task requests its driver. Therefore a task that it did not report
	// requests the driver after this update, and the request starts a new process.
	l.supervisor.updateAndNotify(func() {
		m := l.plugin
		if unused := time.Since(m.lastAcquiredAt); unused < idleTimeout {
			nextCheck = idleTimeout - unused
			return
		}
		requestedAgain = make(chan struct{})
		m.applyEvent(eventPluginUnused)
		m.inst, m.launchRequests.idleLaunchRequested = nil, requestedAgain
	})
	return requestedAgain, nextCheck
}

// driverIsHealthy reports whether the driver that the plugin serves has reported that it is healthy.
func (l *pluginLoop) driverIsHealthy() bool {
	l.supervisor.mu.Lock()
	defer l.supervisor.mu.Unlock()
	return l.supervisor.registry.driverInfoByName[l.plugin.reportedInfo.Name].Healthy
}

// updateDriverInfo changes the DriverInfo of the driver that the plugin serves.
func (l *pluginLoop) updateDriverInfo(change func(*DriverInfo)) {
	l.supervisor.mu.Lock()
	defer l.supervisor.mu.Unlock()
	if l.supervisor.registry.updateDriverInfo(l.plugin, change) {
		l.supervisor.notifyInfoLocked()
	}
}

// setReportedDevices sets the devices that a process of the plugin has reported.
func (l *pluginLoop) setReportedDevices(reporter pluginInstance, f device.Fingerprint) {
	l.supervisor.mu.Lock()
	defer l.supervisor.mu.Unlock()
	l.plugin.fingerprinted = true
	if l.supervisor.registry.setReportedDevices(l.plugin, reporter, f) {
		l.supervisor.notifyStateLocked()
	}
}

// stopOrDetach is called after ctx has ended. If the supervisor stops and the plugin has tasks, it detaches the process,
// which continues. Otherwise it stops the process.
func (l *pluginLoop) stopOrDetach(ctx context.Context, inst pluginInstance) {
	cfg := l.supervisor.cfg
	l.supervisor.mu.Lock()
	served, wanted := servedKey(l.plugin.reportedInfo), l.plugin.state != stateSuperseded && !errors.Is(context.Cause(ctx), errRemoved)
	l.supervisor.mu.Unlock()
	ctx = context.WithoutCancel(ctx)
	if cfg.RecordStore != nil && cfg.KeepRunning != nil && wanted && served.Type != base.TypeDevice && cfg.KeepRunning(served, inst.PID()) {
		inst.Detach()
		return
	}
	l.stopAndDeleteRecord(ctx, inst)
}

// stopAndDeleteRecord stops a plugin gracefully and deletes its record.
func (l *pluginLoop) stopAndDeleteRecord(ctx context.Context, inst pluginInstance) {
	inst.Stop(ctx)
	if l.supervisor.cfg.RecordStore != nil {
		l.supervisor.recordedPlugins.deleteRecord(recordKey(l.plugin.entry))
	}
}

// stopWhenUnused waits until no task uses a removed plugin, and then ends the context of run.
func (l *pluginLoop) stopWhenUnused(ctx context.Context) {
	for logged := false; l.hasProcessWithTasks(); logged = true {
		if !logged {
			l.logger.Info("plugin continues unchanged until no task needs it", "plugin", l.plugin.entry.Name)
		}
		if wait.Sleep(ctx, idleTimeout) != nil {
			return
		}
	}
	l.plugin.cancelLoop(errRemoved)
}

// hasProcessWithTasks reports whether the plugin has a process that tasks use.
func (l *pluginLoop) hasProcessWithTasks() bool {
	m := l.plugin
	l.supervisor.mu.Lock()
	served, up := servedKey(m.reportedInfo), m.loopRunning && m.inst != nil && !hasExited(m.inst)
	l.supervisor.mu.Unlock()
	return up && l.supervisor.tasks.Use != nil && l.supervisor.tasks.Use(served)
}
