package clustertest

import (
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/cluster/protocol"
)

// The records of this file have the fields of a server's messages, no more and no fewer, so that a message has each key
// that a stock server sends, and its zero value in the same form. Parts that no test compares are untyped.

// node is the record of a node. It is large because it has all fields of Nomad's record.
type node struct {
	ID, SecretID, Datacenter, Name, NodePool, NodeClass, ComputedClass string
	HTTPAddr                                                           string
	TLSEnabled                                                         bool
	CgroupParent                                                       string
	Status, StatusDescription                                          string
	StatusUpdatedAt                                                    int64
	SchedulingEligibility                                              string
	NodeMaxAllocs                                                      int
	GCVolumesOnNodeGC                                                  bool
	IdentitySigningKeyID                                               string
	Attributes, Meta, Links                                            map[string]string
	Drivers                                                            map[string]*protocol.DriverInfo
	HostVolumes                                                        map[string]*protocol.HostVolume
	HostNetworks                                                       map[string]*protocol.HostNetwork
	CSIControllerPlugins, CSINodePlugins                               map[string]any
	NodeResources                                                      *nodeResources
	ReservedResources                                                  *protocol.ReservedResources
	Events                                                             []*nodeEvent
	DrainStrategy                                                      *drainStrategy
	LastDrain                                                          *drainRecord
	LastMissedHeartbeatIndex, LastAllocUpdateIndex                     uint64
	CreateIndex, ModifyIndex                                           uint64
}

type nodeResources struct {
	Cpu                            protocol.CPUResources
	Processors                     protocol.Processors
	Memory                         protocol.MemoryResources
	Disk                           protocol.DiskResources
	Networks                       []*network
	NodeNetworks                   []*protocol.NodeNetwork
	Devices                        []*protocol.DeviceGroup
	MinDynamicPort, MaxDynamicPort int
}

type nodeEvent struct {
	Message, Subsystem string
	Details            map[string]string
	Timestamp          time.Time
	CreateIndex        uint64
}

type drainStrategy struct {
	Deadline                 time.Duration
	IgnoreSystemJobs         bool
	StartedAt, ForceDeadline time.Time
}

type drainRecord struct {
	StartedAt, UpdatedAt time.Time
	Status, AccessorID   string
	Meta                 map[string]string
}

// allocation is the record of an allocation. Servers omit its empty fields. It is large because it has all fields of
// Nomad's record.
type allocation struct {
	ID                    string                 `codec:",omitempty"`
	Name                  string                 `codec:",omitempty"`
	Namespace             string                 `codec:",omitempty"`
	EvalID                string                 `codec:",omitempty"`
	NodeID                string                 `codec:",omitempty"`
	NodeName              string                 `codec:",omitempty"`
	JobID                 string                 `codec:",omitempty"`
	TaskGroup             string                 `codec:",omitempty"`
	Job                   *job                   `codec:",omitempty"`
	AllocatedResources    *allocatedResources    `codec:",omitempty"`
	Resources             *resources             `codec:",omitempty"`
	SharedResources       *resources             `codec:",omitempty"`
	TaskResources         map[string]*resources  `codec:",omitempty"`
	Metrics               *metrics               `codec:",omitempty"`
	DesiredStatus         string                 `codec:",omitempty"`
	DesiredDescription    string                 `codec:",omitempty"`
	DesiredTransition     *desiredTransition     `codec:",omitempty"`
	ClientStatus          string                 `codec:",omitempty"`
	ClientDescription     string                 `codec:",omitempty"`
	TaskStates            map[string]*taskState  `codec:",omitempty"`
	AllocStates           []*allocState          `codec:",omitempty"`
	NetworkStatus         *networkStatus         `codec:",omitempty"`
	DeploymentID          string                 `codec:",omitempty"`
	DeploymentStatus      *protocolDeployment    `codec:",omitempty"`
	PreviousAllocation    string                 `codec:",omitempty"`
	NextAllocation        string                 `codec:",omitempty"`
	PreemptedAllocations  []string               `codec:",omitempty"`
	PreemptedByAllocation string                 `codec:",omitempty"`
	FollowupEvalID        string                 `codec:",omitempty"`
	RescheduleTracker     *api.RescheduleTracker `codec:",omitempty"`
	SignedIdentities      map[string]string      `codec:",omitempty"`
	SigningKeyID          string                 `codec:",omitempty"`
	CreateIndex           uint64                 `codec:",omitempty"`
	ModifyIndex           uint64                 `codec:",omitempty"`
	AllocModifyIndex      uint64                 `codec:",omitempty"`
	CreateTime            int64                  `codec:",omitempty"`
	ModifyTime            int64                  `codec:",omitempty"`
}

