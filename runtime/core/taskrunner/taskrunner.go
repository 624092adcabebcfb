package taskrunner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/internal/cgroup"
	"github.com/nomad-lite/nomad-lite/internal/redact"
	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/core"
	"github.com/nomad-lite/nomad-lite/runtime/core/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/core/record"
	"github.com/nomad-lite/nomad-lite/runtime/core/restart"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskdriver"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskenv"
	"github.com/nomad-lite/nomad-lite/runtime/core/tasksteps"
	"github.com/nomad-lite/nomad-lite/runtime/core/timeline"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// These are the cancellation causes for a running task's contexts.
var (
	ErrKilled   = errors.New("task killed")         // the task must stop and is not started again
	ErrShutdown = errors.New("agent shutting down") // the task is left running

	errForceKilled = errors.New("task killed without delay")
)

// Config configures a Runner. All fields are required unless their comment says
// otherwise.
type Config struct {
	Alloc                  Alloc
	Task                   Task
	TaskDir                hook.TaskDir
	Env                    *taskenv.Builder
	StartGate              StartGate
	AwaitNewStart          AwaitNewStartFunc                                // called before a task is started if no earlier agent has left its process, unless it is a poststop task; nil means no wait
	DispenseDriver         func(ctx context.Context) (driver.Driver, error) // returns the task's driver; may block while the plugin starts
	EncodeTaskConfig       core.EncodeTaskConfigFunc
	Metrics                core.Metrics // may be nil
	Store                  TaskRecordStore
	OnTaskStateChange      func() // called after each change of the task's state; must not block
	HookCallLimits         hooks.CallLimits
	Secrets                *redact.Values                        // secret values that texts about the task may contain; nil for none
	Timeline               timeline.Recorder                     // records what happens to the task; the zero value records nothing
	RestoredTask           *RestoredTask                         // what an earlier agent left of the task; nil for a new task
	RecoveryTracker        *taskdriver.RecoveryTracker           // shared by all tasks on the node; may be nil
	EndTaskWithoutDriver   taskdriver.EndTaskWithoutDriverFunc   // ends tasks without their driver; nil if only drivers may end tasks
	AwaitExitWithoutDriver taskdriver.AwaitExitWithoutDriverFunc // returns exit statuses while the driver is unavailable; may be nil
	Logger                 hclog.Logger
}

// StartGate blocks a task before each start, restarts included. When ctx is done Wait
// returns the cause, even if the gate is open.
type StartGate interface {
	Wait(ctx context.Context) error
}

// AwaitNewStartFunc blocks until an allocation's task without an earlier agent's process may be started, or until ctx ends. It
// calls onWait before each wait longer than a moment, with the time span's name and an event for the task.
type AwaitNewStartFunc func(ctx context.Context, allocID string, onWait func(spanName string, event *api.TaskEvent)) error

// Runner runs one task. Before Run the caller calls SetHooks, and FetchDriverDescription or, for an earlier agent's task,
// RecoverTaskOfEarlierAgent. Run is called once. These methods and ResetToNewTask are called only before Run; all other methods
// may be called concurrently, before, during and after Run.
type Runner struct {
	startGate        StartGate
	awaitNewStart    AwaitNewStartFunc // nil means no wait
	encodeTaskConfig core.EncodeTaskConfigFunc
	records          *taskRecords
	requests         *taskRequests
	driver           *taskdriver.Access
	hooks            *taskHooks
	ender            *processEnder
	logger           hclog.Logger
	capabilities     atomic.Pointer[driver.Capabilities] // the driver's capabilities; nil until known
	transitions      recentTransitions                   // guarded by the records' mutex mu

	// These fields belong to Run's goroutine and, before Run, to the callers that prepare it.
	firstStep               tasksteps.Step              // Run's first step
	schema                  *hclspec.Spec               // task config block schema; nil until fetched
	pluginDeathsDuringStart int                         // plugin deaths during StartTask since the last successful start
	restartReattachedPlugin func(context.Context) error // see RecoveryFacts; may be nil
	pluginRestarted         bool                        // the recoverer has restarted the plugin
	startUndecided          bool                        // the driver has not answered whether an interrupted start was executed; Run or the next agent asks again

	onlyDestroyRemains chan struct{} // closed by Run when the task has ended for good and the driver must still destroy it
	done               chan struct{} // closed by Run
}

