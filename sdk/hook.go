package sdk

import (
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

// HostSetter is a hook that asks its host for things: to run a command in a task,
// to restart it, to read variables, and whatever else a [Host] can do.
type HostSetter interface {
	// SetHost is called once, before the first moment. The host is good for as
	// long as the process lives: while no agent is there, calls wait for one.
	SetHost(host Host, node Node)
}

// What a hook takes part in is what it has methods for: any value with at least
// one of these is a hook. One value can have all of them. The methods may be
// called concurrently, for one task as well as for many, and again with the same
// request after the plugin or the agent was started again. When each is called, and
// what an error does, says
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

// What the moments are called with. Each request has the method Config, which
// decodes the configuration with which the hook is attached, and Scope, which
// says to a [Host] what a call is about. What else is in it says
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
	TaskPrestartResponse  = hook.TaskPrestartResponse
	TaskPoststartRequest  = hook.TaskPoststartRequest
	TaskUpdateRequest     = hook.TaskUpdateRequest
	TaskPreKillingRequest = hook.TaskPreKillingRequest
	TaskExitedRequest     = hook.TaskExitedRequest
	TaskStopRequest       = hook.TaskStopRequest
	TaskShutdownRequest   = hook.TaskShutdownRequest
)

// What a hook meets in requests.
type (
	// Grant is the part that all requests have.
	Grant = hook.RequestMeta
	// Alloc says which allocation a request is about.
	Alloc = hook.Alloc
	// AllocTask says which task of it a request is about.
	AllocTask = hook.Task
	// TaskDir holds the directories of a task.
	TaskDir = hook.TaskDir
	// Node says on which node a hook runs.
	Node = hook.Node
)

// What a hook asks for.
type (
	// Host is what a hook can ask its host for, at any time:
	//
	//	go doc github.com/nomad-lite/nomad-lite/plugins/hook.Host
	Host = hook.Host
	// Scope says what a call of a Host is about; requests make it.
	Scope = hook.Scope
	// ExecResult is how a command ended, and the end of its output.
	ExecResult = driver.ExecResult
	// AllocState is how an allocation is.
	AllocState = hook.AllocState
	// TaskState is how a task is.
	TaskState = hook.TaskState
	// Event is something that has happened to a task.
	Event = hook.Event
	// TaskUsage is what a task used at a moment.
	TaskUsage = hook.Usage
	// Service is an instance of a service.
	Service = hook.Service
)

// The types of an Event.
const (
	EventMessage = hook.EventMessage // if there is none
	EventFailed  = hook.EventFailed
)

// The errors of a Host that a hook may branch on.
var (
	ErrDenied   = hook.ErrPermissionDenied // the allocation or the task has ended, or was never meant
	ErrNoTask   = hook.ErrTaskNotRunning   // it does not run
	ErrHostGone = hook.ErrHostUnavailable  // during the call: nobody knows what has become of it
)

// Point is a point in the life of an allocation or a task.
type Point = hook.Point

// The moments, for Info.Timeouts.
const (
	MomentPrerun         = hook.Prerun
	MomentUpdateAlloc    = hook.UpdateAlloc
	MomentPreTaskRestart = hook.PreTaskRestart
	MomentPreKill        = hook.PreKill
	MomentPostrun        = hook.Postrun
	MomentDestroy        = hook.Destroy
	MomentShutdownAlloc  = hook.ShutdownAlloc
	MomentPrestart       = hook.Prestart
	MomentPoststart      = hook.Poststart
	MomentUpdate         = hook.Update
	MomentPreKilling     = hook.PreKilling
	MomentExited         = hook.Exited
	MomentStop           = hook.Stop
	MomentShutdown       = hook.Shutdown
)
