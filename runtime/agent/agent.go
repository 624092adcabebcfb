package agent

import (
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/hclspec/block"
	"github.com/nomad-lite/nomad-lite/internal/clock"
	"github.com/nomad-lite/nomad-lite/internal/descriptors"
	"github.com/nomad-lite/nomad-lite/internal/hoststats"
	"github.com/nomad-lite/nomad-lite/internal/idrange"
	"github.com/nomad-lite/nomad-lite/internal/memtrim"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/internal/redact"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/host/catalog"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper"
	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/agent/history"
	"github.com/nomad-lite/nomad-lite/runtime/agent/localnode"
	"github.com/nomad-lite/nomad-lite/runtime/agent/otlp"
	"github.com/nomad-lite/nomad-lite/runtime/core"
	"github.com/nomad-lite/nomad-lite/runtime/core/allocrunner"
	"github.com/nomad-lite/nomad-lite/runtime/core/noderunner"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskenv"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskrunner"
	"github.com/nomad-lite/nomad-lite/runtime/core/tasksteps"
	"github.com/nomad-lite/nomad-lite/runtime/core/timeline"
	"github.com/nomad-lite/nomad-lite/runtime/explain/conditions"
	"github.com/nomad-lite/nomad-lite/runtime/job/admission"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/job/tracespan"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/allocdir"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/taskapi"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/taskfiles"
	"github.com/nomad-lite/nomad-lite/runtime/node/hooks/builtinhooks"
	"github.com/nomad-lite/nomad-lite/runtime/node/hooks/pluginhooks"
	"github.com/nomad-lite/nomad-lite/runtime/node/network"
	"github.com/nomad-lite/nomad-lite/runtime/node/orphans"
	"github.com/nomad-lite/nomad-lite/runtime/node/resources/fingerprint"
	"github.com/nomad-lite/nomad-lite/runtime/node/workloaddata"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/identity"
)

// Config has an Agent's settings and dependencies. It is large because it lists everything an agent gets from its program; each
// part of the agent receives only the fields it needs.
type Config struct {
	// DataDir is the data directory's absolute path. Open creates it if it is missing. Empty means a temporary directory, which
	// is removed when the agent shuts down. If the agent is killed, the keeper ends all processes, and the next agent removes the
	// directory.
	DataDir string
	// EphemeralState means that the agent starts with an empty state and deletes its state at the end. Files written by tasks are
	// kept. A temporary directory implies EphemeralState. The log collector then starts together with the agent, because such an
	// agent is opened for a job.
	EphemeralState bool
	// EndTasksWithoutRecord means that the agent ends the tasks of allocations found on the disk without their records. Otherwise
	// the agent adopts them or leaves them running.
	EndTasksWithoutRecord bool
	// AdoptTasksWithoutRecord means that the agent adopts allocations found on the disk without their records, even if the state
	// does not have their jobs.
	AdoptTasksWithoutRecord bool
	// ClaimTasksOfCopiedDataDir means that a copied data directory becomes the owner of its state's running tasks. Without
	// ClaimTasksOfCopiedDataDir, Open fails with a DataDirCopyError.
	ClaimTasksOfCopiedDataDir bool

	// OnKeeperRunning is called by Open when the keeper runs, before plugins are started; its error ends Open. It may be nil.
	OnKeeperRunning func(context.Context, *keeper.Client) error

	// AllowSetuidAndDevicesInAllocs means that a root agent lets set-user-id programs and device files in allocation directories
	// have an effect, as Nomad does.
	AllowSetuidAndDevicesInAllocs bool

	// Cluster makes the agent a Nomad cluster node; nil means that it schedules for itself.
	Cluster *ClusterConfig

	Node              localnode.Settings
	AllocRunnerLimits allocrunner.Limits // NodeCPUMHz and FileOperationLimiter are ignored: the agent sets them
	TaskRules         builtinhooks.TaskRules
	GC                noderunner.GCLimits
	SchedulerGC       scheduler.GCConfig

	// EnvDenylist names the agent's environment variables that no task inherits; nil means Nomad's default. If EnvAllowlist is
	// not nil, tasks inherit only the variables in EnvAllowlist and not in EnvDenylist.
	EnvDenylist, EnvAllowlist []string

	// DynamicUsers is the user id range for tasks without a user, if the driver supports it. The zero value means an empty range.
	DynamicUsers idrange.Range

	// OIDCIssuer is the URL below which other services find the public keys of workload identities, and the identity tokens'
	// "iss" claim. It may be empty.
	OIDCIssuer string

	// HostVolumesDir is where plugins make dynamic host volumes, HostVolumePluginDir the directory of these plugins. Empty means
	// host_volumes and host_volume_plugins in the data directory.
	HostVolumesDir, HostVolumePluginDir string

	OTLP otlp.Config // trace export

	// Certificates returns the certificates of the agent's program for its clients; nil means none. It may be called
	// concurrently.
	Certificates func() []conditions.Certificate

	Plugins   *catalog.Catalog
	HookRules []pluginhooks.OperatorRule // the operator's rules for hook plugins, in configuration order
	// SettingsByBuiltinHook are the operator's limits for the builtin hooks, by hook name. A hook receives its limits together
	// with the task's block for the hook.
	SettingsByBuiltinHook map[string]map[string]any
	// DecodeTaskProcess decodes a task's main process from the driver state in the task's handle. The agent calls it only for
	// tasks of builtin drivers. It may be nil.
	DecodeTaskProcess func(driver string, driverState []byte) (process TaskProcess, known bool)
	// PluginDescriptionCacheFile is the file in which an agent with EphemeralState stores plugin descriptions for later agents.
	// With an empty path nothing is stored.
	PluginDescriptionCacheFile string
	// NoPluginTimeouts means that hook calls and device reservations have no timeout, and drivers stay healthy however long they
	// take to answer: a debugger may have stopped the plugin process.
	NoPluginTimeouts bool
	Version          string // nomad-lite version
	Logger           hclog.Logger
	Secrets          *redact.Values // gets the running allocations' secret values, for the writers of Logger; may be nil
}

