package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/nomad-lite/nomad-lite/hclspec/block"
	"github.com/nomad-lite/nomad-lite/internal/clock"
	"github.com/nomad-lite/nomad-lite/internal/descriptors"
	"github.com/nomad-lite/nomad-lite/internal/metrics"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/agent/agentplugins"
	"github.com/nomad-lite/nomad-lite/runtime/agent/clusternode"
	"github.com/nomad-lite/nomad-lite/runtime/agent/datadirectory"
	"github.com/nomad-lite/nomad-lite/runtime/agent/localnode"
	"github.com/nomad-lite/nomad-lite/runtime/agent/servicelist"
	"github.com/nomad-lite/nomad-lite/runtime/core"
	"github.com/nomad-lite/nomad-lite/runtime/core/allocrunner"
	"github.com/nomad-lite/nomad-lite/runtime/core/noderunner"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskenv"
	"github.com/nomad-lite/nomad-lite/runtime/explain/conditions"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/taskapi"
	"github.com/nomad-lite/nomad-lite/runtime/node/hooks/builtinhooks"
	"github.com/nomad-lite/nomad-lite/runtime/node/hooks/pluginhooks"
	"github.com/nomad-lite/nomad-lite/runtime/node/network"
	"github.com/nomad-lite/nomad-lite/runtime/node/network/hostnet"
	"github.com/nomad-lite/nomad-lite/runtime/node/orphans"
	"github.com/nomad-lite/nomad-lite/runtime/store/identity"
)

type service = servicelist.Service[*Agent]

// allServices are the services of all agents, in the order in which they are opened. They are closed in reverse order.
var allServices = []service{
	{Name: "configuration", Open: checkConfiguration},
	{Name: "data directory", Open: openDataDirectory, Close: closeDataDirectory},
	// The fingerprint takes as long as the keeper start, and needs neither the state nor the helper processes.
	{Name: "fingerprint", Open: startFingerprint, Close: endFingerprint},
	{Name: "state", Open: openState, Close: closeState},
	{Name: "status reports", Open: openStatusReports, Until: servicelist.AllocationsReported, Run: runStatusReports},
	{Name: "task owner", In: servicelist.PermanentAgent, Open: openDataDirIdentity},
	{Name: "helper processes", Open: openHelperProcesses, Close: closeHelperProcesses},
	{Name: "unknown allocations", Open: openOrphanCleaner, From: servicelist.AfterRegistration, Run: runOrphanCleaner},
	{Name: "machine", Open: openMachine},
	{Name: "plugins", Open: openPlugins, Close: closePlugins, Run: runPlugins},
	{Name: "node", Open: openNode, Run: runNode},
	{Name: "volumes", Run: runVolumes},
	{Name: "scheduler", Open: openScheduler},
	{Name: "evaluations", In: servicelist.LocalAgent, From: servicelist.AfterRegistration, Run: runScheduler},
	{Name: "identities", Open: openIdentities},
	{Name: "key lifetime", In: servicelist.PermanentAgent, Run: runKeyLifetime},
	// Allocations without a record are adopted before it runs, because the servers' list would start them anew.
	{Name: "cluster", In: servicelist.ClusterAgent, Open: openClusterNode, Close: closeClusterNode, From: servicelist.AfterRegistration, Until: servicelist.AgentLeaves, Run: runClusterNode},
	{Name: "allocation source", Open: openAllocSource},
	{Name: "task API", Open: openTaskAPI, Close: closeTaskAPI},
	// The networks of unknown allocations stay, and these are recorded before the registration.
	{Name: "networks", Open: openNetworks, From: servicelist.AfterRegistration, Run: runNetworks},
	{Name: "hooks", Open: openHooks},
	{Name: "allocations", Open: openAllocations},
	{Name: "output losses", Until: servicelist.RunnersReturned, Run: runOutputLosses},
	{Name: "conditions", Open: openConditions, From: servicelist.AfterRegistration, Run: runConditions},
	{Name: "plugin processes", Open: startPlugins, Close: stopPlugins, Run: runPluginProcesses},
	{Name: "disk reserve", Run: runDiskReserve},
	{Name: "clock", Run: runClock},
	{Name: "memory", From: servicelist.AfterRegistration, Run: runMemory}, // from the registration on tasks start
	{Name: "destroy timeout", In: servicelist.EphemeralAgent, From: servicelist.AtShutdown, Until: servicelist.RunnersReturned, Run: runDestroyTimeout},
}

