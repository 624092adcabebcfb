package agent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/catalog"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/footprint"
	"github.com/nomad-lite/nomad-lite/plugins/keeper"
	"github.com/nomad-lite/nomad-lite/plugins/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/allocrunner"
	"github.com/nomad-lite/nomad-lite/runtime/cgroup"
	"github.com/nomad-lite/nomad-lite/runtime/clock"
	"github.com/nomad-lite/nomad-lite/runtime/fingerprint"
	"github.com/nomad-lite/nomad-lite/runtime/hookhost"
	"github.com/nomad-lite/nomad-lite/runtime/hookplugin"
	"github.com/nomad-lite/nomad-lite/runtime/hoststats"
	"github.com/nomad-lite/nomad-lite/runtime/logs"
	"github.com/nomad-lite/nomad-lite/runtime/noderunner"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/taskenv"
	"github.com/nomad-lite/nomad-lite/runtime/taskfiles"
)

// argv0 is what the process list shows for the helper processes, which are this
// program, started again.
const argv0 = "nomad-lite"

// Config is what an Agent is made of.
type Config struct {
	// DataDir is where everything is kept, an absolute path. It is made if it is
	// missing. Empty means a temporary directory, which ends with the agent: if
	// the agent is killed, the keeper ends all processes, and the next agent
	// removes the directory.
	DataDir string
	// Forget begins with an empty state, and throws it away at the end; what the
	// tasks have written stays. It is implied by a temporary directory.
	Forget bool

	Node    NodeConfig
	Limits  allocrunner.Limits // NodeCPU is filled in
	GC      noderunner.GC
	Records scheduler.GCConfig

	// EnvDenylist names the variables of the agent's environment that no task inherits;
	// nil means Nomad's default. With EnvAllowlist, tasks inherit only what it names and
	// EnvDenylist does not; nil means all.
	EnvDenylist, EnvAllowlist []string

	Plugins *catalog.Catalog
	Hooks   []hookplugin.Rule // what the operator says about hook plugins, in order
	// HookLimits go to the hooks in the box with the blocks of tasks, by name.
	HookLimits map[string]map[string]any
	// TaskProcess returns the main process of a task of a builtin driver, from the state
	// of the driver in the task's handle. It may be nil.
	TaskProcess func(driver string, state []byte) (keeper.Process, bool)
	// Memory is the file in which an agent with Forget keeps what it has learnt of
	// plugins, for others like it. Empty keeps nothing.
	Memory  string
	Version string // of nomad-lite
	Logger  hclog.Logger
}

// Agent is one running nomad-lite. Its methods may be called concurrently.
type Agent struct {
	logger    hclog.Logger
	dataDir   string
	temporary bool
	forget    bool
	lock      *os.File
	sockets   *sockets // nil before startHelpers
	nodeID    string

	store      *store.Store
	scheduler  *scheduler.Scheduler
	allocSync  *allocSync
	keeper     *keeper.Client
	collector  *logs.Collector
	supervisor *supervisor.Supervisor
	hooks      *hookplugin.Set
	hookHost   *hookhost.Host
	known      chan struct{} // closed when it is known what an earlier agent has left
	host       fingerprint.Host

	endPlugins context.CancelFunc // nil before the supervisor runs
	plugins    sync.WaitGroup     // the supervisor

	registeredOnce sync.Once
	registered     chan struct{} // closed when the node is in the store
	nodeChanged    chan struct{} // holds a tick when its configuration is another
	rulesChanged   chan struct{} // holds a tick when there are other rules about hooks
	rebooted       bool          // no process of an earlier agent can be left

	damageReported bool // only keepNode uses it

	cachedPlugins []pluginInfo // see recall; never changed after it

	orphansCleared atomic.Bool               // the tasks that are not in the state were ended
	remaining      atomic.Pointer[remaining] // set by Close

	files        taskfiles.Files
	usage        hoststats.Sampler
	metaUpdateMu sync.Mutex // held while the metadata is changed; taken before mu

	mu          sync.Mutex
	config      Config
	dynamicMeta map[string]*string
	nodes       *noderunner.Runner // nil before Run

	attributesGiven map[string]string // see share; never changed
}

// The percentages by which the heap grows before it is collected.
const (
	// A burst of starts leaves little behind, but scattered over all the memory that
	// it took: measured with 100 tasks, 4 MB less for the agent.
	gcPercentIdle = 25
	// What ends leaves nothing. With the other percentage, 40 percent of the time in
	// which 100 tasks are stopped went into collecting what was still alive.
	gcPercentBusy = 100
)

// Open takes the data directory, reads the state, looks at the machine and
// starts the helper processes and the plugins, without waiting for the latter.
// The caller calls Run at most once, and Close at the end.
func Open(ctx context.Context, c Config) (*Agent, error) {
	a := &Agent{
		logger:       c.Logger,
		dataDir:      c.DataDir,
		temporary:    c.DataDir == "",
		forget:       c.Forget || c.DataDir == "",
		registered:   make(chan struct{}),
		nodeChanged:  make(chan struct{}, 1),
		rulesChanged: make(chan struct{}, 1),
		known:        make(chan struct{}),
		config:       c,
	}
	if err := a.open(ctx, c); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return a, nil
}

