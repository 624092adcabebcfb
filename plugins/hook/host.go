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
	// ErrPermissionDenied means that the capability is not known any more, or was never good
	// for what was asked.
	ErrPermissionDenied = errors.New("the capability is not good for this")

	// ErrTaskNotRunning means that the allocation has no such task, or that it does not
	// run.
	ErrTaskNotRunning = errors.New("the task does not run")

	// ErrHostUnavailable means that the agent has gone during the call: it is not known
	// whether it has done what was asked.
	ErrHostUnavailable = errors.New("the agent has gone")
)

// Scope says what a call of a Host is about.
type Scope struct {
	Capability string // of the request from which the hook has it
	// Task is the task that is meant. Empty means that of the capability; with
	// the capability of an allocation, all tasks where that makes sense.
	Task string
}

// Host is what a hook can ask for at any time while its capability is good, also
// outside of a moment. Calls block until the host answers or ctx ends: while no
// agent is there, they wait for one, and what can be asked twice is asked again of
// the next. All may be called concurrently. The errors are ErrPermissionDenied, ErrTaskNotRunning,
// ErrHostUnavailable, or say what went wrong.
type Host interface {
	// Exec runs a command in a task, for at most timeout; 0 leaves that to ctx.
	Exec(ctx context.Context, s Scope, command []string, timeout time.Duration) (*driver.ExecResult, error)

	// Stats samples what a task uses, until ctx ends or the process of the task
	// does, when the channel is closed. When the agent ends, or the plugin of the
	// driver, samples come again from the next one. An interval of 0 is a second.
	Stats(ctx context.Context, s Scope, interval time.Duration) (<-chan Usage, error)

	// State tells how the allocation and its tasks are.
	State(ctx context.Context, s Scope) (*AllocState, error)

	// Interpolate fills in the references of a text, as in the task's own block.
	Interpolate(ctx context.Context, s Scope, text string) (string, error)

	// EmitEvent adds an event to a task, which keeps its newest ten. The Type is
	// empty, which means EventMessage, or EventFailed: others are the host's own, and
	// refused. The host sets the time.
	EmitEvent(ctx context.Context, s Scope, event Event) error

	// Restart, Signal and Kill act on a task or on all that run. They return when
	// that is under way. With failure the restart policy counts the restart. A
	// task that is killed has failed. The reasons are for people, and may be
	// empty.
	Restart(ctx context.Context, s Scope, reason string, failure bool) error
	Signal(ctx context.Context, s Scope, signal, reason string) error
	Kill(ctx context.Context, s Scope, reason string) error

	// SetHealth says how the allocation is for its deployment. Unhealthy is final
	// for this version of the allocation; healthy waits for the others that
	// decide, and means something only from a hook that decides health.
	SetHealth(ctx context.Context, s Scope, healthy bool, reason string) error

	// Variable reads a variable that the allocation may read. It waits until the
	// index is higher than after, unless that is 0. A variable that is missing
	// has nil Items.
	Variable(ctx context.Context, s Scope, path string, after uint64) (items map[string]string, index uint64, err error)

	// Variables lists the paths below a prefix, as Variable does.
	Variables(ctx context.Context, s Scope, prefix string, after uint64) (paths []string, index uint64, err error)

	// Services lists the instances of a service in the namespace of the job, or
	// with an empty name those of all services, as Variable does: by name, then ID.
	Services(ctx context.Context, s Scope, name string, after uint64) (instances []Service, index uint64, err error)
}

// Usage is what a task used at a moment.
type Usage struct {
	Time        time.Time
	CPUPercent  float64 // of one core
	CPUMHz      float64
	MemoryRSS   uint64 // bytes
	MemoryUsage uint64 // bytes, with the page cache
}

// AllocState is how an allocation is.
type AllocState struct {
	ClientStatus      string // pending, running, complete, failed, lost
	ClientDescription string
	DesiredStatus     string // run, stop, evict
	Tasks             map[string]TaskState
}

// TaskState is how a task is.
type TaskState struct {
	State      string // pending, running, dead
	Failed     bool
	Restarts   uint64
	StartedAt  time.Time // zero: never
	FinishedAt time.Time
	Events     []Event // oldest first
}

// Event is something that has happened to a task.
type Event struct {
	Type    string
	Time    time.Time
	Message string // as people read it
	Details map[string]string
}

// The types of events that hooks emit.
const (
	EventMessage = "Task hook message"
	EventFailed  = "Task hook failed"
)

// eventTypes are all that hosts take; the last ones are for the hooks in the box.
var eventTypes = []string{"", EventMessage, EventFailed, "Downloading Artifacts", "Failed Artifact Download", "Template"}

// maxDetails is how many details of an event are kept.
const maxDetails = 16

// Fault tells why a host does not take an event from a hook.
func (e Event) Fault() error {
	if !slices.Contains(eventTypes, e.Type) {
		return fmt.Errorf("events of type %q are not a hook's: use %q, or none", e.Type, EventMessage)
	}
	if len(e.Details) > maxDetails {
		return fmt.Errorf("an event with %d details: it may have %d", len(e.Details), maxDetails)
	}
	return nil
}

// Service is an instance of a service.
type Service struct {
	ID         string
	Name       string // of the service
	Address    string
	Port       int
	Tags       []string
	AllocID    string
	NodeID     string
	Datacenter string
	JobID      string
}
