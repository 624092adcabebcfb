package agent

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/internal/hostport"
	"github.com/nomad-lite/nomad-lite/internal/metrics"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/agent/history"
	"github.com/nomad-lite/nomad-lite/runtime/agent/localnode"
	"github.com/nomad-lite/nomad-lite/runtime/agent/otlp"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/membership"
	"github.com/nomad-lite/nomad-lite/runtime/core"
	"github.com/nomad-lite/nomad-lite/runtime/explain/conditions"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/taskapi"
	"github.com/nomad-lite/nomad-lite/runtime/node/hooks/pluginhooks"
	"github.com/nomad-lite/nomad-lite/runtime/node/network"
	"github.com/nomad-lite/nomad-lite/runtime/node/network/hostnet"
	"github.com/nomad-lite/nomad-lite/runtime/node/orphans"
	"github.com/nomad-lite/nomad-lite/runtime/node/resources/fingerprint"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/identity"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// open creates the parts of an agent. Each part may use those created before it.
func (a *Agent) open(ctx context.Context) (err error) {
	if limit, err := osprocess.RaiseOwnDescriptorLimit(); err != nil {
		a.logger.Debug("limit of open files not raised", "limit", limit, "error", err)
	}
	if rules := a.config.HookRules; len(rules) > 0 {
		if err := pluginhooks.CheckRulesAgainstCatalog(rules, a.config.Plugins.Entries()); err != nil {
			return err
		}
	}
	if a.dataDirectory, err = makeAndLockDataDirectory(ctx, a.config); err != nil {
		return err
	}
	a.conditionFacts = newConditionFacts(a)
	a.conditions = conditions.NewTracker(a.conditionFacts.read)
	a.helperProcesses = &helperProcesses{dataDirectory: a.dataDirectory, onOutputLoss: a.reportOutputLoss, isTaskExpected: a.config.EphemeralState, logger: a.logger}
	// The fingerprint takes as long as the keeper start, and needs neither the state nor the helper processes.
	untilOpenFails, cancelFingerprint := context.WithCancel(context.WithoutCancel(ctx))
	defer cancelFingerprint()
	var settings localnode.Settings
	var fingerprintWG sync.WaitGroup
	fingerprintWG.Go(func() { settings = a.fingerprint(untilOpenFails) })
	if err = a.openStateAndStartHelpers(ctx); err != nil {
		cancelFingerprint()
	}
	fingerprintWG.Wait()
	if err != nil {
		return err
	}
	return a.openNodeAndPlugins(context.WithoutCancel(ctx), settings)
}

// openStateAndStartHelpers opens the state, and starts the helper processes if the data directory owns the tasks in the state.
// The end of ctx ends only the waits for locks and for a port: afterwards, the caller shuts the agent down in order.
func (a *Agent) openStateAndStartHelpers(ctx context.Context) error {
	if err := a.openState(ctx); err != nil {
		return err
	}
	if err := a.startHelpers(context.WithoutCancel(ctx)); err != nil || a.config.OnKeeperRunning == nil {
		return err
	}
	return a.config.OnKeeperRunning(ctx, a.helperProcesses.keeper)
}

// openState opens the state, and checks that the data directory owns the tasks in it.
func (a *Agent) openState(ctx context.Context) (err error) {
	d := a.dataDirectory
	if a.store, err = openStore(ctx, d, a.config.Version, a.logger); err != nil {
		return err
	}
	if err := checkMode(ctx, a.store, a.config.Cluster != nil, a.logger); err != nil {
		return err
	}
	pool := newUserPool(a.store, a.config.DynamicUsers, a.logger)
	if pool != nil {
		a.taskUsers = pool
	}
	a.allocSync = localnode.NewAllocSync(a.store, a.config.Cluster == nil, a.logger)
	a.orphanCleaner = &orphans.Cleaner{
		Store: a.store, AllocDirRoot: d.allocDirRoot(), Rebooted: detectAndRecordReboot(a.store, a.logger), Logger: a.logger,
		StateWasEphemeral: d.isStateEphemeral, EndTasksOfUnknownAllocs: a.config.EndTasksWithoutRecord,
		IsTrustedParent: func(pid int) bool {
			return trustedParents([]int{a.helperProcesses.keeper.Status().KeeperProcess.PID})(pid)
		},
		OnProcessLeftRunning: func(allocID, task string, p osprocess.ID) { reserveUserOfProcess(pool, allocID, task, p) },
	}
	a.allocSync.WithholdAllocs(a.orphanCleaner.AllocsWithoutTaskRecord())
	a.remainingProcessDecider = &remainingProcessDecider{store: a.store, orphanCleaner: a.orphanCleaner, logger: a.logger}
	if d.isStateEphemeral {
		return nil
	}
	a.dataDirIdentity, err = verifyAndLoadDataDirIdentity(d, a.store, a.remainingProcessDecider.tasksMayRun(), a.config.ClaimTasksOfCopiedDataDir, findRunningDirWithSameID, a.logger)
	return err
}

