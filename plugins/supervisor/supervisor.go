package supervisor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/catalog"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/plugins/launch"
)

var (
	// ErrNoDriver means that no plugin serves a driver of that name. The error of Driver that
	// wraps it lists the available drivers.
	ErrNoDriver = errors.New("no such driver")

	// ErrNoHook means that no plugin serves a hook of that name. The error of Hook that wraps
	// it lists the available hooks.
	ErrNoHook = errors.New("no such hook")

	// ErrUnavailable means that the plugin of the driver or hook cannot be started at present.
	// The error that wraps it contains the reason and the time of the next attempt.
	ErrUnavailable = errors.New("not available")

	// ErrStopped means that the supervisor has stopped.
	ErrStopped = errors.New("plugin supervisor has stopped")
)

// The causes with which a slot's context ends before the supervisor's.
var (
	errRetired   = errors.New("replaced by another plugin")
	errDismissed = errors.New("not in the configuration any more")
)

// readyLimit is how long a node waits for slow plugins before it continues without them.
const readyLimit = 2 * time.Second

// idleTimeout is how long an unused builtin keeps running.
const idleTimeout = time.Minute

// Config is the configuration of a supervisor.
type Config struct {
	Catalog *catalog.Catalog
	Keeper  launch.Keeper

	// KeeperSocket is the path of the keeper's socket, for drivers.
	KeeperSocket string

	// SocketDir returns a private directory (0700) for the plugins' sockets, not longer than
	// launch.MaxSocketDir. It is called before each start of a plugin, and must create the
	// directory if it is missing.
	SocketDir func() (string, error)

	// Host is the data about this machine that drivers get; nil is allowed.
	Host *base.DriverConfig

	// Hooks is the configuration that hooks get: the address of the agent.
	Hooks hook.Config

	// Records stores how to reattach the running plugins. Recorded plugins are reattached, and
	// outlive the supervisor if Keep returns true. Nil stores nothing.
	Records Records

	// Keep reports whether tasks of a driver, or tasks in which a hook takes part, may run, so
	// that the process of its plugin must continue. It is called at the end of Run, and at its
	// start for recorded plugins that are no longer in the catalog. Nil stops all processes.
	Keep func(what PluginKey, pid int) bool

	// Busy reports whether a driver or hook has tasks, or is about to get some. A builtin that
	// is not busy and was not requested for a minute is stopped, and started again on request;
	// its last fingerprint stays valid meanwhile. A builtin hook is not started before the
	// first request. Nil keeps builtins running.
	Busy func(PluginKey) bool

	// OnTaskEvent receives the task events of drivers, in sequence for each driver. Nil
	// discards them.
	OnTaskEvent func(driver string, event driver.TaskEvent)

	Logger hclog.Logger // nil discards the log
}

// Info is the state of one driver.
type Info struct {
	Detected    bool
	Healthy     bool
	Description string
	// Attributes are the attributes that the driver has reported and not removed.
	Attributes map[string]driver.Attribute
	UpdatedAt  time.Time
}

// PluginKey identifies a driver or a hook.
type PluginKey struct {
	Type base.Type
	Name string
}

func (s PluginKey) String() string { return fmt.Sprintf("%s %q", s.Type, s.Name) }

func driverOf(name string) PluginKey { return PluginKey{base.TypeDriver, name} }

// Plugin is the state of one plugin of the catalog.
type Plugin struct {
	Name            string // name of the file or the builtin
	Path            string // "" for a builtin
	Builtin         bool
	Program         string    // identifies the file's content; see catalog.Entry
	Serves          PluginKey // Serves.Name is "" until the plugin has reported it
	Version         string
	Takes           *hook.Description // description of a hook; nil before the hook's first start
	Idle            bool              // an unused builtin without a process
	LaunchAttempted bool              // the first launch has succeeded or failed
	Reported        bool              // the plugin has reported its state (a driver: its first fingerprint), has failed to, or is not used
	PID             int               // 0 when no process runs
	Superseded      string            // which plugin is used instead; "" if none
	Err             error             // why no process runs
}

// Supervisor keeps plugins running. Its methods may be called concurrently.
type Supervisor struct {
	cfg      Config
	logger   hclog.Logger
	start    func(context.Context, catalog.Entry) (instance, error)
	recorded *recordedPlugins
	made     time.Time

	mu           sync.Mutex
	slots        []*managedPlugin
	owners       map[PluginKey]*managedPlugin
	drivers      map[string]Info
	settled      bool // no first launch is pending
	stopped      bool
	stateChanged chan struct{} // closed and replaced when a process starts or ends
	infoChanged  chan struct{} // closed and replaced when drivers or plugins change
}