// Agent is a running nomad-lite agent. Its methods may be called concurrently. It is large because the API reaches each part of
// the node through it.
type Agent struct {
	logger                  hclog.Logger
	config                  Config
	dataDirectory           *dataDirectory
	dataDirIdentity         *dataDirIdentity // nil if the state is ephemeral
	host                    fingerprint.Host
	store                   *store.Store // nil after Close
	scheduler               *scheduler.Scheduler
	allocSync               *localnode.AllocSync
	cluster                 *clusterNode // nil if the agent schedules for itself
	node                    *localnode.Node
	identities              *identity.Issuer
	taskAPI                 *taskapi.TaskSocketListener
	orphanCleaner           *orphans.Cleaner
	helperProcesses         *helperProcesses
	conditions              *conditions.Tracker
	conditionFacts          *conditionFacts
	remainingProcessDecider *remainingProcessDecider
	plugins                 *pluginManager
	allocNetworks           *network.Manager
	taskUsers               builtinhooks.UserPool // nil if tasks get no users
	taskFiles               taskfiles.AllocDirOpener
	traceExporter           *otlp.TraceExporter // nil if no traces are exported
	hostSampler             hoststats.Sampler
	history                 *history.Recorder

	mu         sync.Mutex
	nodeRunner *noderunner.Runner // nil before Run
}

// Open locks the data directory, reads the state, fingerprints the machine and starts the helper processes and the plugins. It
// does not wait for the plugins. The caller calls Run at most once, and Close at the end. The end of ctx ends only the wait for a
// lock held by a killed agent or another foreground run.
func Open(ctx context.Context, c Config) (*Agent, error) {
	a := &Agent{logger: c.Logger, config: c}
	if err := a.open(ctx); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return a, nil
}

// DataDir returns the data directory's path, which may be temporary.
func (a *Agent) DataDir() string { return a.dataDirectory.path }

// AllocDir returns an allocation's directory, which may not exist. AllocDir fails only if the id is not valid.
func (a *Agent) AllocDir(allocID string) (*allocdir.Dir, error) {
	return allocdir.New(a.dataDirectory.allocDirRoot(), allocID)
}

// OpenAllocFiles opens an allocation's directory for reading its tasks' files. The error is fs.ErrNotExist if the directory does
// not exist or was removed.
func (a *Agent) OpenAllocFiles(allocID string) (*taskfiles.AllocDir, error) {
	return a.taskFiles.OpenAllocDir(a.dataDirectory.allocDirRoot(), allocID)
}