// startHelpers starts the helper processes, and records the data directory as the owner of its state's tasks.
func (a *Agent) startHelpers(ctx context.Context) error {
	if err := a.helperProcesses.start(ctx); err != nil || a.dataDirIdentity == nil {
		return err
	}
	if err := a.dataDirIdentity.storeAsOwner(ctx, a.helperProcesses.keeper.Status().KeeperProcess); err != nil {
		a.logger.Error("owner of the data directory not recorded", "error", err)
	}
	return nil
}

// fingerprint reads the machine's properties. It returns the node's settings with their defaults on this machine.
func (a *Agent) fingerprint(ctx context.Context) localnode.Settings {
	settings := a.config.Node
	a.host = settings.Fingerprint(fingerprint.Options{DataDir: a.dataDirectory.path, AgentVersion: a.config.Version}, a.logger)
	a.hostSampler.Dir, a.hostSampler.MHz = a.dataDirectory.allocDirRoot(), a.host.UsableCPUMHz
	a.history = history.NewRecorder(a.dataDirectory.historyPath(), historyNode{a}, a.logger)
	settings = settings.WithDefaults(a.host.Hostname)
	settings.Networks.CNICacheDir = a.dataDirectory.cniCacheDir()
	settings.FingerprintNetworks(ctx, &a.host, a.logger)
	settings.Networks.Bridge.AddressesForwardingOnlyHostIPPorts = a.host.HostNetworkAddressesExceptIP()
	return settings
}

// openNodeAndPlugins creates the scheduler, the task API and the node, and starts the plugins. settings is the result of
// fingerprint.
func (a *Agent) openNodeAndPlugins(ctx context.Context, settings localnode.Settings) (err error) {
	var credentials membership.Credentials
	if a.config.Cluster != nil {
		// membership.New logs an error.
		credentials, _ = membership.ReadCredentials(filepath.Join(a.dataDirectory.path, membership.CredentialsFile))
	}
	nodeID := localnode.LoadOrNewNodeID(a.store, credentials.NodeID)
	a.scheduler = a.newScheduler(nodeID)
	a.identities = identity.NewIssuer(identity.Config{Store: a.store, Region: settings.Region, IssuerURL: a.config.OIDCIssuer})
	if a.config.Cluster != nil {
		if err := a.openCluster(ctx, nodeID, settings.Region); err != nil {
			return err
		}
	}
	if a.taskAPI, err = taskapi.New(); err != nil {
		return err
	}
	if a.config.OTLP.IsExportEnabled() {
		a.traceExporter, err = otlp.NewTraceExporter(a.config.OTLP, otlp.AgentFacts{
			Version: a.config.Version, NodeID: nodeID, NodeName: settings.Name, Datacenter: settings.Datacenter, Region: settings.Region, HostName: a.host.Hostname,
		}, a.logger)
		if err != nil {
			return err
		}
	}
	return a.createNodeAndStartPlugins(ctx, nodeID, settings)
}

