package supervisor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/internal/callstats"
	"github.com/nomad-lite/nomad-lite/internal/opcount"
	"github.com/nomad-lite/nomad-lite/internal/racedetector"
	"github.com/nomad-lite/nomad-lite/internal/redact"
	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/base/basewire"
	"github.com/nomad-lite/nomad-lite/plugins/device"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/plugins/hook/hookwire"
	"github.com/nomad-lite/nomad-lite/plugins/host/catalog"
	"github.com/nomad-lite/nomad-lite/plugins/host/launch"
)

var (
	// ErrNoDriver means that no plugin serves a driver of that name. The error of Driver that
	// wraps it lists the available drivers.
	ErrNoDriver = errors.New("no such driver")

	// ErrNoHook means that no plugin serves a hook of that name. The error of Hook that wraps
	// it lists the available hooks.
	ErrNoHook = errors.New("no such hook")

	// ErrNoDevicePlugin means that there is no device plugin of that name. The error of Device
	// that wraps it lists the available ones.
	ErrNoDevicePlugin = errors.New("no such device plugin")

	// ErrUnavailable means that the plugin of the driver or hook cannot be started at present.
	// The error that wraps it contains the reason and the time of the next attempt.
	ErrUnavailable = errors.New("not available")

	// ErrStopped means that the supervisor has stopped.
	ErrStopped = errors.New("plugin supervisor has stopped")
)

// readyTimeout is the maximum time that a node waits for plugins to start before it continues
// without them.
const readyTimeout = 2 * time.Second * racedetector.Slowdown

// unknownPluginTimeout is the part of readyTimeout in which WaitBrieflyForFirstReports also waits for external plugins of
// which it is unknown whether they ever worked, and WaitBrieflyForKnownPlugins for plugins whose program has changed.
const unknownPluginTimeout = 800 * time.Millisecond

// idleTimeout is the time after which an unused builtin is stopped.
const idleTimeout = time.Minute

// demandTimeout is the time after which the process of a plugin with catalog.Builtin.StopsAfterFingerprint is stopped, if its driver
// has reported that it is healthy, and was not requested.
const demandTimeout = time.Second

// Config is the argument of New.
type Config struct {
	Catalog *catalog.Catalog
	Keeper  launch.Keeper

	// KeeperSocketPath is the path of the keeper's socket, and DataDirID the random id of the data
	// directory. Plugins get both in their environment.
	KeeperSocketPath, DataDirID string

	// EnsureSocketDir returns a private directory (0700) for the plugins' sockets, not longer than
	// launch.MaxSocketDirLen. It is called before each start of a plugin, and must create the
	// directory if it is missing.
	EnsureSocketDir func() (string, error)

	// DriverConfig is the information about this machine that drivers get; nil is allowed.
	DriverConfig *base.ClientDriverConfig

	// HookConfig is the configuration that hooks get: the address of the agent.
	HookConfig hook.Config

	// RecordStore stores how to reattach the running plugins. Recorded plugins are reattached, and
	// outlive the supervisor if KeepRunning returns true. Nil stores nothing.
	RecordStore RecordStore

	// KeepRunning reports whether tasks of a driver, or tasks in which a hook takes part, may run, so
	// that the process of its plugin must continue. It is called at the end of Run, and at its
	// start for recorded plugins that are no longer in the catalog. Nil stops all processes.
	KeepRunning func(key PluginKey, pid int) bool

	// LastServedKey returns the driver or hook that the plugin of an entry served when it last ran,
	// and zero if that is unknown. The plugin is unchanged if it ran with the same file content,
	// arguments and configuration. While a plugin is slow to start, Driver and Hook block only for
	// the drivers and hooks that the plugin may serve; a changed plugin may serve any. New and
	// SetCatalog call LastServedKey for each external plugin. Nil means that no driver or hook is
	// known.
	LastServedKey func(catalog.Entry) (key PluginKey, unchanged bool)

	// AfterCall is called after each unary call of a plugin process, concurrently, with the name of
	// the plugin and the full name of the method. Nil means that no function is called.
	AfterCall func(plugin, method string, d time.Duration, failed bool)

	// IgnoreLateCalls means that a driver stays healthy however long it takes to answer a call: a
	// debugger may have stopped its process.
	IgnoreLateCalls bool

	Secrets *redact.Values // removed from what plugins write to their stderr; nil for none
	Logger  hclog.Logger   // logger of the supervisor; nil discards the log
}

