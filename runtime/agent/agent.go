package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/plugins/catalog"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/keeper"
	"github.com/nomad-lite/nomad-lite/plugins/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/allocrunner"
	"github.com/nomad-lite/nomad-lite/runtime/fingerprint"
	"github.com/nomad-lite/nomad-lite/runtime/logs"
	"github.com/nomad-lite/nomad-lite/runtime/noderunner"
	"github.com/nomad-lite/nomad-lite/runtime/taskenv"
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

	Plugins *catalog.Catalog
	Version string // of nomad-lite
	Logger  hclog.Logger
}

// Agent is one running nomad-lite. Its methods may be called concurrently.
type Agent struct {
	logger    hclog.Logger
	dataDir   string
	temporary bool
	lock      *os.File
	sockets   string // the runtime directory
	nodeID    string

	keeper     *keeper.Client
	collector  *logs.Collector
	supervisor *supervisor.Supervisor
	host       fingerprint.Host

	endPlugins context.CancelFunc // nil before the supervisor runs
	plugins    sync.WaitGroup     // the supervisor

	leftRunning bool // set by Run: tasks go on without us

	mu    sync.Mutex
	nodes *noderunner.Runner // nil before Run
}

// Open takes the data directory, looks at the machine and starts the helper
// processes and the plugins, without waiting for the latter. The caller calls
// Run at most once, and Close at the end.
func Open(ctx context.Context, c Config) (*Agent, error) {
	// A burst of starts leaves little behind, but scattered over all the memory that
	// it took: measured with 100 tasks, 4 MB less for the agent and no slower.
	debug.SetGCPercent(25)
	a := &Agent{logger: c.Logger, dataDir: c.DataDir, temporary: c.DataDir == "", nodeID: uuid.NewString()}
	if err := a.open(ctx, c); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return a, nil
}

func (a *Agent) open(ctx context.Context, c Config) error {
	if err := a.openDirectory(); err != nil {
		return err
	}
	var err error
	if a.sockets, err = makeRuntimeDir(a.dataDir); err != nil {
		return err
	}
	a.keeper, err = keeper.Start(ctx, keeper.Config{
		Dir:       a.sockets,
		Args:      []string{argv0, "keeper"},
		Ephemeral: a.temporary,
		Logger:    a.logger,
	})
	if err != nil {
		return fmt.Errorf("start keeper: %w", err)
	}
	if a.temporary {
		// The keeper outlives a killed agent until all processes are gone: so long
		// must nobody remove the directory.
		if err := a.keeper.Hold(ctx, lockFile, a.lock); err != nil {
			return fmt.Errorf("hand the lock to the keeper: %w", err)
		}
	}
	a.collector, err = logs.New(logs.Config{
		Keeper: a.keeper,
		Dir:    a.sockets,
		Args:   []string{argv0, "log-collector"},
		Logger: a.logger,
	})
	if err != nil {
		return fmt.Errorf("start log collector: %w", err)
	}
	a.host = fingerprint.Read(fingerprint.Options{DataDir: a.dataDir, Version: c.Version})
	for _, lack := range a.host.Degraded {
		a.logger.Info("degraded", "reason", lack)
	}
	a.supervisor = supervisor.New(supervisor.Config{
		Catalog:      c.Plugins,
		Keeper:       a.keeper,
		KeeperSocket: a.keeper.Socket(),
		SocketDir:    a.sockets,
		OnTaskEvent:  a.taskEvent,
		Logger:       a.logger,
	})
	// Tasks that are being stopped need their drivers to the last: plugins end in
	// Close, whatever becomes of ctx.
	running, end := context.WithCancel(context.WithoutCancel(ctx))
	a.endPlugins = end
	a.plugins.Go(func() {
		if err := a.supervisor.Run(running); err != nil {
			a.logger.Error("plugins did not end well", "error", err)
		}
	})
	return nil
}

func (a *Agent) openDirectory() error {
	var err error
	if a.temporary {
		a.dataDir, a.lock, err = makeTemporary(a.logger)
		if err != nil {
			return err
		}
	} else {
		if err := os.MkdirAll(a.dataDir, 0o711); err != nil {
			return fmt.Errorf("make data directory: %w", err)
		}
		if a.lock, err = lock(a.dataDir, unix.LOCK_NB); err != nil {
			return err
		}
	}
	return ensureDir(a.AllocDirs(), 0o711)
}

