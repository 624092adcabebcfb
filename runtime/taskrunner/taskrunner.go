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
	"github.com/nomad-lite/nomad-lite/runtime/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/model"
	"github.com/nomad-lite/nomad-lite/runtime/restart"
	"github.com/nomad-lite/nomad-lite/runtime/state"
	"github.com/nomad-lite/nomad-lite/runtime/taskenv"
)

// The causes with which the context of a running task is canceled.
var (
	ErrKilled   = errors.New("task killed")         // the task must stop and stay down
	ErrShutdown = errors.New("agent shutting down") // the task is left running

	errForceKilled = errors.New("task killed without delay")
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
	Deadlines hooks.Deadlines
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
	name       string
	alloc      Alloc
	dir        hook.TaskDir
	env        *taskenv.Builder
	gate       Gate
	dispense   dispenseFunc
	recovery   *driverRecovery
	deadlines  hooks.Deadlines
	logger     hclog.Logger
	hooks      *hooks.Chain      // set once, by SetHooks
	allocHooks map[string]string // set once, by SetAllocHooks
	schema     *hclspec.Spec     // set once, by Prepare

	records   *records
	runs      *runs
	updates   *updates
	kill      *killRequest
	stopper   *stopper
	destroyer *destroyer
	starter   *starter
	restarts  *restarts

	rerunCh    chan struct{} // holds the request to run a dead task again, see Rerun
	destroying chan struct{} // closed by Run when the task has ended for good and its destroy is pending
	done       chan struct{} // closed by Run

	// These fields belong to the goroutine of Run and, before Run, to the callers that
	// prepare it.
	local      *state.LocalState // of records
	unfinished bool              // a restart was requested under an earlier agent, see finishRestart

	mu           *sync.Mutex          // mu of records; it guards the fields below
	capabilities *driver.Capabilities // nil until known
	process      *process             // nil unless the task runs
	output       Output
	cgroup       string // cgroup that the host has created for the driver
}

// Output is the destination of the task's output.
type Output struct {
	Stdout, Stderr string
}

// New returns a runner that has received its task. The runner does nothing before Run.
func New(c Config) *Runner {
	r := &Runner{
		name:       c.Task.Name,
		alloc:      c.Alloc,
		dir:        c.TaskDir,
		env:        c.Env,
		gate:       c.Gate,
		dispense:   withUnavailableError(c.Driver),
		recovery:   c.Recovery.of(c.Task.Driver),
		deadlines:  c.Deadlines,
		logger:     c.Logger.Named("taskrunner").With("task", c.Task.Name),
		runs:       &runs{},
		updates:    &updates{task: c.Task},
		rerunCh:    make(chan struct{}, 1),
		destroying: make(chan struct{}),
		done:       make(chan struct{}),
		output:     Output{Stdout: nullDevice, Stderr: nullDevice},
	}
	r.records = &records{
		store: c.Store, notify: c.Notify, ended: r.done, logger: r.logger,
		state: &api.TaskState{State: model.TaskPending},
	}
	r.local, r.mu = &r.records.local, &r.records.mu
	r.kill = newKillRequest(r.mu)
	r.stopper = &stopper{
		request: r.kill, task: r.Task, allocID: c.Alloc.ID, endTask: c.EndTask,
		preKilling: r.preKilling, emit: r.EmitEvent, logger: r.logger,
	}
	r.destroyer = &destroyer{
		records: r.records, runs: r.runs, dispense: r.dispense, timeout: r.deadlines.Other,
		stopper: r.stopper, logger: r.logger,
	}
	r.starter = &starter{
		dispense: r.dispense, recovery: r.recovery, destroyer: r.destroyer, runs: r.runs,
		request: r.kill, task: r.Task, logger: r.logger,
	}
	r.restarts = &restarts{
		tracker: restart.New(c.Task.Restart, time.Now(), rand.Int64N),
		records: r.records, kill: r.kill, task: r.Task, logger: r.logger,
	}
	if c.Restored == nil {
		model.AppendTaskEvent(r.records.state, model.EventReceived(), time.Now())
	} else {
		r.restore(*c.Restored)
	}
	return r
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
func (r *Runner) Task() Task { return r.updates.current() }

// ProcessEnded reports whether no process of the task can be alive: each was seen to
// exit, or its driver has destroyed it. It is false for a task that this runner has not
// started or whose start has failed, because such a task may have a process.
func (r *Runner) ProcessEnded() bool { return r.runs.allEnded() }

func (r *Runner) currentProcess() *process {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.process
}