// Tasks are the tasks that use plugins. Each function may be nil.
type Tasks struct {
	// Use reports whether tasks use a driver or hook, or will soon use it. A builtin that is not used and was not requested for a
	// minute is stopped, and started again on request; meanwhile its last fingerprint stays valid. A builtin hook is not started
	// before the first request. A builtin of a catalog entry with StopsAfterFingerprint is stopped a second after its start, if its
	// driver is healthy by then. Nil keeps builtins running.
	Use func(PluginKey) bool
	// OnEvent receives the drivers' task events, in sequence for each driver. Nil discards them.
	OnEvent func(driver string, event driver.TaskEvent)
}

// DriverInfo is the state of one driver.
type DriverInfo struct {
	Detected    bool
	Healthy     bool
	Description string
	// Attributes are all attributes that the driver has reported, except those that it has
	// removed.
	Attributes map[string]driver.Attribute
	UpdatedAt  time.Time
}

// PluginKey identifies a driver, a hook or a device plugin.
type PluginKey struct {
	Type base.Type
	Name string
}

func (k PluginKey) String() string { return fmt.Sprintf("%s %q", k.Type, k.Name) }

func driverKey(name string) PluginKey { return PluginKey{base.TypeDriver, name} }

// PluginStatus is the state of one plugin of the catalog.
type PluginStatus struct {
	Name      string // name of the file or the builtin
	Path      string // path of the file; "" for a builtin
	Builtin   bool
	ProgramID catalog.ProgramID
	// Serves identifies the driver, hook or device plugin that the plugin serves; its Name is "" until the plugin has
	// reported it.
	Serves                    PluginKey
	Version                   string
	HookDescription           *hook.Description // description of the hook; nil for other types, and before the first start
	Idle                      bool              // the plugin is an unused builtin without a process
	FirstLaunchDoneOrDeferred bool              // the first launch has succeeded or failed, or waits for a request or for other plugins
	// HasReportedOrFailed means that the plugin has sent its first fingerprint or the hook has started, that the
	// plugin has failed to start, or that it is not used.
	HasReportedOrFailed bool
	PID                 int                // pid of the process; 0 when no process runs
	StartedAt           time.Time          // start time of the process; zero when no process runs
	ExitCount           int                // number of processes of the plugin that have exited since this supervisor was created
	LastExitErr         error              // why the last process has exited, with the last lines of its stderr; nil before the first exit
	LastExitAt          time.Time          // time of the last exit; zero before the first exit
	MethodStats         []callstats.Method // calls to the process, for each method; nil when no process runs
	Operations          opcount.Counts     // operations of the process that it has reported; zero when no process runs
	// DeviceFailureReason is the reason why the process of a device plugin could not look for devices; "" if it could.
	DeviceFailureReason string
	SupersededBy        string // describes the plugin that is used instead of this one; "" if there is none
	Err                 error  // why no process runs, after a failure; nil otherwise
}

// Supervisor keeps plugins running. Its methods may be called concurrently.
type Supervisor struct {
	cfg             Config
	tasks           Tasks // set by Run
	logger          hclog.Logger
	launchPlugin    func(context.Context, catalog.Entry) (pluginInstance, error)
	recordedPlugins *recordedPlugins
	createdAt       time.Time

	mu           sync.Mutex
	registry     registry
	stopped      bool
	stateChanged chan struct{} // closed and replaced when a process starts or exits, or the plugins change
	infoChanged  chan struct{} // closed and replaced when a result of DriverInfoByName, DeviceGroups or Plugins changes
}

