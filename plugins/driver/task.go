package driver

import (
	"time"
)

// TaskConfig is everything a driver receives about one start of a task. Each start has its
// own ID: a restart of a task is a new start.
//
// It is large because a driver receives all facts about the task in one message of the
// protocol.
type TaskConfig struct {
	ID            string // "<alloc id>/<task name>/<8 hex>", new for every start
	Name          string // task name
	JobName       string
	JobID         string
	ParentJobID   string
	TaskGroupName string
	Namespace     string
	NodeName      string
	NodeID        string
	AllocID       string

	// DriverConfig is the task's config block as msgpack, in the shape of the
	// driver's TaskConfigSchema. It is empty in a handle that is recovered
	// after an agent restart: a driver keeps what it needs in Handle.State.
	DriverConfig []byte

	Env       map[string]string // the complete environment of the task
	DeviceEnv map[string]string // the variables of Env that device plugins have set
	User      string            // name, uid or uid:gid; empty means the driver's default

	AllocDir   string // directory of the allocation on the host; its last element is AllocID
	StdoutPath string // FIFO that the driver opens for writing, or /dev/null; with Capabilities.DisableLogCollection no file exists at the path
	StderrPath string // like StdoutPath

	Resources        *Resources // nil if the host has sent none
	Mounts           []Mount
	Devices          []Device
	NetworkIsolation *NetworkIsolation // nil means that the task uses the network of the host
	DNS              *DNSConfig        // nil means that the task uses the resolver of the host
}

// Resources are the resources that the scheduler has allocated to the task.
type Resources struct {
	CPUShares   int64 // MHz
	MemoryMB    int64
	MemoryMaxMB int64 // limit with memory oversubscription; 0 means no oversubscription, NoMemoryLimit means no limit
	Networks    []NetworkResource
	Linux       LinuxResources
	Ports       []PortMapping
}

// NoMemoryLimit is the value of Resources.MemoryMaxMB for a task whose memory has no limit.
const NoMemoryLimit = -1

// LinuxResources are the allocated resources in the units of the Linux kernel.
type LinuxResources struct {
	CPUPeriod        int64
	CPUQuota         int64
	CPUShares        int64
	MemoryLimitBytes int64
	OOMScoreAdj      int64
	CpusetCpus       string
	CpusetCgroup     string // directory of the cgroup that the host made; empty without cgroups
	PercentTicks     float64
}

// NetworkResource is a network that the task itself requests, as in jobs for Nomad before
// 0.12.
type NetworkResource struct {
	Device        string
	CIDR          string
	IP            string
	MBits         int32
	ReservedPorts []NetworkPort
	DynamicPorts  []NetworkPort
}

// NetworkPort is one labelled port of a NetworkResource.
type NetworkPort struct {
	Label string
	Value int32
}

// PortMapping is one port of the group's network.
type PortMapping struct {
	Label  string
	Value  int32 // port on the host
	To     int32 // port inside the task's network; 0 means the same number
	HostIP string
}

// MountsDir is the name of a directory below the directory of a task, in which a driver can mount files for the task. The
// host unmounts it when the task will not start again.
const MountsDir = ".mounts"

// Mount is a host path that is mounted into the task.
type Mount struct {
	TaskPath        string // path that the task sees
	HostPath        string // path on the host; that of a host volume has no symbolic links, because the host has followed and checked them
	Readonly        bool
	PropagationMode string // "private", "host-to-task", "bidirectional", or empty, which means private
	SELinuxLabel    string // label as in the volume_mount block of the job; empty means none
	RequestName     string // name of the host volume; empty for other mounts
}

// Device is a device node that the task can use.
type Device struct {
	TaskPath    string
	HostPath    string
	Permissions string // cgroup letters: r, w, m
}

// NetworkMode is the kind of network namespace that a task runs in.
type NetworkMode int32

// The values are sent in messages of the protocol.
const (
	NetworkHost  NetworkMode = iota // the network of the host
	NetworkGroup                    // a namespace that the tasks of a group share
	NetworkTask                     // a namespace for each task
	NetworkNone                     // a namespace for each task, without a network
)

var networkModeNames = [...]string{"host", "group", "task", "none"}

func (m NetworkMode) String() string { return nameOrUnknown(networkModeNames[:], int32(m)) }

// NetworkIsolation is the network namespace that the tasks of a group share.
type NetworkIsolation struct {
	Mode   NetworkMode
	Path   string            // path of the namespace, which the processes of the task must join; empty if there is none yet
	Labels map[string]string // values of the driver that has created the namespace, which each start gets back
	Hosts  *HostsConfig      // nil if the host has no address for the task
}

// HostsConfig holds the allocation's line for the task's /etc/hosts.
type HostsConfig struct {
	Hostname string
	Address  string
}

// DNSConfig is the resolver configuration of a task, in place of the host's.
type DNSConfig struct {
	Servers  []string
	Searches []string
	Options  []string
}

// NetworkOverride is the address that a driver has given to a task, in place of the host's
// address.
type NetworkOverride struct {
	PortMap       map[string]int // ports of the task by label
	Addr          string         // IP address of the task
	AutoAdvertise bool           // services of the task use Addr, unless they choose another address mode
}

