package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/catalog"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/plugins/keeper"
	"github.com/nomad-lite/nomad-lite/plugins/process"
	"github.com/nomad-lite/nomad-lite/plugins/safepath"
	"github.com/nomad-lite/nomad-lite/plugins/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/fingerprint"
	"github.com/nomad-lite/nomad-lite/runtime/hookplugin"
	"github.com/nomad-lite/nomad-lite/runtime/localnode"
	"github.com/nomad-lite/nomad-lite/runtime/logs"
	"github.com/nomad-lite/nomad-lite/runtime/orphans"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// open creates the parts of an agent, each from the earlier ones.
func (a *Agent) open(ctx context.Context, c Config) error {
	if len(c.Hooks) > 0 {
		if err := hookplugin.CheckRules(c.Hooks, c.Plugins.Entries()); err != nil {
			return err
		}
	}
	if err := a.openDirectory(); err != nil {
		return err
	}
	if err := a.openStore(); err != nil {
		return err
	}
	if err := a.startHelpers(ctx); err != nil {
		return err
	}
	a.fingerprint()
	return a.startPlugins(ctx, c.Plugins)
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
		// A run trusts no file in the directory, and its user trusts the directory
		// of the job file.
		if !a.forget {
			if err := safepath.CheckDir(a.dataDir); err != nil {
				return fmt.Errorf("data directory %s: %w, or choose another with -data-dir", a.dataDir, err)
			}
		}
		if a.lock, err = lock(a.dataDir, unix.LOCK_NB); err != nil {
			return err
		}
		if a.forget {
			if err := checkNoAgent(a.dataDir); err != nil {
				return err
			}
		}
	}
	if os.Geteuid() == 0 {
		return ensureDir(a.AllocDirs(), 0o711) // tasks of other users traverse it to their own directories
	}
	return a.closeDirectory()
}

// closeDirectory denies other accounts access to the data directory of an agent
// that is not root, whose tasks run as the same user. If the data directory belongs
// to another user, closeDirectory closes the directory of the allocations instead.
func (a *Agent) closeDirectory() error {
	if err := ensureDir(a.AllocDirs(), 0o711); err != nil {
		return err
	}
	var stat unix.Stat_t
	if err := unix.Stat(a.dataDir, &stat); err != nil {
		return fmt.Errorf("close data directory: %w", &fs.PathError{Op: "stat", Path: a.dataDir, Err: err})
	}
	dir := a.dataDir
	if int(stat.Uid) != os.Geteuid() {
		dir = a.AllocDirs()
	} else if stat.Mode&0o777 == 0o700 {
		return nil
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return fmt.Errorf("close data directory to other accounts: %w", err)
	}
	return nil
}

// statePath returns the path of the state file. A foreground run and an agent have
// different files.
func (a *Agent) statePath() string {
	if a.forget {
		return filepath.Join(a.dataDir, "run.db")
	}
	return filepath.Join(a.dataDir, "state.db")
}

func (a *Agent) openStore() error {
	if a.forget {
		if err := os.Remove(a.statePath()); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove old state: %w", err)
		}
	}
	var err error
	config := store.Config{Path: a.statePath(), Logger: a.logger, SecretMeta: []string{pendingCleanupKey}, TemporaryKeys: a.forget}
	if !a.forget {
		config.KeyFile = filepath.Join(a.dataDir, keyFile)
	}
	if a.store, err = store.Open(config); err != nil {
		return fmt.Errorf("open state: %w", err)
	}
	a.nodeID = localnode.LoadID(a.store)
	a.allocSync = localnode.NewAllocSync(a.store, a.logger)
	opened := time.Now()
	a.scheduler = scheduler.New(scheduler.Config{
		Store:  a.store,
		NodeID: a.nodeID,
		Env: scheduler.Env{
			NewID:    uuid.NewString,
			PortFree: scheduler.PortFree,
			Pick:     rand.IntN,
			Now:      time.Now,
			Uptime:   func() time.Duration { return time.Since(opened) },
		},
		GC:        a.config.Records,
		Logger:    a.logger,
		OnDesired: a.allocSync.AllocsChanged,
	})
	if err := a.detectReboot(); err != nil {
		return err
	}
	a.orphans = &orphans.Cleaner{Store: a.store, AllocDirs: a.AllocDirs(), Rebooted: a.rebooted, Logger: a.logger}
	return nil
}

// bootKey is the record of the boot id of the last agent.
const bootKey = "boot_id"

// detectReboot sets rebooted if the machine was booted since the last agent.
func (a *Agent) detectReboot() error {
	now, err := process.BootID()
	if err != nil {
		a.logger.Warn("a reboot cannot be told from a restart of the agent", "error", err)
		return nil
	}
	before := ""
	known, err := a.store.Snapshot().Meta(bootKey, &before)
	if err == nil && known && before == now {
		return nil
	}
	a.rebooted = known
	_, err = a.store.Update(context.Background(), func(tx *store.Txn) error {
		tx.PutMeta(bootKey, now)
		return nil
	})
	if err != nil {
		return fmt.Errorf("note the boot: %w", err)
	}
	return nil
}