// pluginInstance is one running plugin. *launch.Plugin implements it.
type pluginInstance interface {
	Info() base.Info
	ConfigSchema(context.Context) (*hclspec.Spec, error)
	Driver() driver.Driver
	Device() device.Plugin
	Hook() (*hookwire.Client, *hook.Description)
	PID() int
	StartedAt() time.Time
	CallStats() *basewire.CallStatsCollector
	Done() <-chan struct{}
	WaitForExitReason() error
	Connected() bool
	CheckHealth(context.Context) error
	StderrClosed() <-chan struct{}
	Kill()
	Stop(context.Context)
	Detach()
	KillAndRelease()
}

// New returns a supervisor. Run starts the plugins.
func New(cfg Config) *Supervisor {
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	s := &Supervisor{
		cfg:          cfg,
		logger:       cfg.Logger,
		createdAt:    time.Now(),
		registry:     registry{ownerByKey: map[PluginKey]*managedPlugin{}, driverInfoByName: map[string]DriverInfo{}, devicesByPlugin: map[string]reportedDevices{}, logger: cfg.Logger},
		stateChanged: make(chan struct{}),
		infoChanged:  make(chan struct{}),
	}
	s.recordedPlugins = newRecordedPlugins(cfg, s.catalogRecordKeys)
	s.launchPlugin = (&launcher{cfg: cfg, recordedPlugins: s.recordedPlugins}).launchOrReattach
	if cfg.Catalog != nil {
		s.SetCatalog(cfg.Catalog)
	}
	return s
}

// catalogRecordKeys returns the record keys of the plugins in the catalog.
func (s *Supervisor) catalogRecordKeys() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	keys := make([]string, len(s.registry.plugins))
	for i, m := range s.registry.plugins {
		keys[i] = recordKey(m.entry)
	}
	return keys
}

// SetCatalog replaces the catalog, and returns immediately. A new plugin is launched. A
// removed plugin is stopped as soon as it has no tasks. A changed plugin is replaced as
// soon as its process has no tasks or has died.
func (s *Supervisor) SetCatalog(c *catalog.Catalog) {
	s.setCatalogEntries(c.Entries())
	s.updateAndNotify(func() { s.registry.setNotStartedDrivers(c.NotStartedReasonByDriver()) })
}

func (s *Supervisor) setCatalogEntries(entries []catalog.Entry) {
	plugins := newManagedPlugins(entries, s.cfg.LastServedKey)
	s.updateAndNotify(func() { s.registry.replaceCatalogPlugins(plugins) })
}

// ErrNoPlugin means that the catalog has no plugin of that name.
var ErrNoPlugin = errors.New("no such plugin")

// Restart shuts down the process of a plugin, which need not run, and launches the plugin again at once, also
// if the last launch has failed. Tasks continue, and the next process recovers them. pluginName is the name of
// the file or the builtin. Restart blocks until the process has exited, and does not wait for the launch: see
// InfoChanged. An error is ErrNoPlugin, or the cause of the end of ctx.
func (s *Supervisor) Restart(ctx context.Context, pluginName string) error {
	var inst pluginInstance
	found := false
	s.updateAndNotify(func() {
		for _, m := range s.registry.plugins {
			if m.entry.Name != pluginName || m.state == stateSuperseded {
				continue
			}
			inst, found = m.inst, true
			if m.state == stateBackingOff {
				m.applyEvent(eventLaunchStarted) // the error of the last launch no longer counts
			}
			m.requestRestart()
			return
		}
	})
	if !found {
		return fmt.Errorf("plugin %q: %w", pluginName, ErrNoPlugin)
	}
	return waitExited(ctx, inst)
}

