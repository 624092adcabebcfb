package agent

import (
	"context"
	"errors"
	"os"
	"slices"
	"time"

	"github.com/nomad-lite/nomad-lite/runtime/agent/services"

	"github.com/nomad-lite/nomad-lite/hclspec/block"
	"github.com/nomad-lite/nomad-lite/internal/clock"
	"github.com/nomad-lite/nomad-lite/internal/descriptors"
	"github.com/nomad-lite/nomad-lite/internal/metrics"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/agent/localnode"
	"github.com/nomad-lite/nomad-lite/runtime/core"
	"github.com/nomad-lite/nomad-lite/runtime/core/allocrunner"
	"github.com/nomad-lite/nomad-lite/runtime/core/noderunner"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskenv"
	"github.com/nomad-lite/nomad-lite/runtime/explain/conditions"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/taskapi"
	"github.com/nomad-lite/nomad-lite/runtime/node/hooks/builtinhooks"
	"github.com/nomad-lite/nomad-lite/runtime/node/hooks/pluginhooks"
	"github.com/nomad-lite/nomad-lite/runtime/node/network"
	"github.com/nomad-lite/nomad-lite/runtime/node/network/hostnet"
	"github.com/nomad-lite/nomad-lite/runtime/node/orphans"
	"github.com/nomad-lite/nomad-lite/runtime/store/identity"
)

type service = services.Service[*Agent]

// allServices are the services of all agents, in the order in which they are opened. They are closed in reverse order.
var allServices = []service{
	{Name: "data directory", Open: openDataDirectory, Close: closeDataDirectory},
	// The fingerprint takes as long as the keeper start, and needs neither the state nor the helper processes.
	{Name: "fingerprint", Open: startFingerprint, Close: endFingerprint},
	{Name: "state", Open: openState, Close: closeState},
	{Name: "status reports", Open: openStatusReports, Until: services.AllocationsReported, Run: runStatusReports},
	{Name: "task owner", In: services.PermanentAgent, Open: openDataDirIdentity},
	{Name: "helper processes", Open: openHelperProcesses, Close: closeHelperProcesses},
	{Name: "unknown allocations", Open: openOrphanCleaner, From: services.AfterRegistration, Run: runOrphanCleaner},
	{Name: "machine", Open: openMachine},
	{Name: "plugins", Open: openPlugins, Run: runPlugins},
	{Name: "node", Open: openNode, Run: runNode},
	{Name: "volumes", Run: runVolumes},
	{Name: "scheduler", Open: openScheduler},
	{Name: "evaluations", In: services.LocalAgent, From: services.AfterRegistration, Run: runScheduler},
	{Name: "identities", Open: openIdentities},
	// Allocations without a record are adopted before it runs, because the servers' list would start them anew.
	{Name: "cluster", In: services.ClusterAgent, Open: openClusterNode, Close: closeClusterNode, From: services.AfterRegistration, Until: services.AgentLeaves, Run: runClusterNode},
	{Name: "allocation source", Open: openAllocSource},
	{Name: "task API", Open: openTaskAPI, Close: closeTaskAPI},
	// The networks of unknown allocations stay, and these are recorded before the registration.
	{Name: "networks", Open: openNetworks, From: services.AfterRegistration, Run: runNetworks},
	{Name: "hooks", Open: openHooks},
	{Name: "allocations", Open: openAllocations},
	{Name: "output losses", Until: services.RunnersReturned, Run: runOutputLosses},
	{Name: "conditions", Open: openConditions, From: services.AfterRegistration, Run: runConditions},
	{Name: "plugin processes", Open: startPlugins, Close: stopPlugins, Run: runPluginProcesses},
	{Name: "disk reserve", Run: runDiskReserve},
	{Name: "clock", Run: runClock},
	{Name: "memory", From: services.AfterRegistration, Run: runMemory}, // tasks start from here on
	{Name: "destroy timeout", In: services.EphemeralAgent, From: services.AtShutdown, Until: services.RunnersReturned, Run: runDestroyTimeout},
}

// extensionsBefore is the service before which extensions are opened.
const extensionsBefore = "allocations"

// servicesOf returns the services of an agent, with its extensions.
func servicesOf(c *Config) []service {
	has := map[services.Agents]bool{
		services.AnyAgent: true, services.LocalAgent: c.Cluster == nil, services.ClusterAgent: c.Cluster != nil,
		services.PermanentAgent: !c.hasEphemeralState(), services.EphemeralAgent: c.hasEphemeralState(),
	}
	list := slices.DeleteFunc(slices.Clone(allServices), func(s service) bool { return !has[s.In] })
	at := slices.IndexFunc(list, func(s service) bool { return s.Name == extensionsBefore })
	for _, e := range slices.Backward(c.Extensions) {
		list = slices.Insert(list, at, newExtensionService(e))
	}
	return list
}