// extensionsBefore is the service before which extensions are opened.
const extensionsBefore = "allocations"

// servicesOf returns the services of an agent, with its extensions.
func servicesOf(c *Config) []service {
	has := map[servicelist.Agents]bool{
		servicelist.AnyAgent: true, servicelist.LocalAgent: c.Cluster == nil, servicelist.ClusterAgent: c.Cluster != nil,
		servicelist.PermanentAgent: !c.hasEphemeralState(), servicelist.EphemeralAgent: c.hasEphemeralState(),
	}
	list := slices.DeleteFunc(slices.Clone(allServices), func(s service) bool { return !has[s.In] })
	at := slices.IndexFunc(list, func(s service) bool { return s.Name == extensionsBefore })
	for _, e := range slices.Backward(c.Extensions) {
		list = slices.Insert(list, at, newExtensionService(e))
	}
	return list
}

// newExtensionService returns the extension as a row of the agent's list.
func newExtensionService(e Extension) service {
	return service{
		Name: e.Name(),
		Open: func(_ context.Context, a *Agent) error {
			if tracer, ok := e.(AllocTracer); ok && a.newAllocTrace != nil {
				return fmt.Errorf("extension %q: another one receives the spans of allocations", e.Name())
			} else if ok {
				a.newAllocTrace = tracer.NewAllocTrace
			}
			return e.Open(ExtensionInput{
				DataDir: a.dataDirectory.Path, NodeID: a.nodeID, Settings: a.machine.settings, Host: a.machine.host, Version: a.config.Version, Logger: a.logger,
			})
		},
		Close: func(*Agent) error { return e.Close() },
		Run:   e.Run,
	}
}

// Open locks the data directory, reads the state, fingerprints the machine and starts the helper processes and the plugins. It
// does not wait for the plugins. The caller calls Run at most once, and Close at the end. The end of ctx ends only the wait for a
// lock held by a killed agent or another foreground run.
func Open(ctx context.Context, c Config) (*Agent, error) {
	return openWith(ctx, c, servicesOf(&c))
}

func openWith(ctx context.Context, c Config, list []service) (*Agent, error) {
	a := &Agent{logger: c.Logger, config: c, services: servicelist.NewList(list, c.Logger)}
	if err := a.services.Open(ctx, a); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return a, nil
}

// checkConfiguration checks what needs no other service.
func checkConfiguration(_ context.Context, a *Agent) error {
	if limit, err := osprocess.RaiseOwnDescriptorLimit(); err != nil {
		a.logger.Debug("limit of open files not raised", "limit", limit, "error", err)
	}
	if rules := a.config.HookRules; len(rules) > 0 {
		return pluginhooks.CheckRulesAgainstCatalog(rules, a.config.Plugins.Entries())
	}
	return nil
}

func openDataDirectory(ctx context.Context, a *Agent) (err error) {
	a.dataDirectory, err = datadirectory.MakeAndLock(ctx, datadirectory.Options{
		Path: a.config.DataDir, IsStateEphemeral: a.config.hasEphemeralState(), AllowSetuidAndDevicesInAllocs: a.config.AllowSetuidAndDevicesInAllocs, Logger: a.logger,
	})
	if err != nil {
		return err
	}
	a.files = &AllocFiles{root: a.dataDirectory.AllocDirRoot()}
	return nil
}

func closeDataDirectory(a *Agent) error {
	if a.dataDirectory == nil {
		return nil
	}
	return a.dataDirectory.Close()
}

func startFingerprint(ctx context.Context, a *Agent) error {
	a.fingerprinting = startFingerprinting(context.WithoutCancel(ctx), a.config.Node, a.config.Version, a.config.CgroupParent, a.dataDirectory, a.logger)
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
	if a.store, err = openStore(ctx, a.dataDirectory, &a.config, a.logger); err != nil {
		return err
	}
	return clusternode.CheckMode(ctx, a.store, a.config.Cluster != nil, a.logger)
}