// instance is one running plugin. *launch.Plugin implements it.
type instance interface {
	Info() base.Info
	Driver() driver.Driver
	Hook() (*hook.Client, *hook.Description)
	PID() int
	Done() <-chan struct{}
	Exit() error
	Connected() bool
	CheckHealth(context.Context) error
	StderrClosed() <-chan struct{}
	Kill()
	Stop(context.Context)
	Detach()
	Close()
}

// managedPlugin is the slot of one plugin of the catalog. The fields are guarded by
// Supervisor.mu, except entry and order, which never change.
type managedPlugin struct {
	entry  catalog.Entry
	order  int
	cancel context.CancelCauseFunc // ends the slot's goroutine; nil before the goroutine is started

	running  bool           // the slot's goroutine runs
	removed  bool           // the slot is stopped as soon as it is not needed
	draining bool           // stopWhenUnused runs
	next     *managedPlugin // replaces the slot after its removal; may be nil

	inst          instance
	driver        *watchedDriver // driver of the latest process; nil for a hook
	info          base.Info      // info of the latest process; zero before the first
	takes         *hook.Description
	tried         bool      // the first launch has succeeded or failed
	fingerprinted bool      // the first fingerprint has arrived
	acquired      bool      // Driver or Hook has returned the plugin
	lastAcquired  time.Time // time of the latest request
	reattached    bool      // an earlier supervisor has started inst
	err           error     // why there is no process; nil during a launch
	retryAt       time.Time
	failure       error // why the last launch failed or the last process ended; nil again after a launch
	retired       string
	wanted        chan struct{} // set while an unused builtin has no process; closed on the next request
}

// New returns a supervisor. Run starts the plugins.
func New(cfg Config) *Supervisor {
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	s := &Supervisor{
		cfg:          cfg,
		logger:       cfg.Logger,
		made:         time.Now(),
		owners:       map[PluginKey]*managedPlugin{},
		drivers:      map[string]Info{},
		stateChanged: make(chan struct{}),
		infoChanged:  make(chan struct{}),
	}
	s.recorded = newRecordedPlugins(cfg, s.configured)
	s.start = (&launcher{cfg, s.recorded}).launch
	if cfg.Catalog != nil {
		s.setEntries(cfg.Catalog.Entries())
	}
	return s
}

// configured returns the keys of the plugins of the catalog in the records.
func (s *Supervisor) configured() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	keys := make([]string, len(s.slots))
	for i, sl := range s.slots {
		keys[i] = key(sl.entry)
	}
	return keys
}

// Run launches or reattaches the plugins, and keeps them running until ctx ends. Then it stops
// the plugins for which Config.Keep returns false, and returns nil. It must be called once.
// Tasks are not touched.
func (s *Supervisor) Run(ctx context.Context) error {
	if err := s.recorded.killOrphans(); err != nil {
		s.logger.Error("plugins are not started yet", "error", err)
	}
	settle := time.AfterFunc(readyLimit, s.settle)
	defer settle.Stop()
	s.update(func() { s.settleLocked() }) // there may be no plugin at all
	var wg sync.WaitGroup
	for ctx.Err() == nil { // continues even if no plugin can run, so that Driver returns the reasons
		select {
		case <-s.beginSlots(ctx, &wg):
		case <-ctx.Done():
		}
	}
	wg.Wait()
	s.update(func() { s.stopped = true })
	return nil
}

// Driver returns the driver of that name. While its plugin is being launched, for the first
// time or after its death, Driver blocks. After a failed launch, Driver returns ErrUnavailable
// with the reason at once, and the launch is retried later. If no plugin serves the name, the
// error is ErrNoDriver. Both errors are a *driver.UnavailableError, which signals when another
// call may succeed. All calls return the same value for one plugin process, and another value
// for the next process.
func (s *Supervisor) Driver(ctx context.Context, name string) (driver.Driver, error) {
	_, d, err := s.serving(ctx, driverOf(name), time.Time{})
	if err != nil {
		return nil, err
	}
	return d, nil
}

// Hook returns the hook of that name and its description, as Driver does. Hook also waits for
// the retry of a failed launch, if the retry comes before until. If no plugin serves the name,
// the error is ErrNoHook.
func (s *Supervisor) Hook(ctx context.Context, name string, until time.Time) (*hook.Client, *hook.Description, error) {
	inst, _, err := s.serving(ctx, PluginKey{base.TypeHook, name}, until)
	if err != nil {
		return nil, nil, err
	}
	client, takes := inst.Hook()
	return client, takes, nil
}

