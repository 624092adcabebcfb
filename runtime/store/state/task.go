package state

import (
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/job/restart"
)

// LocalState is the state of a task runner that the next agent needs to continue the task.
type LocalState struct {
	HookStateByName       map[string]HookState // keyed by hook name
	AllocHookConfigByName map[string]string    // configurations of the hooks that the allocation has had, keyed by hook name
	StartID               string               // id of the current start: set before StartTask is called; empty after the exit is handled, unless NextStartID replaces it
	Handle                *driver.Handle       // handle of the task; nil unless the task runs or its exit is not handled yet
	NetworkOverride       *driver.NetworkOverride
	// HandleUnrecoverable means that Handle has no state of the driver, because the agent that started the task has not
	// received it: only the plugin process that has the task can report its exit.
	HandleUnrecoverable bool
	UnhandledExit       *restart.RunEnd // exit of the process of Handle; nil after the restart policy has decided
	NextStartID         string          // StartID of the restart that is expected to follow UnhandledExit without a delay; empty if none is
	RestartState        restart.State
	RunComplete         bool            // the task will never run again
	LastEnd             *restart.RunEnd // how the last run or start has ended; nil if none has
	LastStart           time.Time       // before the last call of StartTask; zero if there was none

	// FirstPendingDestroy is the start that the driver must still destroy; nil if there is none.
	FirstPendingDestroy *PendingDestroy
	// LastKnownCapabilities are the driver's capabilities as last reported, used while the
	// driver is unavailable. It is nil until the driver has reported them.
	LastKnownCapabilities *driver.Capabilities

	// RestartRequest is set from the request for a restart until the task has ended or
	// runs again.
	RestartRequest *RestartRequest

	// KillRequested is set by a kill of an unfinished task, until the task starts again.
	KillRequested bool

	// ReportedOnceOnlyMessages are the messages of the events that the task gets only once.
	ReportedOnceOnlyMessages []string

	// ReadVariables are the paths of the variables whose items the task and its hooks were given.
	ReadVariables []string

	// DeploymentFailure is why the task made its allocation unhealthy for its latest deployment; nil if it has not.
	DeploymentFailure *restart.DeploymentFailure
}

// RestartRequest is a restart that a caller requested. It applies only to the process or the finished run
// of the task for which it was requested, not to a later one.
type RestartRequest struct {
	CountsAsFailure bool   `store:"failure"` // the restart counts as a failed attempt of the restart policy
	Reason          string `store:"reason"`  // reason of the restart, for the log
}

// HookState is the response of one hook to the prestart call of a task.
type HookState struct {
	// AttachmentJSON is the configuration with which a plugin was attached to the task, as
	// JSON. It is empty for a hook that needs no attachment.
	AttachmentJSON string

	PrestartDone bool
	Data         map[string]string
	Env          map[string]string
	Mounts       []driver.Mount
	Devices      []driver.Device
}

// PendingDestroy is a start of a task for which the driver call DestroyTask has not succeeded yet, so processes of this
// start may still run. While the state has it, the task does not start again, and its allocation does not end.
type PendingDestroy struct {
	StartID string
	Handle  *driver.Handle // handle of the start; nil if StartTask returned none
	// NotFoundIsInconclusive means that "task not found" proves nothing: the plugin process that
	// should have started the task has exited, and the driver does not search for
	// tasks.
	NotFoundIsInconclusive bool
	// Next, which has no handle, is destroyed after this start; nil if there is none.
	Next *PendingDestroy
}

// StartsToDestroy returns the starts whose processes may still run, in the order in which the
// driver must destroy them.
func (s *LocalState) StartsToDestroy() (starts []PendingDestroy) {
	for d := s.FirstPendingDestroy; d != nil; d = d.Next {
		starts = append(starts, *d)
	}
	if s.FirstPendingDestroy == nil && s.StartID != "" {
		starts = append(starts, PendingDestroy{StartID: s.StartID, Handle: s.Handle})
	}
	if s.NextStartID != "" {
		starts = append(starts, PendingDestroy{StartID: s.NextStartID})
	}
	return starts
}