// Open locks the data directory, reads the state, fingerprints the machine and starts the helper processes and the plugins. It
// does not wait for the plugins. The caller calls Run at most once, and Close at the end. The end of ctx ends only the wait for a
// lock held by a killed agent or another foreground run.
func Open(ctx context.Context, c Config) (*Agent, error) {
	return openWith(ctx, c, servicesOf(&c))
}

func openWith(ctx context.Context, c Config, list []service) (*Agent, error) {
	a := &Agent{logger: c.Logger, config: c, services: services.NewList(list, c.Logger)}
	if err := a.services.Open(ctx, a); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return a, nil
}

func openDataDirectory(ctx context.Context, a *Agent) (err error) {
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
	a.files = &AllocFiles{root: a.dataDirectory.allocDirRoot()}
	return nil
}

func closeDataDirectory(a *Agent) error {
	if a.dataDirectory == nil {
		return nil
	}
	return a.dataDirectory.close()
}

func startFingerprint(ctx context.Context, a *Agent) error {
	a.fingerprinting = startFingerprinting(context.WithoutCancel(ctx), a.config.Node, a.config.Version, a.dataDirectory, a.logger)
	return nil
}

func endFingerprint(a *Agent) error {
	a.fingerprinting.cancel()
	a.fingerprinting.wait()
	return nil
}

func openMachine(_ context.Context, a *Agent) error {
	a.machine = a.fingerprinting.wait()
	return nil
}

func openState(ctx context.Context, a *Agent) (err error) {
	if a.store, err = openStore(ctx, a.dataDirectory, a.config.Version, a.logger); err != nil {
		return err
	}
	return checkMode(ctx, a.store, a.config.Cluster != nil, a.logger)
}

func closeState(a *Agent) error {
	if a.store == nil {
		return nil
	}
	err := a.store.Close()
	if a.dataDirectory.isStateEphemeral {
		err = errors.Join(err, os.Remove(a.dataDirectory.statePath()))
	}
	return err
}

func openStatusReports(_ context.Context, a *Agent) error {
	a.allocSync = localnode.NewAllocSync(a.store, a.config.Cluster == nil, a.logger)
	return nil
}

func runStatusReports(ctx context.Context, a *Agent) { a.allocSync.Run(ctx, a.source.reports) }

func openDataDirIdentity(_ context.Context, a *Agent) (err error) {
	tasksMayRun := (&remainingProcessDecider{store: a.store}).tasksMayRun()
	a.dataDirIdentity, err = verifyAndLoadDataDirIdentity(a.dataDirectory, a.store, tasksMayRun, a.config.ClaimTasksOfCopiedDataDir, findRunningDirWithSameID, a.logger)
	return err
}

