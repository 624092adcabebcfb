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
	"github.com/nomad-lite/nomad-lite/runtime/taskenv"
	"github.com/nomad-lite/nomad-lite/runtime/taskrunner"
)

// ErrShutdown as the cause of the context of Run leaves the tasks running. Any
// other end of that context stops them.
var ErrShutdown = taskrunner.ErrShutdown

// Config is what a Runner is made of.
type Config struct {
	Alloc        *api.Allocation // with its canonical job; must not be changed afterwards
	Node         taskenv.Node
	HostEnv      map[string]string // what tasks inherit; see taskenv.HostEnv
	Drivers      Drivers
	Logs         hooks.Collector
	AllocDirRoot string
	Store        Store                             // nil keeps nothing
	Services     services.Registry                 // holds the registrations of all allocations
	Checks       services.Results                  // nil keeps the results of checks in memory
	Dial         services.Dial                     // how checks reach what they check; nil for the network of the host
	Report       func(Update)                      // called for each change, one call at a time; should return soon
	Hooks        HookFactory                       // hooks besides the builtin ones; may be nil
	Cgroups      func(driver string) hooks.Cgroups // of the tasks of a driver; nil, or returns nil, if the driver makes its own
	Limits       Limits
	Logger       hclog.Logger

	// Restored says that an earlier agent has had the allocation: what there are
	// records of is taken over. Without a single record the allocation is new.
	Restored bool
	Records  Records // required with Restored; nil knows nothing
	Rebooted bool    // the machine was started again since

	// Recovery is that of the node, and EndTask ends tasks without their drivers; see
	// taskrunner.Config. Both may be nil.
	Recovery *taskrunner.Recoveries
	EndTask  taskrunner.EndTask

	// Previous returns a channel that is closed when nothing of another
	// allocation runs on this node any more, at once if it is not known. An
	// allocation waits for the one that it replaces. May be nil.
	Previous func(allocID string) <-chan struct{}
}

// Drivers finds the driver of a name. The call blocks while the driver's plugin
// is being started. All calls return the same value for one plugin process, and
// another one for the next: a start compares them to find out whether all running tasks
// were recovered. plugins/supervisor does it.
type Drivers interface {
	Driver(ctx context.Context, name string) (driver.Driver, error)
}

// Store keeps the records of tasks for the next agent. See taskrunner.Store for
// the rules; the methods are called concurrently for different tasks.
type Store interface {
	PutTaskState(allocID, task string, state *api.TaskState, h taskrunner.Durability) taskrunner.WaitFunc
	PutTask(allocID, task string, local taskrunner.LocalState, state *api.TaskState, h taskrunner.Durability) taskrunner.WaitFunc // both or neither
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
	group         *lifecycle.Group // nil without extensions of the lifecycle
	updates       updates
	tick          chan struct{} // holds one request to look at the tasks
	stopping      chan struct{} // closed by the first stop
	forceKilled   chan struct{} // closed by the first Kill
	skipDelay     chan struct{} // closed by the first stop that skips the shutdown delays
	restored      chan struct{} // closed by Run when it is known what an earlier agent has left
	tasksEnded    chan struct{} // closed by Run when all task runners have returned
	done          chan struct{} // closed by Run
	restartTurn   chan struct{} // holds the right to restart several tasks
	started       bool          // an earlier agent has begun to run it
	finished      atomic.Bool   // set by Run when nothing is left to do
	made          time.Time     // when New was called; with its monotonic part

	mu             sync.Mutex
	hooks          []hook.Hook      // these three are complete after awaitHooks
	deciders       []healthReporter // of the factory
	pluginHooks    map[string]bool  // names of the hooks of the factory
	alloc          *api.Allocation
	statusOverride statusOverride
	healthReports  healthReports
	runCtx         context.Context // ends when the agent shuts down, or Run has ended; nil before
	restarts       sync.WaitGroup  // goroutines of RestartWithReason; they start only while endTasks is set
	health         *Health         // nil as long as it is not known
	reason         stopReason      // valid once stopping is closed
	waiters        []chan struct{} // closed and dropped at the next look at the tasks

	endTasks, endGrace, endLive context.CancelCauseFunc // see contexts; nil outside Run
}

// New returns a runner for an allocation, which does nothing before Run. An
// error means that the allocation is not one that can be run.
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
	// What runs is not held up.
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

// Finished reports whether Run has ended because nothing of the allocation is
// left to be done, and not because the agent goes and leaves it running.
func (r *Runner) Finished() bool { return r.finished.Load() }

// Restored is closed when the tasks that an earlier agent has left running can be asked
// for something.
func (r *Runner) Restored() <-chan struct{} { return r.restored }

// AwaitTasks blocks until each task has ended for good, or ctx has ended, which is the
// error. It does not wait for a task that only waits for its driver to destroy it:
// destroying reports whether there is one.
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

// Run blocks until the allocation is over, its poststop tasks included: all
// tasks have ended for good, or ctx has ended with the cause ErrShutdown and
// the tasks are left as they are. When ctx ends with any other cause the
// allocation is stopped first, as by Stop; that takes as long as its tasks are
// allowed to take, unless Kill comes.
func (r *Runner) Run(ctx context.Context) {
	defer close(r.done)
	tasks, grace, live := r.contexts(ctx)
	defer r.endContexts()

	// Most allocations are never stopped: nobody waits for it.
	defer context.AfterFunc(ctx, func() { r.handleCancel(context.Cause(ctx)) })()
	preKilled := make(chan bool, 1)
	unstopped := context.AfterFunc(live, func() {
		told := false
		defer func() { preKilled <- told }() // Run waits for it, whatever becomes of the stop
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
		failpoint.Wrap(failpoint.Postrun, func() { r.postrun(rest) })
	}
	r.reconcile() // nobody else does any more, and the last word must be heard
}

// contexts returns three contexts, each made from the one before. That of the
// tasks ends when the agent shuts down, and only then; grace ends with Kill as
// well, and live, which is for what comes before the tasks, with any stop.
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
	r.endTasks(nil) // and with it the others
	r.endTasks, r.endGrace, r.endLive = nil, nil, nil
	r.mu.Unlock()
	r.restarts.Wait()
}

// handleCancel does what the end of the context of Run asks for.
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

// prepare brings the allocation to where its tasks may run. Tasks of one that
// does not get there are killed before they begin, poststop tasks included:
// nothing has run that they could clean up after.
func (r *Runner) prepare(live context.Context) {
	if r.started && (r.isStopping() || r.onlyPoststop()) {
		return // there is nothing to be set up, and a stop takes its course
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

// failSetup fails an allocation before any of its tasks is begun.
func (r *Runner) failSetup(err error) {
	r.logger.Error("alloc not added", "error", err)
	r.force(statusOverride{api.AllocClientStatusFailed, fmt.Sprintf("Unable to add allocation due to error: %v", err)})
	r.forEach(func(t *taskrunner.Runner) { t.Kill(nil) })
}

// askDrivers learns from the drivers what is needed to set the tasks up. A driver that
// is unavailable is asked again when its task starts.
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

// onlyPoststop reports whether nothing is left but poststop tasks.
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

// env returns the environment of the allocation as of now.
func (r *Runner) env() *taskenv.Env {
	return taskenv.NewBuilder(r.config.Node, envAlloc(r.Alloc()), taskenv.Task{}).Build()
}
