package allocrunner

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/allocdir"
	"github.com/nomad-lite/nomad-lite/runtime/failpoint"
	"github.com/nomad-lite/nomad-lite/runtime/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/lifecycle"
	"github.com/nomad-lite/nomad-lite/runtime/model"
	"github.com/nomad-lite/nomad-lite/runtime/services"
	"github.com/nomad-lite/nomad-lite/runtime/state"
	"github.com/nomad-lite/nomad-lite/runtime/taskenv"
	"github.com/nomad-lite/nomad-lite/runtime/taskrunner"
)

// ErrShutdown as the cause of Run's context leaves the tasks running. Any other cause
// stops them.
var ErrShutdown = taskrunner.ErrShutdown

// Config configures a Runner.
type Config struct {
	Alloc        *api.Allocation // with its canonical job; must not be changed afterwards
	Node         taskenv.Node
	HostEnv      map[string]string // environment that tasks inherit; see taskenv.HostEnv
	Drivers      Drivers
	Logs         hooks.Collector
	AllocDirRoot string
	Store        Store                             // nil stores no records
	Services     services.Registry                 // registrations of all allocations
	Checks       services.Results                  // nil keeps check results in memory
	Dial         services.Dial                     // how checks connect to their targets; nil uses the network of the host
	Report       func(Update)                      // called for each change, one call at a time; should return soon
	Hooks        HookFactory                       // hooks other than the builtin ones; may be nil
	Cgroups      func(driver string) hooks.Cgroups // cgroups for the tasks of a driver; nil, or returns nil, if the driver creates its own
	Limits       Limits
	Logger       hclog.Logger

	// Restored means that an earlier agent had the allocation and that its records are
	// restored. An allocation without any record is new.
	Restored bool
	Records  Records // required with Restored; nil without it
	Rebooted bool    // the machine has rebooted since the earlier agent ran

	// Recovery is shared by all allocations of the node. EndTask ends tasks without
	// their drivers; see taskrunner.Config. Both may be nil.
	Recovery *taskrunner.Recoveries
	EndTask  taskrunner.EndTask

	// Previous returns a channel that is closed when no task or hook of the given
	// allocation runs on this node, immediately if the allocation is unknown. An
	// allocation waits for the allocation that it replaces. May be nil.
	Previous func(allocID string) <-chan struct{}
}

// Drivers finds a driver by name. The call blocks while the driver's plugin is
// starting. All calls return the same value for one plugin process, and another value
// for the next process: start compares them to find out whether all running tasks were
// recovered. plugins/supervisor implements it.
type Drivers interface {
	Driver(ctx context.Context, name string) (driver.Driver, error)
}

// Store keeps the records of tasks for the next agent. taskrunner.Store describes the
// rules. The methods are called concurrently for different tasks.
type Store interface {
	PutTaskState(allocID, task string, state *api.TaskState, h state.Durability) state.WaitFunc
	PutTask(allocID, task string, local state.LocalState, state *api.TaskState, h state.Durability) state.WaitFunc // stores both records or neither
}

// Runner runs one allocation. Run is called once; all other methods may be
// called concurrently, before, during and after it.
type Runner struct {
	id      string
	config  Config
	limits  Limits
	logger  hclog.Logger
	dir     *allocdir.Dir
	network *api.AllocNetworkStatus
	pending func(context.Context, func(*api.TaskEvent)) // see awaitHooks

	tasks         []*taskrunner.Runner // in the order of the job
	envs          map[string]*taskenv.Builder
	stats         map[string]*hooks.Stats
	services      *services.Set
	groupServices *hooks.GroupServices
	lifecycle     *lifecycle.Coordinator
	group         *lifecycle.Group // nil if the group uses no lifecycle extensions
	updates       updates
	tick          chan struct{} // holds one request to reconcile
	stopping      chan struct{} // closed by the first stop
	forceKilled   chan struct{} // closed by the first Kill
	skipDelay     chan struct{} // closed by the first stop that skips the shutdown delays
	restored      chan struct{} // closed by Run when the state that an earlier agent left is known
	tasksEnded    chan struct{} // closed by Run when all task runners have returned
	done          chan struct{} // closed by Run
	restartTurn   chan struct{} // semaphore: held while several tasks are restarted
	started       bool          // an earlier agent started to run the allocation
	finished      atomic.Bool   // set by Run when nothing of the allocation remains to be done
	made          time.Time     // when New was called; includes the monotonic clock

	mu             sync.Mutex
	hooks          []hook.Hook      // these three are complete after awaitHooks
	deciders       []healthReporter // health reporters among the hooks of the factory
	pluginHooks    map[string]bool  // names of the hooks of the factory
	alloc          *api.Allocation
	statusOverride statusOverride
	healthReports  healthReports
	runCtx         context.Context // canceled when the agent shuts down or Run returns; nil before Run
	restarts       sync.WaitGroup  // goroutines of RestartWithReason; they start only while endTasks is set
	health         *Health         // nil until known
	reason         stopReason      // valid once stopping is closed
	waiters        []chan struct{} // closed and dropped by the next reconcile

	endTasks, endGrace, endLive context.CancelCauseFunc // see contexts; nil outside Run
}

