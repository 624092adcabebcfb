package taskrunner

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/cgroup"
	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/job/restart"
	"github.com/nomad-lite/nomad-lite/runtime/node/hooks/runnerhooks"
	"github.com/nomad-lite/nomad-lite/runtime/node/taskenv"
	"github.com/nomad-lite/nomad-lite/runtime/node/timeline"
)

// These are the causes with which the contexts of a running task are canceled.
var (
	ErrKilled   = errors.New("task killed")         // the task must stop and is not started again
	ErrShutdown = errors.New("agent shutting down") // the task is left running

	errForceKilled = errors.New("task killed without delay")
)

// ErrNotRunning is returned by calls that need a running task. The HTTP API and its
// clients match on the text.
var ErrNotRunning = errors.New("Task not running")

// Config configures a Runner. All fields are required unless their comment says
// otherwise.
type Config struct {
	Alloc                  Alloc
	Task                   Task
	TaskDir                hook.TaskDir
	Env                    *taskenv.Builder
	StartGate              StartGate
	DispenseDriver         func(ctx context.Context) (driver.Driver, error) // returns the driver of the task; may block while the plugin starts
	Store                  Store
	OnTaskStateChange      func() // called after each change of the task's state; must not block
	HookCallLimits         runnerhooks.CallLimits
	Timeline               timeline.Recorder // records what happens to the task; the zero value records nothing
	RestoredTask           *RestoredTask     // what an earlier agent left of the task; nil for a new task
	RecoveryTracker        *RecoveryTracker  // shared by all tasks of the node; may be nil
	EndTaskWithoutDriver   EndTaskFunc       // ends tasks without their driver; nil if only drivers may end tasks
	AwaitExitWithoutDriver AwaitExitFunc     // returns exit statuses while the driver is unavailable; may be nil
	Logger                 hclog.Logger
}

// StartGate blocks a task before each start, restarts included. When ctx is done Wait
// returns the cause, even if the gate is open.
type StartGate interface {
	Wait(ctx context.Context) error
}

// Runner runs one task. Before Run the caller calls SetHooks, and FetchDriverDescription or, for a task
// of an earlier agent, Recover. Run is called once; all other methods may be called
// concurrently, before, during and after Run. Each field owns one concern; Runner connects the fields.
type Runner struct {
	name                    string
	startGate               StartGate
	timeline                timeline.Recorder
	records                 *taskRecords
	processTracker          *processTracker
	taskUpdater             *taskUpdater
	description             *driverDescription
	awaitDriver             dispenseDriverFunc // blocks while the driver is unavailable; see dispenseWhenAvailable
	hooks                   *taskHooks
	configBuilder           *taskConfigBuilder
	currentProcess          *currentProcess
	processRunner           *processRunner
	killRequest             *killRequest
	destroyer               *destroyer
	restartDecider          *restartDecider
	rerunRequests           *rerunRequests
	recoverer               *recoverer
	interruptedStartAdopter *interruptedStartAdopter

	onlyDestroyRemains chan struct{} // closed by Run when the task has ended for good and the driver must still destroy it
	done               chan struct{} // closed by Run
}

