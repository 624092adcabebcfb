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
	"github.com/nomad-lite/nomad-lite/runtime/taskenv"
	"github.com/nomad-lite/nomad-lite/runtime/taskrunner/restart"
)

// The causes for which the context of a running task ends.
var (
	ErrKilled   = errors.New("task killed")         // it shall stop, and stay down
	ErrShutdown = errors.New("agent shutting down") // it is left running

	errHurry = errors.New("task killed without delay")
)

// ErrNotRunning answers a call that needs a running task. The HTTP API and its
// clients match on the text.
var ErrNotRunning = errors.New("Task not running")

// Config is what a Runner is made of. Everything is required unless it says
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
	Restored  *Restored   // what an earlier agent has left of the task; nil if it is new
	Recovery  *Recoveries // of the node; may be nil
	EndTask   EndTask     // may be nil: then only drivers end tasks
	Logger    hclog.Logger
}

// Gate is what a task waits for before each start, restarts included. When ctx
// ends Wait returns the cause, even if the task might start.
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

	// Only the goroutine of Run uses these, and before it those who prepare Run.
	tracker         *restart.Tracker
	local           LocalState
	startDeaths     int  // plugin deaths during StartTask since the last start that succeeded
	destroyReported bool // the pending destroy has its event
	unfinished      bool // a restart was asked for under an earlier agent, see finishRestart

	// writing keeps the records of the task state in order. Unlike mu it is held
	// across the store's write: a later write must not be overtaken by an earlier.
	writing  sync.Mutex // taken before mu
	stored   LocalState // the last local state that was put, for writers outside Run
	puts     int        // how many puts there were
	localPut int        // the last of them that had the local state
	safe     int        // the last of them that is known to be stored
	refused  bool       // the store has refused a put since, see storeAgain

	mu           sync.Mutex
	task         Task
	capabilities *driver.Capabilities // nil as long as they are not known
	state        *api.TaskState
	process      *process        // nil unless the task runs
	restartReq   *RestartRequest // for the process, or for a dead task to run again
	output       Output
	cgroup       string // that the host has made for the driver
	killError    error
	killNoted    bool     // LocalState.Killed
	reported     []string // LocalState.Reported; replaced, never changed in place
	runs         runs
	quiet        bool                    // the kill has no event, and gets none at its end
	updated      bool                    // the Update hooks have not heard of the task as it is
	updating     bool                    // a goroutine tells them
	tellHooks    func()                  // starts it; nil outside Run
	endLive      context.CancelCauseFunc // ends what a kill ends; nil outside Run
	endGrace     context.CancelCauseFunc // ends what ForceKill ends; nil outside Run
}

// Output says where the task writes to.
type Output struct {
	Stdout, Stderr string
}

// New returns a runner that has received its task, and does nothing yet.
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

// SetHooks gives the runner its hooks, in order. It must be called before Run,
// at most once; hooks are made after the runner because some of them act on it.
func (r *Runner) SetHooks(hooks []hook.Hook) {
	r.hooks = hooks
	for _, h := range hooks {
		if _, ok := h.(hook.TaskPrestart); ok {
			// What an earlier agent was told, or nothing yet: its place is the same.
			r.setHookEnv(h.Name(), r.local.Hooks[h.Name()].Env)
		}
	}
}

// Prepare asks the driver what must be known before the task is set up. It must
// have returned before Run. After an error that is Temporary, Run asks again before
// the task starts.
func (r *Runner) Prepare(ctx context.Context) error {
	if r.schema != nil {
		return nil
	}
	schema, capabilities, err := r.describe(ctx)
	if errors.Is(err, driver.ErrPluginDown) && ctx.Err() == nil {
		schema, capabilities, err = r.describe(ctx) // the next plugin knows it too
	}
	if err != nil {
		return fmt.Errorf("driver %q: %w", r.Task().Driver, err)
	}
	r.schema = schema
	r.local.Capabilities = capabilities // stored with the next record
	r.setCapabilities(capabilities)
	return nil
}

// Temporary reports whether err means that the driver is unavailable at the moment,
// so that a later call may succeed.
func Temporary(err error) bool {
	var unavailable *driver.UnavailableError
	if errors.As(err, &unavailable) {
		return unavailable.Plugin != "" // else no plugin serves the driver
	}
	return errors.Is(err, driver.ErrPluginDown)
}

// describe asks the driver what it is.
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

// Capabilities returns what the driver can do. It is the zero value before
// Prepare, unless an earlier agent has stored it.
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

// Undestroyed reports whether the driver has yet to destroy a start of the task. It is
// false before Run has returned.
func (r *Runner) Undestroyed() bool { return isClosed(r.done) && r.local.Destroy != nil }

// Destroying is closed when the task has ended for good and only waits for its driver
// to destroy it. It stays open for a task that needs no such wait.
func (r *Runner) Destroying() <-chan struct{} { return r.destroying }

// SetOutput says where the next start of the task writes to: FIFOs, or the null
// device, which is what it is until somebody says otherwise.
func (r *Runner) SetOutput(o Output) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.output = o
}

// SetCgroup says which cgroup the driver finds for the next start; none unless
// somebody says so.
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

// runs says what is known of the processes of the task.
type runs struct {
	ended   bool // the last one was seen to exit, or was destroyed
	unknown bool // the exit of the last one was not seen
	lost    bool // an earlier one may be alive, although the task was started again
}

// ProcessEnded reports whether no process of the task can be alive: each was seen to
// exit, or its driver has destroyed it. A task that this runner has not started, or
// whose start has failed, may have one.
func (r *Runner) ProcessEnded() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.runs.ended && !r.runs.lost
}

// noteStart notes that the task may have another process from now on.
func (r *Runner) noteStart() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.runs = runs{lost: r.runs.lost || r.runs.unknown}
}

// noteExit notes that the last process has ended, or that its end is not known.
func (r *Runner) noteExit(observed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.runs.ended, r.runs.unknown = observed, !observed
}

// noteDestroyed notes that nothing is left of the last process, whatever is known of
// its end.
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