// HostStats returns the machine's current resource usage, without its devices.
func (a *Agent) HostStats(ctx context.Context) hoststats.Stats { return a.hostSampler.Sample(ctx) }

// DeviceGroups returns the machine's devices.
func (a *Agent) DeviceGroups() []supervisor.DeviceGroup { return a.plugins.supervisor.DeviceGroups() }

// DeviceStats returns all devices' statistics. Without recent statistics it waits for the device plugins, for two seconds at
// most.
func (a *Agent) DeviceStats(ctx context.Context) []*api.DeviceGroupStats {
	return a.plugins.devices.StartSamplingAndGetStats(ctx)
}

// Store returns the state store. Jobs, evaluations, allocations and deployments
// must be changed through the scheduler.
func (a *Agent) Store() *store.Store { return a.store }

// Scheduler returns the scheduler.
func (a *Agent) Scheduler() *scheduler.Scheduler { return a.scheduler }

// Identities returns the issuer of workload identity tokens.
func (a *Agent) Identities() *identity.Issuer { return a.identities }

// TaskAPIListener returns the listener on the sockets at which tasks reach the API. The caller must serve it; the agent
// closes it.
func (a *Agent) TaskAPIListener() net.Listener { return a.taskAPI }

// Node returns the node.
func (a *Agent) Node() *localnode.Node { return a.node }

// Meta returns the node's metadata.
func (a *Agent) Meta() api.NodeMetaResponse { return a.node.Meta() }

// SetMeta changes the node's metadata permanently.
func (a *Agent) SetMeta(ctx context.Context, changes map[string]*string) error {
	return a.node.SetMeta(ctx, changes)
}

// LogCollector returns the log collector's client.
func (a *Agent) LogCollector() *logs.CollectorClient { return a.helperProcesses.logCollector }

// Keeper returns the keeper's client.
func (a *Agent) Keeper() *keeper.Client { return a.helperProcesses.keeper }

// Host returns the machine's properties.
func (a *Agent) Host() fingerprint.Host { return a.host }

// PublicAddressesOfPorts is localnode.Settings.PublicAddressesOfPorts of this node.
func (a *Agent) PublicAddressesOfPorts() []localnode.PublicAddress {
	return a.config.Node.PublicAddressesOfPorts(a.host)
}

// StoredNodeIP returns the node's address in the state, or "" if the state has no node. Before Run is called, an earlier agent
// has stored it.
func (a *Agent) StoredNodeIP() string {
	node := a.store.Snapshot().Node(nil, a.node.ID())
	if node == nil {
		return ""
	}
	return node.Attributes[fingerprint.AttributeIP]
}

// Drivers returns the drivers with a running plugin, by name.
func (a *Agent) Drivers() map[string]supervisor.DriverInfo {
	return a.plugins.supervisor.DriverInfoByName()
}

// TaskConfigSchema returns the schema of a driver's task config block. It waits for the driver if its
// plugin is starting.
func (a *Agent) TaskConfigSchema(ctx context.Context, driverName string) (*hclspec.Spec, error) {
	return a.plugins.taskConfigSchema(ctx, driverName)
}

// DriverCapabilities returns the capabilities of a driver. It waits for the driver if its plugin is starting.
func (a *Agent) DriverCapabilities(ctx context.Context, driverName string) (*driver.Capabilities, error) {
	return a.plugins.driverCapabilities(ctx, driverName)
}

// DescribePlugin calls a driver's or hook's plugin for its description. It waits for a starting plugin, and starts an unused
// builtin hook.
func (a *Agent) DescribePlugin(ctx context.Context, key supervisor.PluginKey) (*supervisor.Description, error) {
	return a.plugins.supervisor.Describe(ctx, key)
}

// CheckHookRules checks the operator's hook rules against the plugins and returns the reasons why rules have no effect. It waits
// for starting plugins.
func (a *Agent) CheckHookRules(ctx context.Context) (ruleErrs []error) {
	return a.plugins.checkHookRules(ctx)
}

// CheckHookAttachments checks a canonical job's hook attachments. The faults are attachments of a hook that does not exist, is
// never called at this place in a job, or rejects the configuration. The errors in unreachable are about unreachable hooks.
// CheckHookAttachments waits for starting plugins.
func (a *Agent) CheckHookAttachments(ctx context.Context, job *api.Job) (faults []admission.HookAttachmentFault, unreachable []error) {
	return a.plugins.checkHookAttachments(ctx, job)
}

