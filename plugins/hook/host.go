package hook

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

var (
	// ErrPermissionDenied means that the capability token is no longer valid, or does not permit
	// the call.
	ErrPermissionDenied = errors.New("the capability token does not permit this")

	// ErrTaskNotRunning means that the allocation has no such task, or that the task does
	// not run.
	ErrTaskNotRunning = errors.New("the task does not run")

	// ErrHostUnavailable means that the agent has exited during the call: it is unknown
	// whether the agent has executed the request.
	ErrHostUnavailable = errors.New("the agent has gone")
)

// Scope identifies the allocation or the task for which a hook calls a method of Host.
type Scope struct {
	Token string // capability token from the request that the hook has received
	// Task is the name of the task. Empty means the task of the token; with the
	// token of an allocation it means all tasks, for calls that can act on several.
	Task string
}

// Host is the interface that a hook can call at any time while its token is valid,
// also outside of a hook point. All methods may be called concurrently.
//
// Calls block until the host responds or ctx ends. While no agent runs, calls wait for the next agent, without
// a limit of their own: a call that must not wait for an agent needs a ctx with a deadline. The ctx of a hook point has one, which
// includes the calls of Host that the hook point makes. An agent that exits during a call ends it: State, Interpolate, SetHealth, StoreState,
// Variable, Variables, Services and Stats are then repeated at the next agent, and the other calls return ErrHostUnavailable,
// because the agent may have executed them.
//
// The errors are ErrPermissionDenied, ErrTaskNotRunning, ErrHostUnavailable, the error of ctx, or describe the failure.
//
// Later versions can add methods. For tests of a hook, sdktest.FakeHost implements all methods. A fake Host of an author
// embeds the interface, and has the methods that the hook calls.
type Host interface {
	// Exec runs a command in a task, and returns when the command has exited. An exit code other than 0 is a
	// result and not an error. The driver of the task must support Exec.
	Exec(ctx context.Context, s Scope, req ExecRequest) (*driver.ExecResult, error)

	// Stats samples the resource usage of a task. The channel is closed when ctx or the
	// process of the task ends. If the agent or the driver plugin exits, the next one
	// continues the samples. An interval of 0 means one second.
	Stats(ctx context.Context, s Scope, interval time.Duration) (<-chan Usage, error)

	// State returns the current state of the allocation and all its tasks.
	State(ctx context.Context, s Scope) (*AllocState, error)

	// Interpolate replaces the variable references in a text, in the same way as in the
	// task's block of the job.
	Interpolate(ctx context.Context, s Scope, text string) (string, error)

	// EmitEvent adds an event to a task, which keeps its newest ten. The Type is
	// EventMessage, EventFailed, or empty, which means EventMessage: the host rejects other
	// types, which it uses itself. The host sets the time. An event with an OperationID replaces the
	// ongoing event of that operation, so that the progress of an operation needs one of the ten places.
	EmitEvent(ctx context.Context, s Scope, event Event) error

	// Restart, Signal and Kill act on a task or on all running tasks. They return when the
	// operation has started. Kill makes the task fail.
	Restart(ctx context.Context, s Scope, req RestartRequest) error
	Signal(ctx context.Context, s Scope, req SignalRequest) error
	Kill(ctx context.Context, s Scope, req KillRequest) error

	// SetHealth reports the health of a task, or of all tasks of the allocation, for the deployment of the allocation.
	// After the report unhealthy, this version of the allocation stays unhealthy. The report healthy has no effect unless
	// Info returns ReportsHealth. The allocation becomes healthy only when each hook with ReportsHealth has
	// reported healthy for each task that it is attached to, except for tasks with a lifecycle that are no sidecars, which can
	// end before. A restart of the agent deletes the reports: the repeated Poststart must report again.
	SetHealth(ctx context.Context, s Scope, req SetHealthRequest) error

	// StoreState replaces the State of this hook for a task, and returns when the state is on the disk. Later requests for
	// the task have it as their PreviousState: after a restart of the task, of the plugin, of the agent and of the machine,
	// until Stop. It is for work that continues after Prestart, whose response sets the same State. After an error, it is
	// unknown which of the two states later requests have. The state can have 1 MiB.
	StoreState(ctx context.Context, s Scope, state map[string]string) error

	// Variable reads a variable, by default of the namespace of the job. A hook that takes the path from the job lets the job
	// use any variable of its namespace.
	Variable(ctx context.Context, s Scope, req VariableRequest) (VariableResponse, error)

	// Variables lists the variables with a prefix.
	Variables(ctx context.Context, s Scope, req VariablesRequest) (VariablesResponse, error)

	// Services lists the instances of a service in the namespace of the job. On a node of a Nomad cluster, an empty name lists
	// each service once, with no more than its name and the tags of its instances.
	Services(ctx context.Context, s Scope, req ServicesRequest) (ServicesResponse, error)
}

// ExecRequest is the command of Host.Exec. A task driver of Nomad runs a command as the user and in the environment
// that it chooses, without standard input; a command can change its environment through /usr/bin/env.
type ExecRequest struct {
	Command []string // program and arguments; no shell interprets them
	// Timeout limits the duration of the command: after it, the driver kills the command, and Exec returns
	// context.DeadlineExceeded. It starts when the agent receives the request; a wait for the next agent is not
	// included. 0 means no limit except ctx, whose end kills the command too.
	Timeout time.Duration
}

