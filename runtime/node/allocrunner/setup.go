package allocrunner

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/runtime/core/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/core/record"
	"github.com/nomad-lite/nomad-lite/runtime/job/lifecycle"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/allocdir"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/taskapi"
	"github.com/nomad-lite/nomad-lite/runtime/node/hooks/builtinhooks"
	"github.com/nomad-lite/nomad-lite/runtime/node/hooks/pluginhooks"
	"github.com/nomad-lite/nomad-lite/runtime/node/taskenv"
	"github.com/nomad-lite/nomad-lite/runtime/node/taskrunner"
	"github.com/nomad-lite/nomad-lite/runtime/store/identity"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// HookFactory creates the hooks in plugins, each with its order relative to the builtin hooks.
// *pluginhooks.HookPluginSet implements it.
type HookFactory interface {
	NewAllocHooks(*api.Allocation, pluginhooks.AttachTarget) []hooks.OrderedHook
	NewTaskHooks(*api.Allocation, *api.Task, pluginhooks.AttachTarget) []hooks.OrderedHook

	// PluginLaunchWaiterOrNil returns a function that blocks until the plugins are launched that may be hooks of every
	// allocation, and emits an event if that takes long. Before that, NewAllocHooks and NewTaskHooks can return
	// incomplete lists. PluginLaunchWaiterOrNil returns nil if the lists are complete already. It is called before the
	// other two methods.
	PluginLaunchWaiterOrNil(*api.Allocation) func(ctx context.Context, emit func(*api.TaskEvent))
}

// newLifecycle returns the coordinator for the tasks, which are given in the order of the job, and the lifecycle
// extensions of the group, nil if it uses none.
func newLifecycle(alloc *api.Allocation, tasks []taskrunner.Task, logger hclog.Logger) (*lifecycle.Coordinator, *lifecycle.ExtendedGroup) {
	stages := make([]lifecycle.Task, len(tasks))
	for i, task := range tasks {
		stages[i] = lifecycle.Task{Name: task.Name, Stage: task.Stage()}
	}
	extensions, err := model.LifecycleExtensions(alloc.Job, alloc.GetTaskGroup())
	if err != nil {
		// The job uses an extension that is not supported: an earlier version of this program, which
		// did not know the key, has accepted the job.
		logger.Error("extensions of the lifecycle are ignored", "error", err)
	}
	return lifecycle.NewCoordinator(logger, stages), extensions
}

// setUpAllocOrKill prepares the allocation so that its tasks can run. If that fails, all tasks are killed before they
// start. Poststop tasks are killed too, because no task has run whose work they would clean up. restored means that an
// earlier agent has started the allocation.
func (a *allocTasks) setUpAllocOrKill(untilStop context.Context, restored bool) {
	if restored && (a.state.isStopRequested() || a.onlyPoststopTasksRemain()) {
		return // no task needs the setup: killInOrder kills the tasks, or only poststop tasks remain
	}
	kill := func(reason stopReason) {
		for _, t := range a.taskSet {
			t.Kill(reason.killingEvent(t.Task()))
		}
	}
	noEvents := stopReason{omitEvents: true}
	if a.state.currentAlloc().ServerTerminalStatus() {
		kill(noEvents)
		return
	}
	if !restored {
		if err := a.fetchDriverDescriptions(untilStop); err != nil && untilStop.Err() == nil {
			a.logger.Error("alloc not added", "error", err)
			a.state.setPermanentOverride(statusOverride{api.AllocClientStatusFailed, fmt.Sprintf("Unable to add allocation due to error: %v", err)})
			kill(noEvents)
			return
		}
	}
	err := callPrerunHooks(untilStop, a, restored)
	switch {
	case a.state.isStopRequested() && restored:
	case a.state.isStopRequested():
		reason, _ := a.state.currentStop()
		kill(reason)
	case err != nil && untilStop.Err() == nil:
		a.logger.Error("alloc not set up", "error", err)
		a.emitEvent(model.EventSetupFailure(fmt.Sprintf("failed to setup alloc: %v", err)))
		kill(noEvents)
	}
}