// RunningAllocIDsUsingHook returns the sorted ids of running allocations using a hook.
func (a *Agent) RunningAllocIDsUsingHook(hookName string) []string {
	nodes := a.currentNodeRunner()
	if nodes == nil {
		return nil
	}
	return slices.Sorted(slices.Values(nodes.AllocsUsingPlugin(core.Plugin{Type: base.TypeHook, Name: hookName})))
}

// Plugins returns the state of all plugins.
func (a *Agent) Plugins() []supervisor.PluginStatus { return a.plugins.supervisor.Plugins() }

// PluginsChanged returns a channel that is closed when the result of Drivers or Plugins changes.
func (a *Agent) PluginsChanged() <-chan struct{} { return a.plugins.supervisor.InfoChanged() }

// RestartPlugin shuts down a plugin's process, and starts the plugin again at once. The next process recovers the tasks. name is
// the plugin's file name. RestartPlugin blocks until the process has exited.
func (a *Agent) RestartPlugin(ctx context.Context, name string) error {
	return a.plugins.supervisor.Restart(ctx, name)
}

// WaitBrieflyForDriverHealth waits until the drivers have reported their health, for two seconds at most. An error is the cause
// of ctx's end.
func (a *Agent) WaitBrieflyForDriverHealth(ctx context.Context) error {
	return a.plugins.supervisor.WaitBrieflyForFirstReports(ctx)
}

// WaitAllPluginStatesReported waits without a timeout until plugins of every type have reported their state.
func (a *Agent) WaitAllPluginStatesReported(ctx context.Context) error {
	return a.plugins.supervisor.WaitAllReportedOrFailed(ctx)
}

// Run runs the allocations in the state until ctx ends. If the cause is allocrunner.ErrShutdown, Run
// leaves the tasks running. With any other cause it stops the tasks and returns when all have ended.
func (a *Agent) Run(ctx context.Context) {
	trim := memtrim.New() // not created in Open, because most of what Open reads stays in memory
	defer trim.Stop()
	if !a.remainingProcessDecider.tasksMayRun() {
		// Restored tasks' objects stay in memory for long, and would be scattered over more of it.
		trim.NotifyBusy()
	}
	nodes := noderunner.New(a.nodeRunnerConfig(trim))
	a.mu.Lock()
	a.nodeRunner = nodes
	a.mu.Unlock()

	running := startServices(ctx, a.services(nodes, trim), a.node.Registered(), a.logger)
	nodes.Run(ctx)
	for _, phase := range []shutdownPhase{shutdownRequested, runnersReturned, allocationsReported} {
		running.endPhase(phase)
	}
	if a.cluster != nil {
		a.cluster.sendLastStates(ctx)
	}
	running.endPhase(agentLeaves)
	if a.cluster != nil {
		a.cluster.data.Close() // also if the node was never registered: hooks of restored tasks may have read
	}
	if a.dataDirectory.isTemporary {
		nodes.RemoveDirsOfAllEndedAllocs() // also removes resources created by hooks outside of the allocation directories
	}
	if a.dataDirectory.isStateEphemeral {
		settling, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		a.plugins.hookPlugins.RetryCleanupsUntilNoneLeft(settling)
		a.allocNetworks.DestroyUnused(settling)
	}
}

