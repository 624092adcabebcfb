package hook

import (
	"context"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// TaskPrestart runs before every start of the task, including restarts, until its
// response has Done set. The context ends when the task is killed or the agent shuts
// down, and an error after that counts as the kill.
//
// Any other error stops the chain and counts as a failed start: if the error is marked
// with [driver.Recoverable], the restart policy decides about a retry; any other error
// fails the task. State, Env, Mounts and Devices are stored before the task starts;
// State is stored after an error too.
type TaskPrestart interface {
	Prestart(ctx context.Context, req TaskPrestartRequest) (TaskPrestartResponse, error)
}

// TaskPrestartRequest is built immediately before each hook is called: Env includes the
// variables of earlier hooks.
type TaskPrestartRequest struct {
	RequestMeta
	Alloc         Alloc
	Task          Task
	Dir           TaskDir
	Env           map[string]string
	Resources     driver.Resources
	PreviousState map[string]string // State of this hook's last response, or of its last call of Host.StoreState; nil in the first call
	// Running reports that the task already runs: the agent was restarted and has
	// recovered the task.
	Running bool
}

// TaskPrestartResponse replaces the hook's previous response.
type TaskPrestartResponse struct {
	Env map[string]string // variables for the task; they replace variables of the env block and of earlier hooks
	// Mounts are merged with the mounts of all other hooks. If several mounts have the same task
	// path, the host uses that of the last hook. A task whose
	// driver does not support mounts does not start, and its event names the driver and the hook.
	Mounts  []driver.Mount
	Devices []driver.Device
	// State is the next PreviousState: the hook must copy to it the values of PreviousState that it still needs. A State that
	// equals PreviousState does not replace what Host.StoreState has stored since the call.
	State map[string]string
	// Done means that TaskPrestart is not called again for this task, even after a reboot
	// of the host. It is for expensive work whose result stays on disk.
	Done bool
}

// TaskPoststart runs after the task has started. It runs again, with Repeated set, when
// a new process of the plugin replaces one that has exited, and when a restarted agent
// recovers the task: once for each process of the plugin and each agent. Poststart must
// be idempotent. It is not called once the kill of the task, or the stop of its allocation, was requested. An error is
// reported as a task event and does not fail the task.
type TaskPoststart interface {
	Poststart(ctx context.Context, req TaskPoststartRequest) (TaskPoststartResponse, error)
}

// TaskPoststartRequest describes the started task.
type TaskPoststartRequest struct {
	RequestMeta
	Alloc Alloc
	Task  Task
	// StartID identifies this start of the task: each start has another id, and repeated calls have that of the first call.
	StartID string
	Dir     TaskDir
	// Env is the environment of the task, with the variables of all hooks.
	Env           map[string]string
	Network       *driver.NetworkOverride // nil unless the driver gave the task an address
	PreviousState map[string]string       // State of Prestart, or of the last call of Host.StoreState
	// Repeated means that Poststart may already have been called for the same start of the task, in this plugin
	// process or in an earlier one. The hook must restore the state that a process loses when it exits, and need not
	// repeat effects outside of its process.
	Repeated bool
}

// TaskPoststartResponse is empty.
type TaskPoststartResponse struct{}

// TaskUpdate runs for each new version of the allocation. Calls never overlap each
// other, skip versions that have already been replaced, and may overlap every other
// hook point. An error is reported as a task event and does not fail the task.
type TaskUpdate interface {
	Update(ctx context.Context, req TaskUpdateRequest) (TaskUpdateResponse, error)
}

// TaskUpdateRequest describes the new version of the allocation.
type TaskUpdateRequest struct {
	RequestMeta
	Alloc Alloc
	Task  Task
	Env   map[string]string
}

// TaskUpdateResponse is empty.
type TaskUpdateResponse struct{}

// TaskPreKilling runs before the driver stops the task, for a kill and for a restart.
// It may overlap other hook points. An error is reported as a task event and does not
// fail the task.
type TaskPreKilling interface {
	PreKilling(ctx context.Context, req TaskPreKillingRequest) (TaskPreKillingResponse, error)
}

// TaskPreKillingRequest names the task.
type TaskPreKillingRequest struct {
	RequestMeta
	Alloc         Alloc
	Task          Task
	StartID       string            // that of TaskPoststartRequest
	PreviousState map[string]string // State of Prestart, or of the last call of Host.StoreState
}

// TaskPreKillingResponse is empty.
type TaskPreKillingResponse struct{}

// TaskExited runs after each exit of the task's process. An error is reported as a
// task event and does not fail the task.
type TaskExited interface {
	Exited(ctx context.Context, req TaskExitedRequest) (TaskExitedResponse, error)
}

// TaskExitedRequest holds the exit status of the process.
type TaskExitedRequest struct {
	RequestMeta
	Alloc         Alloc
	Task          Task
	StartID       string // that of TaskPoststartRequest
	Exit          driver.ExitResult
	PreviousState map[string]string // State of Prestart, or of the last call of Host.StoreState
	WillRestart   bool              // the task is started again, immediately or after the delay of the restart policy
}

// TaskExitedResponse is empty.
type TaskExitedResponse struct{}

// TaskStop runs once, when the task will never start again, even if it has never started.
// Killing the task does not cancel its context. An error is an event, and the call to a
// plugin is repeated until it succeeds.
type TaskStop interface {
	Stop(ctx context.Context, req TaskStopRequest) (TaskStopResponse, error)
}

// TaskStopRequest names the task.
type TaskStopRequest struct {
	RequestMeta
	Alloc         Alloc
	Task          Task
	Dir           TaskDir
	PreviousState map[string]string // State of Prestart, or of the last call of Host.StoreState
}

// TaskStopResponse is empty.
type TaskStopResponse struct{}

// TaskShutdown runs when the agent shuts down and leaves the task running. An error is
// an event.
type TaskShutdown interface {
	Shutdown(ctx context.Context, req TaskShutdownRequest) (TaskShutdownResponse, error)
}

// TaskShutdownRequest names the task.
type TaskShutdownRequest struct {
	RequestMeta
	Alloc Alloc
	Task  Task
}

// TaskShutdownResponse is empty.
type TaskShutdownResponse struct{}