// New returns a runner for a new or a restored task. The runner does nothing before Run.
func New(c Config) *Runner {
	alloc := c.Alloc // the rest of the configuration is not kept
	r := &Runner{
		startGate:          c.StartGate,
		awaitNewStart:      c.AwaitNewStart,
		encodeTaskConfig:   c.EncodeTaskConfig,
		firstStep:          tasksteps.First(c.RestoredTask != nil),
		logger:             c.Logger.Named("taskrunner").With("task", c.Task.Name),
		onlyDestroyRemains: make(chan struct{}),
		done:               make(chan struct{}),
	}
	r.records = &taskRecords{
		store: c.Store, onTaskStateChange: c.OnTaskStateChange, runReturned: r.done, env: c.Env, secrets: c.Secrets, timeline: c.Timeline, logger: r.logger,
		alloc: &alloc, taskName: c.Task.Name, metrics: c.Metrics,
	}
	r.requests = newTaskRequests(r.records, c.Task, c.TaskDir)
	r.driver = &taskdriver.Access{
		DriverName: c.Task.Driver, Dispense: taskdriver.WithUnavailableErrors(c.DispenseDriver), Timeline: c.Timeline,
		Plugins: c.RecoveryTracker.ForDriver(c.Task.Driver), AwaitExit: c.AwaitExitWithoutDriver, CompleteHandle: r.records.completeHandle,
		ReportOutage: func(err error) { r.records.emitEvent(model.EventWaitingForDriver(err.Error())) },
	}
	r.hooks = &taskHooks{dir: c.TaskDir, records: r.records, requests: r.requests, callLimits: c.HookCallLimits}
	r.ender = &processEnder{records: r.records, requests: r.requests, driver: r.driver, endTaskWithoutDriver: c.EndTaskWithoutDriver}
	r.transitions.add(tasksteps.Transition{Time: time.Now(), Step: tasksteps.None, Result: tasksteps.Done, Next: r.firstStep})
	if c.RestoredTask == nil {
		r.records.record = record.New(time.Now())
	} else {
		r.restoreFromEarlierAgent(*c.RestoredTask)
	}
	return r
}

// SetHooks sets the task's hooks, and the attachments of the allocation's hooks, which are stored with each task because the
// allocation has no record. It is called once, before Run. The hooks are not a parameter of New, because hooks call the runner's
// methods, and because hooks in plugins may not be known yet when the runner is created. The caller must not change the map
// afterwards.
func (r *Runner) SetHooks(list []hooks.OrderedHook, allocAttachmentByHookName map[string]string) {
	r.hooks.setHooksAndRestoreEnvs(list, allocAttachmentByHookName)
}

// Name returns the task's name.
func (r *Runner) Name() string { return r.records.taskName }

// Task returns the current task version.
func (r *Runner) Task() Task { return r.requests.currentTask() }

// State returns a copy of the task's state.
func (r *Runner) State() *api.TaskState {
	task, _ := r.Snapshot()
	return task
}

// Snapshot returns State's result, and reports whether the task was killed after its last start and before it finished.
func (r *Runner) Snapshot() (state *api.TaskState, killedSinceStart bool) {
	r.records.mu.Lock()
	defer r.records.mu.Unlock()
	return r.records.record.Status(), r.records.record.Fields().KillRequested
}

// Done returns a channel that is closed when Run has returned.
func (r *Runner) Done() <-chan struct{} { return r.done }

// IsDestroyPendingAfterRun reports, after Run has returned, whether the driver must still destroy a start, or may have to,
// because it has not answered whether the start was executed. It is false before Run has returned.
func (r *Runner) IsDestroyPendingAfterRun() bool {
	return wait.IsClosed(r.done) && (r.ender.pendingDestroy() != nil || r.startUndecided)
}