// RestartReattachedPlugin shuts down the process of a driver's plugin if an earlier supervisor has launched the
// process, and launches the plugin again at once. It does so once, and does nothing for a builtin. Tasks continue, and
// the next process recovers them. RestartReattachedPlugin blocks until the process has exited. An error is the cause of
// the end of ctx.
func (s *Supervisor) RestartReattachedPlugin(ctx context.Context, driverName string) error {
	var inst pluginInstance
	s.updateAndNotify(func() {
		m := s.registry.findPlugin(driverKey(driverName))
		if m == nil || m.entry.Builtin {
			return
		}
		if _, reattached := m.inst.(reattachedPlugin); reattached {
			inst = m.inst
			m.requestRestart()
		}
	})
	return waitExited(ctx, inst)
}

// waitExited blocks until the process of inst has exited. inst may be nil. An error is the cause of the end of ctx.
func waitExited(ctx context.Context, inst pluginInstance) error {
	if inst == nil {
		return nil
	}
	select {
	case <-inst.Done():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Run launches or reattaches the plugins, and keeps them running until ctx ends. Then it
// stops the plugins for which Config.KeepRunning returns false, and returns nil. Tasks
// continue to run. Run must be called once.
func (s *Supervisor) Run(ctx context.Context, tasks Tasks) error {
	s.tasks = tasks // read only by goroutines that Run starts
	if err := s.recordedPlugins.killOrphans(); err != nil {
		s.logger.Error("plugins not started", "error", err)
	}
	waiting := time.AfterFunc(readyTimeout, s.endFirstLaunchWait)
	defer waiting.Stop()
	s.updateAndNotify(s.registry.updateFirstLaunchesDone) // without plugins no first launch is pending
	var wg sync.WaitGroup
	for ctx.Err() == nil { // the supervisor continues although no plugin can run, so that Driver returns the reasons
		select {
		case <-s.startPluginLoops(ctx, &wg):
		case <-ctx.Done():
		}
	}
	wg.Wait()
	s.updateAndNotify(func() { s.stopped = true })
	return nil
}

// startPluginLoops starts the goroutines of new plugins, and those that stop removed plugins. It
// returns the channel stateChanged, after which it must be called again.
func (s *Supervisor) startPluginLoops(ctx context.Context, wg *sync.WaitGroup) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.registry.plugins {
		l := &pluginLoop{supervisor: s, plugin: m, logger: s.logger}
		switch {
		case m.cancelLoop == nil && m.state != stateSuperseded:
			m.loopRunning = true
			var loopCtx context.Context
			loopCtx, m.cancelLoop = context.WithCancelCause(ctx)
			wg.Go(func() { l.run(loopCtx, wg) })
		case m.mustStopWhenUnused && !m.stopWhenUnusedStarted:
			m.stopWhenUnusedStarted = true
			wg.Go(func() { l.stopWhenUnused(ctx) })
		}
	}
	return s.stateChanged
}

// Driver returns the driver of that name. It blocks while the driver's plugin is being
// launched. It also blocks, for at most two seconds, while another plugin that may serve
// the driver is being launched for the first time. After a failed launch, Driver
// immediately returns ErrUnavailable with the reason, and the launch is retried later. If
// no plugin serves the name, the error is ErrNoDriver. Both errors are a
// *driver.UnavailableError, which signals when another call may succeed. All calls return
// the same value for one plugin process, and another value for the next process.
func (s *Supervisor) Driver(ctx context.Context, name string) (driver.Driver, error) {
	_, d, err := s.waitForPlugin(ctx, driverKey(name), time.Time{})
	if err != nil {
		return nil, err
	}
	return d, nil
}

// Hook returns the hook of that name and its description. It blocks and fails like Driver,
// with one difference: if the retry of a failed launch is due before waitForRetryUntil, Hook
// waits for it. If no plugin serves the name, the error is ErrNoHook.
func (s *Supervisor) Hook(ctx context.Context, name string, waitForRetryUntil time.Time) (*hookwire.Client, *hook.Description, error) {
	inst, _, err := s.waitForPlugin(ctx, PluginKey{base.TypeHook, name}, waitForRetryUntil)
	if err != nil {
		return nil, nil, err
	}
	client, description := inst.Hook()
	return client, description, nil
}

// Device returns the device plugin of that name. It blocks and fails like Hook, and also blocks
// until the process has reported its devices: a plugin may reserve only devices that it has
// reported. If there is no such plugin, the error is ErrNoDevicePlugin.
func (s *Supervisor) Device(ctx context.Context, name string, waitForRetryUntil time.Time) (device.Plugin, error) {
	inst, _, err := s.waitForPlugin(ctx, PluginKey{base.TypeDevice, name}, waitForRetryUntil)
	if err != nil {
		return nil, err
	}
	return inst.Device(), nil
}

// waitForPlugin returns a plugin whose process runs. It blocks during a launch, and during a
// backoff that ends before waitForRetryUntil.
func (s *Supervisor) waitForPlugin(ctx context.Context, key PluginKey, waitForRetryUntil time.Time) (pluginInstance, *watchedDriver, error) {
	for {
		s.mu.Lock()
		inst, d, err := s.acquireLivePluginLocked(key, waitForRetryUntil)
		stateChanged := s.stateChanged
		s.mu.Unlock()
		if err != nil {
			return nil, nil, err
		}
		if inst != nil {
			if inst.Connected() || checkReachableOrKill(ctx, inst, s.logger) {
				return inst, d, nil
			}
		}
		select {
		case <-stateChanged:
		case <-ctx.Done():
			return nil, nil, s.interruptedWaitError(key, context.Cause(ctx))
		}
	}
}

// interruptedWaitError returns the error of waitForPlugin after the caller's context has ended with the given cause.
func (s *Supervisor) interruptedWaitError(key PluginKey, cause error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.registry.findPlugin(key)
	switch {
	case m == nil:
		return fmt.Errorf("%s: %w", key, cause)
	case m.lastFailure.err == nil:
		return fmt.Errorf("%s: %s is still being started: %w", key, m.entry, cause)
	}
	return fmt.Errorf("%s: %w: %w (%w)", key, ErrUnavailable, m.lastFailure.err, cause)
}

// acquireLivePluginLocked returns an instance whose process runs, or an error. It returns neither if
// the caller must call it again after stateChanged is closed. See waitForPlugin for waitForRetryUntil.
func (s *Supervisor) acquireLivePluginLocked(key PluginKey, waitForRetryUntil time.Time) (pluginInstance, *watchedDriver, error) {
	if s.stopped {
		return nil, nil, fmt.Errorf("%s: %w", key, ErrStopped)
	}
	if s.registry.mayOwnerChange(key) {
		return nil, nil, nil // another plugin that may take precedence is still being launched
	}
	m := s.registry.findPlugin(key)
	switch {
	case m == nil && s.registry.isCandidateStarting(key):
		return nil, nil, nil
	case m == nil:
		return nil, nil, &driver.UnavailableError{Err: s.registry.notFoundError(key), RetryOnClose: s.stateChanged}
	}
	if err := m.err(); err != nil {
		if !m.lastFailure.retryAt.IsZero() && m.lastFailure.retryAt.Before(waitForRetryUntil) {
			return nil, nil, nil
		}
		err = fmt.Errorf("%s: %w: %w", key, ErrUnavailable, err)
		if !m.lastFailure.retryAt.IsZero() {
			err = fmt.Errorf("%w (next try in %s)", err, time.Until(m.lastFailure.retryAt).Round(time.Second))
		}
		return nil, nil, &driver.UnavailableError{Plugin: m.entry.String(), TasksAreHostProcesses: m.entry.TasksAreHostProcesses, NotLaunchedAgain: m.lastFailure.retryAt.IsZero(), Err: err, RetryOnClose: s.stateChanged}
	}
	if m.state == stateIdle {
		m.applyEvent(eventLaunchStarted)
		close(m.launchRequests.idleLaunchRequested)
		return nil, nil, nil
	}
	if m.inst == nil || hasExited(m.inst) {
		return nil, nil, nil
	}
	if key.Type == base.TypeDevice && s.registry.devicesByPlugin[key.Name].reporter != m.inst {
		return nil, nil, nil // a device plugin knows its devices after the first fingerprint
	}
	m.lastAcquiredAt = time.Now()
	return m.inst, m.driver, nil
}

// DriverInfoByName returns the state of all drivers that were ever started, by name.
func (s *Supervisor) DriverInfoByName() map[string]DriverInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make(map[string]DriverInfo, len(s.registry.driverInfoByName))
	for name, info := range s.registry.driverInfoByName {
		info.Attributes = maps.Clone(info.Attributes)
		if m := s.registry.ownerByKey[driverKey(name)]; m != nil && m.driver != nil {
			m.driver.lateCallMonitor.overrideHealthIfLateLocked(&info)
		}
		out[name] = info
	}
	return out
}

