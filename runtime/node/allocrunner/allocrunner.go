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
	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/job/tracespan"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/allocdir"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/taskapi"
	"github.com/nomad-lite/nomad-lite/runtime/node/hooks/runnerhooks"
	"github.com/nomad-lite/nomad-lite/runtime/node/services"
	"github.com/nomad-lite/nomad-lite/runtime/node/taskenv"
	"github.com/nomad-lite/nomad-lite/runtime/node/taskrunner"
	"github.com/nomad-lite/nomad-lite/runtime/node/timeline"
	"github.com/nomad-lite/nomad-lite/runtime/store/identity"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// ErrShutdown is the cause with which the agent cancels Run's context to leave the tasks running. A
// cancellation with any other cause stops the tasks.
var ErrShutdown = taskrunner.ErrShutdown

// Config configures a Runner. It is large because it lists everything that a runner gets
// from its agent; each part of the runner receives only the fields that it needs.
type Config struct {
	Alloc           *api.Allocation // allocation to run, which must not be changed after New; its job must be canonical
	Node            taskenv.Node
	HostEnv         map[string]string // environment variables of the agent that tasks inherit, by name; see taskenv.HostEnv
	Drivers         Drivers
	LogCollector    runnerhooks.LogCollector
	AllocDirRoot    string
	Store           Store                     // stores the records of the allocation; nil stores none
	Services        services.Registry         // service registrations of all allocations of the node
	CheckResults    services.CheckResultStore // stores the results of checks; nil keeps them in memory
	DialCheckTarget services.DialFunc         // connects checks to their targets; nil uses the network of the host
	ReportStatus    func(StatusUpdate)        // called for each change of the status, one call at a time; should return soon
	HookFactory     HookFactory               // hooks other than the builtin ones; may be nil
	Identities      *identity.Issuer          // issues the tokens of workload identities; nil issues none
	TaskAPI         *taskapi.Listener         // serves the API to tasks; nil gives them no socket
	Host            HostResources
	Limits          Limits
	NewTrace        func(*api.Allocation) timeline.Trace // returns the trace of an allocation; nil exports no traces
	Logger          hclog.Logger

	// Restored means that an earlier agent ran the allocation, so that its tasks are restored from EarlierRecords.
	Restored       bool
	EarlierRecords RecordReader // records of the earlier agent; required if Restored is set, otherwise nil
	Rebooted       bool         // the machine has rebooted since the earlier agent ran

	// RecoveryTracker is shared by all allocations of the node. EndTaskWithoutDriver ends a task without its driver, and
	// AwaitExitWithoutDriver returns the exit status of a task without its driver; see taskrunner.Config. All three may be nil.
	RecoveryTracker        *taskrunner.RecoveryTracker
	EndTaskWithoutDriver   taskrunner.EndTaskFunc
	AwaitExitWithoutDriver taskrunner.AwaitExitFunc

	// AllocDone returns a channel that is closed when no task or hook of the given allocation runs on this
	// node. The channel is closed already if the allocation is unknown. An allocation waits for the channel of
	// the allocation that it replaces. AllocDone may be nil.
	AllocDone func(allocID string) <-chan struct{}
}

// HostResources are the resources of the host that tasks get besides their directories. A nil field means
// that the host offers no resources of this kind.
type HostResources struct {
	// NewCgroupManager returns the cgroups for a task with a driver and a number of reserved cores, nil if the
	// driver creates the cgroup itself.
	NewCgroupManager func(driver string, cores int) runnerhooks.CgroupManager
	NetworkManager   runnerhooks.NetworkManager
	DeviceReserver   runnerhooks.DeviceReserver // reserves the devices of tasks
	UserPool         runnerhooks.UserPool       // user ids for tasks that name no user
	VariableReader   runnerhooks.VariableReader // the variables of secret blocks
	FindVolume       runnerhooks.FindVolumeFunc // finds the host volumes of tasks
}

// Drivers finds a driver by name. The call blocks while the driver's plugin is starting. All calls
// return the same value for one plugin process, and another value for the next process: the start of a
// task compares two values to find out whether all running tasks were recovered. plugins/host/supervisor
// implements it.
type Drivers interface {
	Driver(ctx context.Context, name string) (driver.Driver, error)
}