// AllocDirs returns the directory that holds those of the allocations.
func (a *Agent) AllocDirs() string { return filepath.Join(a.dataDir, allocDir) }

// DataDir returns the data directory, that of a temporary agent too.
func (a *Agent) DataDir() string { return a.dataDir }

// LogDir returns the directory that holds the output of an allocation's tasks,
// for logs.FollowRequest.
func (a *Agent) LogDir(allocID string) string {
	return filepath.Join(a.AllocDirs(), allocID, "alloc", "logs")
}

// Files opens the directory of an allocation for somebody who wants to look at
// what its tasks have written. The error is fs.ErrNotExist if there is none, or
// none any more.
func (a *Agent) Files(allocID string) (*taskfiles.Dir, error) {
	return a.files.Open(a.AllocDirs(), allocID)
}

// Usage tells how busy the machine is.
func (a *Agent) Usage(ctx context.Context) hoststats.Stats { return a.usage.Sample(ctx) }

// Store returns the state. Jobs, evaluations, allocations and deployments are
// changed through the scheduler.
func (a *Agent) Store() *store.Store { return a.store }

// Scheduler returns what decides about jobs.
func (a *Agent) Scheduler() *scheduler.Scheduler { return a.scheduler }

// NodeID returns the id of the node, which stays the same for a data directory.
func (a *Agent) NodeID() string { return a.nodeID }

// Logs returns the collector of the tasks' output.
func (a *Agent) Logs() *logs.Collector { return a.collector }

// Host returns the facts about the machine.
func (a *Agent) Host() fingerprint.Host { return a.host }

// Drivers returns the drivers that are up, by name.
func (a *Agent) Drivers() map[string]supervisor.Info { return a.supervisor.Drivers() }

// TaskConfigSchema asks a driver what it takes in the config block of a task. It
// waits for one that is being started.
func (a *Agent) TaskConfigSchema(ctx context.Context, name string) (*hclspec.Spec, error) {
	d, err := a.supervisor.Driver(ctx, name)
	if err != nil {
		return nil, err
	}
	return d.TaskConfigSchema(ctx)
}

// Plugins returns the state of all plugins.
func (a *Agent) Plugins() []supervisor.Plugin { return a.supervisor.Plugins() }

// Changed returns a channel that is closed when Drivers or Plugins has another
// answer.
func (a *Agent) Changed() <-chan struct{} { return a.supervisor.Changed() }

// Ready waits until the drivers have said how they are; two seconds at most.
func (a *Agent) Ready(ctx context.Context) error { return a.supervisor.Ready(ctx) }

// Reported is Ready for as long as it takes, for plugins of every kind.
func (a *Agent) AllReady(ctx context.Context) error { return a.supervisor.Reported(ctx) }

// Registered is closed when the node is in the state with its drivers: jobs that
// come can be placed.
func (a *Agent) Registered() <-chan struct{} { return a.registered }

// Run runs what the state says until ctx ends. If the cause of that is
// allocrunner.ErrShutdown, tasks are left running; otherwise they are stopped,
// and Run returns when all have ended.
func (a *Agent) Run(ctx context.Context) {
	debug.SetGCPercent(gcPercentIdle) // not before: of what is read at the start, most stays
	nodes := noderunner.New(a.runnerConfig())
	a.mu.Lock()
	a.nodes = nodes
	a.mu.Unlock()

	// The node reports to the end, and plans go on until nothing can follow them.
	reporting, endReports := context.WithCancel(context.WithoutCancel(ctx))
	var background, reports sync.WaitGroup
	reports.Go(func() { a.allocSync.run(reporting) })
	background.Go(func() { a.keepNode(ctx) })
	background.Go(func() { a.hooks.Run(ctx) })
	background.Go(func() { a.logHookErrors(ctx) })
	background.Go(func() { a.syncPluginCache(ctx) })
	background.Go(func() {
		if err := clock.Watch(ctx, a.scheduler.ClockStepped); err != nil {
			a.logger.Warn("steps of the clock are noticed late", "error", err)
		}
	})
	background.Go(func() {
		select {
		case <-a.registered:
			a.scheduler.Run(ctx)
		case <-ctx.Done():
		}
	})
	background.Go(func() {
		select {
		case <-nodes.PreviouslyStarted():
			close(a.known)
		case <-ctx.Done():
		}
	})
	a.waitUnknownPlugins(ctx)
	nodes.Run(ctx)
	background.Wait()
	endReports()
	reports.Wait()
	if a.temporary {
		nodes.CollectAll() // what hooks have made besides the directories
	}
	if a.forget {
		settling, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		a.hooks.Drain(settling)
	}
}