// NotStartedDriverInfoByName returns, by name, the state of the builtin drivers that have no entry in the catalog, see
// catalog.Builtin.NotStartedReason, and of the drivers whose plugin block is wrong; both only if no other plugin has served
// them. They are undetected, and Driver does not return them.
func (s *Supervisor) NotStartedDriverInfoByName() map[string]DriverInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make(map[string]DriverInfo, len(s.registry.notStartedDriverByName))
	for name, info := range s.registry.notStartedDriverByName {
		if _, served := s.registry.driverInfoByName[name]; !served {
			out[name] = info
		}
	}
	for _, m := range s.registry.plugins {
		wrongBlock := new(launch.ConfigBlockError)
		if !errors.As(m.lastFailure.err, &wrongBlock) || wrongBlock.Info.Type != base.TypeDriver {
			continue
		}
		if _, served := s.registry.driverInfoByName[wrongBlock.Info.Name]; !served {
			out[wrongBlock.Info.Name] = DriverInfo{Description: m.lastFailure.err.Error()}
		}
	}
	return out
}

// DeviceGroup is a group of devices with the name of the plugin that reports it.
type DeviceGroup struct {
	PluginName string
	device.Group
}

// DeviceGroups returns the devices of this machine, in the order of the plugins' names. It returns
// the last devices of a plugin whose process has exited until its first failed launch. Of groups with
// the same id it returns the first one. The groups are shared and must not be changed.
func (s *Supervisor) DeviceGroups() []DeviceGroup {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.registry.uniqueDeviceGroups()
}

