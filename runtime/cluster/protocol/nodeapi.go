package protocol

import (
	"time"

	"github.com/hashicorp/nomad/api"
)

// Methods of a node that servers call.
const (
	MethodSignalAlloc       = "Allocations.Signal"
	MethodRestartAlloc      = "Allocations.Restart"
	MethodAllocStats        = "Allocations.Stats"
	MethodAllocChecks       = "Allocations.Checks"
	MethodCollectAlloc      = "Allocations.GarbageCollect"
	MethodCollectAllocs     = "Allocations.GarbageCollectAll"
	MethodSetPauseState     = "Allocations.SetPauseState"
	MethodGetPauseState     = "Allocations.GetPauseState"
	MethodHostStats         = "ClientStats.Stats"
	MethodListFiles         = "FileSystem.List"
	MethodStatFile          = "FileSystem.Stat"
	MethodApplyNodeMeta     = "NodeMeta.Apply"
	MethodReadNodeMeta      = "NodeMeta.Read"
	MethodGetNodeIdentity   = "NodeIdentity.Get"
	MethodRenewNodeIdentity = "NodeIdentity.Renew"
	MethodAgentHost         = "Agent.Host"
	MethodAgentProfile      = "Agent.Profile"
)

// Streaming methods of a node. The request is followed by messages of the type StreamMessage from the node, and in
// MethodExec by messages of the type ExecInput from the server.
const (
	MethodExec               = "Allocations.Exec"
	MethodStreamLogs         = "FileSystem.Logs"
	MethodStreamFile         = "FileSystem.Stream"
	MethodMonitorAgent       = "Agent.Monitor"
	MethodExportAgentMonitor = "Agent.MonitorExport"
)

// SignalAllocRequest is the request of Allocations.Signal; its response is a WriteMeta.
type SignalAllocRequest struct {
	AllocID string
	Task    string // empty means all running tasks
	Signal  string // such as "SIGHUP"
	ReadOptions
}

// RestartAllocRequest is the request of Allocations.Restart; its response is a WriteMeta. Without TaskName and AllTasks, the
// running tasks restart.
type RestartAllocRequest struct {
	AllocID  string
	TaskName string
	AllTasks bool
	ReadOptions
}

// AllocStatsRequest is the request of Allocations.Stats.
type AllocStatsRequest struct {
	AllocID string
	Task    string // empty means all tasks
	ReadOptions
}

// AllocStatsResponse is the response of Allocations.Stats. MemoryStats and CpuStats are not nil.
type AllocStatsResponse struct {
	Stats *api.AllocResourceUsage
	ReadMeta
}

// AllocRequest is the request of methods about an allocation: of Allocations.GarbageCollect, whose response is a WriteMeta, and
// of Allocations.Checks.
type AllocRequest struct {
	AllocID string
	ReadOptions
}

// AllocChecksResponse is the response of Allocations.Checks.
type AllocChecksResponse struct {
	Results map[string]*api.AllocCheckStatus // by id of the check
	ReadMeta
}

// NodeRequest is the request of methods about the node: of Allocations.GarbageCollectAll, whose response is a WriteMeta, of
// ClientStats.Stats, NodeMeta.Read, NodeIdentity.Get and NodeIdentity.Renew.
type NodeRequest struct {
	NodeID   string
	SecretID string // always empty
	ReadOptions
}

// HostStatsResponse is the response of ClientStats.Stats. Memory and AllocDirStats are not nil.
type HostStatsResponse struct {
	HostStats *HostStats
	ReadMeta
}

// HostStats is the resource usage of a machine.
type HostStats struct {
	Memory           *api.HostMemoryStats
	CPU              []*HostCPUStats
	DiskStats        []*api.HostDiskStats
	AllocDirStats    *api.HostDiskStats
	DeviceStats      []*api.DeviceGroupStats
	Uptime           uint64  // seconds
	Timestamp        int64   // nanoseconds since 1970
	CPUTicksConsumed float64 // MHz
}

// HostCPUStats is the usage of a processor in percent; TotalTicks is in MHz.
type HostCPUStats struct {
	CPU                                          string
	User, System, Idle, TotalPercent, TotalTicks float64
}

// FileRequest is the request of FileSystem.List and FileSystem.Stat. Path is relative to the directory of the allocation.
type FileRequest struct {
	AllocID string
	Path    string
	ReadOptions
}