// New returns a runner for an allocation. The runner does nothing before Run. New fails
// if the allocation cannot be run.
func New(c Config) (*Runner, error) {
	r := &Runner{
		id:          c.Alloc.ID,
		made:        time.Now(),
		config:      c,
		limits:      c.Limits.orDefault(),
		logger:      c.Logger.Named("allocrunner").With("alloc_id", c.Alloc.ID),
		alloc:       c.Alloc,
		envs:        make(map[string]*taskenv.Builder),
		stats:       make(map[string]*hooks.Stats),
		tick:        make(chan struct{}, 1),
		stopping:    make(chan struct{}),
		forceKilled: make(chan struct{}),
		skipDelay:   make(chan struct{}),
		restored:    make(chan struct{}),
		tasksEnded:  make(chan struct{}),
		done:        make(chan struct{}),
		restartTurn: make(chan struct{}, 1),
	}
	r.updates.ready, r.updates.last = make(chan struct{}, 1), make(chan struct{})
	group := c.Alloc.GetTaskGroup()
	if group == nil {
		return nil, fmt.Errorf("alloc %s: job %q has no group %q", c.Alloc.ID, c.Alloc.JobID, c.Alloc.TaskGroup)
	}
	if c.Restored && c.Records == nil {
		return nil, fmt.Errorf("alloc %s: no records to restore it from", c.Alloc.ID)
	}
	dir, err := allocdir.New(c.AllocDirRoot, c.Alloc.ID)
	if err != nil {
		return nil, fmt.Errorf("alloc %s: %w", c.Alloc.ID, err)
	}
	r.dir = dir
	r.network = networkStatus(group)
	r.makeServices()
	if err := r.makeTasks(group); err != nil {
		return nil, fmt.Errorf("alloc %s: %w", c.Alloc.ID, err)
	}
	if c.Restored {
		r.restore()
	}
	// A running allocation does not wait for its hooks to be known.
	if factory := r.config.Hooks; factory != nil && !r.started {
		r.pending = factory.Pending(c.Alloc)
	}
	if r.pending == nil {
		r.attachHooks()
	}
	return r, nil
}

// Done is closed when Run has returned.
func (r *Runner) Done() <-chan struct{} { return r.done }

// Finished reports whether Run has returned because nothing of the allocation remains
// to be done. It is false when the agent shuts down and leaves the allocation running.
func (r *Runner) Finished() bool { return r.finished.Load() }

// Restored is closed when the tasks that an earlier agent left running accept requests.
func (r *Runner) Restored() <-chan struct{} { return r.restored }