// awaitAndAttachHooks blocks until the HookFactory knows all hooks or untilStop is done, and attaches the hooks. It does
// nothing if New has attached them.
func (r *Runner) awaitAndAttachHooks(untilStop context.Context) {
	if wait.IsClosed(r.hooksAttached) {
		return
	}
	awaitLaunches, emitEvent := r.config.HookFactory.PluginLaunchWaiterOrNil(r.config.Alloc), r.tasks.emitEvent
	if r.startedByEarlierAgent {
		limited, cancel := context.WithTimeout(untilStop, restoredHooksTimeout)
		defer cancel()
		untilStop, emitEvent = limited, func(*api.TaskEvent) {}
	}
	if awaitLaunches != nil && (r.startedByEarlierAgent || !r.Alloc().ServerTerminalStatus()) {
		awaitLaunches(untilStop, emitEvent)
	}
	r.attachHooks()
}

// restoredHooksTimeout is how long a restored allocation waits until the HookFactory knows all hooks. A longer wait is
// not necessary, because its tasks run already and the records contain their hooks.
const restoredHooksTimeout = 2 * time.Second

// attachHooks creates the hooks of the allocation and of its tasks, and sets them in their runners. It is called once,
// before any hook is called.
func (r *Runner) attachHooks() {
	lists := make([][]hooks.OrderedHook, len(r.tasks.taskSet))
	for i, t := range r.tasks.taskSet {
		lists[i] = newTaskHooks(r, t, r.config.Alloc.GetTaskGroup().Tasks[i])
	}
	chain := hooks.NewChain(hooks.ChainConfig{
		Limits: r.config.Limits.hookCallLimits(), EmitEvent: r.tasks.emitEvent, Timeline: r.timeline.Recorder("", r.secrets), Logger: r.logger,
	}, newAllocHooks(r))
	r.state.setHooks(chain)
	for i, t := range r.tasks.taskSet {
		t.SetHooks(lists[i], chain.AttachmentByHookName())
	}
	close(r.hooksAttached)
}