// New returns a runner for a new or a restored task. The runner does nothing before Run.
func New(c Config) *Runner {
	r := &Runner{
		name:               c.Task.Name,
		startGate:          c.StartGate,
		timeline:           c.Timeline,
		processTracker:     &processTracker{},
		taskUpdater:        &taskUpdater{task: c.Task},
		onlyDestroyRemains: make(chan struct{}),
		done:               make(chan struct{}),
	}
	alloc, ref, task := c.Alloc, taskRef{c.Alloc.ID, c.Task.Name}, r.taskUpdater.currentTask
	dispense, recovery := dispenseWithUnavailableError(c.DispenseDriver), c.RecoveryTracker.trackerForDriver(c.Task.Driver)
	calls := driverCallRecorder{c.Timeline, c.Task.Driver}
	logger := c.Logger.Named("taskrunner").With("task", c.Task.Name)

	r.records = &taskRecords{
		store: c.Store, onTaskStateChange: c.OnTaskStateChange, putRetriesEnded: r.done, hasSecrets: c.Env.HasSecrets, redactSecrets: c.Env.Redact, timeline: c.Timeline, logger: logger,
		taskMetrics: taskMetrics{c.Alloc.JobID, c.Alloc.Namespace, c.Task.Name, c.Alloc.TaskGroup},
		taskState:   &api.TaskState{State: model.TaskPending},
	}
	r.killRequest = newKillRequest(r.records)
	r.description = &driverDescription{records: r.records, dispense: dispense, task: task, dir: c.TaskDir, env: c.Env}
	r.hooks = &taskHooks{
		alloc: &alloc, dir: c.TaskDir, env: c.Env, task: task, description: r.description,
		records: r.records, callLimits: c.HookCallLimits, timeline: c.Timeline, logger: logger,
	}
	r.configBuilder = &taskConfigBuilder{
		alloc: &alloc, dir: c.TaskDir, env: c.Env, task: task, description: r.description, hooks: r.hooks,
		output: Output{Stdout: nullDevice, Stderr: nullDevice},
	}
	stopper := &stopper{
		killRequest: r.killRequest, task: task, allocID: c.Alloc.ID, endTaskWithoutDriver: c.EndTaskWithoutDriver,
		callPreKillingHooks: r.hooks.callPreKillingHooks, emitEvent: r.records.emitEvent, logger: logger,
	}
	r.currentProcess = &currentProcess{records: r.records, killRequest: r.killRequest, stopper: stopper, env: c.Env, runReturned: r.done}
	r.rerunRequests = &rerunRequests{records: r.records, killRequest: r.killRequest, task: task, runReturned: r.done, rerunRequested: make(chan struct{}, 1)}
	r.restartDecider = &restartDecider{
		restartTracker: restart.NewTracker(c.Task.RestartPolicy, time.Now(), rand.Int64N),
		records:        r.records, killRequest: r.killRequest, task: task, logger: logger,
	}
	r.destroyer = &destroyer{
		records: r.records, processTracker: r.processTracker, dispense: dispense, callRecorder: calls,
		stopper: stopper, logger: logger,
	}
	reportOutage := func(err error) { r.records.emitEvent(model.EventWaitingForDriver(err.Error())) }
	r.awaitDriver = dispenseWhenAvailable(dispense, reportOutage)
	caller := &startCaller{
		startQuery: startQuery{dispense, calls}, dispense: dispense, awaitDriver: r.awaitDriver, callRecorder: calls, pluginTaskTracker: recovery, destroyer: r.destroyer, processTracker: r.processTracker,
		killRequest: r.killRequest, task: task, emitEvent: r.records.emitEvent, reportOutage: reportOutage, logger: logger,
	}
	starter := &starter{
		ref: ref, records: r.records, awaitDriver: r.awaitDriver, description: r.description, configBuilder: r.configBuilder, hooks: r.hooks, startCaller: caller,
		destroyer: r.destroyer, restartDecider: r.restartDecider, currentProcess: r.currentProcess, logger: logger,
	}
	r.processRunner = &processRunner{
		ref: ref, records: r.records, processTracker: r.processTracker, starter: starter, currentProcess: r.currentProcess, hooks: r.hooks, killRequest: r.killRequest,
		stopper: stopper, destroyer: r.destroyer, restartDecider: r.restartDecider, awaitExitWithoutDriver: c.AwaitExitWithoutDriver, callRecorder: calls, logger: logger,
	}
	r.interruptedStartAdopter = &interruptedStartAdopter{
		ref: ref, records: r.records, processTracker: r.processTracker, startQuery: startQuery{dispense, calls}, pluginTaskTracker: recovery,
		description: r.description, configBuilder: r.configBuilder, hooks: r.hooks, destroyer: r.destroyer, restartDecider: r.restartDecider,
		currentProcess: r.currentProcess, reportOutage: reportOutage, logger: logger,
	}
	r.recoverer = &recoverer{
		ref: ref, records: r.records, dispense: dispense, callRecorder: calls, pluginTaskTracker: recovery, description: r.description,
		destroyer: r.destroyer, currentProcess: r.currentProcess, interruptedStartAdopter: r.interruptedStartAdopter, recoverTimeout: c.HookCallLimits.StartHookPointTimeout, logger: logger,
	}
	if c.RestoredTask == nil {
		r.records.addReceivedEvent()
	} else {
		r.restoreRecords(*c.RestoredTask)
	}
	return r
}

// SetHooks sets the hooks of the task, and the attachments of the allocation's hooks, which are stored with each task
// because the allocation has no record of its own. It is called once, before Run. The hooks are no parameter of New,
// because hooks call methods of the runner, and because hooks in plugins may not be known yet when the runner is created.
// The caller must not change the map afterwards.
func (r *Runner) SetHooks(list []runnerhooks.OrderedHook, allocAttachments map[string]string) {
	r.hooks.setHooks(list, allocAttachments)
}