// OnlyDestroyRemains returns a channel that is closed when the task has ended for good and Run only waits for the driver to
// destroy the task. The channel stays open for a task without a pending destroy.
func (r *Runner) OnlyDestroyRemains() <-chan struct{} { return r.onlyDestroyRemains }

// EmitEvent adds an event to the task. Events are for display only. The runner owns the
// event afterwards.
func (r *Runner) EmitEvent(event *api.TaskEvent) { r.records.emitEvent(event) }

// RecordUnhealthy records why the task makes its allocation unhealthy for a deployment, with an event. It blocks until both are
// stored, or the store has failed; then the put is retried. It may be called from any goroutine.
func RecordUnhealthy(r *Runner, deploymentID, reason string) {
	failure := restart.DeploymentFailure{DeploymentID: deploymentID, Task: r.records.taskName, Reason: r.records.secrets.Text(reason)}
	r.records.commit(record.Unhealthy{Now: time.Now(), Failure: failure, Event: r.records.redacted(model.EventAllocUnhealthy(reason))})
}

// StoreHookState stores a hook's state for r's task, and blocks until it is on the disk. Later calls get the state as
// PreviousState. After an error, the state may be stored later. It may be called from any goroutine after SetHooks.
func StoreHookState(r *Runner, hookName string, data map[string]string) error {
	if !slices.ContainsFunc(r.hooks.hookChain.Hooks(), func(h hooks.Hook) bool { return h.Name() == hookName }) {
		return fmt.Errorf("hook %q is not attached to task %q", hookName, r.Name())
	}
	return r.records.storeHookData(hookName, data)
}

// EmitEventOncePerMessage is like EmitEvent, but ignores an event if the task already has its message, even if another plugin
// process or agent sends it again: the messages are stored with the task. After 16 messages it ignores all further events.
func (r *Runner) EmitEventOncePerMessage(event *api.TaskEvent) {
	r.records.commit(record.EventEmittedOnce{Now: time.Now(), Event: r.records.redacted(event)})
}

// RecordReadVariable stores that the task, or a hook for it, was given a variable's items, so that the next agent knows which
// values are secret. After 1,000 paths it ignores further ones. It may be called from any goroutine, and blocks until the path is
// stored, or the store has failed; then the put is retried.
func RecordReadVariable(r *Runner, path string) {
	r.records.commit(record.VariableRead{Path: path})
}

// ReadVariables returns the paths from RecordReadVariable, including earlier agents' paths. The caller must not change the slice.
func ReadVariables(r *Runner) []string {
	return r.records.fields().ReadVariables
}

// SetOutput sets the output for the task's next start: FIFOs, or the null device, which is the default.
func (r *Runner) SetOutput(stdoutPath, stderrPath string) {
	r.records.mu.Lock()
	defer r.records.mu.Unlock()
	r.requests.config.StdoutPath, r.requests.config.StderrPath = stdoutPath, stderrPath
}

// SetCgroup sets the cgroup for the driver's next start of the task, and the cores reserved for the task. The default is none.
func (r *Runner) SetCgroup(group cgroup.Group) {
	r.records.mu.Lock()
	defer r.records.mu.Unlock()
	r.requests.cgroup = group
}

// SetNetwork sets the network for the driver's next start of the task. The default is nil: the host's network. DNS settings other
// than nil replace the job's.
func (r *Runner) SetNetwork(isolation *driver.NetworkIsolation, dns *driver.DNSConfig) {
	r.records.mu.Lock()
	defer r.records.mu.Unlock()
	r.requests.config.NetworkIsolation, r.requests.config.DNS = isolation, cmp.Or(dns, r.records.alloc.DNS)
}

// SetDynamicUser sets a task's user if its job names none; empty means the driver's default. The method Task returns the user
// from then on.
func (r *Runner) SetDynamicUser(name string) {
	r.records.mu.Lock()
	defer r.records.mu.Unlock()
	r.requests.config.User = name
}
