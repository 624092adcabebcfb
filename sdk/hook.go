package sdk

import (
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

// Hook is the interface that the author of a hook implements, with at least one method
// for a hook point: those of [TaskPrestart], [AllocPostrun], and so on. One value can have
// all of them. Its methods may be called concurrently.
type Hook interface {
	// Info describes the hook. It is called once, when the process starts.
	Info() HookInfo
}

// HookInfo is the description of a hook. Only Name is required.
type HookInfo struct {
	Name    string // name that users write: letters, digits, "_", "-" and "."
	Version string // such as "1.2.3"; empty means "0.1.0"

	// ConfigSchema describes the configuration in the host's `plugin` block. nil means
	// that the hook has no configuration.
	ConfigSchema *Spec

	// AttachmentSchema describes the configuration with which a job or the agent attaches
	// the hook. nil means that the attachment has no configuration.
	AttachmentSchema *Spec

	// AllAllocs requests calls for all allocations. Without it the hook is only called
	// for the allocations and tasks that it is attached to.
	AllAllocs bool

	// IncludeAllocJSON requests Alloc.JSON.
	IncludeAllocJSON bool
	// ReportsHealth means that an allocation is healthy for its deployment only after the
	// hook has reported it, with Host.SetHealth.
	ReportsHealth bool

	// Timeouts limit the duration of calls for hook points for which the host's default
	// (one minute for Prerun and Prestart, else ten seconds) is unsuitable.
	Timeouts map[Point]time.Duration
}

// HostSetter is a hook that calls its host: to run a command in a task, to restart a
// task, to read variables, and for the other methods of [Host].
type HostSetter interface {
	// SetHost is called once, before the first hook point. The host is valid as long as
	// the process lives: while no agent runs, its calls wait for one.
	SetHost(host Host, node Node)
}

// A hook is any value with at least one of these methods. One value can have all of
// them. The methods may be called concurrently, for one task as well as for many, and
// again with the same request after a restart of the plugin or the agent. For the time
// of each call and the effect of an error, see
//
//	go doc github.com/nomad-lite/nomad-lite/plugins/hook.TaskPrestart
type (
	AllocPrerun         = hook.AllocPrerun
	AllocUpdate         = hook.AllocUpdate
	AllocPreTaskRestart = hook.AllocPreTaskRestart
	AllocPreKill        = hook.AllocPreKill
	AllocPostrun        = hook.AllocPostrun
	AllocDestroy        = hook.AllocDestroy
	AllocShutdown       = hook.AllocShutdown

	TaskPrestart   = hook.TaskPrestart
	TaskPoststart  = hook.TaskPoststart
	TaskUpdate     = hook.TaskUpdate
	TaskPreKilling = hook.TaskPreKilling
	TaskExited     = hook.TaskExited
	TaskStop       = hook.TaskStop
	TaskShutdown   = hook.TaskShutdown
)

// Requests of the hook points. Each request has the method Config, which decodes the
// configuration with which the hook is attached, and Scope, which identifies the
// allocation or task to a [Host]. For the other fields, see
//
//	go doc github.com/nomad-lite/nomad-lite/plugins/hook.TaskPrestartRequest
type (
	AllocPrerunRequest         = hook.AllocPrerunRequest
	AllocUpdateRequest         = hook.AllocUpdateRequest
	AllocPreTaskRestartRequest = hook.AllocPreTaskRestartRequest
	AllocPreKillRequest        = hook.AllocPreKillRequest
	AllocPostrunRequest        = hook.AllocPostrunRequest
	AllocDestroyRequest        = hook.AllocDestroyRequest
	AllocShutdownRequest       = hook.AllocShutdownRequest

	TaskPrestartRequest   = hook.TaskPrestartRequest
	TaskPoststartRequest  = hook.TaskPoststartRequest
	TaskUpdateRequest     = hook.TaskUpdateRequest
	TaskPreKillingRequest = hook.TaskPreKillingRequest
	TaskExitedRequest     = hook.TaskExitedRequest
	TaskStopRequest       = hook.TaskStopRequest
	TaskShutdownRequest   = hook.TaskShutdownRequest
)

// Responses of the hook points. An error makes a response invalid, except for the State
// of a TaskPrestartResponse.
type (
	AllocPrerunResponse         = hook.AllocPrerunResponse
	AllocUpdateResponse         = hook.AllocUpdateResponse
	AllocPreTaskRestartResponse = hook.AllocPreTaskRestartResponse
	AllocPreKillResponse        = hook.AllocPreKillResponse
	AllocPostrunResponse        = hook.AllocPostrunResponse
	AllocDestroyResponse        = hook.AllocDestroyResponse
	AllocShutdownResponse       = hook.AllocShutdownResponse

	TaskPrestartResponse   = hook.TaskPrestartResponse
	TaskPoststartResponse  = hook.TaskPoststartResponse
	TaskUpdateResponse     = hook.TaskUpdateResponse
	TaskPreKillingResponse = hook.TaskPreKillingResponse
	TaskExitedResponse     = hook.TaskExitedResponse
	TaskStopResponse       = hook.TaskStopResponse
	TaskShutdownResponse   = hook.TaskShutdownResponse
)

// Types in the fields of requests.
type (
	// RequestMeta holds the fields that all requests have.
	RequestMeta = hook.RequestMeta
	// Alloc describes the allocation of a request.
	Alloc = hook.Alloc
	// AllocTask describes the task of a request.
	AllocTask = hook.Task
	// TaskDir holds the directories of a task.
	TaskDir = hook.TaskDir
	// Node describes the node on which a hook runs.
	Node = hook.Node
)

// Types of a hook's calls to its host.
type (
	// Host is the interface that a hook can call at any time:
	//
	//	go doc github.com/nomad-lite/nomad-lite/plugins/hook.Host
	Host = hook.Host
	// Scope is the allocation or task of a call to a Host; requests return it.
	Scope = hook.Scope
	// ExecResult is the exit status of a command, and the end of its output.
	ExecResult = driver.ExecResult
	// AllocState is the state of an allocation.
	AllocState = hook.AllocState
	// TaskState is the state of a task.
	TaskState = hook.TaskState
	// Event is an event of a task.
	Event = hook.Event
	// TaskUsage is the resource usage of a task at one time.
	TaskUsage = hook.Usage
	// Service is an instance of a service.
	Service = hook.Service
)

// Types of an Event.
const (
	EventMessage = hook.EventMessage // default type
	EventFailed  = hook.EventFailed
)

// Errors of a Host that a hook may check for.
var (
	ErrDenied   = hook.ErrPermissionDenied // the allocation or the task has ended, or the token does not permit the call
	ErrNoTask   = hook.ErrTaskNotRunning   // the task does not run
	ErrHostGone = hook.ErrHostUnavailable  // the agent exited during the call: the result is unknown
)

// Point is a hook point in the life of an allocation or a task.
type Point = hook.Point

// Hook points, for Info.Timeouts.
const (
	PointPrerun         = hook.Prerun
	PointUpdateAlloc    = hook.UpdateAlloc
	PointPreTaskRestart = hook.PreTaskRestart
	PointPreKill        = hook.PreKill
	PointPostrun        = hook.Postrun
	PointDestroy        = hook.Destroy
	PointShutdownAlloc  = hook.ShutdownAlloc
	PointPrestart       = hook.Prestart
	PointPoststart      = hook.Poststart
	PointUpdate         = hook.Update
	PointPreKilling     = hook.PreKilling
	PointExited         = hook.Exited
	PointStop           = hook.Stop
	PointShutdown       = hook.Shutdown
)