// serving returns a living plugin. It blocks during a launch, and during a backoff that ends
// before until.
func (s *Supervisor) serving(ctx context.Context, what PluginKey, until time.Time) (instance, *watchedDriver, error) {
	for {
		s.mu.Lock()
		inst, d, err := s.servingLocked(what, until)
		stateChanged := s.stateChanged
		s.mu.Unlock()
		if err != nil {
			return nil, nil, err
		}
		if inst != nil {
			if inst.Connected() || reachable(ctx, inst, s.logger) {
				return inst, d, nil
			}
		}
		select {
		case <-stateChanged:
		case <-ctx.Done():
			return nil, nil, s.waitError(what, context.Cause(ctx))
		}
	}
}

// waitError returns the error for a caller whose context ended while it waited.
func (s *Supervisor) waitError(what PluginKey, cause error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	sl := s.owners[what]
	if sl == nil {
		sl = s.candidateLocked(what)
	}
	switch {
	case sl == nil:
		return fmt.Errorf("%s: %w", what, cause)
	case sl.failure == nil:
		return fmt.Errorf("%s: %s is still being started: %w", what, sl.entry, cause)
	}
	return fmt.Errorf("%s: %w: %w (%w)", what, ErrUnavailable, sl.failure, cause)
}

// servingLocked returns a living instance, or an error, or neither if the caller must wait for
// stateChanged.
func (s *Supervisor) servingLocked(what PluginKey, until time.Time) (instance, *watchedDriver, error) {
	if s.stopped {
		return nil, nil, fmt.Errorf("%s: %w", what, ErrStopped)
	}
	if !s.settled {
		return nil, nil, nil // a plugin with a higher version may still be starting
	}
	sl := s.owners[what]
	if sl == nil {
		sl = s.candidateLocked(what)
	}
	switch {
	case sl == nil && s.unknownNameStartingLocked():
		return nil, nil, nil
	case sl == nil:
		return nil, nil, &driver.UnavailableError{Err: s.notFoundErrorLocked(what), Changed: s.stateChanged}
	case sl.err != nil && !sl.retryAt.IsZero() && sl.retryAt.Before(until):
		return nil, nil, nil
	case sl.err != nil:
		err := fmt.Errorf("%s: %w: %w", what, ErrUnavailable, sl.err)
		if !sl.retryAt.IsZero() {
			err = fmt.Errorf("%w (next try in %s)", err, time.Until(sl.retryAt).Round(time.Second))
		}
		return nil, nil, &driver.UnavailableError{Plugin: sl.entry.String(), Builtin: sl.entry.Builtin, Err: err, Changed: s.stateChanged}
	case sl.wanted != nil:
		close(sl.wanted)
		sl.wanted = nil
		return nil, nil, nil
	case sl.inst == nil || ended(sl.inst):
		return nil, nil, nil
	}
	sl.acquired, sl.lastAcquired = true, time.Now()
	return sl.inst, sl.driver, nil
}

// candidateLocked returns the plugin that is expected to serve a driver or hook and has not
// reported its name yet. It returns nil if there is none.
func (s *Supervisor) candidateLocked(what PluginKey) *managedPlugin {
	for _, sl := range s.slots {
		if sl.entry.Builtin && sl.entry.Type != what.Type {
			continue
		}
		if sl.retired == "" && sl.info.Name == "" && sl.entry.DriverName() == what.Name && !s.awaitingOverrideLocked(sl) {
			return sl
		}
	}
	return nil
}

// unknownNameStartingLocked reports whether an external plugin is being launched that has not
// reported its name yet, so that it may serve any driver.
func (s *Supervisor) unknownNameStartingLocked() bool {
	return slices.ContainsFunc(s.slots, func(sl *managedPlugin) bool {
		return !sl.entry.Builtin && sl.retired == "" && sl.info.Name == "" && sl.err == nil
	})
}

func (s *Supervisor) notFoundErrorLocked(what PluginKey) error {
	var have []string
	for served := range s.owners {
		if served.Type == what.Type {
			have = append(have, served.Name)
		}
	}
	for _, sl := range s.slots {
		if sl.entry.Builtin && sl.entry.Type == what.Type && sl.info.Name == "" {
			have = append(have, sl.entry.Name) // not started yet
		}
	}
	slices.Sort(have)
	var named, failed []string // plugins that were expected to serve it, and plugins that failed to start
	for _, sl := range s.slots {
		switch {
		case sl.entry.DriverName() == what.Name && sl.info.Name != "":
			named = append(named, fmt.Sprintf("%s calls itself %s", sl.entry, servedBy(sl.info)))
		case sl.retired == "" && sl.err != nil:
			failed = append(failed, sl.err.Error())
		}
	}
	if len(named) > 0 {
		failed = named
	}
	msg := "no plugin serves it"
	if len(have) > 0 {
		msg = "there are " + strings.Join(have, ", ")
	}
	if len(failed) > 0 {
		msg += "; " + strings.Join(failed, "; ")
	}
	none := ErrNoDriver
	if what.Type == base.TypeHook {
		none = ErrNoHook
	}
	return fmt.Errorf("%s: %w: %s", what, none, msg)
}