// TaskState is the state of a task as its driver reports it. For hosts only.
type TaskState int32

// The values are sent in messages of the protocol. For hosts only.
const (
	TaskUnknown TaskState = iota
	TaskRunning
	TaskExited
)

// Handle contains all data that a driver needs to recover a started task. The host stores the Handle, and
// passes it to RecoverTask of another plugin process. For hosts only.
type Handle struct {
	Version     int32 // at least 1; chosen by the driver
	Config      *TaskConfig
	State       TaskState
	DriverState []byte // opaque to the host
}

// ExitResult is the exit status of a task.
//
// It has no time of the exit, because neither the protocol of Nomad nor that of nomad-lite carries one: hosts record the
// time at which Wait returns. For a task that ended while the plugin was down, that is the time of its recovery.
type ExitResult struct {
	// ExitCode is the exit code of the task. For a task that a signal has ended it should be
	// 128 plus the number of the signal, as in a shell.
	ExitCode int

	Signal    int  // number of the signal that has ended the task; 0 if it has exited by itself
	OOMKilled bool // the kernel has killed the task because its memory limit was exceeded

	// Err is a problem that the exit status does not show. A task with Err has failed. Package sdk sets it to the error that
	// Wait returns: the author of a driver does not set it.
	Err error
}

// Successful reports whether the task has succeeded: code 0, no signal, no error.
func (r *ExitResult) Successful() bool {
	return r.ExitCode == 0 && r.Signal == 0 && r.Err == nil
}

// TaskStatus is the result of InspectTask. For hosts only.
type TaskStatus struct {
	ID               string
	Name             string
	State            TaskState
	StartedAt        time.Time
	CompletedAt      time.Time // zero while the task runs
	ExitResult       *ExitResult
	DriverAttributes map[string]string
	NetworkOverride  *NetworkOverride

	// StartStatus is set by drivers that are made with package sdk, for a nomad-lite agent only. In messages of the
	// protocol it is the value of one reserved key of DriverAttributes.
	StartStatus *StartStatus
}

// StartStatus is what a driver knows about a start for whose call of StartTask the host has no response,
// because the host or the plugin process has died. For hosts only.
type StartStatus struct {
	Phase  StartPhase
	Handle *Handle // in the phase StartReturned: the Handle that StartTask has returned, without DriverConfig
}

// StartPhase is the progress of a start in a plugin process. For hosts only.
type StartPhase int

// Phases of a start. For hosts only.
const (
	// StartPending means that StartTask has not returned.
	StartPending StartPhase = iota
	// StartReturned means that StartTask has returned, or that the task was recovered.
	StartReturned
	// StartNotFound means that this plugin process does not have the start. RecoverTask with a handle that
	// has the whole TaskConfig, Version 0 and no DriverState searches for its task. It returns
	// ErrTaskNotFound if the task was certainly not executed, an error that is marked by [Recoverable] if the
	// driver could not find that out, and any other error if the task was executed and its exit status is
	// unknown.
	StartNotFound
)

// TaskStats is one sample of a task's resource usage.
type TaskStats struct {
	Timestamp time.Time
	Total     Usage
	ByPID     map[string]Usage
}

// Usage is the CPU and memory usage of a task or a process.
type Usage struct {
	CPU    CPUUsage
	Memory MemoryUsage
}

// CPUUsage holds the CPU usage since the previous sample.
type CPUUsage struct {
	System           float64 // percent of one core
	User             float64 // percent of one core
	Percent          float64 // percent of one core
	TotalTicks       float64 // MHz
	ThrottledPeriods uint64
	ThrottledTime    uint64 // nanoseconds
	// Measured lists the names of the fields that the driver has measured: "System Mode",
	// "User Mode", "Percent", "Total Ticks", "Throttled Periods", "Throttled Time". Any
	// other name is an error. The list should omit "Total Ticks": the stock Nomad command
	// "alloc status -stats" prints shifted columns with it.
	Measured []string
}

// MemoryUsage is the memory usage of a task or a process, in bytes.
type MemoryUsage struct {
	RSS, Cache, Swap, Usage, MaxUsage, KernelUsage, KernelMaxUsage uint64

	// Measured lists the names of the fields that the driver has measured: "RSS", "Cache",
	// "Swap", "Usage", "Max Usage", "Kernel Usage", "Kernel Max Usage". Any other name is
	// an error.
	Measured []string
}

// TaskEvent is a driver's message about a task; it becomes an event of type Driver. For hosts only.
type TaskEvent struct {
	TaskID      string
	AllocID     string
	TaskName    string
	Timestamp   time.Time
	Message     string
	Annotations map[string]string
}

// OnceAnnotation marks an event that the agent adds to a task only once, even if
// another process or start of the task sends it again. The agent compares the messages,
// and removes the annotation. For hosts only.
const OnceAnnotation = "lite_once"

// ExecResult is the result of ExecTask.
type ExecResult struct {
	Stdout []byte
	Stderr []byte
	Exit   ExitResult
}