// ListFilesResponse is the response of FileSystem.List.
type ListFilesResponse struct {
	Files []*FileInfo
	ReadMeta
}

// StatFileResponse is the response of FileSystem.Stat.
type StatFileResponse struct {
	Info *FileInfo
	ReadMeta
}

// FileInfo describes a file or a directory.
type FileInfo struct {
	Name        string
	IsDir       bool
	Size        int64
	FileMode    string // such as "drwxr-xr-x"
	ModTime     time.Time
	ContentType string // MIME type; empty in lists
}

// ApplyNodeMetaRequest is the request of NodeMeta.Apply. A nil value removes a key, or hides the key of the configuration.
type ApplyNodeMetaRequest struct {
	NodeID string
	Meta   map[string]*string
	ReadOptions
}

// NodeMetaResponse is the response of NodeMeta.Apply and NodeMeta.Read.
type NodeMetaResponse struct {
	Meta    map[string]string  // Static with the changes of Dynamic
	Dynamic map[string]*string // set by API
	Static  map[string]string  // from the configuration
}

// NodeIdentityResponse is the response of NodeIdentity.Get.
type NodeIdentityResponse struct{ Claims map[string]any }

// RenewNodeIdentityResponse is the response of NodeIdentity.Renew.
type RenewNodeIdentityResponse struct{}

// AgentRequest is the request of Agent.Host.
type AgentRequest struct {
	NodeID   string
	ServerID string
	ReadOptions
}

// AgentHostResponse is the response of Agent.Host.
type AgentHostResponse struct {
	AgentID  string
	HostData *api.HostData
}

// Types of profiles in AgentProfileRequest.
const (
	ProfileCPU     = "cpu"
	ProfileCommand = "cmdline"
	ProfileLookup  = "lookup" // the profile that Profile names
	ProfileTrace   = "trace"
)

// AgentProfileRequest is the request of Agent.Profile.
type AgentProfileRequest struct {
	ReqType  string
	Profile  string
	Seconds  int
	Debug    int
	GC       int
	NodeID   string
	ServerID string
	ReadOptions
}

// AgentProfileResponse is the response of Agent.Profile.
type AgentProfileResponse struct {
	AgentID     string
	Payload     []byte
	HTTPHeaders map[string]string
}

// StreamMessage is a message of a node in a stream. An error is the last message.
type StreamMessage struct {
	Error   *StreamError
	Payload []byte // a JSON object, or plain text if the request asked for it
}

// StreamError is the error that ends a stream. Code is an HTTP status; nil means 500.
type StreamError struct {
	Message string
	Code    *int64
}

// ExecRequest is the request of Allocations.Exec.
type ExecRequest struct {
	AllocID string
	JobID   string // empty means any job
	Task    string
	Tty     bool
	Cmd     []string
	Action  string // name of an action of the task, whose command replaces Cmd
	ReadOptions
}

// ExecInput is a message of the server in Allocations.Exec. A message without Stdin and TtySize is a heartbeat.
type ExecInput struct {
	Stdin   *ExecStdin
	TtySize *ExecTtySize
}

// ExecStdin is input of the command. Close ends the input after Data.
type ExecStdin struct {
	Data  []byte
	Close bool
}

// ExecTtySize is a new size of the terminal, in characters.
type ExecTtySize struct{ Height, Width int }

// StreamLogsRequest is the request of FileSystem.Logs.
type StreamLogsRequest struct {
	AllocID   string
	Task      string
	LogType   string // stdout or stderr
	Offset    int64
	Origin    string // start or end; empty means start
	PlainText bool
	Follow    bool // the stream continues with new output until the server closes it
	ReadOptions
}

// StreamFileRequest is the request of FileSystem.Stream.
type StreamFileRequest struct {
	AllocID   string
	Path      string
	Offset    int64
	Origin    string // start or end; empty means start
	Limit     int64  // bytes; zero means no limit
	PlainText bool
	Follow    bool
	ReadOptions
}

// MonitorAgentRequest is the request of Agent.Monitor.
type MonitorAgentRequest struct {
	LogLevel           string // empty means info
	LogJSON            bool
	LogIncludeLocation bool
	PlainText          bool
	NodeID             string
	ServerID           string
	ReadOptions
}
