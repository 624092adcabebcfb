package agent

import (
	"context"
	"net"
	"os"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/hoststats"
	"github.com/nomad-lite/nomad-lite/internal/idrange"
	"github.com/nomad-lite/nomad-lite/internal/memtrim"
	"github.com/nomad-lite/nomad-lite/internal/redact"
	"github.com/nomad-lite/nomad-lite/plugins/host/catalog"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper"
	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/agent/agentplugins"
	"github.com/nomad-lite/nomad-lite/runtime/agent/clusternode"
	"github.com/nomad-lite/nomad-lite/runtime/agent/datadirectory"
	"github.com/nomad-lite/nomad-lite/runtime/agent/hostservice"
	"github.com/nomad-lite/nomad-lite/runtime/agent/httpapi"
	"github.com/nomad-lite/nomad-lite/runtime/agent/localnode"
	"github.com/nomad-lite/nomad-lite/runtime/agent/servicelist"
	"github.com/nomad-lite/nomad-lite/runtime/core/allocrunner"
	"github.com/nomad-lite/nomad-lite/runtime/core/noderunner"
	"github.com/nomad-lite/nomad-lite/runtime/core/timeline"
	"github.com/nomad-lite/nomad-lite/runtime/explain/conditions"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/taskapi"
	"github.com/nomad-lite/nomad-lite/runtime/node/hooks/builtinhooks"
	"github.com/nomad-lite/nomad-lite/runtime/node/hooks/pluginhooks"
	"github.com/nomad-lite/nomad-lite/runtime/node/network"
	"github.com/nomad-lite/nomad-lite/runtime/node/orphans"
	"github.com/nomad-lite/nomad-lite/runtime/node/resources/fingerprint"
	"github.com/nomad-lite/nomad-lite/runtime/node/workloaddata"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/identity"
	"github.com/nomad-lite/nomad-lite/runtime/store/snapshot"
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
	// ClaimTasksOfCopiedDataDir, Open fails with a CopyError of package datadirectory.
	ClaimTasksOfCopiedDataDir bool

	// OnKeeperRunning is called by Open when the keeper runs, before plugins are started; its error ends Open. It may be nil.
	OnKeeperRunning func(context.Context, *keeper.Client) error

	// AllowSetuidAndDevicesInAllocs means that a root agent lets set-user-id programs and device files in allocation directories
	// have an effect, as Nomad does.
	AllowSetuidAndDevicesInAllocs bool

	// Cluster makes the agent a Nomad cluster node; nil means that it schedules for itself.
	Cluster *clusternode.Config

	Node              localnode.Settings
	CgroupParent      string             // cgroup for the cgroups of tasks, see cgroup.Options
	AllocRunnerLimits allocrunner.Limits // NodeCPUMHz and FileOperationLimiter are ignored: the agent sets them
	TaskRules         builtinhooks.TaskRules
	GC                noderunner.GCLimits
	SchedulerGC       scheduler.GCConfig
	JobLimits         model.JobLimits

	// InitialSchedulerConfig is stored if the state has no scheduler configuration yet; nil means Nomad's default, not stored.
	InitialSchedulerConfig *api.SchedulerConfiguration
	// MaxEventChanges is the number of changes whose events the event stream keeps; 0 means 100.
	MaxEventChanges int

	// EnvDenylist names the agent's environment variables that no task inherits; nil means Nomad's default. If EnvAllowlist is
	// not nil, tasks inherit only the variables in EnvAllowlist and not in EnvDenylist.
	EnvDenylist, EnvAllowlist []string

	// DynamicUsers is the user id range for tasks without a user, if the driver supports it. The zero value means an empty range.
	DynamicUsers idrange.Range

	// OIDCIssuer is the URL below which other services find the public keys of workload identities, and the identity tokens'
	// "iss" claim. It may be empty.
	OIDCIssuer string

	// KeyLifetime states when the keys of variables and workload identities are replaced.
	KeyLifetime identity.KeyLifetime

	// HostVolumesDir is where plugins make dynamic host volumes, HostVolumePluginDir the directory of these plugins. Empty means
	// host_volumes and host_volume_plugins in the data directory.
	HostVolumesDir, HostVolumePluginDir string

	Extensions []Extension // services that the program adds; at most one is an AllocTracer

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
	DecodeTaskProcess func(driver string, driverState []byte) (process datadirectory.TaskProcess, known bool)
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

// hasEphemeralState reports whether the agent starts with an empty state and deletes its state at the end.
func (c *Config) hasEphemeralState() bool { return c.EphemeralState || c.DataDir == "" }

// Extension is a service that the agent's program adds to the list. The agent works without it. Its methods are called one after
// the other.
type Extension interface {
	// Name returns the service's name in the list.
	Name() string
	// Open is called once, before the agent has allocations. If it fails, the agent does not open.
	Open(ExtensionInput) error
	// Run is called at most once, when the agent is open. It blocks until ctx ends, which is when a shutdown is requested, or until
	// it has nothing more to do.
	Run(ctx context.Context, a *Agent)
	// Close is called once after Open, also if Open has failed. The agent's allocations no longer change.
	Close() error
}

// AllocTracer is an Extension that receives the spans of allocations.
type AllocTracer interface {
	Extension
	// NewAllocTrace returns the receiver of an allocation's spans. It may be called concurrently.
	NewAllocTrace(*api.Allocation) timeline.Trace
}

// ExtensionInput is what an Extension gets from the services before it in the list.
type ExtensionInput struct {
	DataDir  string
	NodeID   string
	Settings localnode.Settings // the node's settings, with their defaults
	Host     fingerprint.Host
	Version  string // nomad-lite version
	Logger   hclog.Logger
}

// Agent is a running nomad-lite agent. Its methods may be called concurrently. It is large because it has what each service of its
// list has opened.
type Agent struct {
	config   Config
	logger   hclog.Logger
	services *servicelist.List[*Agent]
	trim     memtrim.Trimmer // started by Run, because most of what Open reads stays in memory

	dataDirectory           *datadirectory.Directory
	fingerprinting          *fingerprinting
	store                   *store.Store
	allocSync               *localnode.AllocSync
	dataDirIdentity         *datadirectory.Identity // nil if the state is ephemeral
	helperProcesses         *helperProcesses
	taskUsers               builtinhooks.UserPool // nil if tasks get no users
	orphanCleaner           *orphans.Cleaner
	remainingProcessDecider *remainingProcessDecider
	machine                 *machine
	nodeID                  string
	plugins                 *agentplugins.Manager
	hookTokenKey            hostservice.CapabilityTokenKey
	node                    *localnode.Node
	hostPorts               *hostPortChecker
	scheduler               *scheduler.Scheduler
	identities              *identity.Issuer
	cluster                 *clusternode.Node // nil if the agent schedules for itself
	source                  *allocSource
	taskAPI                 *taskapi.TaskSocketListener
	newAllocTrace           func(*api.Allocation) timeline.Trace // nil without an AllocTracer
	allocNetworks           *network.Manager
	allocs                  *noderunner.Runner
	files                   *AllocFiles
	conditionFacts          *conditionFacts
	conditions              *conditions.Tracker
}

// Services returns the agent's services in their order.
func (a *Agent) Services() []servicelist.Opened { return a.services.Opened() }

// DataDir returns the data directory's path, which may be temporary.
func (a *Agent) DataDir() string { return a.dataDirectory.Path }

// IsPortFree reports whether a task could listen on a port of this machine.
func (a *Agent) IsPortFree(p scheduler.HostPort) bool { return a.hostPorts.IsPortFree(p) }

// Cluster returns the node of a cluster, nil if the agent schedules for itself.
func (a *Agent) Cluster() *clusternode.Node { return a.cluster }

// Conditions returns the conditions of the agent and its machine.
func (a *Agent) Conditions() *conditions.Tracker { return a.conditions }

// Files returns the allocations' files.
func (a *Agent) Files() *AllocFiles { return a.files }

// HostSampler returns the sampler of the machine's resource usage.
func (a *Agent) HostSampler() *hoststats.Sampler { return &a.machine.sampler }

// Supervisor returns the supervisor of the plugins.
func (a *Agent) Supervisor() *supervisor.Supervisor { return a.plugins.Supervisor }

// Plugins returns what checks jobs with the plugins.
func (a *Agent) Plugins() *agentplugins.Manager { return a.plugins }

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

// LogCollector returns the log collector's client.
func (a *Agent) LogCollector() *logs.CollectorClient { return a.helperProcesses.logCollector }

// Keeper returns the keeper's client.
func (a *Agent) Keeper() *keeper.Client { return a.helperProcesses.keeper }

// Host returns the machine's properties.
func (a *Agent) Host() fingerprint.Host { return a.machine.host }

// APIConfig returns the HTTP API's configuration with what the agent's services give to it. The caller adds settings, and calls
// [clusternode.Node.SetAPI] with the API.
func (a *Agent) APIConfig() httpapi.Config {
	return httpapi.Config{
		Store:           a.store,
		Scheduler:       a.scheduler,
		Allocs:          a.allocs,
		Files:           a.files,
		LogCollector:    a.helperProcesses.logCollector,
		Plugins:         a.plugins,
		Metadata:        a.node,
		Volumes:         a.node.VolumeManager(),
		Host:            a.machine.host,
		HostStats:       a.machine.sampler.Sample,
		DeviceStats:     a.plugins.DeviceStats,
		Conditions:      a.conditions,
		Identities:      a.identities,
		Cluster:         a.cluster.HTTPConfig(a.allocs.AllocRunner),
		NodeID:          a.nodeID,
		Region:          a.machine.settings.Region,
		JobLimits:       a.config.JobLimits,
		NomadAPIVersion: fingerprint.NomadVersion,
		Logger:          a.logger,
	}
}

// PublicAddressesOfPorts is localnode.Settings.PublicAddressesOfPorts of this node.
func (a *Agent) PublicAddressesOfPorts() []localnode.PublicAddress {
	return a.config.Node.PublicAddressesOfPorts(a.machine.host)
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

// Run runs the allocations in the state until ctx ends. If the cause is allocrunner.ErrShutdown, Run
// leaves the tasks running. With any other cause it stops the tasks and returns when all have ended.
func (a *Agent) Run(ctx context.Context) {
	a.trim.Start()
	defer a.trim.Stop()
	if !a.remainingProcessDecider.tasksMayRun() {
		// Restored tasks' objects stay in memory for long, and would be scattered over more of it.
		a.trim.NotifyBusy()
	}
	running := a.services.Start(ctx, a, a.node.Registered())
	a.allocs.Run(ctx)
	for _, phase := range []servicelist.ShutdownPhase{servicelist.ShutdownRequested, servicelist.RunnersReturned, servicelist.AllocationsReported} {
		running.EndPhase(phase)
	}
	a.cluster.SendLastStates(ctx)
	running.EndPhase(servicelist.AgentLeaves)
	a.cluster.Close() // also if the node was never registered: hooks of restored tasks may have begun to read variables from the servers
	if a.dataDirectory.IsTemporary {
		a.allocs.RemoveDirsOfAllEndedAllocs() // also removes resources created by hooks outside of the allocation directories
	}
	if a.dataDirectory.IsStateEphemeral {
		settling, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		a.plugins.Hooks.RetryCleanupsUntilNoneLeft(settling)
		a.allocNetworks.DestroyUnused(settling)
	}
}

// noteReport reports to trim how busy the process is with an allocation report.
func noteReport(trim *memtrim.Trimmer, u model.AllocReport) {
	for _, task := range u.TaskStates {
		if task.Restarts > 0 || task.State == model.TaskDead {
			trim.NotifyBusy()
			return
		}
	}
	trim.PostponeTrim() // not NotifyBusy, because most objects made by an allocation start stay in use
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

// Allocs returns the node's allocations. Before Run is called there are none.
func (a *Agent) Allocs() *noderunner.Runner { return a.allocs }

// Reload applies the settings that can change while the agent runs: the node's metadata, reservations and host volumes, garbage
// collection limits, the plugins, and the hook rules. The caller must have checked the rules with
// pluginhooks.CheckRulesAgainstCatalog.
func (a *Agent) Reload(node localnode.Settings, gc noderunner.GCLimits, plugins *catalog.Catalog, rules []pluginhooks.OperatorRule) {
	a.plugins.Reload(plugins, rules)
	a.allocs.SetGCLimitsAndCheck(gc)
	a.node.Reload(node)
}

// AddNodeEvent adds an event to the node, and blocks until it is stored. A failure is logged.
func (a *Agent) AddNodeEvent(subsystem, message string) {
	if err := localnode.AddNodeEvent(context.Background(), a.store, a.node.ID(), subsystem, message); err != nil {
		a.logger.Warn("event of the node not stored", "message", message, "error", err)
	}
}

// WriteSnapshot writes a snapshot of the state, as [datadirectory.WriteSnapshot] does.
func (a *Agent) WriteSnapshot(ctx context.Context, omitKeys bool) (*os.File, *snapshot.Meta, error) {
	options := snapshot.Options{Version: a.config.Version, NodeID: a.nodeID, OmitKeys: omitKeys, WorkDir: a.dataDirectory.Path}
	return datadirectory.WriteSnapshot(ctx, a.store, options, a.logger)
}

// Close shuts down the helper processes no longer needed and unlocks the data directory; a temporary data directory is removed.
// Run must have returned. Close may be called twice.
//
// While tasks may run, the helper processes continue. Whether tasks may run depends on the state and
// the keeper together, not on how the agent ends.
func (a *Agent) Close() error { return a.services.Close(a) }