// DeviceFailureReasonByPlugin returns the device plugins that have no process, or whose process could not look for devices, by
// the names of the plugins, with the reasons.
func (s *Supervisor) DeviceFailureReasonByPlugin() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	reasons := map[string]string{}
	for _, m := range s.registry.plugins {
		if reason := s.registry.deviceFailureReason(m); reason != "" {
			reasons[m.reportedInfo.Name] = reason
		}
	}
	return reasons
}

// LaunchFailureReasonByPlugin returns the plugins that are not builtin, and that could not be launched, so that it is unknown
// whether they serve a driver, a hook or devices, by the names of their files, with the reasons.
func (s *Supervisor) LaunchFailureReasonByPlugin() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.registry.launchFailures()
}

// Plugins returns the state of all plugins of the catalog, in the catalog's order.
func (s *Supervisor) Plugins() []PluginStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]PluginStatus, 0, len(s.registry.plugins))
	for _, m := range s.registry.plugins {
		out = append(out, s.registry.pluginStatus(m))
	}
	return out
}

// ExternalPlugins returns the state of the plugins that are not builtin, in the catalog's order. It is called several times for
// each allocation, and most agents have only builtin plugins.
func (s *Supervisor) ExternalPlugins() (out []PluginStatus) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.registry.plugins {
		if !m.entry.Builtin {
			out = append(out, s.registry.pluginStatus(m))
		}
	}
	return out
}

