package allocrunner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/failpoint"
	"github.com/nomad-lite/nomad-lite/internal/redact"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/core"
	"github.com/nomad-lite/nomad-lite/runtime/core/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/core/lifecycle"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskdriver"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskenv"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskrunner"
	"github.com/nomad-lite/nomad-lite/runtime/core/tasksteps"
	"github.com/nomad-lite/nomad-lite/runtime/core/timeline"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/job/tracespan"
)

// ErrShutdown is the cause with which the agent cancels Run's context to leave the tasks running. A cancellation with
// any other cause stops the tasks.
var ErrShutdown = taskrunner.ErrShutdown

// Config configures a Runner. It is large because it lists everything a runner gets from its agent; each part of the
// runner receives only the fields it needs.
type Config struct {
	Alloc            *api.Allocation // allocation to run, must not be changed after New; its job must be canonical
	Node             taskenv.Node
	InheritedHostEnv map[string]string // the agent's environment variables that tasks inherit, by name; see taskenv.FilterHostEnv
	Drivers          core.Drivers
	EncodeTaskConfig core.EncodeTaskConfigFunc
	Metrics          core.Metrics // nil counts nothing
	Machine          core.Machine
	Store            core.Store                  // stores the allocation's records
	CheckStateWrite  func(context.Context) error // returns why the records cannot be stored; may be nil
	ReportStatus     func(model.AllocReport)     // called for each status change, one call at a time; should return soon
	HookFactory      core.HookFactory            // hooks other than the builtin ones; may be nil
	Limits           Limits
	NewTrace         func(*api.Allocation) timeline.Trace // returns an allocation's trace; nil exports no traces
	Secrets          *redact.Values                       // also has the allocation's secret values while it runs; may be nil
	Logger           hclog.Logger

	// RanUnderEarlierAgent means an earlier agent ran the allocation, so its tasks are restored from EarlierRecords.
	RanUnderEarlierAgent      bool
	EarlierRecords            core.RecordReader // the earlier agent's records; required if RanUnderEarlierAgent is set, otherwise nil
	RebootedSinceEarlierAgent bool              // the machine has rebooted since the earlier agent ran

	// RecoveryTracker is shared by all allocations on the node. EndTaskWithoutDriver ends a task without its driver, and
	// AwaitExitWithoutDriver returns a task's exit status without its driver; see taskrunner.Config. All three may be
	// nil.
	RecoveryTracker        *taskdriver.RecoveryTracker
	EndTaskWithoutDriver   taskdriver.EndTaskWithoutDriverFunc
	AwaitExitWithoutDriver taskdriver.AwaitExitWithoutDriverFunc

	// AwaitNewStart blocks while the allocation may have been moved to another node. Poststop tasks do not call it, nor
	// do restarts of running tasks. Nil means no task waits.
	AwaitNewStart taskrunner.AwaitNewStartFunc

	// AllocDone returns a channel that is closed when the given allocation has no running task or hook on this node. For
	// an unknown allocation the channel is already closed. An allocation waits for the allocation it replaces and for
	// those preempted for it. AllocDone may be nil.
	AllocDone func(allocID string) <-chan struct{}
}

// Runner runs one allocation. Run is called once; all other methods may be called concurrently, before, during and after
// Run. Changing data is in state and in the task runners. It is large because the API, hooks, drivers and devices
// each act on the allocation through it.
type Runner struct {
	config     Config // with default limits
	state      *allocState
	tasks      *allocTasks
	statsHooks map[string]*hooks.StatsHook // hooks for sampling resource usage, by task name
	secrets    *redact.Values              // secret values given to the allocation
	workspace  core.Workspace
	timeline   *timeline.File
	logger     hclog.Logger

	startedByEarlierAgent    bool                         // an earlier agent started to run the allocation
	attachmentsByTaskAndHook map[string]map[string]string // task name -> hook name -> configuration; the hooks an earlier agent had attached

	backgroundWG    sync.WaitGroup // restarts without a waiting requester, and reads of variables
	hooksAttached   chan struct{}  // closed by attachHooks
	done            chan struct{}  // closed by Run
	runEndedForGood atomic.Bool    // set by Run when no task, hook or cleanup remains
}

