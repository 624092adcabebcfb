package taskrunner

import (
	"errors"
	"maps"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/taskrunner/restart"
)

// LocalState is what the next agent must know to go on with the task where this
// one left it.
type LocalState struct {
	Hooks       map[string]HookState // by the hook's name
	AllocHooks  map[string]string    `json:",omitempty"` // see SetAllocHooks
	StartID     string               // set before the driver is called; empty once the end is dealt with
	Handle      *driver.Handle       // nil unless the task runs, or its end is not dealt with
	Network     *driver.NetworkOverride
	Exit        *Exit // how the process of Handle has ended, until the restart policy has decided
	Restart     restart.State
	RunComplete bool // the task will never run again

	// Destroy is the start that the driver has yet to destroy; nil if there is none.
	Destroy *PendingDestroy `json:",omitempty"`
	// Capabilities are those that the driver had when it was last asked: they count
	// while it is unavailable. Nil in the records of older agents.
	Capabilities *driver.Capabilities `json:",omitempty"`

	// RestartRequest is set from the request for a restart until the task has
	// ended or runs again.
	RestartRequest *RestartRequest `json:",omitempty"`

	// Killed is set by a kill of a task that has not finished, until the task starts
	// again.
	Killed bool `json:",omitempty"`

	// Reported are the messages of the events that the task gets once, see
	// [Runner.EmitEventOnce].
	Reported []string `json:",omitempty"`
}

// RestartRequest is a restart that a caller requested. It belongs to one process
// or to one finished run, so that it cannot restart a later one.
type RestartRequest struct {
	Failure bool   // the restart policy counts it
	Reason  string // for the log
}

// Exit is the end of a process, for the restart policy.
type Exit struct {
	Lost    bool // nobody knows how it ended
	Success bool
	Asked   bool // somebody had asked for a restart
	Failure bool // and wanted it to count as a failure

	// What hooks are told.
	Code, Signal int
	OOMKilled    bool
	Error        string // why nobody knows it
}

// result is the end as the driver told it.
func (e *Exit) result() driver.ExitResult {
	result := driver.ExitResult{ExitCode: e.Code, Signal: e.Signal, OOMKilled: e.OOMKilled}
	if e.Error != "" {
		result.Err = errors.New(e.Error)
	}
	return result
}

// HookState is what one hook has answered to Prestart.
type HookState struct {
	// Attachment is the configuration with which a plugin was attached to the task,
	// as JSON. It is empty for a hook that is there whatever anybody says.
	Attachment string `json:",omitempty"`

	Done    bool
	Data    map[string]string
	Env     map[string]string
	Mounts  []driver.Mount
	Devices []driver.Device
}

// Store keeps the records of one task. The calls do not block; Written does. What
// is put later, by anybody, is not on the disk before what was put earlier. The
// runner does not change what it has handed over, nor may the store. No two of
// these calls overlap. Put stores both records or neither: what has become of a process and
// the state of the task must not contradict each other after a crash.
type Store interface {
	PutState(*api.TaskState, Durability) WaitFunc
	Put(LocalState, *api.TaskState, Durability) WaitFunc
}

// WaitFunc waits until a record is on the disk, or cannot be.
type WaitFunc func() error

// Durability is how soon a record must be on the disk.
type Durability int

const (
	Sync Durability = iota
	// Grouped may take a millisecond longer: somebody is about to write something
	// because of it, and both shall share the write.
	Grouped
	// Async may take some time, unless something else is written. Nobody waits.
	Async
)

// setHook leaves the map alone that a store may still hold.
func (s *LocalState) setHook(name string, state HookState) {
	hooks := maps.Clone(s.Hooks)
	if hooks == nil {
		hooks = make(map[string]HookState)
	}
	hooks[name] = state
	s.Hooks = hooks
}