// services returns the agent's services in their start order.
func (a *Agent) services(nodes *noderunner.Runner, trim *memtrim.Trimmer) []service {
	reportStatus := func(ctx context.Context) { a.allocSync.Run(ctx, a.scheduler) }
	scheduling := service{"scheduler", afterRegistration, shutdownRequested, a.scheduler.Run}
	if a.cluster != nil {
		reportStatus = func(ctx context.Context) { a.allocSync.Run(ctx, a.cluster.replica) }
		// Allocations without a record are adopted before, because the servers' list would start them anew.
		scheduling = service{"cluster", afterRegistration, agentLeaves, a.cluster.run}
	}
	list := []service{
		{"status reports", atOnce, allocationsReported, reportStatus},
		scheduling,
		{"node", atOnce, shutdownRequested, a.node.Run},
		{"usage history", atOnce, shutdownRequested, a.history.Run},
		{"plugins", atOnce, shutdownRequested, func(ctx context.Context) { a.plugins.runBackgroundLoops(ctx, nodes.StoredAllocsLoaded()) }},
		// Starting and stopping a plugin process load pages of the agent's program, which the next trim releases.
		{"plugin processes", atOnce, shutdownRequested, func(ctx context.Context) { a.plugins.watchPluginPIDs(ctx, trim.PostponeTrim) }},
		{"disk reserve", atOnce, shutdownRequested, func(ctx context.Context) { a.dataDirectory.maintainDiskReserve(ctx, a.node.Registered()) }},
		{"volumes", atOnce, shutdownRequested, func(ctx context.Context) { a.node.VolumeManager().RestoreVolumesAndPlugins(ctx) }},
		{"clock", atOnce, shutdownRequested, a.watchClock},
		{"memory", afterRegistration, shutdownRequested, func(context.Context) { trim.EndBusy() }}, // tasks start from here on
		{"unknown allocations", afterRegistration, shutdownRequested, func(ctx context.Context) { a.orphanCleaner.WatchUnknownAllocs(ctx, a.scheduler.RetryBlockedEvals) }},
		// The networks of unknown allocations stay, and these are recorded before the registration.
		{"networks", afterRegistration, shutdownRequested, a.allocNetworks.RunDestroyRetriesAndRepairs},
		{"conditions", afterRegistration, shutdownRequested, func(ctx context.Context) {
			reporter := conditionReporter{agent: a}
			a.conditions.Run(ctx, func(begun, ended []conditions.Condition) { reporter.report(ctx, begun, ended) })
		}},
	}
	if a.dataDirectory.isStateEphemeral {
		// No later agent can repeat a driver's task destroy.
		list = append(list, service{"destroy timeout", atShutdown, runnersReturned, func(ctx context.Context) {
			nodes.ForceKillAllocsIfDestroyTimesOut(ctx, func() {
				a.logger.Warn("a driver has not destroyed its ended tasks; the agent shuts down without it")
			})
		}})
	}
	return list
}