// newTaskHooks returns the hooks of a task.
func newTaskHooks(r *Runner, runner *taskrunner.Runner, t *api.Task) (list []hooks.OrderedHook) {
	c := &r.config
	add := func(order int, h hooks.Hook) {
		list = append(list, hooks.OrderedHook{Order: order, Hook: h})
	}
	dirOptions := func() allocdir.TaskDirOptions { return taskDirOptions(runner, t, c) }

	add(hooks.OrderFirst, builtinhooks.NewTaskValidationHook(c.Limits.UserDenylist, c.Limits.UserCheckedDrivers, c.Limits.ReservedDownloadUIDs, model.UsersSwitchedToByTask(t), func() error { return r.tasks.services.ValidateServiceNames(t.Name) }))
	if users := c.Host.DynamicUserPool; users != nil && t.User == "" {
		add(hooks.OrderFirst, builtinhooks.NewWorkloadUserHook(users, runner.DriverCapabilities, runner.SetDynamicUser, r.dir.RevokeUserAccess, r.logger))
	}
	add(hooks.OrderFirst, builtinhooks.NewTaskDirHook(r.dir, t, dirOptions, runner.EmitEvent, r.logger))
	if c.Host.NewCgroupManager != nil {
		cores := 0
		if t.Resources != nil {
			cores = pointer.Value(t.Resources.Cores)
		}
		if groups := c.Host.NewCgroupManager(t.Driver, cores); groups != nil {
			add(hooks.OrderFirst, builtinhooks.NewCgroupHook(groups, cores, runner.SetCgroup, r.logger))
		}
	}
	if identities := builtinhooks.IdentitiesWithEnvOrFile(t); c.Identities != nil && len(identities) > 0 {
		add(hooks.OrderFirst, builtinhooks.NewIdentityHook(builtinhooks.IdentityHookConfig{
			Issuer: c.Identities, Workload: identity.NewWorkload(c.Alloc, t.Name), IdentitiesWithEnvOrFile: identities,
			WriteTaskFile:         func(path string, data []byte) error { return r.dir.WriteTaskFile(t.Name, path, dirOptions(), data) },
			SetEnvTokenByIdentity: r.tasks.envBuilders[t.Name].SetIdentityTokens,
			RestartTask: func(ctx context.Context, reason string) error {
				return ignoreNotRunning(runner.Restart(ctx, model.EventRestartSignal(reason), false))
			},
			SignalTask: func(ctx context.Context, signal, reason string) error {
				return ignoreNotRunning(runner.Signal(ctx, model.EventSignalingReason(signal, reason), signal))
			},
			EmitEvent: runner.EmitEvent, Logger: r.logger.With("task", t.Name),
		}))
	}
	if c.Host.VariableReader != nil && len(t.Secrets) > 0 {
		read := func(ctx context.Context, w identity.Workload, namespace, path string) (map[string]string, error) {
			items, err := c.Host.VariableReader(ctx, w, namespace, path)
			r.HandOutVariable(w.Task, namespace, path, items)
			return items, err
		}
		add(hooks.OrderFirst, builtinhooks.NewSecretsHook(t, identity.NewWorkload(c.Alloc, t.Name), read, r.tasks.envBuilders[t.Name]))
	}
	if c.TaskAPI != nil {
		add(hooks.OrderFirst, builtinhooks.NewTaskAPIHook(c.TaskAPI, taskapi.TaskAddr{AllocID: c.Alloc.ID, Task: t.Name}, func() (int, error) {
			return r.dir.ListenInSecretsDir(t.Name, taskenv.TaskAPISocketName, dirOptions())
		}, r.logger))
	}
	if c.HookFactory != nil {
		pluginHooks := c.HookFactory.NewTaskHooks(c.Alloc, t, newAttachTarget(r, t.Name, runner.EmitEvent, r.attachmentsByTaskAndHook[t.Name]))
		r.state.addPluginHooks(t, pluginHooks)
		list = append(list, pluginHooks...)
	}
	add(hooks.OrderLogs, builtinhooks.NewLogsHook(c.LogCollector, func() (logs.Task, builtinhooks.OutputMode) {
		mode := builtinhooks.OutputCollected
		if runner.DriverCapabilities().DisableLogCollection {
			mode = builtinhooks.OutputReadByDriver
		}
		if t.LogConfig != nil && pointer.Value(t.LogConfig.Disabled) {
			mode = builtinhooks.OutputDiscarded
		}
		return newLogTask(c.Alloc.ID, r.dir, t), mode
	}, func(stdout, stderr string) {
		runner.SetOutput(taskrunner.OutputPaths{Stdout: stdout, Stderr: stderr})
	}, runner.AllProcessesEnded, runner.EmitEvent))
	if p, job := t.DispatchPayload, c.Alloc.Job; p != nil && p.File != "" && (job.Dispatched || len(job.Payload) > 0) {
		add(hooks.OrderPayload, builtinhooks.NewDispatchPayloadHook(r.dir, p.File, job.Payload))
	}
	if find := c.Host.FindVolume; find != nil && len(t.VolumeMounts) > 0 {
		add(hooks.OrderVolumes, builtinhooks.NewVolumesHook(t.VolumeMounts, func() []model.HostVolumeRequest {
			return model.HostVolumeRequests(r.Alloc().GetTaskGroup(), c.Alloc.Name, &c.Node.NodeFacts)
		}, find, func(text string) string { return r.Interpolate(t.Name, text) }))
	}
	if allocated := allocatedDevices(c.Alloc, t.Name); len(allocated) > 0 {
		add(hooks.OrderDevices, builtinhooks.NewDevicesHook(c.Host.DeviceReserver, allocated, runner.EmitEvent))
	}
	add(hooks.OrderLast, r.statsHooks[t.Name])
	add(hooks.OrderLast, builtinhooks.NewTaskServicesHook(r.tasks.services, t.Name))
	return list
}

// hostFileMounters is an optional interface of the value in Config.Drivers. DriverMountsHostFiles reports whether a driver with
// isolation chroot mounts the files of chroot_env; see allocdir.TaskDirOptions.
type hostFileMounters interface {
	DriverMountsHostFiles(driver string) bool
}