// New returns a runner for an allocation. The runner does nothing before Run. New fails if the allocation cannot be run.
func New(c Config) (*Runner, error) {
	c.Limits = c.Limits.WithDefaults()
	alloc := c.Alloc
	group := alloc.GetTaskGroup()
	if group == nil {
		return nil, errNoGroup(alloc)
	}
	if c.RanUnderEarlierAgent && c.EarlierRecords == nil {
		return nil, fmt.Errorf("alloc %s: no records to restore it from", alloc.ID)
	}
	tasks := make([]taskrunner.Task, len(group.Tasks))
	for i, t := range group.Tasks {
		var err error
		if tasks[i], err = toTaskRunnerTask(alloc, group, t.Name, c.Limits); err != nil {
			return nil, fmt.Errorf("alloc %s: %w", alloc.ID, err)
		}
	}
	r, err := newRunner(c, tasks)
	if err != nil {
		return nil, err
	}
	for i, task := range tasks {
		r.tasks.taskSet[i] = r.newTaskRunner(task)
		r.statsHooks[task.Name] = hooks.NewStatsHook(r.tasks.taskSet[i].OpenStats, c.Limits.StatsSampleInterval, r.logger)
	}
	if r.startedByEarlierAgent {
		resumeEarlierStop(r.state)
	}
	if network := r.activeNetworkOfEarlierAgent(); network != nil {
		// Prerun hooks would set the network too, but they are not called for a stopping allocation. Its poststop tasks
		// need the network.
		r.tasks.setNetwork(network)
	}
	if c.HookFactory == nil || c.HookFactory.PluginLaunchWaiterOrNil(alloc) == nil {
		r.attachHooks()
	}
	return r, nil
}

// newRunner returns a runner. The caller must fill its taskSet with one runner for each task.
func newRunner(c Config, tasks []taskrunner.Task) (*Runner, error) {
	r := &Runner{
		config:        c,
		state:         newAllocState(c.Alloc),
		statsHooks:    make(map[string]*hooks.StatsHook),
		secrets:       c.Secrets.NewChild(),
		logger:        c.Logger.Named("allocrunner").With("job_id", c.Alloc.JobID, "alloc_id", c.Alloc.ID),
		hooksAttached: make(chan struct{}),
		done:          make(chan struct{}),
	}
	var err error
	if r.workspace, err = c.Machine.NewWorkspace(r); err != nil {
		return nil, fmt.Errorf("alloc %s: %w", c.Alloc.ID, err)
	}
	var trace timeline.Trace
	if c.NewTrace != nil {
		trace = c.NewTrace(c.Alloc)
	}
	r.timeline = timeline.NewFile(r.workspace, trace, r.logger)
	r.tasks = newAllocTasks(&r.config, r.state, tasks, r.workspace, r.logger)
	return r, nil
}

// NewEnded returns a runner for an ended allocation that no longer has one. It has no tasks: only Destroy may be called.
func NewEnded(c Config) (*Runner, error) {
	if c.Alloc.GetTaskGroup() == nil {
		return nil, errNoGroup(c.Alloc)
	}
	c.Limits = c.Limits.WithDefaults()
	return newRunner(c, nil)
}

func errNoGroup(alloc *api.Allocation) error {
	return fmt.Errorf("alloc %s: job %q has no group %q", alloc.ID, alloc.JobID, alloc.TaskGroup)
}

// newTaskRunner returns a task's runner for New.
func (r *Runner) newTaskRunner(task taskrunner.Task) *taskrunner.Runner {
	c := &r.config
	restored := readRestoredTask(c, task.Name, r.timeline, r.logger)
	if c.RanUnderEarlierAgent && restored != nil {
		r.startedByEarlierAgent = r.startedByEarlierAgent || restored.HooksCalledOrStarted()
		if attachments := restored.AttachmentJSONByHookName(); attachments != nil {
			if r.attachmentsByTaskAndHook == nil {
				r.attachmentsByTaskAndHook = make(map[string]map[string]string)
			}
			r.attachmentsByTaskAndHook[task.Name] = attachments
		}
	}
	return taskrunner.New(taskrunner.Config{
		Alloc:         toTaskRunnerAlloc(c.Alloc, c.Alloc.GetTaskGroup()),
		Task:          task,
		TaskDir:       r.workspace.TaskPaths(task.Name),
		Env:           r.tasks.envBuilders[task.Name],
		StartGate:     r.tasks.gateOf(task),
		AwaitNewStart: c.AwaitNewStart,
		DispenseDriver: func(ctx context.Context) (driver.Driver, error) {
			return c.Drivers.Driver(ctx, task.Driver)
		},
		EncodeTaskConfig:       c.EncodeTaskConfig,
		Metrics:                c.Metrics,
		Store:                  taskStore{c.Store, c.Alloc.ID, task.Name},
		OnTaskStateChange:      r.state.requestReconcile,
		HookCallLimits:         c.Limits.hookCallLimits(),
		Secrets:                r.secrets,
		Timeline:               r.timeline.Recorder(task.Name, r.secrets),
		RestoredTask:           restored,
		RecoveryTracker:        c.RecoveryTracker,
		EndTaskWithoutDriver:   c.EndTaskWithoutDriver,
		AwaitExitWithoutDriver: c.AwaitExitWithoutDriver,
		Logger:                 r.logger,
	})
}