type protocolDeployment = protocol.DeploymentStatus

type allocatedResources struct {
	Tasks          map[string]*taskResources
	TaskLifecycles map[string]*lifecycle
	Shared         sharedResources
}

type taskResources struct {
	Cpu struct {
		CpuShares     int64
		ReservedCores []uint16
	}
	Memory struct {
		MemoryMB, MemoryMaxMB int64
	}
	Networks []*network
	Devices  []any
}

type sharedResources struct {
	Networks []*network
	DiskMB   int64
	Ports    []*portMapping
}

type portMapping struct {
	Label           string `codec:",omitempty"`
	Value           int    `codec:",omitempty"`
	To              int    `codec:",omitempty"`
	HostIP          string `codec:",omitempty"`
	IgnoreCollision bool   `codec:",omitempty"`
}

// network is a network of a node, a group or an allocation. Servers omit its empty fields.
type network struct {
	Mode          string `codec:",omitempty"`
	Device        string `codec:",omitempty"`
	CIDR          string `codec:",omitempty"`
	IP            string `codec:",omitempty"`
	Hostname      string `codec:",omitempty"`
	MBits         int    `codec:",omitempty"`
	DNS           any    `codec:",omitempty"`
	ReservedPorts []port `codec:",omitempty"`
	DynamicPorts  []port `codec:",omitempty"`
	CNI           any    `codec:",omitempty"`
}

type port struct {
	Label           string `codec:",omitempty"`
	Value           int    `codec:",omitempty"`
	To              int    `codec:",omitempty"`
	HostNetwork     string `codec:",omitempty"`
	IgnoreCollision bool   `codec:",omitempty"`
}

type resources struct {
	CPU, Cores, MemoryMB, MemoryMaxMB, DiskMB, IOPS, SecretsMB int
	Networks                                                   []*network
	Devices                                                    []any
	NUMA                                                       any
}

type metrics struct {
	NodesEvaluated, NodesFiltered, NodesInPool, NodesExhausted                            int
	NodePool                                                                              string
	NodesAvailable                                                                        map[string]int
	ClassFiltered, ConstraintFiltered, ClassExhausted, DimensionExhausted, QuotaExhausted any
	ResourcesExhausted, Scores                                                            any
	ScoreMetaData                                                                         []scoreMetaData
	AllocationTime                                                                        time.Duration
	CoalescedFailures                                                                     int
}

type scoreMetaData struct {
	NodeID    string
	Scores    map[string]float64
	NormScore float64
}

type desiredTransition struct {
	Migrate, Reschedule, ForceReschedule, NoShutdownDelay, MigrateDisablePlacement *bool
}

type allocState struct {
	Field int
	Value string
	Time  time.Time
}

type networkStatus struct {
	InterfaceName, Address, AddressIPv6 string
	DNS                                 any
}

type taskState struct {
	State, Paused                      string
	Failed                             bool
	Restarts                           uint64
	LastRestart, StartedAt, FinishedAt time.Time
	Events                             []*taskEvent
}

// taskEvent is an event of a task. It is large because it has all fields of Nomad's record.
type taskEvent struct {
	Type                                                          string
	Time                                                          int64
	Message, DisplayMessage                                       string
	Details                                                       map[string]string
	FailsTask                                                     bool
	RestartReason, SetupError, DriverError, KillError, KillReason string
	ExitCode, Signal                                              int
	KillTimeout                                                   time.Duration
	StartDelay, DiskLimit                                         int64
	DownloadError, ValidationError, FailedSibling, VaultError     string
	TaskSignalReason, TaskSignal, DriverMessage, GenericSource    string
}

// job is a job in its canonical form. It is large because it has all fields of Nomad's record, also those that only
// servers use.
type job struct {
	ID, Name, Namespace, Region, Type, NodePool, ParentID, Status, StatusDescription string
	ConsulNamespace, VaultNamespace, NomadTokenID, DispatchIdempotencyToken          string
	Priority                                                                         int
	AllAtOnce, Dispatched, Stop, Stable                                              bool
	Datacenters                                                                      []string
	Constraints                                                                      []*constraint
	Affinities, Spreads                                                              []any
	TaskGroups                                                                       []*taskGroup
	Update                                                                           updateStrategy
	Multiregion, Periodic, ParameterizedJob, UI, VersionTag                          any
	Payload                                                                          []byte
	Meta                                                                             map[string]string
	Version, CreateIndex, ModifyIndex, JobModifyIndex                                uint64
	SubmitTime                                                                       int64
}

type constraint struct{ LTarget, RTarget, Operand string }

type updateStrategy struct {
	Stagger                                           time.Duration
	MaxParallel                                       int
	HealthCheck                                       string
	MinHealthyTime, HealthyDeadline, ProgressDeadline time.Duration
	AutoRevert, AutoPromote                           bool
	Canary                                            int
}