func (r *registry) pluginStatus(m *managedPlugin) PluginStatus {
	p := PluginStatus{
		Name: m.entry.Name, Path: m.entry.Path, Builtin: m.entry.Builtin, ProgramID: m.entry.ProgramID,
		Serves: servedKey(m.reportedInfo), Version: m.reportedInfo.Version, HookDescription: m.hookDescription,
		Idle: m.state == stateIdle, FirstLaunchDoneOrDeferred: !stateFacts[m.state].firstLaunchPending, HasReportedOrFailed: m.hasReportedOrFailed(), SupersededBy: m.supersededBy, ExitCount: m.exits.count, LastExitErr: m.exits.lastErr, LastExitAt: m.exits.lastAt, Err: m.err(),
	}
	if p.Err == nil {
		p.DeviceFailureReason = r.deviceFailureReason(m)
	}
	if m.inst != nil && !hasExited(m.inst) {
		p.PID, p.StartedAt = m.inst.PID(), m.inst.StartedAt()
		p.MethodStats, p.Operations = m.inst.CallStats().MethodStats(), m.inst.CallStats().Operations()
	}
	return p
}

// UsesBuiltin reports whether the builtin plugin with the given name is used: the catalog has it, and no other plugin
// supersedes it. It is called for each task, and so does not build the whole status of Plugins.
func (s *Supervisor) UsesBuiltin(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.registry.plugins, func(m *managedPlugin) bool {
		return m.entry.Builtin && m.entry.Name == name && m.supersededBy == ""
	})
}

// HookDescriptionByName returns the descriptions of the hooks that are or were running, by name, without superseded plugins.
// It is called for each allocation and task, and so does not build the whole status of Plugins.
func (s *Supervisor) HookDescriptionByName() map[string]*hook.Description {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make(map[string]*hook.Description)
	for _, m := range s.registry.plugins {
		if m.reportedInfo.Type == base.TypeHook && m.hookDescription != nil && m.supersededBy == "" {
			out[m.reportedInfo.Name] = m.hookDescription
		}
	}
	return out
}

// PIDsWithoutTasks returns the pids of the processes that cannot have tasks: plugins whose entries have
// ChildrenAreNeverTasks, and drivers that this supervisor has launched and in which no caller has started or recovered
// a task.
func (s *Supervisor) PIDsWithoutTasks() (pids []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.registry.plugins {
		_, reattached := m.inst.(reattachedPlugin)
		unusedDriver := !reattached && m.driver != nil && !m.driver.mayHaveTasks.Load()
		if m.inst != nil && (m.entry.ChildrenAreNeverTasks || unusedDriver) {
			pids = append(pids, m.inst.PID())
		}
	}
	return pids
}

// InfoChanged returns a channel that is closed when the results of DriverInfoByName, DeviceGroups or Plugins
// next change. Callers must call InfoChanged before these methods, to miss no change.
func (s *Supervisor) InfoChanged() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.infoChanged
}

// WaitBrieflyForFirstReports blocks until every driver has reported its first fingerprint, except builtins with a slow
// or a predicted one, but at most until two seconds after New, and 800 ms if the others are external plugins that are not known to
// Config.LastServedKey. For a later fingerprint see InfoChanged. An error is the cause of the end of ctx.
func (s *Supervisor) WaitBrieflyForFirstReports(ctx context.Context) error {
	return s.waitBrieflyForReadiness(ctx, allButSlow)
}

// WaitBrieflyForKnownPlugins is like WaitBrieflyForFirstReports, but does not wait for external plugins of which
// Config.LastServedKey knows no driver or hook.
func (s *Supervisor) WaitBrieflyForKnownPlugins(ctx context.Context) error {
	return s.waitBrieflyForReadiness(ctx, knownPlugins)
}

