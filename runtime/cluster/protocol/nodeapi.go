package protocol

import (
	"time"

	"github.com/hashicorp/nomad/api"
)

// Node methods called by servers.
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

// The node's streaming methods. After the request, the node sends StreamMessage messages; in MethodExec the server sends
// ExecInput messages.
const (
	MethodExec               = "Allocations.Exec"
	MethodStreamLogs         = "FileSystem.Logs"
	MethodStreamFile         = "FileSystem.Stream"
	MethodMonitorAgent       = "Agent.Monitor"
	MethodExportAgentMonitor = "Agent.MonitorExport"
)

// SignalAllocRequest is the Allocations.Signal request; its response is a WriteMeta.
type SignalAllocRequest struct {
	AllocID string
	Task    string // empty means all running tasks
	Signal  string // such as "SIGHUP"
	ReadOptions
}

// RestartAllocRequest is the Allocations.Restart request; its response is a WriteMeta. Without TaskName and AllTasks, the
// running tasks restart.
type RestartAllocRequest struct {
	AllocID  string
	TaskName string
	AllTasks bool
	ReadOptions
}

// AllocStatsRequest is the Allocations.Stats request.
type AllocStatsRequest struct {
	AllocID string
	Task    string // empty means all tasks
	ReadOptions
}

// AllocStatsResponse is the Allocations.Stats response. MemoryStats and CpuStats are not nil.
type AllocStatsResponse struct {
	Stats *api.AllocResourceUsage
	ReadMeta
}

// AllocRequest is the request for methods about an allocation: Allocations.GarbageCollect, with a WriteMeta as response, and
// Allocations.Checks.
type AllocRequest struct {
	AllocID string
	ReadOptions
}

// AllocChecksResponse is the Allocations.Checks response.
type AllocChecksResponse struct {
	Results map[string]*api.AllocCheckStatus // by check ID
	ReadMeta
}

// NodeRequest is the request for methods about the node: Allocations.GarbageCollectAll, with a WriteMeta as response,
// ClientStats.Stats, NodeMeta.Read, NodeIdentity.Get and NodeIdentity.Renew.
type NodeRequest struct {
	NodeID   string
	SecretID string // always empty
	ReadOptions
}

// HostStatsResponse is the ClientStats.Stats response. Memory and AllocDirStats are not nil.
type HostStatsResponse struct {
	HostStats *HostStats
	ReadMeta
}

// HostStats is a machine's resource usage.
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

// HostCPUStats is a processor's usage in percent; TotalTicks is in MHz.
type HostCPUStats struct {
	CPU                                          string
	User, System, Idle, TotalPercent, TotalTicks float64
}

// FileRequest is the FileSystem.List and FileSystem.Stat request. Path is relative to the allocation directory.
type FileRequest struct {
	AllocID string
	Path    string
	ReadOptions
}

// ListFilesResponse is the FileSystem.List response.
type ListFilesResponse struct {
	Files []*FileInfo
	ReadMeta
}

// StatFileResponse is the FileSystem.Stat response.
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

// ApplyNodeMetaRequest is the NodeMeta.Apply request. A nil value removes a key, or hides the configured key.
type ApplyNodeMetaRequest struct {
	NodeID string
	Meta   map[string]*string
	ReadOptions
}

// NodeMetaResponse is the NodeMeta.Apply response and NodeMeta.Read.
type NodeMetaResponse struct {
	Meta    map[string]string  // Static with the changes in Dynamic
	Dynamic map[string]*string // set by API
	Static  map[string]string  // from the configuration
}

// NodeIdentityResponse is the NodeIdentity.Get response.
type NodeIdentityResponse struct{ Claims map[string]any }

// RenewNodeIdentityResponse is the NodeIdentity.Renew response.
type RenewNodeIdentityResponse struct{}

// AgentRequest is the Agent.Host request.
type AgentRequest struct {
	NodeID   string
	ServerID string
	ReadOptions
}

// AgentHostResponse is the Agent.Host response.
type AgentHostResponse struct {
	AgentID  string
	HostData *api.HostData
}

// Profile types in AgentProfileRequest.
const (
	ProfileCPU     = "cpu"
	ProfileCommand = "cmdline"
	ProfileLookup  = "lookup" // the profile named in Profile
	ProfileTrace   = "trace"
)

// AgentProfileRequest is the Agent.Profile request.
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

// AgentProfileResponse is the Agent.Profile response.
type AgentProfileResponse struct {
	AgentID     string
	Payload     []byte
	HTTPHeaders map[string]string
}

// StreamMessage is a node's message in a stream. An error is the last message.
type StreamMessage struct {
	Error   *StreamError
	Payload []byte // a JSON object, or plain text if the request asked for it
}

// StreamError is the error that ends a stream. Code is an HTTP status; nil means 500.
type StreamError struct {
	Message string
	Code    *int64
}

// ExecRequest is the Allocations.Exec request.
type ExecRequest struct {
	AllocID string
	JobID   string // empty means any job
	Task    string
	Tty     bool
	Cmd     []string
	Action  string // name of a task action with a command that replaces Cmd
	ReadOptions
}

// ExecInput is a server's message in Allocations.Exec. A message without Stdin and TtySize is a heartbeat.
type ExecInput struct {
	Stdin   *ExecStdin
	TtySize *ExecTtySize
}

// ExecStdin is input for the command. Close ends the input after Data.
type ExecStdin struct {
	Data  []byte
	Close bool
}

// ExecTtySize is the terminal's new size, in characters.
type ExecTtySize struct{ Height, Width int }

// StreamLogsRequest is the FileSystem.Logs request.
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

// StreamFileRequest is the FileSystem.Stream request.
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

// MonitorAgentRequest is the Agent.Monitor request.
type MonitorAgentRequest struct {
	LogLevel           string // empty means info
	LogJSON            bool
	LogIncludeLocation bool
	PlainText          bool
	NodeID             string
	ServerID           string
	ReadOptions
}
