package taskrunner

import (
	"errors"
	"maps"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/taskrunner/restart"
)

// LocalState is the runner's state that the next agent needs to continue the task.
type LocalState struct {
	Hooks       map[string]HookState // keyed by hook name
	AllocHooks  map[string]string    `json:",omitempty"` // see SetAllocHooks
	StartID     string               // set before StartTask is called; empty after the exit is handled
	Handle      *driver.Handle       // nil unless the task runs or its exit is not handled yet
	Network     *driver.NetworkOverride
	Exit        *Exit // exit of the process of Handle, until the restart policy has decided
	Restart     restart.State
	RunComplete bool // the task will never run again

	// Destroy is the start that the driver must still destroy; nil if there is none.
	Destroy *PendingDestroy `json:",omitempty"`
	// Capabilities are the driver's capabilities as last reported, used while the
	// driver is unavailable. It is nil in the records of older agents.
	Capabilities *driver.Capabilities `json:",omitempty"`

	// RestartRequest is set from the request for a restart until the task has ended or
	// runs again.
	RestartRequest *RestartRequest `json:",omitempty"`

	// Killed is set by a kill of an unfinished task, until the task starts again.
	Killed bool `json:",omitempty"`

	// Reported are the messages of the events that the task gets only once, see
	// [Runner.EmitEventOnce].
	Reported []string `json:",omitempty"`
}

// RestartRequest is a restart that a caller requested. It belongs to one process or to
// one finished run, so that it cannot restart a later one.
type RestartRequest struct {
	Failure bool   // the restart counts as a failure for the restart policy
	Reason  string // reason of the restart, for the log
}

// Exit is the end of a process, for the restart policy.
type Exit struct {
	Lost    bool // exit status unknown
	Success bool
	Asked   bool // a restart was requested
	Failure bool // the requested restart counts as a failure

	// The fields below are passed to hooks.
	Code, Signal int
	OOMKilled    bool
	Error        string // error of the driver, or why the exit status is unknown
}

// result returns the exit as reported by the driver.
func (e *Exit) result() driver.ExitResult {
	result := driver.ExitResult{ExitCode: e.Code, Signal: e.Signal, OOMKilled: e.OOMKilled}
	if e.Error != "" {
		result.Err = errors.New(e.Error)
	}
	return result
}

// HookState is one hook's response to Prestart.
type HookState struct {
	// Attachment is the configuration with which a plugin was attached to the task, as
	// JSON. It is empty for a hook that needs no attachment.
	Attachment string `json:",omitempty"`

	Done    bool
	Data    map[string]string
	Env     map[string]string
	Mounts  []driver.Mount
	Devices []driver.Device
}

// Store stores the records of one task. The calls do not block; the returned WaitFunc
// does. Records reach the disk in the order of the puts of all tasks. Neither the
// runner nor the store changes a record after the call. The calls for one task do not
// overlap. Put stores both records or neither: the exit of a process and the state of
// the task must not contradict each other after a crash.
type Store interface {
	PutState(*api.TaskState, Durability) WaitFunc
	Put(LocalState, *api.TaskState, Durability) WaitFunc
}

// WaitFunc blocks until a record is on disk. It returns an error if the record cannot
// be stored.
type WaitFunc func() error

// Durability is how soon a record must be on disk.
type Durability int

const (
	Sync Durability = iota
	// Grouped may take a millisecond longer, so that the write can be shared with a
	// write that is expected as its consequence.
	Grouped
	// Async may take longer, unless another record is written. No caller waits for it.
	Async
)

// setHook replaces the map instead of changing it, because a store may still hold it.
func (s *LocalState) setHook(name string, state HookState) {
	hooks := maps.Clone(s.Hooks)
	if hooks == nil {
		hooks = make(map[string]HookState)
	}
	hooks[name] = state
	s.Hooks = hooks
}
