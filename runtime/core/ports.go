package core

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
	"github.com/zclconf/go-cty/cty"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/internal/cgroup"
	"github.com/nomad-lite/nomad-lite/internal/redact"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/core/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/core/record"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskenv"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// Drivers finds a driver by name. The call blocks while the driver's plugin is starting. All calls
// return the same value for one plugin process, and another value for the next process: a task start
// compares two values to find out whether all running tasks were recovered.
type Drivers interface {
	Driver(ctx context.Context, name string) (driver.Driver, error)
}

// EncodeTaskConfigFunc evaluates a task's config block and returns it as MessagePack in the driver's schema. vars returns the
// variables available to the block. An error means the job is invalid.
type EncodeTaskConfigFunc func(schema *hclspec.Spec, config map[string]any, vars func() map[string]cty.Value) ([]byte, error)

// Store stores task records for the next agent. The methods are called concurrently for different tasks. A wait
// function blocks until the record is as durable as requested, and returns why it was not stored.
type Store interface {
	PutTaskState(allocID, task string, state *api.TaskState, durability state.Durability) state.WaitDurableFunc
	PutTask(allocID, task string, fields record.Fields, state *api.TaskState, durability state.Durability) state.WaitDurableFunc // stores both parts of the record or none

	// TaskHandle returns a start's handle with its environment. A start's handle is stored once: a later PutTask with a handle of the
	// same start does not replace it. It returns nil if there is none.
	TaskHandle(allocID, task, startID string) (*driver.Handle, error)
}

// RecordReader reads an earlier agent's records.
type RecordReader interface {
	TaskFields(allocID, task string) (record.Fields, bool, error)
	TaskState(allocID, task string) (*api.TaskState, error)

	// AttachmentConfigByHook returns the configurations, by hook name, of the hooks attached to an allocation
	// by an earlier agent. The allocation may have ended.
	AttachmentConfigByHook(allocID string) map[string]string
}

// TaskCounter is a task counter in the agent's metrics. A group's allocations share the counters.
type TaskCounter int

const (
	TaskStartAttempts TaskCounter = iota // attempts to start a process
	TaskRuns                             // started processes
	TaskOOMKills
	TaskCompletions // tasks that succeeded
	TaskFailures
)

// Metrics counts what happens to tasks. Its methods may be called concurrently and do not block.
type Metrics interface {
	AddToTaskCounter(c TaskCounter, n int, jobID, namespace, task, group string)
	hooks.CallObserver
}

// ErrNotRunning is returned by requests that need a running task. HTTP API clients match on the text.
var ErrNotRunning = errors.New("Task not running")

// IgnoreNotRunning returns nil for ErrNotRunning, and any other error unchanged.
func IgnoreNotRunning(err error) error {
	if errors.Is(err, ErrNotRunning) {
		return nil
	}
	return err
}

// Plugin names a plugin that allocations use.
type Plugin struct {
	Type base.Type
	Name string // driver or hook name
}

// Machine is what a machine gives to allocations. Its methods may be called concurrently.
type Machine interface {
	// NewWorkspace returns what the machine gives to an allocation. It accesses no file. An error means the
	// allocation's ID is invalid.
	NewWorkspace(Alloc) (Workspace, error)
	// MayHaveAllocDir reports whether an allocation has a directory. It returns true if the directory cannot be opened
	// for lack of free file descriptors.
	MayHaveAllocDir(allocID string) bool
	// RemoveAllocDir removes an allocation's directory without calling hooks.
	RemoveAllocDir(allocID string) error
}

// Workspace is what a machine gives to one allocation: a directory, a network, service registrations, variables, and the
// hooks that prepare them. Its methods may be called concurrently.
type Workspace interface {
	Hooks
	Directory
	Network
	Services
	Variables
}

// Hooks makes an allocation's hooks, each with its order.
type Hooks interface {
	// AllocHooks returns the allocation's own hooks. It is called once, before any hook is called.
	AllocHooks([]Task) []hooks.OrderedHook
	// TaskHooks returns a task's hooks. It is called once for each task, before any hook is called.
	TaskHooks(Task, *api.Task) []hooks.OrderedHook
}

// HookFactory creates the plugin hooks, each with its order relative to the builtin hooks. *pluginhooks.HookPluginSet
// implements it.
type HookFactory interface {
	NewAllocHooks(*api.Allocation, hooks.AttachTarget) []hooks.OrderedHook
	NewTaskHooks(*api.Allocation, *api.Task, hooks.AttachTarget) []hooks.OrderedHook

	// PluginLaunchWaiterOrNil returns a function that blocks until all plugins are launched that may be hooks in every
	// allocation, and emits an event if this takes long. Until then, NewAllocHooks and NewTaskHooks may return incomplete
	// lists. PluginLaunchWaiterOrNil returns nil if the lists are complete already. It is called before the other two
	// methods.
	PluginLaunchWaiterOrNil(*api.Allocation) func(ctx context.Context, emit func(*api.TaskEvent))
}

