package taskrunner

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/model"
	"github.com/nomad-lite/nomad-lite/runtime/restart"
	"github.com/nomad-lite/nomad-lite/runtime/state"
	"github.com/nomad-lite/nomad-lite/runtime/taskenv"
)

// The causes with which the context of a running task is canceled.
var (
	ErrKilled   = errors.New("task killed")         // the task must stop and stay down
	ErrShutdown = errors.New("agent shutting down") // the task is left running

	errHurry = errors.New("task killed without delay")
)

// ErrNotRunning is returned by calls that need a running task. The HTTP API and its
// clients match on the text.
var ErrNotRunning = errors.New("Task not running")

// Config configures a Runner. All fields are required unless their comment says
// otherwise.
type Config struct {
	Alloc     Alloc
	Task      Task
	TaskDir   hook.TaskDir
	Env       *taskenv.Builder
	Gate      Gate
	Driver    func(ctx context.Context) (driver.Driver, error) // may block while the plugin starts
	Store     Store
	Notify    func() // called after each change of the task's state; must not block
	Deadlines Deadlines
	Restored  *Restored   // what an earlier agent left of the task; nil for a new task
	Recovery  *Recoveries // shared by all tasks of the node; may be nil
	EndTask   EndTask     // if nil, only drivers end tasks
	Logger    hclog.Logger
}

// Gate blocks a task before each start, restarts included. When ctx is done Wait
// returns the cause, even if the gate is open.
type Gate interface {
	Wait(ctx context.Context) error
}

// Runner runs one task. Run is called once; all other methods may be called
// concurrently, before, during and after it.
type Runner struct {
	name      string
	alloc     Alloc
	dir       hook.TaskDir
	env       *taskenv.Builder
	gate      Gate
	dispense  dispense
	store     Store
	notify    func()
	deadlines Deadlines
	logger    hclog.Logger
	hooks     []hook.Hook // set once, by SetHooks

	allocHooks map[string]string // set once, by SetAllocHooks

	recovery *driverRecovery
	endTask  EndTask

	schema *hclspec.Spec // set once, by Prepare

	killed      chan struct{} // closed by the first Kill
	forceKilled chan struct{} // closed by the first ForceKill
	purged      chan struct{} // closed by the first Purge
	skipDelay   chan struct{} // closed by the first SkipShutdownDelay
	rerunCh     chan struct{} // holds the request to run a dead task again, see Rerun
	destroying  chan struct{} // closed by Run when the task has ended for good and its destroy is pending
	done        chan struct{} // closed by Run

	// These fields belong to the goroutine of Run and, before Run, to the callers that
	// prepare it.
	tracker         *restart.Tracker
	local           state.LocalState
	startDeaths     int  // plugin deaths during StartTask since the last successful start
	destroyReported bool // the event for the pending destroy was emitted
	unfinished      bool // a restart was requested under an earlier agent, see finishRestart

	// writing keeps the records of the task state in order. Unlike mu it is held during
	// the store's write, so that no earlier write overtakes a later one.
	writing  sync.Mutex       // taken before mu
	stored   state.LocalState // last local state that was put, for writers outside Run
	puts     int              // number of puts
	localPut int              // number of the last put that included the local state
	safe     int              // number of the last put that is known to be stored
	refused  chan struct{}    // not nil if the store has refused a put after safe, see storeAgain; closed when the task is stored

	mu           sync.Mutex
	task         Task
	capabilities *driver.Capabilities // nil until known
	state        *api.TaskState
	process      *process              // nil unless the task runs
	restartReq   *state.RestartRequest // requested restart of the process, or rerun of a dead task
	output       Output
	cgroup       string // cgroup that the host has created for the driver
	killError    error
	killNoted    bool     // stored as LocalState.Killed
	reported     []string // stored as LocalState.Reported; replaced, never changed in place
	runs         runs
	quiet        bool                    // the kill has no event, neither when it starts nor when it ends
	updated      bool                    // the Update hooks have not been called for the current task version
	updating     bool                    // a goroutine is calling the Update hooks
	tellHooks    func()                  // starts the goroutine that calls the Update hooks; nil outside Run
	endLive      context.CancelCauseFunc // cancels killCtx; nil outside Run
	endGrace     context.CancelCauseFunc // cancels forceKillCtx; nil outside Run
}

// Output is the destination of the task's output.
type Output struct {
	Stdout, Stderr string
}

// New returns a runner that has received its task. The runner does nothing before Run.
func New(c Config) *Runner {
	r := &Runner{
		name:      c.Task.Name,
		alloc:     c.Alloc,
		dir:       c.TaskDir,
		env:       c.Env,
		gate:      c.Gate,
		dispense:  available(c.Driver),
		recovery:  c.Recovery.of(c.Task.Driver),
		endTask:   c.EndTask,
		store:     c.Store,
		notify:    c.Notify,
		deadlines: c.Deadlines.orDefault(),
		logger:    c.Logger.Named("taskrunner").With("task", c.Task.Name),

		killed:      make(chan struct{}),
		forceKilled: make(chan struct{}),
		purged:      make(chan struct{}),
		skipDelay:   make(chan struct{}),
		rerunCh:     make(chan struct{}, 1),
		destroying:  make(chan struct{}),
		done:        make(chan struct{}),

		tracker: restart.New(c.Task.Restart, time.Now(), rand.Int64N),
		task:    c.Task,
		state:   &api.TaskState{State: model.TaskPending},
		output:  Output{Stdout: nullDevice, Stderr: nullDevice},
	}
	if c.Restored == nil {
		model.AppendTaskEvent(r.state, model.EventReceived(), time.Now())
	} else {
		r.restore(*c.Restored)
	}
	return r
}

