package supervisor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
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
	// ErrNoDriver means that no plugin serves a driver of that name. The error
	// of Driver that wraps it says which drivers there are.
	ErrNoDriver = errors.New("no such driver")

	// ErrNoHook means that no plugin serves a hook of that name, likewise.
	ErrNoHook = errors.New("no such hook")

	// ErrUnavailable means that the plugin of the driver or hook cannot be started
	// at the moment. The error that wraps it says why, and when it is tried again.
	ErrUnavailable = errors.New("not available")

	// ErrStopped means that the supervisor has ended.
	ErrStopped = errors.New("plugin supervisor has stopped")
)

// The causes with which a slot ends before the supervisor does.
var (
	errRetired   = errors.New("replaced by another plugin")
	errDismissed = errors.New("not in the configuration any more")
)

// readyLimit is how long a node waits for slow plugins before it goes on
// without them.
const readyLimit = 2 * time.Second

// idleTimeout is how long a builtin runs on that nobody needs.
const idleTimeout = time.Minute

// Config is what a supervisor needs.
type Config struct {
	Catalog *catalog.Catalog
	Keeper  launch.Keeper

	// KeeperSocket is where drivers find the keeper.
	KeeperSocket string

	// SocketDir returns a private directory (0700) for the plugins' sockets, not
	// longer than launch.MaxSocketDir. It is called before each start of a plugin, and makes the
	// directory again if it was removed.
	SocketDir func() (string, error)

	// Host is what drivers are told about this machine; nil is allowed.
	Host *base.DriverConfig

	// Hooks is what hooks are told: where they find the agent.
	Hooks hook.Config

	// Records is where it is kept how the running plugins are found again. They
	// are taken over from there, and outlive the supervisor where Keep says so. Nil
	// keeps nothing.
	Records Records

	// Keep reports whether tasks of a driver, or tasks in which a hook takes part, may
	// run, so that the process of its plugin must continue. It is called at the end of
	// Run, and at its start for recorded plugins that are not in the catalog any more.
	// Nil means that no process must.
	Keep func(what PluginKey, pid int) bool

	// Busy is asked whether a driver has tasks, or is about to get some, and likewise
	// for hooks. A builtin that nobody has asked for in a minute and that is not busy
	// is ended, and started again for who asks; its last fingerprint holds meanwhile.
	// Nil lets it run. A builtin hook is not even started before somebody asks.
	Busy func(PluginKey) bool

	// OnTaskEvent gets what a driver says about its tasks, one event after the
	// other for each driver. Nil drops it.
	OnTaskEvent func(driver string, event driver.TaskEvent)

	Logger hclog.Logger // nil means silence
}

// Info is the state of one driver.
type Info struct {
	Detected    bool
	Healthy     bool
	Description string
	// Attributes are all that the driver has reported and not taken back.
	Attributes map[string]driver.Attribute
	UpdatedAt  time.Time
}

// PluginKey is what a plugin is there for: a driver or a hook.
type PluginKey struct {
	Type base.Type
	Name string
}

func (s PluginKey) String() string { return fmt.Sprintf("%s %q", s.Type, s.Name) }

func driverOf(name string) PluginKey { return PluginKey{base.TypeDriver, name} }

// Plugin is the state of one plugin of the catalog.
type Plugin struct {
	Name            string // of the file or the builtin
	Path            string // "" for a builtin
	Builtin         bool
	Program         string    // of a file: another one may say something else; see catalog.Entry
	Serves          PluginKey // its Name is "" when that is not known yet
	Version         string
	Takes           *hook.Description // of a hook that has been up
	Idle            bool              // a builtin that nobody needs at the moment
	LaunchAttempted bool              // its first launch has succeeded or failed
	Reported        bool              // it has said what it is, a driver with its first fingerprint; or has failed to, or is not used
	PID             int               // 0 when no process runs
	Superseded      string            // why another plugin is used in its place
	Err             error             // why it does not run
}