// RestartRequest is the argument of Host.Restart.
type RestartRequest struct {
	Reason         string // text for users; may be empty
	CountAsFailure bool   // the restart counts as a failure in the restart policy
}

// SignalRequest is the argument of Host.Signal.
type SignalRequest struct {
	Signal string // name, such as "SIGHUP"
	Reason string // text for users; may be empty
}

// KillRequest is the argument of Host.Kill.
type KillRequest struct {
	Reason string // text for users; may be empty
}

// SetHealthRequest is the argument of Host.SetHealth.
type SetHealthRequest struct {
	Healthy bool
	Reason  string // text for users; may be empty
}

// VariableRequest is the argument of Host.Variable.
type VariableRequest struct {
	Path      string
	Namespace string // empty means that of the job; servers permit others if a policy of the job does
	// AfterIndex is the Index of an earlier response: Variable blocks until the index of the variable is higher. 0 means not
	// to block.
	AfterIndex uint64
}

// VariableResponse is the result of Host.Variable.
type VariableResponse struct {
	Items    map[string]string // nil if there is no such variable
	Metadata VariableMetadata  // zero if there is no such variable, and from a host of an earlier version
	Index    uint64
}

// VariableMetadata describes a variable without its items.
type VariableMetadata struct {
	Namespace, Path          string
	CreateIndex, ModifyIndex uint64
	CreateTime, ModifyTime   time.Time
}

// VariablesRequest is the argument of Host.Variables.
type VariablesRequest struct {
	Prefix     string // empty means all variables of the namespace
	Namespace  string // empty means that of the job; * means all
	AfterIndex uint64 // as in VariableRequest
}

// VariablesResponse is the result of Host.Variables.
type VariablesResponse struct {
	Paths     []string           // sorted
	Variables []VariableMetadata // sorted by namespace and path; nil from a host of an earlier version
	Index     uint64
}

// ServicesRequest is the argument of Host.Services.
type ServicesRequest struct {
	Name string // name of the service; empty means all services
	// InPlaceOfConsul asks for the catalog as that of Consul: an agent that schedules for itself has in its catalog the services
	// whose provider is Consul. The response has NoConsul if no job of the namespace has such a service, and on a node of a cluster.
	InPlaceOfConsul bool
	AfterIndex      uint64 // as in VariableRequest
}

// ServicesResponse is the result of Host.Services.
type ServicesResponse struct {
	Services []Service // instances by name of the service, then by ID
	NoConsul bool      // see ServicesRequest.InPlaceOfConsul; Services is empty then
	Index    uint64
}

// Usage is the resource usage of a task at one time.
type Usage struct {
	Time        time.Time
	CPUPercent  float64 // percent of one core
	CPUMHz      float64
	MemoryRSS   uint64 // bytes
	MemoryUsage uint64 // bytes, including the page cache
}

// AllocState is the state of an allocation.
type AllocState struct {
	ClientStatus      string // pending, running, complete, failed, lost
	ClientDescription string
	DesiredStatus     string // run, stop, evict
	Tasks             map[string]TaskState
}

// TaskState is the state of a task in an allocation, with its restarts, times and events, as in Nomad's API.
type TaskState struct {
	State      string // pending, running, dead
	Failed     bool
	Restarts   uint64
	StartedAt  time.Time // zero if the task never started
	FinishedAt time.Time
	Events     []Event // oldest first
}

// Event is an event of a task.
type Event struct {
	Type    string
	Time    time.Time
	Message string // message for users
	Details map[string]string

	// OperationID identifies an operation of the task, such as a download, whose progress or result the
	// event reports. It is empty for other events.
	OperationID string
	// Ongoing means that the operation continues. Commands that print a line for each event do not print
	// ongoing events.
	Ongoing bool
}

// Types of events that hooks emit.
const (
	EventMessage = "Task hook message"
	EventFailed  = "Task hook failed"
)

// eventTypes are the types of events that a host accepts from hooks. The last three are the types of events of builtin
// hooks.
var eventTypes = []string{"", EventMessage, EventFailed, "Downloading Artifacts", "Failed Artifact Download", "Template"}

// maxEventDetails is the maximum number of entries in Event.Details.
const maxEventDetails = 16

// Validate returns the reason why a host rejects an event from a hook, or nil.
func (e Event) Validate() error {
	if !slices.Contains(eventTypes, e.Type) {
		return fmt.Errorf("events of type %q are not a hook's: use %q, or none", e.Type, EventMessage)
	}
	if e.Ongoing && e.OperationID == "" {
		return errors.New("an ongoing event without an OperationID, by which the next event replaces it")
	}
	if len(e.Details) > maxEventDetails {
		return fmt.Errorf("an event with %d details: it may have %d", len(e.Details), maxEventDetails)
	}
	return nil
}

// Values of Service.Status.
const (
	ServicePassing  = "passing"  // the last result of each check is a success, or the service has no checks
	ServiceCritical = "critical" // a check has failed, or has no result yet
)

// Service is an instance of a service.
type Service struct {
	ID         string
	Name       string // name of the service
	Address    string
	Port       int
	Tags       []string
	AllocID    string
	NodeID     string
	Datacenter string
	JobID      string
	Status     string // ServicePassing or ServiceCritical; empty if the host does not know the results of the checks
}