// Store stores the records of tasks for the next agent, by the rules of [taskrunner.Store]. The methods are
// called concurrently for different tasks.
type Store interface {
	PutTaskState(allocID, task string, state *api.TaskState, h state.Durability) state.WaitDurableFunc
	PutTask(allocID, task string, local state.LocalState, state *api.TaskState, h state.Durability) state.WaitDurableFunc // stores either both records or none
}

// Runner runs one allocation. Run is called once; all other methods may be called concurrently, before,
// during and after Run. Each field has one responsibility; Runner connects the fields.
type Runner struct {
	alloc         atomic.Pointer[api.Allocation] // current version of the allocation
	dir           *allocdir.Dir
	tasks         taskSet
	envBuilders   *envBuilders
	services      *allocServices
	health        *healthTracker
	clientStatus  *clientStatusTracker
	stopSequence  *stopSequence
	taskRestarter *taskRestarter
	asyncRestarts *asyncRestarts
	allocUpdater  *allocUpdater
	reconciler    *reconciler
	restorer      *restorer
	hooks         *allocHooks
	hookBuilder   *hookBuilder
	statsHooks    statsHooksByTask
	timeline      *timeline.File
	logger        hclog.Logger

	done            chan struct{} // closed by Run
	runEndedForGood atomic.Bool   // set by Run when no task, hook or cleanup of the allocation remains
}

// New returns a runner for an allocation. The runner does nothing before Run. New fails
// if the allocation cannot be run.
func New(c Config) (*Runner, error) {
	alloc, limits := c.Alloc, c.Limits.WithDefaults()
	group := alloc.GetTaskGroup()
	if group == nil {
		return nil, fmt.Errorf("alloc %s: job %q has no group %q", alloc.ID, alloc.JobID, alloc.TaskGroup)
	}
	if c.Restored && c.EarlierRecords == nil {
		return nil, fmt.Errorf("alloc %s: no records to restore it from", alloc.ID)
	}
	dir, err := allocdir.New(c.AllocDirRoot, alloc.ID)
	if err != nil {
		return nil, fmt.Errorf("alloc %s: %w", alloc.ID, err)
	}
	tasks := make([]taskrunner.Task, len(group.Tasks))
	for i, t := range group.Tasks {
		if tasks[i], err = toTaskRunnerTask(alloc, group, t.Name, limits); err != nil {
			return nil, fmt.Errorf("alloc %s: %w", alloc.ID, err)
		}
	}
	r := &Runner{
		dir:    dir,
		tasks:  make(taskSet, len(tasks)),
		logger: c.Logger.Named("allocrunner").With("job_id", alloc.JobID, "alloc_id", alloc.ID),
		done:   make(chan struct{}),
	}
	r.alloc.Store(alloc)
	var trace timeline.Trace
	if c.NewTrace != nil {
		trace = c.NewTrace(alloc)
	}
	r.timeline = timeline.NewFile(dir.Open, trace, r.logger)
	r.initComponents(c, limits, tasks)
	if c.Restored {
		r.restorer.resumeEarlierStop()
		r.hookBuilder.restoreNetwork()
	}
	r.hookBuilder.previousAllocDataPending = !r.restorer.startedByEarlierAgent
	if c.HookFactory != nil {
		r.hookBuilder.awaitHookPluginLaunches = c.HookFactory.PendingLaunchWaiter(alloc)
	}
	if r.hookBuilder.awaitHookPluginLaunches == nil {
		r.hookBuilder.attachHooks()
	}
	return r, nil
}