// taskDirOptions returns the options for a task directory. They depend on the driver's capabilities, as far as they are
// known.
func taskDirOptions(runner *taskrunner.Runner, t *api.Task, c *Config) allocdir.TaskDirOptions {
	limits := &c.Limits
	mounters, _ := c.Drivers.(hostFileMounters)
	o := allocdir.TaskDirOptions{
		DriverMountsHostFiles:   mounters != nil && mounters.DriverMountsHostFiles(t.Driver),
		Isolation:               runner.DriverCapabilities().FSIsolation,
		User:                    runner.Task().User,
		AdmittedUsers:           model.UsersSwitchedToByTask(t),
		AllowNomadOpenFileModes: limits.AllowNomadOpenFileModes,
		ChrootEnv:               limits.ChrootEnv,
	}
	if t.Resources != nil {
		o.SecretsMB = pointer.Value(t.Resources.SecretsMB)
	}
	return o
}

// newAttachTarget returns the target to which the HookFactory attaches hooks: the allocation if task is empty,
// otherwise one of its tasks. previousConfigByHook has the configurations of the hooks that the target had under an
// earlier agent, by hook name.
func newAttachTarget(r *Runner, task string, emit func(*api.TaskEvent), previousConfigByHook map[string]string) pluginhooks.AttachTarget {
	return pluginhooks.AttachTarget{
		AllocID: r.config.Alloc.ID, TaskName: task, EmitEvent: emit, Secrets: r.secrets, PreviousAttachmentJSONByHook: previousConfigByHook,
		AllocJSON: func() ([]byte, error) { return json.Marshal(r.Alloc()) },
		TasksRun: func() bool {
			_, err := r.tasks.namedOrAllRunningTasks(task)
			return err == nil
		},
	}
}

// newAllocHooks returns the hooks of the allocation.
func newAllocHooks(r *Runner) (list []hooks.OrderedHook) {
	c := &r.config
	add := func(order int, h hooks.Hook) {
		list = append(list, hooks.OrderedHook{Order: order, Hook: h})
	}
	add(hooks.OrderFirst, builtinhooks.NewAllocDirHook(r.dir, r.Alloc, r.logger))
	add(hooks.OrderFirst, hooks.NewMaxRunDurationHook(func() time.Time { return maxRunDeadline(r.Alloc()) }, r.tasks.completeForMaxRunDuration))
	if !r.startedByEarlierAgent { // otherwise an earlier agent has called these hooks
		r.addPreviousAllocHooks(add)
	}
	if issuer, ok := c.Identities.(builtinhooks.AllocTokenIssuer); ok && !r.startedByEarlierAgent {
		add(hooks.OrderFirst, builtinhooks.NewAllocIdentityHook(issuer, c.Alloc))
	}
	if network := newNetworkHook(c, r.tasks); network != nil {
		add(hooks.OrderFirst, network)
	}
	health := r.tasks.newHealthHook(r.timeline.Recorder("", r.secrets))
	add(hooks.OrderFirst, health)
	if c.HookFactory != nil {
		var earlierConfigByHook map[string]string
		if c.EarlierRecords != nil {
			earlierConfigByHook = c.EarlierRecords.AttachmentConfigByHook(c.Alloc.ID)
		}
		pluginHooks := c.HookFactory.NewAllocHooks(c.Alloc, newAttachTarget(r, "", r.tasks.emitEvent, earlierConfigByHook))
		r.state.addPluginHooks(nil, pluginHooks)
		list = append(list, pluginHooks...)
	}
	add(hooks.OrderLogs, builtinhooks.NewAllocLogsHook(c.LogCollector, taskNames(c.Alloc)))
	add(hooks.OrderLast, r.tasks.groupServices)
	add(hooks.OrderLast, builtinhooks.NewChecksHook(r.tasks.services))
	add(hooks.OrderLast, health.WatchRestartHook())
	return list
}