// Directory is an allocation's directory.
type Directory interface {
	// TaskPaths returns the paths of a task's directories. It accesses no file.
	TaskPaths(task string) hook.TaskDir
	// Open opens the directory. The error wraps fs.ErrNotExist if there is none.
	Open() (*os.Root, error)
	// OpenToAppend opens or creates a file in the directory, with mode 0600.
	OpenToAppend(name string) (*os.File, error)
	// RestrictAccess closes the directory to all accounts except those of its tasks.
	RestrictAccess([]Task) error
}

// Network is the network namespace that an allocation's tasks share.
type Network interface {
	// ActiveNetwork returns the allocation's network, created by this agent or an earlier one; nil for none.
	ActiveNetwork() *state.AllocNetwork
}

// Services are an allocation's service registrations and their checks.
type Services interface {
	// CheckResults returns the latest results, always in the same order. started is false until the checks run. changed
	// is closed when a result changes.
	CheckResults() (results []CheckResult, started bool, changed <-chan struct{})
	// CheckStatuses is CheckResults for clients. changed is closed when a result changes by more than its time.
	CheckStatuses() (statuses []api.AllocCheckStatus, changed <-chan struct{})
	// RegisterGroupServicesAgain registers the group's services after a task restart, because a hook has
	// deregistered them before the restart.
	RegisterGroupServicesAgain() error
}

// GroupWorkload is the group's name among the workloads with services. All others are tasks.
const GroupWorkload = ""

// CheckResult is the latest result of one check.
type CheckResult struct {
	api.AllocCheckStatus
	// LastRunStartedAt is when the last run started, zero before the first run. The result was
	// recorded later.
	LastRunStartedAt time.Time
	// StatusSince is when the status last changed.
	StatusSince time.Time
	// AffectsHealthOfTask names the task that the check affects; it may be empty.
	AffectsHealthOfTask string
}

// IsReadiness reports whether the check is a readiness check, which does not affect a deployment's health.
func (r CheckResult) IsReadiness() bool { return r.Mode == "readiness" }

// Variables reads Nomad variables with the rights of an allocation's tasks.
type Variables interface {
	// ReadVariable returns a variable's items, nil if the variable does not exist. An empty namespace means the job's.
	ReadVariable(ctx context.Context, task, namespace, path string) (map[string]string, error)
}

// Alloc is an allocation as its workspace sees it. Its methods may be called concurrently.
type Alloc interface {
	Alloc() *api.Allocation // current version; must not be changed
	Node() taskenv.Node
	Logger() hclog.Logger
	Secrets() *redact.Values // the allocation's secret values; nil for none

	// StartedByEarlierAgent reports whether an earlier agent has started the allocation.
	StartedByEarlierAgent() bool
	// KeepsNetwork reports whether an earlier agent's network for the allocation still exists.
	KeepsNetwork() bool
	// AllocDone returns a channel that is closed when the allocation allocID runs no task or hook on this node. For an
	// unknown allocation, the channel is already closed.
	AllocDone(allocID string) <-chan struct{}

	// EnvBuilder returns the builder for a task's environment, nil if the allocation has no such task.
	EnvBuilder(task string) *taskenv.Builder
	// Env returns a task's current environment, or the allocation's if task names no task.
	Env(task string) *taskenv.Env
	// NetworkStatus returns the allocation's network as clients see it.
	NetworkStatus() *api.AllocNetworkStatus
	// SetNetwork passes a network to all tasks; nil means they use the host's network.
	SetNetwork(*state.AllocNetwork)

	// EmitEvent adds an event to a task, or to all tasks if task is empty.
	EmitEvent(task string, e *api.TaskEvent) error
	// HandOutVariable must be called before a task or a hook gets a variable's items.
	HandOutVariable(task, namespace, path string, items map[string]string)
	// Exec runs a command in a task's context. The command is killed after the timeout.
	Exec(ctx context.Context, task string, command []string, timeout time.Duration) (*driver.ExecResult, error)
	// RestartForFailedCheck restarts a task, or all running tasks for GroupWorkload. The restart counts as a failure.
	// RestartForFailedCheck blocks until the old processes have exited.
	RestartForFailedCheck(ctx context.Context, taskOrGroup, reason string) error
}

// Task is a task as its hooks see it. Its methods may be called concurrently.
type Task interface {
	Name() string
	Driver() string
	User() string // the job's user, or the user set by SetDynamicUser
	// DriverCapabilities returns the driver's capabilities, the zero value until they are known.
	DriverCapabilities() driver.Capabilities
	// FetchDriverDescription fetches the capabilities. With awaitDriver it blocks while the driver's plugin is starting.
	FetchDriverDescription(ctx context.Context, awaitDriver bool) error
	// AllProcessesEnded reports whether none of the task's processes can be alive.
	AllProcessesEnded() bool

	EmitEvent(*api.TaskEvent)
	// Restart restarts a running task, and returns when its process has exited. It returns ErrNotRunning for any other task.
	Restart(ctx context.Context, event *api.TaskEvent, countsAsFailure bool) error
	// Signal sends a signal to a running task. It returns ErrNotRunning for any other task.
	Signal(ctx context.Context, event *api.TaskEvent, signal string) error

	// The setters apply to the task's next start.
	SetDynamicUser(name string)
	SetCgroup(cgroup.Group)
	SetOutput(stdoutPath, stderrPath string)
}