// AwaitTasks blocks until each task has ended for good or ctx is done, in which case it
// returns the cause. It does not wait for a task that only waits for its driver to
// destroy it; destroying reports whether there is such a task.
func (r *Runner) AwaitTasks(ctx context.Context) (destroying bool, err error) {
	for _, t := range r.tasks {
		select {
		case <-t.Done():
		case <-t.Destroying():
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
	return !r.ended(), nil
}

// Dir returns the directory of the allocation.
func (r *Runner) Dir() *allocdir.Dir { return r.dir }

// Run blocks until the allocation has ended, including its poststop tasks: all tasks
// have ended for good, or ctx is done with the cause ErrShutdown and the tasks are left
// as they are. When ctx is done with any other cause, Run first stops the allocation as
// Stop does; that takes as long as its tasks are allowed to take, unless Kill is
// called.
func (r *Runner) Run(ctx context.Context) {
	defer close(r.done)
	tasks, grace, live := r.contexts(ctx)
	defer r.endContexts()

	// Most allocations are never stopped, so no goroutine waits for ctx.
	defer context.AfterFunc(ctx, func() { r.handleCancel(context.Cause(ctx)) })()
	preKilled := make(chan bool, 1)
	unstopped := context.AfterFunc(live, func() {
		told := false
		defer func() { preKilled <- told }() // Run receives from preKilled, even if stopTasks does not return normally
		told = r.stopTasks(grace)
	})

	var running sync.WaitGroup
	running.Go(func() {
		ready := r.reattachTasks(grace)
		close(r.restored)
		r.awaitHooks(live)
		if ready {
			r.prepare(live)
		}
		for _, t := range r.tasks {
			running.Go(func() {
				defer r.changed()
				t.Run(tasks)
			})
		}
	})
	rest := context.WithoutCancel(ctx)
	r.watch(rest, r.restored)
	running.Wait()
	close(r.tasksEnded)

	told := !unstopped() && <-preKilled
	if tasks.Err() != nil {
		r.shutdownHooks(rest)
	} else {
		r.finished.Store(true)
		if !told {
			r.preKill(rest)
		}
		point := failpoint.Enter(failpoint.Postrun)
		r.postrun(rest)
		point.Leave()
	}
	r.reconcile() // the watch loop has returned, and the final status must be reported
}

// contexts returns three contexts, each derived from the one before: tasks is canceled
// only when the agent shuts down, grace also by Kill, and live, used for everything
// that precedes the tasks, also by any stop.
func (r *Runner) contexts(ctx context.Context) (tasks, grace, live context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	tasks, r.endTasks = context.WithCancelCause(context.WithoutCancel(ctx))
	r.runCtx = tasks
	grace, r.endGrace = context.WithCancelCause(tasks)
	live, r.endLive = context.WithCancelCause(grace)
	if isClosed(r.forceKilled) {
		r.endGrace(taskrunner.ErrKilled)
	}
	if isClosed(r.stopping) {
		r.endLive(taskrunner.ErrKilled)
	}
	return tasks, grace, live
}

func (r *Runner) endContexts() {
	r.mu.Lock()
	r.endTasks(nil) // cancels grace and live as well
	r.endTasks, r.endGrace, r.endLive = nil, nil, nil
	r.mu.Unlock()
	r.restarts.Wait()
}

// handleCancel handles the end of Run's context.
func (r *Runner) handleCancel(cause error) {
	if !errors.Is(cause, ErrShutdown) {
		r.Stop()
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.endTasks != nil {
		r.endTasks(ErrShutdown)
	}
}

// prepare sets the allocation up so that its tasks can run. If that fails, the tasks
// are killed before they start, poststop tasks included: nothing has run that they
// would clean up.
func (r *Runner) prepare(live context.Context) {
	if r.started && (r.isStopping() || r.onlyPoststop()) {
		return // no setup is needed, and a stop is handled by stopTasks
	}
	if r.Alloc().ServerTerminalStatus() {
		r.forEach(func(t *taskrunner.Runner) { t.Kill(nil) })
		return
	}
	if !r.started {
		if err := r.askDrivers(live); err != nil && live.Err() == nil {
			r.failSetup(err)
			return
		}
	}
	err := r.prerun(live)
	switch {
	case r.isStopping() && r.started:
	case r.isStopping():
		r.forEach(func(t *taskrunner.Runner) { t.Kill(r.killingEvent(t)) })
	case err != nil && live.Err() == nil:
		r.logger.Error("alloc not set up", "error", err)
		r.forEach(func(t *taskrunner.Runner) {
			t.EmitEvent(model.EventSetupFailure(fmt.Sprintf("failed to setup alloc: %v", err)))
			t.Kill(nil)
		})
	}
}

// failSetup fails an allocation before any of its tasks starts.
func (r *Runner) failSetup(err error) {
	r.logger.Error("alloc not added", "error", err)
	r.force(statusOverride{api.AllocClientStatusFailed, fmt.Sprintf("Unable to add allocation due to error: %v", err)})
	r.forEach(func(t *taskrunner.Runner) { t.Kill(nil) })
}

// askDrivers fetches from the drivers the data that task setup needs. A driver that is
// unavailable is asked again when its task starts.
func (r *Runner) askDrivers(ctx context.Context) error {
	errs := make([]error, len(r.tasks))
	var asking sync.WaitGroup
	for i, t := range r.tasks {
		if r.started && t.Completed() {
			continue
		}
		asking.Go(func() {
			if err := t.Prepare(ctx); err != nil && !taskrunner.Temporary(err) {
				errs[i] = fmt.Errorf("failed creating runner for task %q: %w", t.Name(), err)
			}
		})
	}
	asking.Wait()
	return errors.Join(errs...)
}

// onlyPoststop reports whether only poststop tasks remain.
func (r *Runner) onlyPoststop() bool {
	_, finished := evaluateTasks(r.observe(r.Status()))
	return finished
}

func (r *Runner) forEach(f func(*taskrunner.Runner)) {
	for _, t := range r.tasks {
		f(t)
	}
}

// Alloc returns the current version of the allocation. It must not be changed.
func (r *Runner) Alloc() *api.Allocation {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.alloc
}

// env returns the current environment of the allocation.
func (r *Runner) env() *taskenv.Env {
	return taskenv.NewBuilder(r.config.Node, envAlloc(r.Alloc()), taskenv.Task{}).Build()
}