// startHelpers starts the keeper and the log collector.
func (a *Agent) startHelpers(ctx context.Context) (err error) {
	if a.sockets, err = openSockets(a.dataDir, a.logger); err != nil {
		return err
	}
	former := formerSocketDirs(a.dataDir)
	a.keeper, err = keeper.Start(ctx, keeper.Config{
		Dir:        a.dataDir,
		FormerDirs: former,
		Args:       []string{argv0, "keeper"},
		Ephemeral:  a.temporary,
		Logger:     a.logger,
	})
	if err != nil {
		return fmt.Errorf("start keeper: %w", err)
	}
	a.sockets.keeper = a.keeper
	if a.temporary {
		// The keeper of a killed agent runs until all processes have ended. It
		// holds the lock, so that the directory is not removed earlier.
		if err := a.keeper.StoreFD(ctx, lockFile, a.lock); err != nil {
			return fmt.Errorf("hand the lock to the keeper: %w", err)
		}
	}
	a.collector, err = logs.New(logs.Config{
		Keeper:       a.keeper,
		Dir:          a.dataDir,
		PreviousDirs: former,
		Args:         []string{argv0, "log-collector"},
		Logger:       a.logger,
	})
	if err != nil {
		return fmt.Errorf("start log collector: %w", err)
	}
	return nil
}

// fingerprint reads the facts about the machine.
func (a *Agent) fingerprint() {
	a.host = a.config.Node.Fingerprint(fingerprint.Options{DataDir: a.dataDir, Version: a.config.Version}, a.logger)
	a.config.Node = a.config.Node.WithDefaults(a.host.Hostname)
	a.usage.Dir, a.usage.MHz = a.AllocDirs(), a.host.CPUMHz
}

// pluginCache returns the cache of plugin descriptions for later agents.
func (a *Agent) pluginCache() pluginCache {
	if a.forget {
		return fileCache(a.config.PluginCacheFile)
	}
	return storeCache{a.store}
}

// driverConfig returns the facts about the machine for SetConfig. Drivers made from
// the public skeleton read it without a check, so no field of it is optional.
func (a *Agent) driverConfig() *base.DriverConfig {
	node := a.config.Node
	topology := *a.host.Topology
	topology.OverrideTotalCompute = uint64(node.CPU)
	topology.OverrideWithholdCompute = node.Reserved.CPU
	return &base.DriverConfig{
		ClientMinPort: uint32(node.ClientMinPort),
		ClientMaxPort: uint32(node.ClientMaxPort),
		Topology:      &topology,
	}
}

// startPlugins starts the supervisor, which starts the plugins. It does not wait
// for them.
func (a *Agent) startPlugins(ctx context.Context, known *catalog.Catalog) error {
	cache := a.pluginCache()
	cached := loadCachedPlugins(cache, a.logger)
	config := supervisor.Config{
		Catalog:      known,
		Keeper:       a.keeper,
		KeeperSocket: a.keeper.Socket(),
		SocketDir:    a.sockets.restore,
		Host:         a.driverConfig(),
		Hooks:        hook.Config{HostSocket: a.hookSocket(), Node: a.nodeForHooks()},
		Busy: func(what supervisor.PluginKey) bool {
			nodes := a.running()
			return nodes == nil || nodes.UsesPlugin(what)
		},
		LastServed:  cached.lastServed,
		OnTaskEvent: a.taskEvent,
		Logger:      a.logger,
	}
	if !a.forget {
		config.Records = pluginRecords{a.store}
		config.Keep = a.keepsPlugin
	}
	a.supervisor = supervisor.New(config)
	a.node = localnode.New(localnode.Config{
		ID:             a.nodeID,
		Settings:       a.config.Node,
		Host:           a.host,
		Store:          a.store,
		Drivers:        a.supervisor,
		Logger:         a.logger,
		BeforeRegister: func(ctx context.Context) { a.orphans.Clear(ctx, a.supervisor) },
		OnRegistered:   a.orphans.CleanEnded,
		OnStored:       a.scheduler.NodeChanged,
	})
	a.knownPlugins = &knownPlugins{cache: cache, cached: cached, plugins: a.supervisor, logger: a.logger}
	if err := a.makeHooks(); err != nil {
		return err
	}
	a.sockets.watch()
	// Tasks need their drivers until they are stopped, so the plugins run until
	// Close, even when ctx ends.
	running, end := context.WithCancel(context.WithoutCancel(ctx))
	a.endPlugins = end
	a.plugins.Go(func() {
		if err := a.supervisor.Run(running); err != nil {
			a.logger.Error("plugins did not end well", "error", err)
		}
	})
	return nil
}