// addPreviousAllocHooks adds the hooks that wait for the allocations that the allocation replaces, and move their data.
func (r *Runner) addPreviousAllocHooks(add func(order int, h hooks.Hook)) {
	c := &r.config
	var awaited []builtinhooks.PreviousAlloc
	for _, id := range c.Alloc.PreemptedAllocations {
		if c.AllocDone != nil {
			awaited = append(awaited, &builtinhooks.LocalPreviousAlloc{Ended: func() <-chan struct{} { return c.AllocDone(id) }})
		}
	}
	previous := r.findPreviousAlloc()
	if previous != nil {
		awaited = append(awaited, previous)
	}
	if len(awaited) > 0 {
		add(hooks.OrderFirst, builtinhooks.NewPreviousAllocWaitHook(awaited...))
	}
	if disk := c.Alloc.GetTaskGroup().EphemeralDisk; previous != nil && disk != nil && (pointer.Value(disk.Sticky) || pointer.Value(disk.Migrate)) {
		add(hooks.OrderFirst, builtinhooks.NewDiskMigrationHook(r.dir, previous, taskNames(c.Alloc), r.tasks.emitEvent, r.logger))
	}
}

// findPreviousAlloc returns the allocation that the allocation replaces, or nil if there is none.
func (r *Runner) findPreviousAlloc() builtinhooks.PreviousAlloc {
	c := &r.config
	id := c.Alloc.PreviousAllocation
	if id == "" {
		return nil
	}
	if c.FindRemotePrevious != nil {
		if remote := c.FindRemotePrevious(c.Alloc); remote != nil {
			return remote
		}
	}
	dir, err := allocdir.New(c.AllocDirRoot, id)
	if err != nil {
		r.logger.Error("data of the previous allocation not moved", "error", err)
		return nil
	}
	ended := func() <-chan struct{} {
		if c.AllocDone != nil {
			return c.AllocDone(id)
		}
		none := make(chan struct{})
		close(none)
		return none
	}
	return &builtinhooks.LocalPreviousAlloc{Ended: ended, Dir: dir}
}

// taskNames returns the names of the tasks of an allocation.
func taskNames(a *api.Allocation) []string {
	var names []string
	for _, t := range a.GetTaskGroup().Tasks {
		names = append(names, t.Name)
	}
	return names
}

// maxRunDeadline returns the time at which max_run_duration has passed since the creation of the allocation. It returns
// the zero time if the allocation has no such limit, which only batch and sysbatch jobs have.
func maxRunDeadline(a *api.Allocation) time.Time {
	limit := a.GetTaskGroup().MaxRunDuration
	if jobType := pointer.Value(a.Job.Type); limit == nil || *limit <= 0 || jobType != "batch" && jobType != "sysbatch" {
		return time.Time{}
	}
	created := time.Unix(0, a.CreateTime)
	if now := time.Now(); created.After(now) {
		created = now // the clock was ahead when the allocation was created
	}
	return created.Add(*limit)
}

const (
	defaultLogFiles = 10
	defaultLogSize  = 10 // MB
)

func newLogTask(allocID string, dir *allocdir.Dir, t *api.Task) logs.Task {
	limits := logs.StreamLimits{MaxFiles: defaultLogFiles, MaxFileBytes: defaultLogSize * mebibyte}
	if c := t.LogConfig; c != nil {
		if c.MaxFiles != nil {
			limits.MaxFiles = *c.MaxFiles
		}
		if c.MaxFileSizeMB != nil {
			limits.MaxFileBytes = int64(*c.MaxFileSizeMB) * mebibyte
		}
	}
	return logs.Task{AllocID: allocID, Name: t.Name, LogDir: dir.LogDir(), StdoutLimits: limits, StderrLimits: limits}
}

// taskStore implements taskrunner.Store for one task. If its store is nil, it discards the records.
type taskStore struct {
	store         Store
	allocID, task string
}

func nopWaitFunc() error { return nil }

func (s taskStore) PutTaskState(state *api.TaskState, durability state.Durability) state.WaitDurableFunc {
	if s.store == nil {
		return nopWaitFunc
	}
	return s.store.PutTaskState(s.allocID, s.task, state, durability)
}

func (s taskStore) PutBothRecords(fields record.Fields, state *api.TaskState, durability state.Durability) state.WaitDurableFunc {
	if s.store == nil {
		return nopWaitFunc
	}
	return s.store.PutTask(s.allocID, s.task, fields, state, durability)
}
