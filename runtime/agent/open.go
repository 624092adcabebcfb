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
	"github.com/nomad-lite/nomad-lite/plugins/safepath"
	"github.com/nomad-lite/nomad-lite/plugins/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/fingerprint"
	"github.com/nomad-lite/nomad-lite/runtime/hookplugin"
	"github.com/nomad-lite/nomad-lite/runtime/logs"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// open makes the parts of an agent, each with those before it.
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
	a.fingerprint(c)
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
		// A run believes nothing that is there, and the person who asked for it is
		// where its job file is.
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
		return ensureDir(a.AllocDirs(), 0o711) // users of tasks pass through it to their own
	}
	return a.closeDirectory()
}

// closeDirectory closes the data directory of an agent that is not root to all other
// accounts: its tasks are processes of the same user. Where it belongs to another user,
// the directory of the allocations is closed instead.
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

// statePath is where the state is. That of a foreground run is beside the one of
// an agent.
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
	config := store.Config{Path: a.statePath(), Logger: a.logger, SecretFacts: []string{pendingCleanupKey}, TemporaryKeys: a.forget}
	if !a.forget {
		config.KeyFile = filepath.Join(a.dataDir, keyFile)
	}
	if a.store, err = store.Open(config); err != nil {
		return fmt.Errorf("open state: %w", err)
	}
	a.nodeID = loadNodeID(a.store)
	a.readMeta()
	a.loadPluginCache()
	started := make(map[string]bool)
	for _, id := range a.store.Snapshot().LocalAllocations() {
		started[id] = true
	}
	a.allocSync = &allocSync{
		started: started,
		store:   a.store,
		nodeID:  a.nodeID,
		logger:  a.logger.Named("ring"),
		wake:    make(chan struct{}, 1),
		changed: make(chan struct{}),
		reports: make(map[string]scheduler.Report),
		urgent:  make(map[string]bool),
	}
	opened := time.Now()
	a.scheduler = scheduler.New(scheduler.Config{
		Store: Records(a.store, a.nodeID, a.allocSync.desired),
		Host: scheduler.Env{
			NewID:    uuid.NewString,
			PortFree: scheduler.PortFree,
			Pick:     rand.IntN,
			Now:      time.Now,
			Uptime:   func() time.Duration { return time.Since(opened) },
		},
		GC:     a.config.Records,
		Logger: a.logger,
	})
	a.allocSync.scheduler = a.scheduler
	return a.detectReboot()
}

// bootKey is the record of the boot during which the state was written last.
const bootKey = "boot_id"

// detectReboot finds out whether the machine has been booted since the last agent.
func (a *Agent) detectReboot() error {
	now, err := keeper.BootID()
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

// startHelpers starts the keeper, and what it starts.
func (a *Agent) startHelpers(ctx context.Context) (err error) {
	if a.sockets, err = openSockets(a.dataDir, a.logger); err != nil {
		return err
	}
	former := formerSocketDirs(a.dataDir)
	a.keeper, err = keeper.Start(ctx, keeper.Config{
		Dir:       a.dataDir,
		Former:    former,
		Args:      []string{argv0, "keeper"},
		Ephemeral: a.temporary,
		Logger:    a.logger,
	})
	if err != nil {
		return fmt.Errorf("start keeper: %w", err)
	}
	a.sockets.keeper = a.keeper
	if a.temporary {
		// The keeper outlives a killed agent until all processes are gone: so long
		// must nobody remove the directory.
		if err := a.keeper.StoreFD(ctx, lockFile, a.lock); err != nil {
			return fmt.Errorf("hand the lock to the keeper: %w", err)
		}
	}
	a.collector, err = logs.New(logs.Config{
		Keeper: a.keeper,
		Dir:    a.dataDir,
		Former: former,
		Args:   []string{argv0, "log-collector"},
		Logger: a.logger,
	})
	if err != nil {
		return fmt.Errorf("start log collector: %w", err)
	}
	return nil
}

// fingerprint finds out about the machine. What the operator says counts more.
func (a *Agent) fingerprint(c Config) {
	a.host = fingerprint.Read(fingerprint.Options{DataDir: a.dataDir, Version: c.Version})
	if name := c.Node.NetworkInterface; name != "" {
		if ip, err := interfaceIP(name); err != nil {
			a.host.Degraded = append(a.host.Degraded, err.Error())
		} else {
			a.host.IP = ip
			a.host.Attributes["unique.network.ip-address"] = ip
		}
	}
	for _, o := range []struct {
		value     int
		field     *int
		attribute string
		unit      int
	}{
		{c.Node.CPU, &a.host.CPUMHz, "cpu.usablecompute", 1},
		{c.Node.MemoryMB, &a.host.MemoryMB, "memory.totalbytes", 1 << 20},
		{c.Node.DiskMB, &a.host.DiskMB, "unique.storage.bytestotal", 1 << 20},
	} {
		if o.value > 0 {
			*o.field = o.value
			a.host.Attributes[o.attribute] = fmt.Sprint(o.value * o.unit)
		}
	}
	for _, lack := range a.host.Degraded {
		a.logger.Info("degraded", "reason", lack)
	}
	a.config.Node.fill(a.host.Hostname)
	a.usage.Dir, a.usage.MHz = a.AllocDirs(), a.host.CPUMHz
}

// ClientMinPort and ClientMaxPort are the ports that helper processes of drivers
// use, unless the operator has chosen others.
const ClientMinPort, ClientMaxPort = 14000, 14512

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

// startPlugins has the plugins started, and waits for none of them.
func (a *Agent) startPlugins(ctx context.Context, known *catalog.Catalog) error {
	config := supervisor.Config{
		Catalog:      known,
		Keeper:       a.keeper,
		KeeperSocket: a.keeper.Socket(),
		SocketDir:    a.sockets.restore,
		Host:         a.driverConfig(),
		Hooks:        hook.Config{HostSocket: a.hookSocket(), Node: a.nodeForHooks()},
		Busy: func(what supervisor.PluginKey) bool {
			nodes := a.running()
			return nodes == nil || nodes.Uses(what)
		},
		OnTaskEvent: a.taskEvent,
		Logger:      a.logger,
	}
	if !a.forget {
		config.Records = pluginRecords{a.store}
		config.Keep = a.keepsPlugin
	}
	a.supervisor = supervisor.New(config)
	if err := a.makeHooks(); err != nil {
		return err
	}
	a.sockets.watch()
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