// Done returns a channel that is closed when Run has returned.
func (r *Runner) Done() <-chan struct{} { return r.done }

// EndedForGood reports whether Run has returned because no task, hook or cleanup remains. It is false when the agent
// shuts down and leaves the allocation running.
func (r *Runner) EndedForGood() bool { return r.runEndedForGood.Load() }

// TasksRestored returns a channel that is closed when tasks left running by an earlier agent accept requests.
func (r *Runner) TasksRestored() <-chan struct{} { return r.tasks.restored }

// AwaitTasksEnded blocks until each task has ended for good, or until ctx is done, in which case it returns the cause.
// It does not wait until drivers have destroyed the ended tasks; destroyPending reports whether a driver must still
// destroy one.
func (r *Runner) AwaitTasksEnded(ctx context.Context) (destroyPending bool, err error) {
	for _, t := range r.tasks.taskSet {
		select {
		case <-t.Done():
		case <-t.OnlyDestroyRemains():
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
	return !r.tasks.allEnded(), nil
}

// Timeline returns the allocation's time line.
func (r *Runner) Timeline() *timeline.File { return r.timeline }

// TransitionsByTask returns each task's last transitions in this agent, oldest first.
func (r *Runner) TransitionsByTask() map[string][]tasksteps.Transition {
	transitionsByTask := make(map[string][]tasksteps.Transition, len(r.tasks.taskSet))
	for _, t := range r.tasks.taskSet {
		transitionsByTask[t.Name()] = t.Transitions()
	}
	return transitionsByTask
}

// Alloc returns the allocation's current version. It must not be changed.
func (r *Runner) Alloc() *api.Allocation { return r.state.currentAlloc() }

// Status returns the allocation's current status.
func (r *Runner) Status() model.AllocReport { return r.tasks.currentStatus() }

// Run blocks until the allocation has ended, including its poststop tasks: all tasks have ended for good, or ctx is done
// with the cause ErrShutdown and the tasks are left as they are. When ctx is done with any other cause, Run first stops
// the allocation as Stop does; that takes as long as its tasks are allowed to take, unless ForceKill is called. Run
// waits for all goroutines started by the runner.
func (r *Runner) Run(ctx context.Context) {
	defer close(r.done)
	defer r.timeline.Flush()
	if !r.startedByEarlierAgent {
		r.recordSpanSincePlacement(tracespan.Placement, "", false)
	}
	untilShutdown, untilKill, untilStop, cancelUntilShutdown := r.state.newRunContexts(ctx)
	defer r.backgroundWG.Wait()
	defer cancelUntilShutdown(nil)
	defer r.state.releaseRunContexts()

	// A context.AfterFunc instead of a goroutine waits for ctx, because most allocations are never
	// stopped.
	defer callAfterDone(ctx, func() {
		if errors.Is(context.Cause(ctx), ErrShutdown) {
			cancelUntilShutdown(ErrShutdown)
		} else {
			r.Stop()
		}
	})()
	preKilled := false
	stopped := callAfterDone(untilStop, func() {
		if r.startedByEarlierAgent {
			<-r.hooksAttached // the stop calls running tasks' hooks, which must be attached
		}
		preKilled = r.tasks.killInOrder(untilKill)
	})

	var runWG sync.WaitGroup
	runWG.Go(func() {
		r.readVariablesAgain(untilShutdown)
		restored := r.restoreTasks(untilKill)
		if r.startedByEarlierAgent {
			r.awaitAndAttachHooks(untilStop) // must precede closing restored, because requests accepted from then on call hooks
			close(r.tasks.restored)
		} else {
			close(r.tasks.restored)
			r.awaitAndAttachHooks(untilStop)
		}
		if restored {
			r.tasks.setUpAllocOrKill(untilStop, r.startedByEarlierAgent)
		}
		for _, t := range r.tasks.taskSet {
			untilKilledByStop := untilStop
			if t.Task().Stage() == lifecycle.PoststopTask {
				untilKilledByStop = untilShutdown // the stop runs the poststop tasks
			}
			runWG.Go(func() { // stays on the stack as long as the task runs: a copy of the Task here would double the stack
				defer r.state.requestReconcile()
				t.Run(untilShutdown, untilKilledByStop)
			})
		}
	})
	r.reconcileUntilEnded(context.WithoutCancel(ctx)) // waits as long as the allocation runs, so the code below has its stack in finishRun
	runWG.Wait()
	preKilled = stopped() && preKilled
	r.finishRun(ctx, untilShutdown.Err() != nil, preKilled)
}

// finishRun calls the hooks at the end of Run, and reports the final status. preKilled means that the PreKill hooks were
// called.
func (r *Runner) finishRun(ctx context.Context, agentShutsDown, preKilled bool) {
	ctx = context.WithoutCancel(ctx)
	r.state.endShutdownDelay() // no running task has clients that need the delay
	if agentShutsDown {
		callShutdownHooks(ctx, r.state)
	} else {
		r.runEndedForGood.Store(true)
		if !preKilled {
			callPreKillHooks(ctx, r.state)
		}
		point := failpoint.EnterStep(failpoint.StepPostrun)
		callPostrunHooks(ctx, r.state)
		point.Leave()
	}
	r.tasks.reconcile(r.config.ReportStatus) // reports the final status again, because the hooks called since the last reconcile may have changed it
	if r.runEndedForGood.Load() {
		r.secrets.Close()
		status := r.Status().ClientStatus
		r.recordSpanSincePlacement(tracespan.Lifetime, status, status == api.AllocClientStatusFailed)
	}
}

// recordSpanSincePlacement adds a time line span from the allocation's placement until now.
func (r *Runner) recordSpanSincePlacement(name, result string, failed bool) {
	r.timeline.Recorder("", r.secrets).RecordAllocSpanEndingNow(name, time.Unix(0, r.Alloc().CreateTime), result, failed)
}

// Update passes a newer version of the allocation to the runner. It does not block. A version with the desired status
// stop stops the tasks. A version may be skipped if a newer one follows; an older version is never applied after a newer
// one. The caller must not change the version afterwards.
func (r *Runner) Update(alloc *api.Allocation) {
	if alloc.DesiredTransition.ShouldIgnoreShutdownDelay() {
		r.tasks.skipShutdownDelay()
	}
	r.state.putNextAlloc(alloc)
}

// Stop requests the allocation's end: its tasks are killed in kill order, and its poststop tasks run. It does not block.
func (r *Runner) Stop() { r.state.requestStop(stopReason{}) }

// ForceKill ends the allocation. It calls no hooks, respects no kill order and no delay, and runs no
// poststop tasks. It does not block.
func (r *Runner) ForceKill() { r.tasks.forceKill() }

// AllowTaskEndWithoutDriver must be called when the allocation's job was purged. It does not block. If a stopping task's
// driver is unavailable, the agent may then end the task without it.
func (r *Runner) AllowTaskEndWithoutDriver() {
	for _, t := range r.tasks.taskSet {
		t.SetJobPurged()
	}
}

// Destroy removes the allocation's resources from the node. It must not be called before Run has returned. It may be
// called again after an error.
func (r *Runner) Destroy(ctx context.Context) error {
	if r.state.hooks() == nil {
		r.attachHooks() // NewEnded created the runner, and Destroy does not wait for plugins that are still launching
	}
	r.timeline.Close() // the AllocDir hook removes the time line file
	return callDestroyHooks(ctx, r.state)
}

// PluginsNeededAfterShutdown returns the plugins needed by tasks that continue to run after agent shutdown. Run must
// have returned.
func (r *Runner) PluginsNeededAfterShutdown() []core.Plugin {
	var neededPlugins []core.Plugin
	for _, t := range r.tasks.taskSet {
		if hasRunningProcess(t) || t.IsDestroyPendingAfterRun() {
			neededPlugins = append(neededPlugins, core.Plugin{Type: base.TypeDriver, Name: t.Task().Driver})
		}
	}
	if len(neededPlugins) > 0 {
		for _, name := range r.state.pluginHookNames() {
			neededPlugins = append(neededPlugins, core.Plugin{Type: base.TypeHook, Name: name})
		}
	}
	return neededPlugins
}

// UsesPlugin reports whether a task uses the given driver, or the given hook is attached.
func (r *Runner) UsesPlugin(key core.Plugin) bool {
	if key.Type == base.TypeHook {
		return slices.Contains(r.state.pluginHookNames(), key.Name)
	}
	return slices.ContainsFunc(r.tasks.taskSet, func(t *taskrunner.Runner) bool { return t.Task().Driver == key.Name })
}