// initComponents creates the parts of the runner for New. All parts share r.tasks, whose elements are set
// last.
func (r *Runner) initComponents(c Config, limits Limits, tasks []taskrunner.Task) {
	alloc, created, changes := c.Alloc, time.Now(), newReconcileSignal()
	network := &allocNetwork{groupDNS: groupDNS(alloc.GetTaskGroup())}

	delay := newShutdownDelay(func() time.Duration { return pointer.Value(r.Alloc().GetTaskGroup().ShutdownDelay) })
	r.stopSequence = newStopSequence(r.tasks, delay, func(ctx context.Context) { r.hooks.callPreKillHooks(ctx) })
	r.envBuilders = &envBuilders{node: c.Node, alloc: r.Alloc, network: network, builderOfTask: make(map[string]*taskenv.Builder)}
	r.services = newAllocServices(services.Config{
		AllocID:          alloc.ID,
		AllocName:        alloc.Name,
		CurrentSpec:      func() *services.Spec { return newServicesSpec(r.Alloc(), c.Node, network.networkStatusForAPI()) },
		CurrentEnv:       r.envBuilders.envOfTaskOrAlloc,
		Registry:         c.Services,
		CheckResultStore: c.CheckResults,
		Dial:             c.DialCheckTarget,
	}, r.tasks, r.logger)
	r.health = &healthTracker{
		alloc: r.Alloc, tasks: r.tasks, checkResults: r.services.serviceSet.CheckResults, stopRequested: r.stopSequence.isRequested,
		reconcileSignal: changes, runnerCreateTime: created, timeline: r.timeline.Recorder("", nil), logger: r.logger,
	}
	gates := &startGates{
		tasks: r.tasks, checkResults: r.services.serviceSet.CheckResults, stopRequested: r.stopSequence.isRequested, reconcileSignal: changes, runnerCreateTime: created,
	}
	gates.coordinator, gates.lifecycleGroup = newLifecycle(alloc, tasks, r.logger)
	r.clientStatus = &clientStatusTracker{allocID: alloc.ID, networkStatus: network.networkStatusForAPI, takeTasksSnapshot: gates.snapshotWithPendingReruns, healthForClientStatus: r.health.healthForClientStatus, reconcileSignal: changes}
	r.allocUpdater = &allocUpdater{
		currentAlloc: &r.alloc, tasks: r.tasks, envBuilders: r.envBuilders, limits: limits,
		callUpdateHooks: func(ctx context.Context) { r.hooks.callUpdateHooks(ctx) }, requestStop: r.Stop, logger: r.logger,
		nextAllocReceived: make(chan struct{}, 1), stopVersionReceived: make(chan struct{}),
	}
	r.hooks = &allocHooks{
		alloc: r.Alloc, envBuilders: r.envBuilders, tasks: r.tasks, stopRequested: r.stopSequence.stopRequested, stopVersionReceived: r.allocUpdater.stopVersionReceived,
		limits: limits, timeline: r.timeline.Recorder("", nil), logger: r.logger,
	}
	r.restorer = &restorer{
		alloc: alloc, rebooted: c.Rebooted, drivers: c.Drivers, dir: r.dir, tasks: r.tasks, startGates: gates,
		clientStatus: r.clientStatus, stopSequence: r.stopSequence, limits: limits, logger: r.logger, tasksRestored: make(chan struct{}),
	}
	if c.Restored {
		r.restorer.records = c.EarlierRecords
	}
	r.taskRestarter = &taskRestarter{
		tasks: r.tasks, startGates: gates, clientStatus: r.clientStatus, stopSequence: r.stopSequence, reconcileSignal: changes, awaitRestored: r.restorer.awaitRestored,
		isStopDesired: func() bool { return r.Alloc().ServerTerminalStatus() }, runReturned: r.done,
		callPreTaskRestartHooks: r.hooks.callPreTaskRestartHooks, reregisterServices: r.services.registerGroupServicesAgain, tasksDownTimeout: limits.RestartAllTimeout,
		multiTaskRestartSemaphore: make(chan struct{}, 1),
	}
	r.asyncRestarts = &asyncRestarts{logger: r.logger}
	r.reconciler = &reconciler{
		tasks: r.tasks, startGates: gates, clientStatus: r.clientStatus, stopSequence: r.stopSequence, taskRestarter: r.taskRestarter, allocUpdater: r.allocUpdater,
		reconcileSignal: changes, reportStatus: c.ReportStatus,
	}
	r.statsHooks = make(statsHooksByTask)
	for i, task := range tasks {
		env := r.envBuilders.addTaskBuilder(task.Name, c.HostEnv)
		r.tasks[i] = taskrunner.New(taskrunner.Config{
			Alloc:     toTaskRunnerAlloc(alloc, alloc.GetTaskGroup()),
			Task:      task,
			TaskDir:   r.dir.TaskPaths(task.Name),
			Env:       env,
			StartGate: gates.gateOf(task),
			DispenseDriver: func(ctx context.Context) (driver.Driver, error) {
				return c.Drivers.Driver(ctx, task.Driver)
			},
			Store:                  taskStore{c.Store, alloc.ID, task.Name},
			OnTaskStateChange:      changes.requestReconcile,
			HookCallLimits:         limits.hookCallLimits(),
			Timeline:               r.timeline.Recorder(task.Name, env.Redact),
			RestoredTask:           r.restorer.readRestoredTask(task.Name),
			RecoveryTracker:        c.RecoveryTracker,
			EndTaskWithoutDriver:   c.EndTaskWithoutDriver,
			AwaitExitWithoutDriver: c.AwaitExitWithoutDriver,
			Logger:                 r.logger,
		})
		r.statsHooks[task.Name] = runnerhooks.NewStatsHook(r.tasks[i].Stats, limits.StatsSampleInterval, r.logger)
	}
	r.hookBuilder = &hookBuilder{
		config: c, limits: limits, dir: r.dir, tasks: r.tasks, envBuilders: r.envBuilders, alloc: r.Alloc, services: r.services, health: r.health,
		statsHooks: r.statsHooks, currentStatus: r.clientStatus.currentStatus, onMaxRunExceeded: r.stopForMaxRunDuration, restoredAttachmentsOfTask: r.restorer.attachmentsOfTask,
		hooks: r.hooks, logger: r.logger, hooksAttached: make(chan struct{}),
	}
}