// runnerConfig is what the allocations of this node run with.
func (a *Agent) runnerConfig() noderunner.Config {
	limits := a.config.Limits
	limits.NodeCPU = int64(a.host.CPUMHz)
	return noderunner.Config{
		Source: a.allocSync,
		Alloc: allocrunner.Config{
			HostEnv:      taskenv.HostEnv(os.Environ(), a.config.EnvDenylist, a.config.EnvAllowlist),
			Drivers:      a.supervisor,
			Logs:         a.collector,
			AllocDirRoot: a.AllocDirs(),
			Store:        a.store,
			Services:     a.store,
			Checks:       a.store,
			Hooks:        a.hooks,
			Cgroups:      a.cgroupsOf(cgroup.Open()),
			Limits:       limits,
			Records:      taskRecords{a.store},
			Rebooted:     a.rebooted,
			EndTask:      a.endTask,
			Logger:       a.logger,
		},
		Node:   a.Node,
		OnStop: func() { debug.SetGCPercent(gcPercentBusy) },
		// The start of an allocation needs several times the memory that its life needs,
		// most of it the stacks of the calls that start it.
		OnIdle: func() {
			debug.SetGCPercent(gcPercentIdle)
			footprint.Release()
		},
		GC:     a.config.GC,
		Logger: a.logger,
	}
}

// cleanupTimeout is how long hooks have to make up for what they owe, when nobody will
// know of it any more.
const cleanupTimeout = 10 * time.Second

// Alloc returns the runner of an allocation, nil if nothing of it is here.
func (a *Agent) Alloc(id string) *allocrunner.Runner {
	if nodes := a.running(); nodes != nil {
		return nodes.Alloc(id)
	}
	return nil
}

// CollectAlloc takes one ended allocation off the disk. It waits for hooks that
// tidy up after it, and not for an unavailable driver: then the directory is removed
// later.
func (a *Agent) CollectAlloc(ctx context.Context, id string) error {
	if nodes := a.running(); nodes != nil {
		return nodes.Collect(ctx, id)
	}
	return noderunner.ErrNotCollectable
}

// CollectAllocs takes all ended allocations off the disk.
func (a *Agent) CollectAllocs() {
	if nodes := a.running(); nodes != nil {
		nodes.CollectAll()
	}
}

// Reload takes over what may change while the agent runs: the metadata and the
// reservations of the node, how much may lie on the disk, the plugins, and rules about
// hooks that hookplugin.CheckRules has nothing against.
func (a *Agent) Reload(node NodeConfig, gc noderunner.GC, plugins *catalog.Catalog, rules []hookplugin.Rule) {
	a.supervisor.SetCatalog(plugins)
	a.hooks.SetRules(rules)
	select {
	case a.rulesChanged <- struct{}{}:
	default:
	}
	a.mu.Lock()
	a.config.Node.Meta, a.config.Node.Reserved = node.Meta, node.Reserved
	nodes := a.nodes
	a.mu.Unlock()
	if nodes != nil {
		nodes.SetGC(gc)
	}
	a.triggerNodeUpdate()
}

// triggerNodeUpdate has the record of the node brought up to date. It does not wait.
func (a *Agent) triggerNodeUpdate() {
	select {
	case a.nodeChanged <- struct{}{}:
	default:
	}
}

// Kill ends all allocations at once, without order and without their poststop
// tasks. It does not wait.
func (a *Agent) Kill() {
	if nodes := a.running(); nodes != nil {
		nodes.Kill()
	}
}

func (a *Agent) taskEvent(name string, event driver.TaskEvent) {
	if nodes := a.running(); nodes != nil {
		nodes.TaskEvent(name, event)
	}
}

func (a *Agent) running() *noderunner.Runner {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.nodes
}

// Close ends the helper processes that nobody needs any more and lets go of the
// data directory; a temporary one is removed. Run must have returned. Close may
// be called twice.
//
// While tasks may run, the helper processes continue: only the state and the keeper
// together prove that none does, not the way in which the agent ends.
func (a *Agent) Close() error {
	if a.lock == nil {
		return nil
	}
	var errs []error
	if a.sockets != nil {
		a.sockets.unwatch() // what follows removes sockets
	}
	left := new(remaining)
	if a.keeper != nil && !a.forget {
		left = a.findRemaining()
	}
	a.remaining.Store(left)
	if a.hookHost != nil {
		a.hookHost.Close()
	}
	if a.endPlugins != nil {
		a.endPlugins()
		a.plugins.Wait()
	}
	if a.collector != nil {
		errs = append(errs, a.collector.Close())
	}
	ended := false // the helpers
	if a.keeper != nil {
		var err error
		ended, err = a.endHelpers(left)
		errs = append(errs, err, a.keeper.Close())
	}
	if a.sockets != nil {
		errs = append(errs, a.sockets.close())
	}
	if a.store != nil {
		errs = append(errs, a.store.Close())
		if a.forget {
			errs = append(errs, os.Remove(a.statePath()))
		}
		a.store = nil
	}
	switch {
	case a.temporary:
		errs = append(errs, removeTemporary(a.dataDir))
	case ended:
		errs = append(errs, a.sockets.remove())
	}
	errs = append(errs, a.lock.Close())
	a.lock = nil
	return errors.Join(errs...)
}
