package hook

import (
	"context"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// TaskPrestart runs before every start of the task, restarts included, until
// it answers Done. The context ends when the task is killed or the agent shuts
// down, and an error after that counts as the kill.
//
// Any other error stops the chain and counts as a failed start: one that
// [driver.Recoverable] marked is tried again by the restart policy, a plain one
// fails the task. State, Env, Mounts and Devices are stored before the task
// starts; State is stored after an error too.
type TaskPrestart interface {
	Prestart(ctx context.Context, req TaskPrestartRequest) (TaskPrestartResponse, error)
}

// TaskPrestartRequest is built immediately before each hook is called: Env
// holds what earlier hooks have set.
type TaskPrestartRequest struct {
	RequestMeta
	Alloc         Alloc
	Task          Task
	Dir           TaskDir
	Env           map[string]string
	Resources     driver.Resources
	PreviousState map[string]string // State of this hook's last answer; nil the first time
	// Running says that the task runs already: the agent was restarted and has
	// taken it over.
	Running bool
}

// TaskPrestartResponse replaces whatever the hook answered before.
type TaskPrestartResponse struct {
	Env     map[string]string // overrides the env block and the hooks before it
	Mounts  []driver.Mount    // joined over all hooks; for one task path the last hook wins; lost with an event if the driver takes none
	Devices []driver.Device
	State   map[string]string // must be copied forward to survive
	// Done asks not to be called again for the life of the task, reboots of the
	// host included: only for expensive, durable work.
	Done bool
}

// TaskPoststart runs after the task has started. It runs again, with Repeated set,
// when another process of the plugin takes the place of one that has ended, and
// when a restarted agent recovers the task: once for each process of the plugin and
// each agent. Poststart must be idempotent. An error is an event; the task continues.
type TaskPoststart interface {
	Poststart(ctx context.Context, req TaskPoststartRequest) error
}

// TaskPoststartRequest comes with the environment of the started task.
type TaskPoststartRequest struct {
	RequestMeta
	Alloc   Alloc
	Task    Task
	Dir     TaskDir
	Env     map[string]string
	Network *driver.NetworkOverride // nil unless the driver gave the task an address
	// Repeated reports that a call for the same start of the task may have been made
	// before, to this process or to an earlier one. What a process loses when it ends
	// must be set up again; what has an effect elsewhere need not be.
	Repeated bool
}

// TaskUpdate runs after a new version of the allocation has come. Calls never
// overlap each other, skip versions that were replaced meanwhile, and may
// overlap every other moment. An error is an event.
type TaskUpdate interface {
	Update(ctx context.Context, req TaskUpdateRequest) error
}

// TaskUpdateRequest comes with the new version.
type TaskUpdateRequest struct {
	RequestMeta
	Alloc Alloc
	Task  Task
	Env   map[string]string
}

// TaskPreKilling runs before the driver is asked to stop the task, for a kill
// and for a restart. It may overlap other moments. An error is an event.
type TaskPreKilling interface {
	PreKilling(ctx context.Context, req TaskPreKillingRequest) error
}

// TaskPreKillingRequest names the task.
type TaskPreKillingRequest struct {
	RequestMeta
	Alloc Alloc
	Task  Task
}

// TaskExited runs after each end of the task's process. An error is an event.
type TaskExited interface {
	Exited(ctx context.Context, req TaskExitedRequest) error
}

// TaskExitedRequest says how the process has ended.
type TaskExitedRequest struct {
	RequestMeta
	Alloc       Alloc
	Task        Task
	Exit        driver.ExitResult
	WillRestart bool // the task is started again, now or after its delay
}

// TaskStop runs once, when the task will never start again, whether or not it
// ever did. It has a context of its own that no kill has ended. An error is an
// event, and a plugin is called again until it succeeds.
type TaskStop interface {
	Stop(ctx context.Context, req TaskStopRequest) error
}

// TaskStopRequest comes with what Prestart stored.
type TaskStopRequest struct {
	RequestMeta
	Alloc         Alloc
	Task          Task
	Dir           TaskDir
	ExistingState map[string]string // read only
}

// TaskShutdown runs when the agent goes and leaves the task running. An error
// is an event.
type TaskShutdown interface {
	Shutdown(ctx context.Context, req TaskShutdownRequest) error
}

// TaskShutdownRequest names the task.
type TaskShutdownRequest struct {
	RequestMeta
	Alloc Alloc
	Task  Task
}