// FetchDriverDescription fetches the task config schema and the capabilities from the driver, which Prestart hooks and the start of the
// task need. It must have returned before Run. If awaitDriver is true, it blocks while the driver is unavailable, and then emits an
// event. Otherwise it returns an error for which IsDriverTemporarilyUnavailable is true; then Run fetches them before the task starts.
func (r *Runner) FetchDriverDescription(ctx context.Context, awaitDriver bool) error {
	if awaitDriver {
		return r.description.fetchWhenAvailable(ctx, r.awaitDriver)
	}
	return r.description.fetchOnce(ctx)
}

// IsDriverTemporarilyUnavailable reports whether err means that the driver is currently unavailable, so that
// a later call may succeed.
func IsDriverTemporarilyUnavailable(err error) bool {
	var unavailableErr *driver.UnavailableError
	if errors.As(err, &unavailableErr) {
		return unavailableErr.Plugin != "" // an empty Plugin means that no plugin serves the driver
	}
	return errors.Is(err, driver.ErrPluginDown)
}

// DriverCapabilities returns the driver's capabilities. The result is the zero value before FetchDriverDescription, unless an earlier agent
// has stored the capabilities.
func (r *Runner) DriverCapabilities() driver.Capabilities { return r.description.driverCapabilities() }

// Name returns the name of the task.
func (r *Runner) Name() string { return r.name }

// Task returns the current version of the task.
func (r *Runner) Task() Task { return r.taskUpdater.currentTask() }

// State returns a copy of the task's state.
func (r *Runner) State() *api.TaskState {
	state, _ := r.records.snapshot()
	return state
}

// Snapshot returns the result of State, and reports whether the task was killed after its last start and before it
// finished.
func (r *Runner) Snapshot() (state *api.TaskState, killed bool) { return r.records.snapshot() }

// Done returns a channel that is closed when Run has returned.
func (r *Runner) Done() <-chan struct{} { return r.done }

// IsDestroyPending reports, after Run has returned, whether the driver must still destroy a start of the task, or may
// have to, because the driver has not answered whether the start was executed. It is false before Run has returned.
func (r *Runner) IsDestroyPending() bool {
	return wait.IsClosed(r.done) && (r.destroyer.pendingDestroy() != nil || r.interruptedStartAdopter.startUndecided)
}

// OnlyDestroyRemains returns a channel that is closed when the task has ended for good and Run only waits for the driver to
// destroy the task. The channel stays open for a task without a pending destroy.
func (r *Runner) OnlyDestroyRemains() <-chan struct{} { return r.onlyDestroyRemains }

// AllProcessesEnded reports whether no process of the task can be alive: the exit of each process was observed, or the
// driver has destroyed the process. It is false for a task that this runner has not started or whose start has failed,
// because such a task may have a process.
func (r *Runner) AllProcessesEnded() bool { return r.processTracker.allProcessesEnded() }

// EmitEvent adds an event to the task. Events are for display only. The runner owns the
// event afterwards.
func (r *Runner) EmitEvent(event *api.TaskEvent) { r.records.emitEvent(event) }

// EmitEventOnce is like EmitEvent, but ignores an event whose message the task already has, even if another plugin
// process or agent sends it again: the messages are stored with the task. After 16 messages it ignores all further
// events.
func (r *Runner) EmitEventOnce(event *api.TaskEvent) { r.records.emitEventOnce(event) }

// SetOutput sets the output of the next start of the task: FIFOs, or the null device,
// which is the default.
func (r *Runner) SetOutput(o Output) { r.configBuilder.setOutput(o) }

// SetCgroup sets the cgroup for the driver's next start of the task, and the cores that are
// reserved for it. The default is none.
func (r *Runner) SetCgroup(group cgroup.Group) { r.configBuilder.setCgroup(group) }

// SetNetwork sets the network for the driver's next start of the task. The default is nil: the network of
// the host. DNS settings other than nil replace those of the job.
func (r *Runner) SetNetwork(isolation *driver.NetworkIsolation, dns *driver.DNSConfig) {
	r.configBuilder.setNetwork(isolation, dns)
}

// SetDynamicUser sets the user of a task whose job names no user; empty means the driver's default. The method Task
// returns the user from then on.
func (r *Runner) SetDynamicUser(name string) { r.taskUpdater.setDynamicUser(name) }