// AllocDirs returns the directory that holds those of the allocations.
func (a *Agent) AllocDirs() string { return filepath.Join(a.dataDir, allocDir) }

// LogDir returns the directory that holds the output of an allocation's tasks,
// for logs.FollowRequest.
func (a *Agent) LogDir(allocID string) string {
	return filepath.Join(a.AllocDirs(), allocID, "alloc", "logs")
}

// Temporary reports whether the data directory ends with the agent.
func (a *Agent) Temporary() bool { return a.temporary }

// Logs returns the collector of the tasks' output.
func (a *Agent) Logs() *logs.Collector { return a.collector }

// Host returns the facts about the machine.
func (a *Agent) Host() fingerprint.Host { return a.host }

// Drivers returns the drivers that are up, by name.
func (a *Agent) Drivers() map[string]supervisor.Info { return a.supervisor.Drivers() }

// Plugins returns the state of all plugins.
func (a *Agent) Plugins() []supervisor.Plugin { return a.supervisor.Plugins() }

// Changed returns a channel that is closed when Drivers or Plugins has another
// answer.
func (a *Agent) Changed() <-chan struct{} { return a.supervisor.Changed() }

// Ready waits until the drivers have said how they are; two seconds at most.
func (a *Agent) Ready(ctx context.Context) error { return a.supervisor.Ready(ctx) }

// Node returns the facts about the node: those of the machine, and those of the
// drivers that are up.
func (a *Agent) Node() taskenv.Node {
	node := taskenv.Node{
		ID:           a.nodeID,
		Name:         a.host.Hostname,
		Datacenter:   "dc1",
		Region:       api.GlobalRegion,
		Pool:         "default",
		ParentCgroup: a.host.ParentCgroup,
		Attributes:   maps.Clone(a.host.Attributes),
	}
	for name, info := range a.Drivers() {
		for key, value := range info.Attributes {
			node.Attributes[key] = value.String()
		}
		if info.Detected {
			node.Attributes["driver."+name] = "1"
		}
	}
	return node
}

// Run runs what the source wants until ctx ends. If the cause of that is
// allocrunner.ErrShutdown, tasks are left running; otherwise they are stopped,
// and Run returns when all have ended.
func (a *Agent) Run(ctx context.Context, source noderunner.Source) {
	nodes := noderunner.New(noderunner.Config{
		Source: source,
		Alloc: allocrunner.Config{
			Node:         a.Node(),
			HostEnv:      taskenv.HostEnv(os.Environ(), taskenv.DefaultDenylist()),
			Drivers:      a.supervisor,
			Logs:         a.collector,
			AllocDirRoot: a.AllocDirs(),
			Limits:       allocrunner.Limits{NodeCPU: int64(a.host.CPUMHz)},
			Logger:       a.logger,
		},
		Logger: a.logger,
	})
	a.mu.Lock()
	a.nodes = nodes
	a.mu.Unlock()
	nodes.Run(ctx)
	a.leftRunning = errors.Is(context.Cause(ctx), allocrunner.ErrShutdown)
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
func (a *Agent) Close() error {
	var errs []error
	if a.endPlugins != nil {
		a.endPlugins()
		a.plugins.Wait()
	}
	if a.collector != nil {
		errs = append(errs, a.collector.Close())
	}
	if a.keeper != nil {
		if !a.leftRunning {
			// Nothing is left that the helper processes could be there for.
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			errs = append(errs, a.keeper.EndWithAgent(ctx))
		}
		errs = append(errs, a.keeper.Close())
	}
	if a.lock == nil {
		return errors.Join(errs...)
	}
	switch {
	case a.temporary:
		errs = append(errs, removeTemporary(a.dataDir))
	case !a.leftRunning && a.sockets != "":
		errs = append(errs, os.RemoveAll(a.sockets))
	}
	errs = append(errs, a.lock.Close())
	a.lock = nil
	return errors.Join(errs...)
}