func servedBy(info base.Info) PluginKey { return PluginKey{info.Type, info.Name} }

// Drivers returns a snapshot of all drivers that were ever started, by name.
func (s *Supervisor) Drivers() map[string]Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make(map[string]Info, len(s.drivers))
	for name, info := range s.drivers {
		info.Attributes = maps.Clone(info.Attributes)
		if sl := s.owners[driverOf(name)]; sl != nil && sl.driver != nil {
			sl.driver.calls.applyLocked(&info)
		}
		out[name] = info
	}
	return out
}

// Plugins returns a snapshot of all plugins of the catalog, in its order.
func (s *Supervisor) Plugins() []Plugin {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []Plugin
	for _, sl := range s.slots {
		p := Plugin{
			Name: sl.entry.Name, Path: sl.entry.Path, Builtin: sl.entry.Builtin, Program: sl.entry.Program,
			Serves: servedBy(sl.info), Version: sl.info.Version, Takes: sl.takes,
			Idle: sl.wanted != nil, LaunchAttempted: sl.tried, Reported: sl.answeredLocked(), Superseded: sl.retired, Err: sl.err,
		}
		if sl.inst != nil && !ended(sl.inst) {
			p.PID = sl.inst.PID()
		}
		out = append(out, p)
	}
	return out
}

// Changed returns a channel that is closed when Drivers or Plugins next change. Call Changed
// before them, or a change in between is missed.
func (s *Supervisor) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.infoChanged
}

// Ready blocks until every driver has reported its first fingerprint, but at most until two
// seconds after New. A later fingerprint counts as a change. The only error is the cause of
// the end of ctx.
func (s *Supervisor) Ready(ctx context.Context) error {
	limit := time.NewTimer(time.Until(s.made.Add(readyLimit)))
	defer limit.Stop()
	return s.answered(ctx, limit.C)
}

// Reported is Ready without the limit: it blocks until each plugin has reported its state, or
// has failed to.
func (s *Supervisor) Reported(ctx context.Context) error { return s.answered(ctx, nil) }

func (s *Supervisor) answered(ctx context.Context, limit <-chan time.Time) error {
	for {
		s.mu.Lock()
		ready := s.stopped || (s.settled && !slices.ContainsFunc(s.slots, func(sl *managedPlugin) bool {
			return !sl.answeredLocked() && !s.awaitingOverrideLocked(sl)
		}))
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

// answeredLocked is the value of Plugin.Reported.
func (sl *managedPlugin) answeredLocked() bool {
	return sl.fingerprinted || sl.err != nil || sl.retired != "" || sl.wanted != nil
}

// update changes the state and wakes all waiters.
func (s *Supervisor) update(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
	close(s.stateChanged)
	s.stateChanged = make(chan struct{})
	s.notifyLocked()
}

func (s *Supervisor) notifyLocked() {
	close(s.infoChanged)
	s.infoChanged = make(chan struct{})
}

// settle stops waiting for slow first launches.
func (s *Supervisor) settle() {
	s.update(func() {
		if s.settled {
			return
		}
		for _, sl := range s.slots {
			if !sl.tried && sl.retired == "" && !s.awaitingOverrideLocked(sl) {
				s.logger.Warn("plugin is slow to start, going on without it", "plugin", sl.entry.Name)
			}
		}
		s.settled = true
	})
}

// settleLocked stops waiting if no first launch is pending.
func (s *Supervisor) settleLocked() {
	for _, sl := range s.slots {
		if !sl.tried && sl.retired == "" && !s.awaitingOverrideLocked(sl) {
			return
		}
	}
	s.settled = true
}

func ended(inst instance) bool {
	select {
	case <-inst.Done():
		return true
	default:
		return false
	}
}

// KnowsTasks reports whether the plugin of a driver has state about a task that was being
// started when the previous agent ended: the plugin is still the same process, or it is a
// builtin, which searches for running tasks.
func (s *Supervisor) KnowsTasks(driver string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	sl := s.servedByLocked(driver)
	return sl != nil && (sl.entry.Builtin || sl.reattached && sl.inst != nil && !ended(sl.inst))
}

// FindsTasks reports whether a driver is a builtin, which searches for the processes of a task
// whose id is lost.
func (s *Supervisor) FindsTasks(driver string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	sl := s.servedByLocked(driver)
	return sl != nil && sl.entry.Builtin
}

// servedByLocked returns the slot of a driver, also before its first process has reported the
// driver's name. It returns nil if there is none.
func (s *Supervisor) servedByLocked(driver string) *managedPlugin {
	if sl := s.owners[driverOf(driver)]; sl != nil {
		return sl
	}
	return s.candidateLocked(driverOf(driver))
}