// waitBrieflyForReadiness blocks until goal is reached, but at most until 800 ms after New, and then until knownGoodPlugins is
// reached, but at most until two seconds after New.
func (s *Supervisor) waitBrieflyForReadiness(ctx context.Context, goal readiness) error {
	unknownLimit := time.NewTimer(time.Until(s.createdAt.Add(unknownPluginTimeout)))
	defer unknownLimit.Stop()
	if err := s.waitForReadiness(ctx, goal, unknownLimit.C); err != nil {
		return err
	}
	limit := time.NewTimer(time.Until(s.createdAt.Add(readyTimeout)))
	defer limit.Stop()
	return s.waitForReadiness(ctx, knownGoodPlugins, limit.C)
}

// WaitAllReportedOrFailed blocks until each plugin has reported its state or has failed to
// start. Unlike WaitBrieflyForFirstReports it has no time limit.
func (s *Supervisor) WaitAllReportedOrFailed(ctx context.Context) error {
	return s.waitForReadiness(ctx, allPlugins, nil)
}

// waitForReadiness blocks until goal is reached, limit delivers a value, the supervisor has stopped, or ctx ends. It returns an
// error only if ctx has ended.
func (s *Supervisor) waitForReadiness(ctx context.Context, goal readiness, limit <-chan time.Time) error {
	for {
		s.mu.Lock()
		ready := s.stopped || s.registry.hasReached(goal)
		infoChanged := s.infoChanged
		s.mu.Unlock()
		if ready {
			return nil
		}
		select {
		case <-infoChanged:
		case <-limit:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// updateAndNotify calls change with mu locked, and closes stateChanged and infoChanged.
func (s *Supervisor) updateAndNotify(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
	s.notifyStateLocked()
}

// notifyStateLocked closes stateChanged and infoChanged.
func (s *Supervisor) notifyStateLocked() {
	close(s.stateChanged)
	s.stateChanged = make(chan struct{})
	s.notifyInfoLocked()
}

func (s *Supervisor) notifyInfoLocked() {
	close(s.infoChanged)
	s.infoChanged = make(chan struct{})
}

// endFirstLaunchWait is called after readyTimeout. It sets firstLaunchesDone, so that callers of Driver and Hook no
// longer wait for plugins whose first launch is pending.
func (s *Supervisor) endFirstLaunchWait() {
	s.updateAndNotify(func() {
		if s.registry.firstLaunchesDone {
			return
		}
		for _, m := range s.registry.plugins {
			if s.registry.isFirstLaunchPending(m) {
				s.logger.Warn("plugin is slow to start, continuing without it", "plugin", m.entry.Name)
			}
		}
		s.registry.firstLaunchesDone = true
	})
}

func hasExited(inst pluginInstance) bool {
	return wait.IsClosed(inst.Done())
}

// DriverKnowsInterruptedStarts reports whether the plugin of a driver can find a task that was being
// started when the previous agent exited: the plugin is still the same process, or it is a
// builtin, which searches for running tasks.
func (s *Supervisor) DriverKnowsInterruptedStarts(driver string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.registry.findPlugin(driverKey(driver))
	if m == nil || m.entry.Builtin {
		return m != nil
	}
	_, reattached := m.inst.(reattachedPlugin)
	return reattached && !hasExited(m.inst)
}

// DriverFindsTasksByName reports whether a driver is a builtin, which searches for the processes of a task
// whose id is lost.
func (s *Supervisor) DriverFindsTasksByName(driver string) bool { return s.isBuiltinDriver(driver) }

// DriverMountsHostFiles reports whether a driver with isolation chroot mounts the files of chroot_env, which it finds in the
// mounts of the task's configuration. A builtin does. The capabilities of an external driver do not prove that the driver reads
// the mounts.
func (s *Supervisor) DriverMountsHostFiles(driver string) bool { return s.isBuiltinDriver(driver) }

func (s *Supervisor) isBuiltinDriver(driver string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.registry.findPlugin(driverKey(driver))
	return m != nil && m.entry.Builtin
}