// SetHooks sets the hooks, in order. It must be called before Run, at most once. It is
// separate from New because some hooks act on the runner.
func (r *Runner) SetHooks(hooks []hook.Hook) {
	r.hooks = hooks
	for _, h := range hooks {
		if _, ok := h.(hook.TaskPrestart); ok {
			// Set the response that an earlier agent got, or an empty one, so that the
			// hook keeps its place in the order.
			r.setHookEnv(h.Name(), r.local.Hooks[h.Name()].Env)
		}
	}
}

// Prepare fetches the task config schema and the capabilities from the driver; task
// setup needs them. It must have returned before Run. After an error that is Temporary,
// Run fetches them before the task starts.
func (r *Runner) Prepare(ctx context.Context) error {
	if r.schema != nil {
		return nil
	}
	schema, capabilities, err := r.describe(ctx)
	if errors.Is(err, driver.ErrPluginDown) && ctx.Err() == nil {
		schema, capabilities, err = r.describe(ctx) // the plugin died; the next plugin process returns the same
	}
	if err != nil {
		return fmt.Errorf("driver %q: %w", r.Task().Driver, err)
	}
	r.schema = schema
	r.local.Capabilities = capabilities // stored with the next record
	r.setCapabilities(capabilities)
	return nil
}

// Temporary reports whether err means that the driver is currently unavailable, so that
// a later call may succeed.
func Temporary(err error) bool {
	var unavailable *driver.UnavailableError
	if errors.As(err, &unavailable) {
		return unavailable.Plugin != "" // an empty Plugin means that no plugin serves the driver
	}
	return errors.Is(err, driver.ErrPluginDown)
}

// describe returns the driver's task config schema and capabilities.
func (r *Runner) describe(ctx context.Context) (*hclspec.Spec, *driver.Capabilities, error) {
	d, err := r.dispense(ctx)
	if err != nil {
		return nil, nil, err
	}
	schema, err := d.TaskConfigSchema(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("task config schema: %w", err)
	}
	capabilities, err := d.Capabilities(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("capabilities: %w", err)
	}
	return schema, capabilities, nil
}

func (r *Runner) setCapabilities(c *driver.Capabilities) {
	r.mu.Lock()
	r.capabilities = c
	r.mu.Unlock()
	r.env.SetDirs(r.dir, c.FSIsolation)
}

// Capabilities returns the driver's capabilities. It is the zero value before Prepare,
// unless an earlier agent has stored them.
func (r *Runner) Capabilities() driver.Capabilities {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.capabilities == nil {
		return driver.Capabilities{}
	}
	return *r.capabilities
}

// Name returns the name of the task.
func (r *Runner) Name() string { return r.name }

// Done is closed when Run has returned.
func (r *Runner) Done() <-chan struct{} { return r.done }

// Undestroyed reports whether a start of the task is not yet destroyed by the driver.
// It is false before Run has returned.
func (r *Runner) Undestroyed() bool { return isClosed(r.done) && r.local.Destroy != nil }

// Destroying is closed when the task has ended for good and only waits for its driver
// to destroy it. It stays open for a task without a pending destroy.
func (r *Runner) Destroying() <-chan struct{} { return r.destroying }

// SetOutput sets the output of the next start of the task: FIFOs, or the null device,
// which is the default.
func (r *Runner) SetOutput(o Output) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.output = o
}

// SetCgroup sets the cgroup for the driver's next start of the task. The default is
// none.
func (r *Runner) SetCgroup(path string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cgroup = path
}

// Task returns the current version of the task.
func (r *Runner) Task() Task {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.task
}

// runs is what is known about the processes of the task.
type runs struct {
	ended   bool // the last process was seen to exit, or was destroyed
	unknown bool // the exit of the last process was not seen
	lost    bool // an earlier process may be alive, although the task was started again
}

// ProcessEnded reports whether no process of the task can be alive: each was seen to
// exit, or its driver has destroyed it. It is false for a task that this runner has not
// started or whose start has failed, because such a task may have a process.
func (r *Runner) ProcessEnded() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.runs.ended && !r.runs.lost
}

// noteStart records that the task may have another process from now on.
func (r *Runner) noteStart() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.runs = runs{lost: r.runs.lost || r.runs.unknown}
}

// noteExit records the end of the last process; observed is false if its exit status is
// unknown.
func (r *Runner) noteExit(observed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.runs.ended, r.runs.unknown = observed, !observed
}

// noteDestroyed records that nothing is left of the last process, even if its exit
// status is unknown.
func (r *Runner) noteDestroyed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.runs.ended, r.runs.unknown = true, false
}

func (r *Runner) currentProcess() *process {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.process
}