// openHelperProcesses starts the helper processes, and records the data directory as the owner of its state's tasks. The end of
// ctx ends only the wait for a port: afterwards, the caller shuts the agent down in order.
func openHelperProcesses(ctx context.Context, a *Agent) error {
	a.helperProcesses = &helperProcesses{dataDirectory: a.dataDirectory, isTaskExpected: a.config.EphemeralState, logger: a.logger}
	if err := a.helperProcesses.start(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	if a.dataDirIdentity != nil {
		if err := a.dataDirIdentity.storeAsOwner(context.WithoutCancel(ctx), a.helperProcesses.keeper.Status().KeeperProcess); err != nil {
			a.logger.Error("owner of the data directory not recorded", "error", err)
		}
	}
	if a.config.OnKeeperRunning == nil {
		return nil
	}
	return a.config.OnKeeperRunning(ctx, a.helperProcesses.keeper)
}

func closeHelperProcesses(a *Agent) error {
	remaining := a.remainingProcessDecider
	if remaining == nil {
		remaining = &remainingProcessDecider{store: a.store, logger: a.logger}
	}
	return a.helperProcesses.close(remaining)
}

func openOrphanCleaner(_ context.Context, a *Agent) error {
	pool := newUserPool(a.store, a.config.DynamicUsers, a.logger)
	if pool != nil {
		a.taskUsers = pool
	}
	k := a.helperProcesses.keeper
	a.orphanCleaner = &orphans.Cleaner{
		Store: a.store, AllocDirRoot: a.dataDirectory.allocDirRoot(), Rebooted: detectAndRecordReboot(a.store, a.logger), Logger: a.logger,
		StateWasEphemeral: a.dataDirectory.isStateEphemeral, EndTasksOfUnknownAllocs: a.config.EndTasksWithoutRecord,
		AdoptUnknownAllocs: a.config.AdoptTasksWithoutRecord, AdoptAllocsOfNode: a.config.Cluster != nil,
		IsTrustedParent:      func(pid int) bool { return trustedParents([]int{k.Status().KeeperProcess.PID})(pid) },
		OnProcessLeftRunning: func(allocID, task string, p osprocess.ID) { reserveUserOfProcess(pool, allocID, task, p) },
	}
	a.allocSync.WithholdAllocs(a.orphanCleaner.AllocsWithoutTaskRecord())
	a.remainingProcessDecider = &remainingProcessDecider{store: a.store, orphanCleaner: a.orphanCleaner, logger: a.logger}
	return nil
}

func runOrphanCleaner(ctx context.Context, a *Agent) {
	a.orphanCleaner.WatchUnknownAllocs(ctx, a.scheduler.RetryBlockedEvals)
}

func openPlugins(_ context.Context, a *Agent) error {
	nodeID := a.loadOrNewNodeID()
	config := supervisor.Config{
		Catalog:          a.config.Plugins,
		Keeper:           a.helperProcesses.keeper,
		KeeperSocketPath: a.helperProcesses.keeper.SocketPath(),
		DataDirID:        a.dataDirIdentity.idOrRandom(),
		EnsureSocketDir:  a.helperProcesses.sockets.restoreMissingDirAndSockets,
		DriverConfig:     driverConfig(a.machine.settings, a.machine.host),
		HookConfig:       hook.Config{HostSocket: a.helperProcesses.sockets.hookSocketPath(), Node: newHookNode(nodeID, a.machine.settings)},
		AfterCall:        metrics.ObservePluginCall,
		IgnoreLateCalls:  a.config.NoPluginTimeouts,
		Secrets:          a.config.Secrets,
		Logger:           a.logger,
	}
	var cache pluginCache = filePluginCache(a.config.PluginDescriptionCacheFile)
	if !a.dataDirectory.isStateEphemeral {
		cache = storePluginCache{a.store}
		config.RecordStore = newPluginProcessRecordStore(a.store, a.dataDirectory.path, a.logger)
		config.KeepRunning = a.remainingProcessDecider.mustKeepPlugin
	}
	a.nodeID, a.plugins = nodeID, newPluginManager(config, cache, a.config.AllocRunnerLimits.StatsSampleInterval)
	return nil
}

func runPlugins(ctx context.Context, a *Agent) { a.plugins.runBackgroundLoops(ctx) }

func openNode(_ context.Context, a *Agent) error {
	volumesDir, pluginDir := volumeDirs(&a.config, a.dataDirectory.path)
	a.node = localnode.New(localnode.Config{
		ID: a.nodeID, Settings: a.machine.settings, Host: a.machine.host, Store: a.store, Plugins: a.plugins.supervisor,
		VolumesDir: volumesDir, VolumePluginDir: pluginDir, Logger: a.logger,
	})
	return nil
}

func runNode(ctx context.Context, a *Agent) {
	a.node.Run(ctx, localnode.Events{
		BeforeRegister: func(ctx context.Context) {
			a.orphanCleaner.DestroyOrAdoptOrphans(ctx, a.plugins.supervisor, a.newAdoption())
			a.allocSync.ReleaseAllocs()
		},
		OnRegistered: func() {
			a.orphanCleaner.CleanUpAfterEndedAllocs()
			if err := a.identities.DeleteOrphanedTokens(context.WithoutCancel(ctx)); err != nil {
				a.logger.Warn("tokens of removed allocations stay in the state until the next start", "error", err)
			}
			if !a.dataDirectory.isTemporary { // a temporary directory's name is random
				logKeepersOfLostDir(a.dataDirectory.path, a.logger)
			}
		},
		OnStored:              a.scheduler.RetryBlockedEvals,
		OnDeviceHealthChanged: a.allocs.EmitDeviceEvents,
	})
}

func runVolumes(ctx context.Context, a *Agent) { a.node.VolumeManager().RestoreVolumesAndPlugins(ctx) }

func openScheduler(_ context.Context, a *Agent) error {
	a.hostPorts = &hostPortChecker{orphanCleaner: a.orphanCleaner, addresses: a.machine.host.HostNetworkAddressesExceptIP()}
	a.scheduler = newScheduler(a.store, a.nodeID, a.hostPorts, a.orphanCleaner, a.node.FirstReportsDone(), a.config.SchedulerGC, a.allocSync.NotifyAllocsChanged, a.logger)
	return nil
}

func runScheduler(ctx context.Context, a *Agent) { a.scheduler.Run(ctx) }

func openIdentities(_ context.Context, a *Agent) error {
	a.identities = identity.NewIssuer(identity.Config{Store: a.store, Region: a.machine.settings.Region, IssuerURL: a.config.OIDCIssuer})
	return nil
}

func openClusterNode(ctx context.Context, a *Agent) (err error) {
	a.cluster, err = newClusterNode(context.WithoutCancel(ctx), clusterNodeConfig{
		ClusterConfig: a.config.Cluster, region: a.machine.settings.Region, nodeID: a.nodeID, host: a.machine.host,
		dataDir: a.dataDirectory.path, store: a.store, identities: a.identities, onAllocsChanged: a.allocSync.NotifyAllocsChanged, logger: a.logger,
	})
	return err
}

func closeClusterNode(a *Agent) error {
	if a.cluster != nil {
		a.cluster.data.Close()
	}
	return nil
}

func runClusterNode(ctx context.Context, a *Agent) { a.cluster.run(ctx, a.allocs.AllocRunner) }

func openAllocSource(_ context.Context, a *Agent) error {
	if a.cluster != nil {
		a.source = a.cluster.allocSource(a.orphanCleaner)
	} else {
		a.source = newLocalAllocSource(a.store, a.scheduler, a.identities)
	}
	return nil
}

func openTaskAPI(_ context.Context, a *Agent) (err error) {
	a.taskAPI, err = taskapi.New()
	return err
}

func closeTaskAPI(a *Agent) error {
	if a.taskAPI == nil {
		return nil
	}
	return a.taskAPI.Close()
}

func openNetworks(_ context.Context, a *Agent) error {
	a.allocNetworks = network.New(allocNetworkStore{a.store}, a.plugins.supervisor, hostnet.New(a.machine.settings.Networks), a.logger)
	return nil
}

func runNetworks(ctx context.Context, a *Agent) {
	a.allocNetworks.RunDestroyRetriesAndRepairs(ctx, networkReplacer(a.allocs))
}

func openHooks(_ context.Context, a *Agent) error {
	a.plugins.createHookPlugins(&a.config, loadOrCreateHookTokenKey(a.store, a.logger), hookCleanupStore{a.store, a.logger})
	return nil
}

func openAllocations(_ context.Context, a *Agent) error {
	limits := a.config.AllocRunnerLimits
	limits.NodeCPUMHz = int64(a.machine.host.UsableCPUMHz)
	if limit, err := osprocess.DescriptorLimit(); err == nil {
		limits.FileOperationLimiter = descriptors.NewLimiter(limit)
	}
	withoutDriver := taskEnderWithoutDriver{a.helperProcesses.keeper, a.config.DecodeTaskProcess}
	machine := builtinhooks.NewMachine(builtinhooks.MachineConfig{
		AllocDirRoot:          a.dataDirectory.allocDirRoot(),
		LogCollector:          a.helperProcesses.logCollector,
		Services:              a.source.services,
		CheckResults:          a.store,
		Identities:            a.source.tokens,
		TaskAPI:               a.taskAPI,
		NewCgroupManager:      newCgroupManagerSelector(openCgroups(a.machine.host, a.logger), a.plugins.supervisor.UsesBuiltin),
		NetworkManager:        a.allocNetworks,
		DeviceReserver:        a.plugins.devices,
		DynamicUserPool:       a.taskUsers,
		VariableReader:        newVariableReader(a.source.data),
		FindVolume:            a.node.FindHostVolume,
		FindRemotePrevious:    a.source.findRemotePrevious,
		DriverMountsHostFiles: a.plugins.supervisor.DriverMountsHostFiles,
		TaskRules:             a.config.TaskRules,
	})
	a.allocs = noderunner.New(noderunner.Config{
		Source: a.allocSync,
		AllocRunnerTemplate: allocrunner.Config{
			InheritedHostEnv:          taskenv.FilterHostEnv(os.Environ(), a.config.EnvDenylist, a.config.EnvAllowlist),
			Drivers:                   a.plugins.supervisor,
			EncodeTaskConfig:          block.EncodeConfig,
			Metrics:                   runnerMetrics{},
			Machine:                   machine,
			Store:                     a.store,
			CheckStateWrite:           a.store.CheckWrite,
			HookFactory:               a.plugins.hookPlugins,
			Limits:                    limits,
			NewTrace:                  a.newAllocTrace,
			EarlierRecords:            localnode.TaskRecordReader{Store: a.store},
			RebootedSinceEarlierAgent: a.orphanCleaner.Rebooted,
			AwaitNewStart:             a.source.awaitNewStart,
			EndTaskWithoutDriver:      withoutDriver.endTask,
			AwaitExitWithoutDriver:    withoutDriver.awaitExitWithoutDriver,
			Logger:                    a.logger,
			Secrets:                   a.config.Secrets,
		},
		NodeForTasks:   a.node.TaskEnvNode,
		AllocDirRoot:   a.dataDirectory.allocDirRoot(),
		OnStopping:     a.trim.NotifyBusy,
		OnStatusReport: func(u model.AllocReport) { noteReport(&a.trim, u) },
		// The trim releases the memory of garbage-collected allocations even if no other allocation changes afterwards.
		OnAllocDirRemoved: a.trim.PostponeTrim,
		GCLimits:          a.config.GC,
		Logger:            a.logger,
	})
	return nil
}

// runOutputLosses adds events about lost or resumed output to the tasks, and makes the agent look at its conditions.
func runOutputLosses(ctx context.Context, a *Agent) {
	for losses := a.helperProcesses.logCollector.Losses().Changed(); ; {
		select {
		case loss := <-losses:
			emitOutputLoss(a.allocs, loss)
			a.conditions.LookNow()
		case <-ctx.Done():
			return
		}
	}
}

func openConditions(_ context.Context, a *Agent) error {
	a.conditionFacts = newConditionFacts(conditionSources{
		dataDir: a.dataDirectory.path, store: a.store, helpers: a.helperProcesses, plugins: a.plugins.supervisor, nodeID: a.nodeID,
		orphanCleaner: a.orphanCleaner, serverAddrs: a.source.serverAddrs, certificates: a.config.Certificates,
	})
	a.conditions = conditions.NewTracker(a.conditionFacts.read)
	return nil
}

func runConditions(ctx context.Context, a *Agent) {
	reporter := conditionReporter{store: a.store, nodeID: a.nodeID, logger: a.logger}
	a.conditions.Run(ctx, func(begun, ended []conditions.Condition) { reporter.report(ctx, begun, ended) })
}

func startPlugins(ctx context.Context, a *Agent) error {
	listener, err := a.helperProcesses.sockets.listenForHooks()
	if err != nil {
		return err
	}
	a.plugins.startHostService(listener, loadOrCreateHookTokenKey(a.store, a.logger), a.source.data, a.allocs)
	a.helperProcesses.sockets.startRestoringRemovedSockets()
	a.plugins.start(ctx, supervisor.Tasks{
		Use: func(what supervisor.PluginKey) bool {
			return !a.allocs.HasLoadedStoredAllocs() || a.allocs.UsesPlugin(core.Plugin(what))
		},
		OnEvent: a.allocs.ForwardTaskEvent,
	})
	return nil
}

// stopPlugins ends the plugin processes that need not continue for their tasks.
func stopPlugins(a *Agent) error {
	a.helperProcesses.sockets.stopWatching() // the watching goroutine would restore the sockets removed by closeHelperProcesses
	if !a.dataDirectory.isStateEphemeral {
		a.remainingProcessDecider.decideRemainingProcesses(a.allocs.PluginsNeededAfterShutdown(), a.helperProcesses.keeper, a.plugins.supervisor.PIDsWithoutTasks())
	}
	a.plugins.close()
	return nil
}

// runPluginProcesses postpones the trim when plugin processes start and stop: both load pages of the agent's program, which the
// trim releases.
func runPluginProcesses(ctx context.Context, a *Agent) {
	a.plugins.watchPluginPIDs(ctx, a.trim.PostponeTrim)
}

func runDiskReserve(ctx context.Context, a *Agent) {
	a.dataDirectory.maintainDiskReserve(ctx, a.node.Registered())
}

// runClock reports clock steps to the services that compare times.
func runClock(ctx context.Context, a *Agent) {
	onStep := func() {
		a.scheduler.RequestClockCheck()
		a.identities.NotifyClockStep()
		a.conditionFacts.clockSteppedAt.Store(new(time.Now()))
		a.conditions.LookNow()
	}
	if err := clock.WatchSteps(ctx, onStep); err != nil {
		a.logger.Warn("steps of the clock are noticed late", "error", err)
	}
}

func runMemory(_ context.Context, a *Agent) { a.trim.EndBusy() }

// runDestroyTimeout force kills allocations with a task that its driver does not destroy: no later agent can repeat the destroy.
func runDestroyTimeout(ctx context.Context, a *Agent) {
	a.allocs.ForceKillAllocsIfDestroyTimesOut(ctx, func() {
		a.logger.Warn("a driver has not destroyed its ended tasks; the agent shuts down without it")
	})
}