// Done returns a channel that is closed when Run has returned.
func (r *Runner) Done() <-chan struct{} { return r.done }

// EndedForGood reports whether Run has returned because no task, hook or cleanup of the allocation remains.
// It is false when the agent shuts down and leaves the allocation running.
func (r *Runner) EndedForGood() bool { return r.runEndedForGood.Load() }

// TasksRestored returns a channel that is closed when the tasks that an earlier agent left running accept
// requests.
func (r *Runner) TasksRestored() <-chan struct{} { return r.restorer.tasksRestored }

// AwaitTasksEnded blocks until each task has ended for good, or until ctx is done, in which case it returns
// the cause. It does not wait until drivers have destroyed the ended tasks; destroying reports whether a driver
// must still destroy one.
func (r *Runner) AwaitTasksEnded(ctx context.Context) (destroyPending bool, err error) {
	for _, t := range r.tasks {
		select {
		case <-t.Done():
		case <-t.OnlyDestroyRemains():
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
	return !r.tasks.allEnded(), nil
}

// Dir returns the directory of the allocation.
func (r *Runner) Dir() *allocdir.Dir { return r.dir }

// Timeline returns the time line of the allocation.
func (r *Runner) Timeline() *timeline.File { return r.timeline }

// Alloc returns the current version of the allocation. It must not be changed.
func (r *Runner) Alloc() *api.Allocation { return r.alloc.Load() }

// Status returns the current status of the allocation.
func (r *Runner) Status() StatusUpdate { return r.clientStatus.currentStatus() }

// Run blocks until the allocation has ended, including its poststop tasks: all tasks
// have ended for good, or ctx is done with the cause ErrShutdown and the tasks are left
// as they are. When ctx is done with any other cause, Run first stops the allocation as
// Stop does; that takes as long as its tasks are allowed to take, unless Kill is
// called. Run waits for all goroutines that the runner has started.
func (r *Runner) Run(ctx context.Context) {
	defer close(r.done)
	defer r.timeline.Flush()
	if !r.restorer.startedByEarlierAgent {
		r.recordAllocSpan(tracespan.Placement, "", false)
	}
	untilShutdown, untilKill, untilStop := r.stopSequence.newRunContexts(ctx)
	r.asyncRestarts.acceptRestarts(untilShutdown)
	defer r.asyncRestarts.cancelAndWait()
	defer r.stopSequence.releaseRunContexts()

	// A context.AfterFunc instead of a goroutine waits for ctx, because most allocations are never
	// stopped.
	defer callAfterDone(ctx, func() {
		if errors.Is(context.Cause(ctx), ErrShutdown) {
			r.stopSequence.cancelForShutdown()
		} else {
			r.Stop()
		}
	})()
	preKilled := false
	stopped := callAfterDone(untilStop, func() {
		if r.restorer.startedByEarlierAgent {
			<-r.hookBuilder.hooksAttached // the stop calls the hooks of running tasks, which must be attached
		}
		preKilled = r.stopSequence.killTasks(untilKill)
	})

	var runWG sync.WaitGroup
	runWG.Go(func() {
		restored := r.restorer.restoreTasks(untilKill)
		if r.restorer.startedByEarlierAgent {
			r.hookBuilder.awaitAndAttachRestoredHooks(untilStop) // must precede the close of tasksRestored, because the requests that are accepted from then on call hooks
			close(r.restorer.tasksRestored)
		} else {
			close(r.restorer.tasksRestored)
			r.hookBuilder.awaitAndAttachHooks(untilStop)
		}
		if restored {
			r.setupAlloc(untilStop)
		}
		for _, t := range r.tasks {
			runWG.Go(func() {
				defer r.reconciler.reconcileSignal.requestReconcile()
				t.Run(untilShutdown)
			})
		}
	})
	uncanceled := context.WithoutCancel(ctx)
	r.reconciler.reconcileUntilEnded(uncanceled, r.restorer.tasksRestored)
	runWG.Wait()
	close(r.stopSequence.shutdownDelay.tasksEnded)

	preKilled = stopped() && preKilled
	if untilShutdown.Err() != nil {
		r.hooks.callShutdownHooks(uncanceled)
	} else {
		r.runEndedForGood.Store(true)
		if !preKilled {
			r.hooks.callPreKillHooks(uncanceled)
		}
		point := failpoint.EnterStep(failpoint.StepPostrun)
		r.hooks.callPostrunHooks(uncanceled)
		point.Leave()
	}
	r.reconciler.reconcile() // reports the final status again, because the hooks called since the last reconcile may have changed it
	if r.runEndedForGood.Load() {
		status := r.Status().ClientStatus
		r.recordAllocSpan(tracespan.Lifetime, status, status == api.AllocClientStatusFailed)
	}
}

// recordAllocSpan records a span from the placement of the allocation until now in the time line.
func (r *Runner) recordAllocSpan(name, result string, failed bool) {
	r.timeline.Recorder("", nil).RecordAllocSpan(name, time.Unix(0, r.Alloc().CreateTime), result, failed)
}

// setupAlloc prepares the allocation so that its tasks can run. If that fails, all tasks are killed before
// they start. Poststop tasks are killed too, because no task has run whose work they would clean up.
func (r *Runner) setupAlloc(untilStop context.Context) {
	restored := r.restorer.startedByEarlierAgent
	if restored && (r.stopSequence.isRequested() || r.onlyPoststopTasksRemain()) {
		return // no task needs the setup: stopSequence.killTasks kills the tasks, or only poststop tasks remain
	}
	kill := func(event func(*taskrunner.Runner) *api.TaskEvent) {
		for _, t := range r.tasks {
			t.Kill(event(t))
		}
	}
	noEvent := func(*taskrunner.Runner) *api.TaskEvent { return nil }
	if r.Alloc().ServerTerminalStatus() {
		kill(noEvent)
		return
	}
	if !restored {
		if err := r.tasks.fetchDriverDescriptions(untilStop); err != nil && untilStop.Err() == nil {
			r.logger.Error("alloc not added", "error", err)
			r.clientStatus.setOverride(statusOverride{api.AllocClientStatusFailed, fmt.Sprintf("Unable to add allocation due to error: %v", err)})
			kill(noEvent)
			return
		}
	}
	err := r.hooks.callPrerunHooks(untilStop, restored)
	switch {
	case r.stopSequence.isRequested() && restored:
	case r.stopSequence.isRequested():
		kill(r.stopSequence.killingEvent)
	case err != nil && untilStop.Err() == nil:
		r.logger.Error("alloc not set up", "error", err)
		r.tasks.emitEvent(model.EventSetupFailure(fmt.Sprintf("failed to setup alloc: %v", err)))
		kill(noEvent)
	}
}

// onlyPoststopTasksRemain reports whether all tasks except poststop tasks have ended.
func (r *Runner) onlyPoststopTasksRemain() bool {
	_, finished := evaluateSiblingStop(r.tasks.siblingStates(r.Status().TaskStates))
	return finished
}

// Update passes a newer version of the allocation to the runner. It does not block. A version that is
// desired to stop stops the tasks. A version may be skipped if a newer one follows; an older version is
// never applied after a newer one. The caller must not change the version afterwards.
func (r *Runner) Update(alloc *api.Allocation) {
	if alloc.DesiredTransition.ShouldIgnoreShutdownDelay() {
		r.skipShutdownDelay()
	}
	r.allocUpdater.putNextAlloc(alloc)
}

// skipShutdownDelay skips the shutdown delays of the group and of all tasks, in a current stop and in later ones.
func (r *Runner) skipShutdownDelay() {
	r.stopSequence.shutdownDelay.skipDelay()
	for _, t := range r.tasks {
		t.SkipShutdownDelay()
	}
}

// Stop requests the end of the allocation: its tasks are killed in kill order, and its poststop tasks
// run. It does not block.
func (r *Runner) Stop() { r.stopSequence.requestStop(stopReason{}) }

// Kill ends the allocation. It calls no hooks, respects no kill order and no delay, and runs no
// poststop tasks. It does not block.
func (r *Runner) Kill() { r.stopSequence.forceKillTasks() }

// SetJobPurged must be called when the job of the allocation was purged. It allows the agent to end a task that is being
// stopped without its driver, if the driver is unavailable. It does not block.
func (r *Runner) SetJobPurged() {
	for _, t := range r.tasks {
		t.SetJobPurged()
	}
}

// stopForMaxRunDuration sets the client status to complete, whatever the results of the
// tasks, and stops the allocation without running its poststop tasks.
func (r *Runner) stopForMaxRunDuration() {
	r.clientStatus.setOverride(statusOverride{api.AllocClientStatusComplete, model.MaxRunDurationExceeded})
	r.stopSequence.requestStop(stopReason{killingText: model.MaxRunDurationExceeded})
	r.stopSequence.killPoststopTasks()
}

// Destroy removes the resources of the allocation from the node. It must not be called before
// Run has returned. It may be called again after an error.
func (r *Runner) Destroy(ctx context.Context) error {
	if r.hooks.currentHookChain() == nil {
		r.hookBuilder.attachHooks() // the runner was created only for Destroy, so Destroy does not wait for plugins that are being launched
	}
	r.timeline.Close() // the AllocDir hook removes the file of the time line
	return r.hooks.callDestroyHooks(ctx)
}

// PluginsNeededAfterShutdown returns the plugins that the tasks need that continue to run after the shutdown of the
// agent. Run must have returned.
func (r *Runner) PluginsNeededAfterShutdown() []supervisor.PluginKey {
	var neededPlugins []supervisor.PluginKey
	for _, t := range r.tasks {
		if t.Running() || t.IsDestroyPending() {
			neededPlugins = append(neededPlugins, supervisor.PluginKey{Type: base.TypeDriver, Name: t.Task().Driver})
		}
	}
	if len(neededPlugins) > 0 {
		for _, name := range r.hooks.listPluginHookNames() {
			neededPlugins = append(neededPlugins, supervisor.PluginKey{Type: base.TypeHook, Name: name})
		}
	}
	return neededPlugins
}

// UsesPlugin reports whether a task uses the given driver, or the given hook is attached.
func (r *Runner) UsesPlugin(key supervisor.PluginKey) bool {
	if key.Type == base.TypeHook {
		return r.hooks.hasPluginHook(key.Name)
	}
	return slices.ContainsFunc(r.tasks, func(t *taskrunner.Runner) bool { return t.Task().Driver == key.Name })
}