// taskGroup is a group of a job. It is large because it has all fields of Nomad's record.
type taskGroup struct {
	Name                                      string
	Count                                     int
	Constraints                               []*constraint
	Affinities, Spreads                       []any
	Update                                    *updateStrategy
	Migrate                                   *migrate
	Disconnect                                *disconnect
	RestartPolicy                             *restartPolicy
	ReschedulePolicy                          *reschedulePolicy
	EphemeralDisk                             *ephemeralDisk
	Networks                                  []*network
	Services                                  []*service
	Tasks                                     []*task
	Volumes                                   map[string]*volume
	Meta                                      map[string]string
	Consul, Scaling                           any
	ShutdownDelay, MaxClientDisconnect        *time.Duration
	StopAfterClientDisconnect, MaxRunDuration *time.Duration
	PreventRescheduleOnLost                   bool
}

type migrate struct {
	MaxParallel                     int
	HealthCheck                     string
	MinHealthyTime, HealthyDeadline time.Duration
}

type disconnect struct {
	LostAfter         time.Duration
	StopOnClientAfter *time.Duration
	Replace           *bool
	Reconcile         string
}

type restartPolicy struct {
	Attempts        int
	Interval, Delay time.Duration
	Mode            string
	RenderTemplates bool
}

type reschedulePolicy struct {
	Attempts                  int
	Interval, Delay, MaxDelay time.Duration
	DelayFunction             string
	Unlimited                 bool
}

type ephemeralDisk struct {
	Sticky, Migrate bool
	SizeMB          int
}

type volume struct {
	Name, Type, Source, AccessMode, AttachmentMode string
	ReadOnly, PerAlloc, Sticky                     bool
	MountOptions                                   any
}

type service struct {
	Name, TaskName, Namespace, PortLabel, AddressMode, Address, OnUpdate, Provider, Cluster, Kind string
	EnableTagOverride                                                                             bool
	Tags, CanaryTags                                                                              []string
	Checks                                                                                        []*check
	Meta, CanaryMeta, TaggedAddresses                                                             map[string]string
	Connect, Weights                                                                              any
	Identity                                                                                      *workloadIdentity
}

// check is a check of a service. It is large because it has all fields of Nomad's record.
type check struct {
	Name, Type, Command, Path, Protocol, PortLabel, AddressMode, InitialStatus, Method, TaskName string
	TLSServerName, Body, GRPCService, OnUpdate, Notes                                            string
	Args                                                                                         []string
	Expose, TLSSkipVerify, GRPCUseTLS                                                            bool
	Interval, Timeout                                                                            time.Duration
	Header                                                                                       map[string][]string
	CheckRestart                                                                                 any
	SuccessBeforePassing, FailuresBeforeCritical, FailuresBeforeWarning                          int
}

type workloadIdentity struct {
	Name, ChangeMode, ChangeSignal, Filepath, ServiceName string
	Audience                                              []string
	Env, File                                             bool
	TTL                                                   time.Duration
	ExtraClaims                                           map[string]string
}

// task is a task of a group. It is large because it has all fields of Nomad's record.
type task struct {
	Name, Driver, User, KillSignal, Kind          string
	Config                                        map[string]any
	Env, Meta                                     map[string]string
	Services                                      []*service
	Constraints                                   []*constraint
	Affinities, Secrets, Actions, ScalingPolicies []any
	Vault, Consul, CSIPluginConfig, Schedule      any
	DispatchPayload                               any
	Templates                                     []*template
	Resources                                     *resources
	RestartPolicy                                 *restartPolicy
	Lifecycle                                     *lifecycle
	LogConfig                                     *logConfig
	Artifacts                                     []*artifact
	VolumeMounts                                  []any
	Leader                                        bool
	KillTimeout, ShutdownDelay                    time.Duration
	Identity                                      *workloadIdentity
	Identities                                    []*workloadIdentity
}

type lifecycle struct {
	Hook    string
	Sidecar bool
}

type logConfig struct {
	MaxFiles, MaxFileSizeMB int
	Disabled                bool
}

type artifact struct {
	GetterSource, GetterMode, RelativeDest string
	GetterOptions, GetterHeaders           map[string]string
	GetterInsecure, Chown                  bool
}

type template struct {
	SourcePath, DestPath, EmbeddedTmpl, ChangeMode, ChangeSignal, Perms, LeftDelim, RightDelim string
	ChangeScript, Wait                                                                         any
	Once, Envvars, ErrMissingKey                                                               bool
	Splay, VaultGrace                                                                          time.Duration
	Uid, Gid                                                                                   *int
}