// Supervisor keeps plugins alive. Its methods may be called concurrently.
type Supervisor struct {
	cfg    Config
	logger hclog.Logger
	start  func(context.Context, catalog.Entry) (instance, error)
	made   time.Time

	replacing sync.Mutex // held while a plugin of another build is replaced: one at a time

	unwanted struct { // held by killOrphans
		sync.Mutex
		ended bool // killOrphans has succeeded
	}

	mu           sync.Mutex
	slots        []*managedPlugin
	owners       map[PluginKey]*managedPlugin
	drivers      map[string]Info
	settled      bool // no first launch is awaited any more
	stopped      bool
	unmanaged    map[PluginKey]string // keys of recorded plugins that run without a slot; see killOrphans
	stateChanged chan struct{}        // closed and replaced when a process comes or goes
	infoChanged  chan struct{}        // closed and replaced when drivers or plugins change
}

// instance is one running plugin. *launch.Plugin is one.
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

// managedPlugin is the place of one plugin of the catalog. The fields are guarded by
// Supervisor.mu, except those that never change.
type managedPlugin struct {
	entry  catalog.Entry
	order  int
	cancel context.CancelCauseFunc // of its goroutine; nil before it has begun

	running  bool           // its goroutine runs
	removed  bool           // it is to go when nobody needs it
	draining bool           // somebody waits for that
	next     *managedPlugin // takes its place then; may be nil

	inst          instance
	driver        *watchedDriver // of the latest process; nil of a hook
	info          base.Info      // of the latest process; zero before the first
	takes         *hook.Description
	tried         bool      // the first launch has an outcome
	fingerprinted bool      // the first fingerprint is in
	acquired      bool      // handed out by Driver or Hook
	lastAcquired  time.Time // when that was last
	reattached    bool      // inst is a process that another supervisor has started
	err           error     // why there is no process; nil while one is being launched
	retryAt       time.Time
	failure       error // why there was none, the last time; nil again after a launch
	retired       string
	wanted        chan struct{} // of one that rests: closed when somebody asks for it
}

// New makes a supervisor. Run brings it to life.
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
		unmanaged:    map[PluginKey]string{},
		stateChanged: make(chan struct{}),
		infoChanged:  make(chan struct{}),
	}
	s.start = s.launch
	if cfg.Catalog != nil {
		s.setEntries(cfg.Catalog.Entries())
	}
	return s
}

// launch starts the process of one catalog entry.
func (s *Supervisor) launch(ctx context.Context, e catalog.Entry) (instance, error) {
	binary, err := e.Open(s.logger)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", e, err)
	}
	defer binary.Close()
	dir, err := os.Getwd()
	if err != nil {
		dir = "/"
	}
	sockets, err := s.cfg.SocketDir()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", e, err)
	}
	cfg := launch.Config{
		Name:      e.Name,
		Path:      binary.Path,
		Args:      binary.Argv,
		Env:       launch.Environ(os.Environ(), e.Inherits(), s.cfg.KeeperSocket),
		Dir:       dir,
		SocketDir: sockets,
		Keeper:    s.cfg.Keeper,
		Host:      s.cfg.Host,
		Hooks:     s.cfg.Hooks,
		Logger:    s.logger,
	}
	if !binary.Script {
		cfg.Exec = binary.File
	}
	if e.Block != nil {
		cfg.Settings = e.Block.Config
		if e.Block.Range.Filename != "" {
			cfg.SettingsFrom = e.Block.Range.String()
		}
	}
	if s.cfg.Records == nil {
		p, err := launch.Start(ctx, cfg)
		if err != nil {
			return nil, err
		}
		return p, nil
	}
	identity, err := identify(e, binary)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", e, err)
	}
	p, err := s.takeOver(ctx, e, cfg, binary, identity)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", e, err)
	case p != nil:
		return reattachedPlugin{p}, nil
	}
	p, err = launch.Start(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if err := s.cfg.Records.PutPlugin(key(e), Record{ReattachConfig: p.Record(), Identity: identity, Serves: servedBy(p.Info())}); err != nil {
		s.logger.Error("plugin will not be found again", "plugin", e.Name, "error", err)
	} else if err := p.Confirm(ctx); err != nil {
		s.logger.Debug("plugin not confirmed", "plugin", e.Name, "error", err) // a keeper of an earlier build
	}
	return p, nil
}