// openStore opens a data directory's state.
func openStore(ctx context.Context, d *dataDirectory, version string, logger hclog.Logger) (*store.Store, error) {
	config := store.Config{StateFilePath: d.statePath(), BuildVersion: version, Logger: logger, TemporaryKeys: d.isStateEphemeral, OnWrite: metrics.ObserveStoreWrite}
	// An agent also removes a killed foreground run's state file: findUnrecordedAllocIDs, which the next foreground run calls,
	// would take the agent's tasks for tasks of the killed run.
	if err := os.Remove(filepath.Join(d.path, runStateFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove old state: %w", err)
	}
	if err := os.Remove(filepath.Join(d.path, runHistoryFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove old usage history: %w", err)
	}
	if !d.isStateEphemeral {
		config.KeyFile, config.ReserveDiskSpace = filepath.Join(d.path, keyringFile), true
	}
	s, err := store.Open(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("open state: %w", err)
	}
	return s, nil
}

func (a *Agent) newScheduler(nodeID string) *scheduler.Scheduler {
	opened := time.Now()
	return scheduler.New(scheduler.Config{
		Store:  a.store,
		NodeID: nodeID,
		HostEnv: scheduler.Env{
			NewID:                 uuid.NewString,
			IsPortFree:            a.IsPortFree,
			DescribePortListeners: hostport.Listeners,
			RandIntN:              rand.IntN,
			Now:                   time.Now,
			MonotonicUptime:       func() time.Duration { return time.Since(opened) },
			FirstPluginReports:    func() <-chan struct{} { return a.node.FirstReportsDone() },
			FindUnknownInstance:   a.orphanCleaner.FindUnknownInstance,
		},
		GC:                     a.config.SchedulerGC,
		Logger:                 a.logger,
		OnDesiredAllocsChanged: a.allocSync.NotifyAllocsChanged,
	})
}

// IsPortFree reports whether a task could listen on a port. A default network port is free even if another program listens on it
// at another network's address.
func (a *Agent) IsPortFree(p scheduler.HostPort) bool {
	if a.orphanCleaner.UnknownTaskUsesHostPort(p.Port) {
		return false
	}
	if address, err := netip.ParseAddr(p.Address); err == nil {
		return hostport.IsFreeAt(address, p.Port)
	}
	return hostport.IsFree(p.Port, a.host.HostNetworkAddressesExceptIP()...)
}

// detectAndRecordReboot reports whether the machine was booted since the last agent ran.
func detectAndRecordReboot(s *store.Store, logger hclog.Logger) (rebooted bool) {
	now, err := osprocess.BootID()
	if err != nil {
		logger.Warn("a reboot cannot be told from a restart of the agent", "error", err)
		return false
	}
	before := ""
	known, err := s.Snapshot().ReadAgentRecord(state.BootIDName, &before)
	if err == nil && known && before == now {
		return false
	}
	// If a later task start were stored without this boot's id, the next agent would start the task twice.
	s.UpdateInNextTransaction(func(tx *store.Txn) error {
		tx.PutAgentRecord(state.BootIDName, now)
		return nil
	})
	if _, err := s.Update(context.Background(), func(*store.Txn) error { return nil }); err != nil {
		logger.Error("boot of the machine not recorded yet", "error", err)
	}
	return known
}

// createNodeAndStartPlugins creates the node and starts the plugins. It does not wait for them.
func (a *Agent) createNodeAndStartPlugins(ctx context.Context, nodeID string, settings localnode.Settings) error {
	var cache pluginCache = filePluginCache(a.config.PluginDescriptionCacheFile)
	config := supervisor.Config{
		Catalog:          a.config.Plugins,
		Keeper:           a.helperProcesses.keeper,
		KeeperSocketPath: a.helperProcesses.keeper.SocketPath(),
		DataDirID:        a.dataDirIDOrRandom(),
		EnsureSocketDir:  a.helperProcesses.sockets.restoreMissingDirAndSockets,
		DriverConfig:     driverConfig(settings, a.host),
		HookConfig:       hook.Config{HostSocket: a.helperProcesses.sockets.hookSocketPath(), Node: newHookNode(nodeID, settings)},
		HasTasks: func(what supervisor.PluginKey) bool {
			nodes := a.currentNodeRunner()
			return nodes == nil || !nodes.HasLoadedStoredAllocs() || nodes.UsesPlugin(core.Plugin(what))
		},
		OnTaskEvent:     a.forwardTaskEvent,
		AfterCall:       metrics.ObservePluginCall,
		IgnoreLateCalls: a.config.NoPluginTimeouts,
		Secrets:         a.config.Secrets,
		Logger:          a.logger,
	}
	if !a.dataDirectory.isStateEphemeral {
		cache = storePluginCache{a.store}
		config.RecordStore = newPluginProcessRecordStore(a.store, a.dataDirectory.path, a.logger)
		config.KeepRunning = a.remainingProcessDecider.mustKeepPlugin
	}
	a.plugins = newPluginManager(config, cache, a.config.AllocRunnerLimits.StatsSampleInterval)
	a.allocNetworks = network.New(allocNetworkStore{a.store}, a.plugins.supervisor, hostnet.New(settings.Networks), a.replaceNetwork, a.logger)
	a.enableAdoption(model.NodeFacts{ID: nodeID, Name: settings.Name})
	a.node = localnode.New(localnode.Config{
		ID:       nodeID,
		Settings: settings,
		Host:     a.host,
		Store:    a.store,
		Plugins:  a.plugins.supervisor,
		Volumes:  newVolumeManager(a, nodeID),
		Logger:   a.logger,
		BeforeRegister: func(ctx context.Context) {
			a.orphanCleaner.DestroyOrAdoptOrphans(ctx, a.plugins.supervisor)
			a.allocSync.ReleaseAllocs()
		},
		OnRegistered: func() {
			a.orphanCleaner.CleanUpAfterEndedAllocs()
			if err := a.identities.DeleteOrphanedTokens(ctx); err != nil {
				a.logger.Warn("tokens of removed allocations stay in the state until the next start", "error", err)
			}
			if !a.dataDirectory.isTemporary { // a temporary directory's name is random
				a.logKeepersOfLostDir()
			}
		},
		OnNodeStored: a.scheduler.RetryBlockedEvals,
		OnDeviceHealthChanged: func(textByDevice map[string]string) {
			if nodes := a.currentNodeRunner(); nodes != nil {
				nodes.EmitDeviceEvents(textByDevice)
			}
		},
	})
	if err := a.plugins.createHookPluginsAndHostService(a.config, a.store, a.workloadData(), a.helperProcesses.sockets, a.Alloc); err != nil {
		return err
	}
	a.helperProcesses.sockets.startRestoringRemovedSockets()
	a.plugins.start(ctx)
	return nil
}