// watchClock reports clock steps to the services that compare times, until ctx ends.
func (a *Agent) watchClock(ctx context.Context) {
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

// awaitNewStartInCluster is a cluster node's taskrunner.AwaitNewStartFunc.
func (a *Agent) awaitNewStartInCluster(ctx context.Context, allocID string, onWait func(spanName string, event *api.TaskEvent)) error {
	err := a.orphanCleaner.AwaitUnknownTasksEnded(ctx, allocID, func() { onWait(tracespan.WaitUnknownTasks, model.EventWaitingForUnknownTasks()) })
	if err != nil {
		return err
	}
	return a.cluster.replica.AwaitNewStart(ctx, allocID, onWait)
}

// nodeRunnerConfig returns the node runner's configuration. The node runner reports to trim when the agent is busy.
func (a *Agent) nodeRunnerConfig(trim *memtrim.Trimmer) noderunner.Config {
	limits := a.config.AllocRunnerLimits
	limits.NodeCPUMHz = int64(a.host.UsableCPUMHz)
	if limit, err := osprocess.DescriptorLimit(); err == nil {
		limits.FileOperationLimiter = descriptors.NewLimiter(limit)
	}
	withoutDriver := taskEnderWithoutDriver{a.helperProcesses.keeper, a.config.DecodeTaskProcess}
	var awaitNewStart taskrunner.AwaitNewStartFunc
	if a.cluster != nil {
		awaitNewStart = a.awaitNewStartInCluster
	}
	return noderunner.Config{
		Source: a.allocSync,
		AllocRunnerTemplate: allocrunner.Config{
			InheritedHostEnv:          taskenv.FilterHostEnv(os.Environ(), a.config.EnvDenylist, a.config.EnvAllowlist),
			Drivers:                   a.plugins.supervisor,
			EncodeTaskConfig:          block.EncodeConfig,
			Metrics:                   runnerMetrics{},
			Machine:                   a.newMachine(),
			Store:                     a.store,
			CheckStateWrite:           a.store.CheckWrite,
			HookFactory:               a.plugins.hookPlugins,
			Limits:                    limits,
			NewTrace:                  newAllocTraceFunc(a.traceExporter),
			EarlierRecords:            localnode.TaskRecordReader{Store: a.store},
			RebootedSinceEarlierAgent: a.orphanCleaner.Rebooted,
			AwaitNewStart:             awaitNewStart,
			EndTaskWithoutDriver:      withoutDriver.endTask,
			AwaitExitWithoutDriver:    withoutDriver.awaitExitWithoutDriver,
			Logger:                    a.logger,
			Secrets:                   a.config.Secrets,
		},
		NodeForTasks: a.node.TaskEnvNode,
		AllocDirRoot: a.dataDirectory.allocDirRoot(),
		OnStopping:   trim.NotifyBusy,
		OnStatusReport: func(u model.AllocReport) {
			for _, task := range u.TaskStates {
				if task.Restarts > 0 || task.State == model.TaskDead {
					trim.NotifyBusy()
					return
				}
			}
			trim.PostponeTrim() // not NotifyBusy, because most objects made by an allocation start stay in use
		},
		// The trim releases the memory of garbage-collected allocations even if no other allocation changes afterwards.
		OnAllocDirRemoved: trim.PostponeTrim,
		GCLimits:          a.config.GC,
		Logger:            a.logger,
	}
}

// newMachine returns what this machine gives to allocations.
func (a *Agent) newMachine() core.Machine {
	config := builtinhooks.MachineConfig{
		AllocDirRoot:          a.dataDirectory.allocDirRoot(),
		LogCollector:          a.helperProcesses.logCollector,
		Services:              a.serviceRegistry(),
		CheckResults:          a.store,
		Identities:            a.tokenIssuer(),
		TaskAPI:               a.taskAPI,
		NewCgroupManager:      newCgroupManagerSelector(openCgroups(a.host, a.logger), a.plugins.supervisor.UsesBuiltin),
		NetworkManager:        a.allocNetworks,
		DeviceReserver:        a.plugins.devices,
		DynamicUserPool:       a.taskUsers,
		VariableReader:        newVariableReader(a.workloadData()),
		FindVolume:            a.node.FindHostVolume,
		DriverMountsHostFiles: a.plugins.supervisor.DriverMountsHostFiles,
		TaskRules:             a.config.TaskRules,
	}
	if a.cluster != nil {
		config.FindRemotePrevious = a.cluster.peers.fetcher.Previous
	}
	return builtinhooks.NewMachine(config)
}

// newAllocTraceFunc returns a function that returns an allocation's trace, or nil if the exporter is nil.
func newAllocTraceFunc(e *otlp.TraceExporter) func(*api.Allocation) timeline.Trace {
	if e == nil {
		return nil
	}
	return func(alloc *api.Allocation) timeline.Trace { return e.NewAllocTrace(alloc) }
}

// newVariableReader returns a function that reads a variable once.
func newVariableReader(data workloaddata.Source) builtinhooks.VariableReader {
	return func(ctx context.Context, w identity.Workload, namespace, path string) (map[string]string, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		v, _, err := data.Variable(ctx, store.NewWatchSet(), w, namespace, path)
		if v == nil {
			return nil, err
		}
		if v.Items == nil {
			return map[string]string{}, err // not nil, because the variable exists
		}
		return v.Items, err
	}
}

// cleanupTimeout is how long Run waits for pending hook and network cleanups of an agent with an ephemeral state. No later agent
// has their records.
const cleanupTimeout = 10 * time.Second

// Alloc returns an allocation's runner, or nil if this node does not have it.
func (a *Agent) Alloc(id string) *allocrunner.Runner {
	if nodes := a.currentNodeRunner(); nodes != nil {
		return nodes.AllocRunner(id)
	}
	return nil
}

// TransitionsByTask returns the last transitions of each task in an allocation, as [noderunner.Runner.TransitionsByTask] does.
func (a *Agent) TransitionsByTask(allocID string) map[string][]tasksteps.Transition {
	if nodes := a.currentNodeRunner(); nodes != nil {
		return nodes.TransitionsByTask(allocID)
	}
	return nil
}

// GCAlloc removes an ended allocation from the disk. It waits for hook cleanup, but not for an unavailable driver: the directory
// is then removed later.
func (a *Agent) GCAlloc(ctx context.Context, id string) error {
	if nodes := a.currentNodeRunner(); nodes != nil {
		return nodes.RemoveDirOfEndedAlloc(ctx, id)
	}
	return noderunner.ErrNotCollectable
}

// GCEndedAllocs removes all ended allocations from the disk.
func (a *Agent) GCEndedAllocs() {
	if nodes := a.currentNodeRunner(); nodes != nil {
		nodes.RemoveDirsOfAllEndedAllocs()
	}
}

// Reload applies the settings that can change while the agent runs: the node's metadata, reservations and host volumes, garbage
// collection limits, the plugins, and the hook rules. The caller must have checked the rules with
// pluginhooks.CheckRulesAgainstCatalog.
func (a *Agent) Reload(node localnode.Settings, gc noderunner.GCLimits, plugins *catalog.Catalog, rules []pluginhooks.OperatorRule) {
	a.plugins.reload(plugins, rules)
	if nodes := a.currentNodeRunner(); nodes != nil {
		nodes.SetGCLimitsAndCheck(gc)
	}
	a.node.Reload(node)
}

// AddNodeEvent adds an event to the node, and blocks until it is stored. A failure is logged.
func (a *Agent) AddNodeEvent(subsystem, message string) {
	if err := localnode.AddNodeEvent(context.Background(), a.store, a.node.ID(), subsystem, message); err != nil {
		a.logger.Warn("event of the node not stored", "message", message, "error", err)
	}
}

// ForceKillAllocs force kills all allocations at once. It respects no kill order, and runs no poststop tasks. It
// does not wait.
func (a *Agent) ForceKillAllocs() {
	if nodes := a.currentNodeRunner(); nodes != nil {
		nodes.ForceKillAllAllocs()
	}
}

// KillAllocsNotDestroyedInTime waits until all tasks have ended; another call must have requested their end. If a driver does not
// destroy its ended tasks soon afterwards, KillAllocsNotDestroyedInTime calls onGiveUp, and Run no longer waits for the driver.
// KillAllocsNotDestroyedInTime returns early when ctx is done.
func (a *Agent) KillAllocsNotDestroyedInTime(ctx context.Context, onGiveUp func()) {
	if nodes := a.currentNodeRunner(); nodes != nil {
		nodes.ForceKillAllocsIfDestroyTimesOut(ctx, onGiveUp)
	}
}

func (a *Agent) forwardTaskEvent(driverName string, event driver.TaskEvent) {
	if nodes := a.currentNodeRunner(); nodes != nil {
		nodes.ForwardTaskEvent(driverName, event)
	}
}

// currentNodeRunner returns nil before Run is called.
func (a *Agent) currentNodeRunner() *noderunner.Runner {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.nodeRunner
}

// Close shuts down the helper processes no longer needed and unlocks the data directory; a temporary data directory is removed.
// Run must have returned. Close may be called twice.
//
// While tasks may run, the helper processes continue. Whether tasks may run depends on the state and
// the keeper together, not on how the agent ends.
func (a *Agent) Close() error {
	if a.dataDirectory == nil || a.dataDirectory.lock == nil {
		return nil
	}
	if a.traceExporter != nil {
		a.traceExporter.Close()
	}
	a.helperProcesses.stopWatchingSockets() // the watching goroutine would restore the sockets removed by Close
	var errs []error
	if a.taskAPI != nil {
		errs = append(errs, a.taskAPI.Close())
	}
	remaining := new(remainingProcesses)
	if a.helperProcesses.keeper != nil && !a.dataDirectory.isStateEphemeral {
		remaining = a.remainingProcessDecider.decideRemainingProcesses(a.currentNodeRunner(), a.helperProcesses.keeper, a.plugins.pidsWithoutTasks())
	}
	if a.plugins != nil {
		a.plugins.close()
	}
	keeperEnded, err := a.helperProcesses.close(remaining)
	errs = append(errs, err)
	if a.store != nil {
		errs = append(errs, a.store.Close())
		if a.dataDirectory.isStateEphemeral {
			errs = append(errs, os.Remove(a.dataDirectory.statePath()))
		}
		a.store = nil
	}
	errs = append(errs, a.dataDirectory.removeHistoryIfEphemeral())
	if !a.dataDirectory.isTemporary {
		if keeperEnded {
			errs = append(errs, a.helperProcesses.sockets.remove())
		}
		errs = append(errs, a.dataDirectory.unmountNosuidAllocDirsIfUnused(keeperEnded))
	}
	errs = append(errs, a.dataDirectory.unlockAndRemoveIfTemporary())
	return errors.Join(errs...)
}