// Run launches the plugins, or takes them over, and keeps them alive until ctx
// ends, then ends them, but for those to be kept, and returns. It is called once.
// Tasks are not touched.
func (s *Supervisor) Run(ctx context.Context) error {
	if err := s.killOrphans(); err != nil {
		s.logger.Error("plugins are not started yet", "error", err)
	}
	settle := time.AfterFunc(readyLimit, s.settle)
	defer settle.Stop()
	s.update(func() { s.settleLocked() }) // there may be no plugin at all
	var wg sync.WaitGroup
	for ctx.Err() == nil { // every plugin may be refused, and Driver still says so
		select {
		case <-s.beginSlots(ctx, &wg):
		case <-ctx.Done():
		}
	}
	wg.Wait()
	s.update(func() { s.stopped = true })
	return nil
}

// Driver returns the driver of that name. While its plugin is being launched,
// the first time or after its death, Driver waits. When the launch has failed,
// Driver returns ErrUnavailable with the reason at once, and the launch is tried
// again later. A name that no plugin serves is ErrNoDriver. Both errors are a
// *driver.UnavailableError, which says when another call may succeed. All calls
// return the same value for one plugin process, and another one for the next.
func (s *Supervisor) Driver(ctx context.Context, name string) (driver.Driver, error) {
	_, d, err := s.serving(ctx, driverOf(name), time.Time{})
	if err != nil {
		return nil, err
	}
	return d, nil
}

// Hook returns the hook of that name, and what it takes part in, as Driver does.
// It also waits for the next try of a failed launch, if that comes before until.
// A name that no plugin serves is ErrNoHook.
func (s *Supervisor) Hook(ctx context.Context, name string, until time.Time) (*hook.Client, *hook.Description, error) {
	inst, _, err := s.serving(ctx, PluginKey{base.TypeHook, name}, until)
	if err != nil {
		return nil, nil, err
	}
	client, takes := inst.Hook()
	return client, takes, nil
}

// serving returns a plugin that lives, starting or awaiting it if need be. A launch
// that is tried again before until is waited for.
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
			if inst.Connected() || s.revive(ctx, inst) {
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

// waitError says what somebody has waited for in vain.
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

// servingLocked returns a living instance, or an error, or neither when there
// is something to wait for.
func (s *Supervisor) servingLocked(what PluginKey, until time.Time) (instance, *watchedDriver, error) {
	if s.stopped {
		return nil, nil, fmt.Errorf("%s: %w", what, ErrStopped)
	}
	if !s.settled {
		return nil, nil, nil // a better plugin for this name may be on its way
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

// candidateLocked finds the plugin that should serve a driver or hook and has not
// said so yet: by its name, or because it has no other.
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

// unknownNameStartingLocked reports whether a plugin is being launched that may serve any
// driver, because its file's name says nothing.
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
			have = append(have, sl.entry.Name) // it rests
		}
	}
	slices.Sort(have)
	var named, failed []string // what should have been it, and what could
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

// Drivers is a snapshot of all drivers that have ever been up, by name.
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

// Plugins is a snapshot of all plugins of the catalog, in its order.
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

// Changed is closed when Drivers or Plugins next give another answer. Ask for
// it before them, or a change in between is missed.
func (s *Supervisor) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.infoChanged
}

// Ready waits for the first fingerprint of every driver, until two seconds after New
// at most: a late one follows as a change. Its only error is the end of ctx.
func (s *Supervisor) Ready(ctx context.Context) error {
	limit := time.NewTimer(time.Until(s.made.Add(readyLimit)))
	defer limit.Stop()
	return s.answered(ctx, limit.C)
}

// Reported is Ready without a limit: it waits until each plugin has said what it is,
// or has failed to.
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

// answeredLocked is Plugin.Answered.
func (sl *managedPlugin) answeredLocked() bool {
	return sl.fingerprinted || sl.err != nil || sl.retired != "" || sl.wanted != nil
}

// update changes the state and tells everybody who waits for plugins.
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

// settle ends the wait for slow first launches.
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

// settleLocked ends the wait when nothing is awaited any more.
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