func closeState(a *Agent) error {
	if a.store == nil {
		return nil
	}
	err := a.store.Close()
	if a.dataDirectory.IsStateEphemeral {
		err = errors.Join(err, os.Remove(a.dataDirectory.StatePath()))
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
	a.dataDirIdentity, err = datadirectory.VerifyAndLoadIdentity(a.dataDirectory, a.store, tasksMayRun, a.config.ClaimTasksOfCopiedDataDir, datadirectory.FindRunningDirWithSameID, a.logger)
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
		if err := a.dataDirIdentity.StoreAsOwner(context.WithoutCancel(ctx), a.helperProcesses.keeper.Status().KeeperProcess); err != nil {
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
		Store: a.store, AllocDirRoot: a.dataDirectory.AllocDirRoot(), Rebooted: detectAndRecordReboot(a.store, a.logger), Logger: a.logger,
		StateWasEphemeral: a.dataDirectory.IsStateEphemeral, EndTasksOfUnknownAllocs: a.config.EndTasksWithoutRecord,
		AdoptUnknownAllocs: a.config.AdoptTasksWithoutRecord, AdoptAllocsOfNode: a.config.Cluster != nil,
		IsTrustedParent:      func(pid int) bool { return datadirectory.TrustedParents([]int{k.Status().KeeperProcess.PID})(pid) },
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
	nodeID := loadOrNewNodeID(a.store, a.dataDirectory.Path, a.config.Cluster != nil)
	config := supervisor.Config{
		Catalog:          a.config.Plugins,
		Keeper:           a.helperProcesses.keeper,
		KeeperSocketPath: a.helperProcesses.keeper.SocketPath(),
		DataDirID:        a.dataDirIdentity.IDOrRandom(),
		EnsureSocketDir:  a.helperProcesses.sockets.RestoreMissingDirAndSockets,
		DriverConfig:     driverConfig(a.machine.settings, a.machine.host),
		HookConfig:       hook.Config{HostSocket: a.helperProcesses.sockets.HookSocketPath(), Node: newHookNode(nodeID, a.machine.settings)},
		AfterCall:        metrics.ObservePluginCall,
		IgnoreLateCalls:  a.config.NoPluginTimeouts,
		Secrets:          a.config.Secrets,
		Logger:           a.logger,
	}
	var cache agentplugins.Cache = agentplugins.FileCache(a.config.PluginDescriptionCacheFile)
	if !a.dataDirectory.IsStateEphemeral {
		cache = agentplugins.StoreCache{Store: a.store}
		config.RecordStore = agentplugins.NewProcessRecordStore(a.store, a.dataDirectory.Path, a.logger)
		config.KeepRunning = a.remainingProcessDecider.mustKeepPlugin
	}
	a.nodeID, a.plugins = nodeID, agentplugins.New(config, cache, a.config.AllocRunnerLimits.StatsSampleInterval)
	return nil
}

func closePlugins(a *Agent) error {
	if a.plugins != nil {
		a.plugins.Devices.Close()
	}
	return nil
}

func runPlugins(ctx context.Context, a *Agent) { a.plugins.RunBackgroundLoops(ctx) }

func openNode(_ context.Context, a *Agent) error {
	volumesDir, pluginDir := volumeDirs(&a.config, a.dataDirectory.Path)
	a.node = localnode.New(localnode.Config{
		ID: a.nodeID, Settings: a.machine.settings, Host: a.machine.host, Store: a.store, Plugins: a.plugins.Supervisor,
		VolumesDir: volumesDir, VolumePluginDir: pluginDir, Logger: a.logger,
	})
	return nil
}

// volumeDirs returns where plugins make dynamic host volumes, and the directory of these plugins, which may be empty.
func volumeDirs(c *Config, dataDir string) (volumesDir, pluginDir string) {
	pluginDir = c.HostVolumePluginDir
	if dir := filepath.Join(dataDir, "host_volume_plugins"); pluginDir == "" {
		if _, err := os.Stat(dir); err == nil {
			pluginDir = dir
		}
	}
	return cmp.Or(c.HostVolumesDir, filepath.Join(dataDir, "host_volumes")), pluginDir
}

func runNode(ctx context.Context, a *Agent) {
	a.node.Run(ctx, localnode.Events{
		BeforeRegister: func(ctx context.Context) {
			a.orphanCleaner.DestroyOrAdoptOrphans(ctx, a.plugins.Supervisor, a.newAdoption())
			a.allocSync.ReleaseAllocs()
		},
		OnRegistered: func() {
			a.orphanCleaner.CleanUpAfterEndedAllocs()
			if err := a.identities.DeleteOrphanedTokens(context.WithoutCancel(ctx)); err != nil {
				a.logger.Warn("tokens of removed allocations stay in the state until the next start", "error", err)
			}
			if !a.dataDirectory.IsTemporary { // a temporary directory's name is random
				logKeepersOfLostDir(a.dataDirectory.Path, a.logger)
			}
		},
		OnStored:              a.scheduler.RetryBlockedEvals,
		OnDeviceHealthChanged: a.allocs.EmitDeviceEvents,
	})
}

func runVolumes(ctx context.Context, a *Agent) { a.node.VolumeManager().RestoreVolumesAndPlugins(ctx) }

func openScheduler(ctx context.Context, a *Agent) error {
	if err := putInitialSchedulerConfig(ctx, a.store, a.config.InitialSchedulerConfig); err != nil {
		return err
	}
	a.hostPorts = &hostPortChecker{orphanCleaner: a.orphanCleaner, addresses: a.machine.host.HostNetworkAddressesExceptIP()}
	a.scheduler = newScheduler(a.store, a.nodeID, a.hostPorts, a.orphanCleaner, a.node.FirstReportsDone(), a.config.SchedulerGC, a.config.JobLimits, a.allocSync.NotifyAllocsChanged, a.logger)
	return nil
}

func runScheduler(ctx context.Context, a *Agent) { a.scheduler.Run(ctx) }

func openIdentities(_ context.Context, a *Agent) error {
	a.identities = identity.NewIssuer(identity.Config{Store: a.store, Region: a.machine.settings.Region, IssuerURL: a.config.OIDCIssuer})
	return nil
}

func runKeyLifetime(ctx context.Context, a *Agent) {
	a.identities.ReplaceAndRemoveKeys(ctx, a.config.KeyLifetime, a.logger)
}

func openClusterNode(ctx context.Context, a *Agent) (err error) {
	a.cluster, err = clusternode.New(context.WithoutCancel(ctx), a.config.Cluster, clusternode.Input{
		Region: a.machine.settings.Region, NodeID: a.nodeID, DataDir: a.dataDirectory.Path, Host: a.machine.host,
		Store: a.store, Identities: a.identities, OnAllocsChanged: a.allocSync.NotifyAllocsChanged, Logger: a.logger,
	})
	return err
}

func closeClusterNode(a *Agent) error {
	a.cluster.Close() // Run has closed it, unless it was not called
	return nil
}

func runClusterNode(ctx context.Context, a *Agent) { a.cluster.Run(ctx, a.allocs.AllocRunner) }

func openAllocSource(_ context.Context, a *Agent) error {
	if a.cluster != nil {
		a.source = newClusterAllocSource(a.cluster, a.orphanCleaner)
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
	a.allocNetworks = network.New(allocNetworkStore{a.store}, a.plugins.Supervisor, hostnet.New(a.machine.settings.Networks), a.logger)
	return nil
}

func runNetworks(ctx context.Context, a *Agent) {
	a.allocNetworks.RunDestroyRetriesAndRepairs(ctx, networkReplacer(a.allocs))
}

func openHooks(_ context.Context, a *Agent) error {
	a.hookTokenKey = agentplugins.LoadOrCreateHookTokenKey(a.store, a.logger)
	a.plugins.CreateHooks(agentplugins.HooksConfig{
		Rules: a.config.HookRules, LimitsByBuiltinHook: a.config.SettingsByBuiltinHook, NoCallTimeouts: a.config.NoPluginTimeouts,
		TokenKey: a.hookTokenKey, Cleanups: agentplugins.CleanupStore{Store: a.store, Logger: a.logger},
	})
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
		AllocDirRoot:          a.dataDirectory.AllocDirRoot(),
		LogCollector:          a.helperProcesses.logCollector,
		Services:              a.source.services,
		CheckResults:          a.store,
		Identities:            a.source.tokens,
		TaskAPI:               a.taskAPI,
		NewCgroupManager:      newCgroupManagerSelector(openCgroups(a.machine.host, a.config.CgroupParent, a.logger), a.plugins.Supervisor.UsesBuiltin),
		NetworkManager:        a.allocNetworks,
		DeviceReserver:        a.plugins.Devices,
		DynamicUserPool:       a.taskUsers,
		VariableReader:        newVariableReader(a.source.data),
		FindVolume:            a.node.FindHostVolume,
		FindRemotePrevious:    a.source.findRemotePrevious,
		DriverMountsHostFiles: a.plugins.Supervisor.DriverMountsHostFiles,
		TaskRules:             a.config.TaskRules,
	})
	a.allocs = noderunner.New(noderunner.Config{
		Source: a.allocSync,
		AllocRunnerTemplate: allocrunner.Config{
			InheritedHostEnv:          taskenv.FilterHostEnv(os.Environ(), a.config.EnvDenylist, a.config.EnvAllowlist),
			Drivers:                   a.plugins.Supervisor,
			EncodeTaskConfig:          block.EncodeConfig,
			Metrics:                   runnerMetrics{},
			Machine:                   machine,
			Store:                     a.store,
			CheckStateWrite:           a.store.CheckWrite,
			HookFactory:               a.plugins.Hooks,
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
		AllocDirRoot:   a.dataDirectory.AllocDirRoot(),
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
	select {
	case <-a.allocs.StoredAllocsLoaded(): // earlier, the tasks are not there
	case <-ctx.Done():
		return
	}
	losses := a.helperProcesses.logCollector.Losses()
	losses.Handle(func(loss logs.OutputLoss) {
		if runner := a.allocs.AllocRunner(loss.AllocID); runner != nil {
			event := model.EventOutputLost(string(loss.Stream), loss.DroppedBytes, loss.Reason)
			if loss.WritingResumed {
				event = model.EventOutputResumed(string(loss.Stream), loss.DroppedBytes)
			}
			_ = runner.EmitEvent(loss.Task, event) // fails only for an unknown task, which has no events
		}
		a.conditions.LookNow()
	})
	<-ctx.Done()
	losses.Handle(nil)
}

func openConditions(_ context.Context, a *Agent) error {
	a.conditionFacts = newConditionFacts(conditionSources{
		dataDir: a.dataDirectory.Path, store: a.store, helpers: a.helperProcesses, plugins: a.plugins.Supervisor, nodeID: a.nodeID,
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
	listener, err := a.helperProcesses.sockets.ListenForHooks()
	if err != nil {
		return err
	}
	a.plugins.StartHostService(listener, a.hookTokenKey, a.source.data, a.allocs)
	a.helperProcesses.sockets.StartRestoringRemovedSockets()
	a.plugins.Start(ctx, supervisor.Tasks{
		Use: func(what supervisor.PluginKey) bool {
			return !a.allocs.HasLoadedStoredAllocs() || a.allocs.UsesPlugin(core.Plugin(what))
		},
		OnEvent: a.allocs.ForwardTaskEvent,
	})
	return nil
}

// stopPlugins ends the plugin processes that need not continue for their tasks.
func stopPlugins(a *Agent) error {
	a.helperProcesses.sockets.StopWatching() // the watching goroutine would restore the sockets removed by closeHelperProcesses
	if !a.dataDirectory.IsStateEphemeral {
		a.remainingProcessDecider.decideRemainingProcesses(a.allocs.PluginsNeededAfterShutdown(), a.helperProcesses.keeper, a.plugins.Supervisor.PIDsWithoutTasks())
	}
	a.plugins.Stop()
	return nil
}

// runPluginProcesses postpones the trim when plugin processes start and stop: both load pages of the agent's program, which the
// trim releases.
func runPluginProcesses(ctx context.Context, a *Agent) {
	a.plugins.WatchPIDs(ctx, a.trim.PostponeTrim)
}

func runDiskReserve(ctx context.Context, a *Agent) {
	a.dataDirectory.MaintainDiskReserve(ctx, a.node.Registered())
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
