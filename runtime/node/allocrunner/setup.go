package allocrunner

import (
	"context"
	"encoding/json"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/runtime/job/lifecycle"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/allocdir"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/taskapi"
	"github.com/nomad-lite/nomad-lite/runtime/node/hooks/pluginhooks"
	"github.com/nomad-lite/nomad-lite/runtime/node/hooks/runnerhooks"
	"github.com/nomad-lite/nomad-lite/runtime/node/taskenv"
	"github.com/nomad-lite/nomad-lite/runtime/node/taskrunner"
	"github.com/nomad-lite/nomad-lite/runtime/store/identity"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// HookFactory creates the hooks in plugins, each with its order relative to the builtin hooks. *pluginhooks.Set implements it.
type HookFactory interface {
	NewAllocHooks(*api.Allocation, pluginhooks.AttachTarget) []runnerhooks.OrderedHook
	NewTaskHooks(*api.Allocation, *api.Task, pluginhooks.AttachTarget) []runnerhooks.OrderedHook

	// PendingLaunchWaiter returns a function that blocks until the plugins are launched that may be hooks of every
	// allocation, and emits an event if that takes long. Before that, NewAllocHooks and NewTaskHooks can return incomplete
	// lists. PendingLaunchWaiter returns nil if the lists are complete already. It is called before the other two methods.
	PendingLaunchWaiter(*api.Allocation) func(ctx context.Context, emit func(*api.TaskEvent))
}

// newLifecycle returns the coordinator for the tasks, which are given in the order of the job, and the lifecycle extensions of
// the group, nil if it uses none.
func newLifecycle(alloc *api.Allocation, tasks []taskrunner.Task, logger hclog.Logger) (*lifecycle.Coordinator, *lifecycle.Group) {
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

// hookBuilder creates the hooks of an allocation and of its tasks.
type hookBuilder struct {
	config                    Config
	limits                    Limits
	dir                       *allocdir.Dir
	tasks                     taskSet
	envBuilders               *envBuilders
	alloc                     func() *api.Allocation // returns the current version of the allocation
	services                  *allocServices
	health                    *healthTracker
	statsHooks                statsHooksByTask
	currentStatus             func() StatusUpdate          // returns the current status of the allocation
	onMaxRunExceeded          func()                       // called when max_run_duration has passed
	restoredAttachmentsOfTask map[string]map[string]string // task name -> hook name -> configuration of a hook that an earlier agent had attached
	previousAllocDataPending  bool                         // this allocation replaces another one, whose data has not been copied or moved yet
	hooks                     *allocHooks
	logger                    hclog.Logger

	// awaitHookPluginLaunches is the result of HookFactory.PendingLaunchWaiter; nil if the HookFactory knows all hooks already.
	awaitHookPluginLaunches func(context.Context, func(*api.TaskEvent))

	hooksAttached chan struct{} // closed by attachHooks
}

// awaitAndAttachHooks blocks until the HookFactory knows all hooks or untilStop is done, and attaches the hooks. It does
// nothing if New has attached them.
func (b *hookBuilder) awaitAndAttachHooks(untilStop context.Context) {
	if b.awaitHookPluginLaunches == nil {
		return
	}
	if !b.alloc().ServerTerminalStatus() {
		b.awaitHookPluginLaunches(untilStop, b.tasks.emitEvent)
	}
	b.attachHooks()
}

// restoredHooksTimeout is how long a restored allocation waits until the HookFactory knows all hooks. A longer wait is not
// necessary, because its tasks run already and the records contain their hooks.
const restoredHooksTimeout = 2 * time.Second

// awaitAndAttachRestoredHooks is like awaitAndAttachHooks, but for a restored allocation: the wait has a timeout, and emits no
// event.
func (b *hookBuilder) awaitAndAttachRestoredHooks(untilStop context.Context) {
	if b.awaitHookPluginLaunches == nil {
		return
	}
	limited, cancel := context.WithTimeout(untilStop, restoredHooksTimeout)
	defer cancel()
	b.awaitHookPluginLaunches(limited, func(*api.TaskEvent) {})
	b.attachHooks()
}

// attachHooks creates the hooks of the allocation and of its tasks, and sets them in their runners. It is called once, before
// any hook is called.
func (b *hookBuilder) attachHooks() {
	lists := make([][]runnerhooks.OrderedHook, len(b.tasks))
	for i, t := range b.config.Alloc.GetTaskGroup().Tasks {
		lists[i] = b.newTaskHooks(b.tasks[i], t)
	}
	attachments := b.hooks.setHooks(b.newAllocHooks())
	for i, t := range b.tasks {
		t.SetHooks(lists[i], attachments)
	}
	close(b.hooksAttached)
}

func (b *hookBuilder) newTaskHooks(runner *taskrunner.Runner, t *api.Task) []runnerhooks.OrderedHook {
	list := []runnerhooks.OrderedHook{
		{Order: runnerhooks.OrderFirst, Hook: runnerhooks.NewTaskValidationHook(b.limits.UserDenylist, b.limits.UserCheckedDrivers, b.limits.ReservedDownloadUIDs, model.UsersSwitchedToByTask(t), func() error { return b.services.serviceSet.ValidateServiceNames(t.Name) })},
	}
	if users := b.config.Host.UserPool; users != nil && t.User == "" {
		list = append(list, runnerhooks.OrderedHook{Order: runnerhooks.OrderFirst, Hook: runnerhooks.NewWorkloadUserHook(users, runner.DriverCapabilities, runner.SetDynamicUser, b.dir.RevokeUserAccess, b.logger)})
	}
	list = append(list, runnerhooks.OrderedHook{Order: runnerhooks.OrderFirst, Hook: runnerhooks.NewTaskDirHook(b.dir, func() allocdir.TaskOptions {
		return taskDirOptions(runner, t, b.limits)
	}, runner.EmitEvent, b.logger)})
	if b.config.Host.NewCgroupManager != nil {
		cores := 0
		if t.Resources != nil {
			cores = pointer.Value(t.Resources.Cores)
		}
		if groups := b.config.Host.NewCgroupManager(t.Driver, cores); groups != nil {
			list = append(list, runnerhooks.OrderedHook{Order: runnerhooks.OrderFirst, Hook: runnerhooks.NewCgroupHook(groups, cores, runner.SetCgroup, b.logger)})
		}
	}
	list = append(list, b.newIdentityHooks(runner, t)...)
	if factory := b.config.HookFactory; factory != nil {
		list = append(list, b.recordPluginHooks(factory.NewTaskHooks(b.config.Alloc, t, b.newAttachTarget(t.Name, runner.EmitEvent, b.restoredAttachmentsOfTask[t.Name])))...)
	}
	list = append(list, runnerhooks.OrderedHook{Order: runnerhooks.OrderLogs, Hook: runnerhooks.NewLogsHook(b.config.LogCollector, func() (logs.Task, runnerhooks.OutputMode) {
		mode := runnerhooks.OutputCollected
		if runner.DriverCapabilities().DisableLogCollection {
			mode = runnerhooks.OutputReadByDriver
		}
		if logsDisabled(t) {
			mode = runnerhooks.OutputDiscarded
		}
		return b.newLogTask(t), mode
	}, func(stdout, stderr string) {
		runner.SetOutput(taskrunner.Output{Stdout: stdout, Stderr: stderr})
	}, runner.AllProcessesEnded, runner.EmitEvent)})
	if p, job := t.DispatchPayload, b.config.Alloc.Job; p != nil && p.File != "" && (job.Dispatched || len(job.Payload) > 0) {
		list = append(list, runnerhooks.OrderedHook{Order: runnerhooks.OrderPayload, Hook: runnerhooks.NewDispatchPayloadHook(b.dir, p.File, b.config.Alloc.Job.Payload)})
	}
	if find := b.config.Host.FindVolume; find != nil && len(t.VolumeMounts) > 0 {
		list = append(list, runnerhooks.OrderedHook{Order: runnerhooks.OrderVolumes, Hook: runnerhooks.NewVolumesHook(t.VolumeMounts, func() []model.HostVolumeRequest {
			return model.HostVolumeRequests(b.alloc().GetTaskGroup(), b.config.Alloc.Name, &b.config.Node.NodeFacts)
		}, find, func(text string) string { return b.envBuilders.envOfTaskOrAlloc(t.Name).Replace(text) })})
	}
	if allocated := allocatedDevices(b.config.Alloc, t.Name); len(allocated) > 0 {
		list = append(list, runnerhooks.OrderedHook{Order: runnerhooks.OrderDevices, Hook: runnerhooks.NewDevicesHook(b.config.Host.DeviceReserver, allocated)})
	}
	return append(list,
		runnerhooks.OrderedHook{Order: runnerhooks.OrderLast, Hook: b.statsHooks[t.Name]},
		runnerhooks.OrderedHook{Order: runnerhooks.OrderLast, Hook: runnerhooks.NewTaskServicesHook(b.services.serviceSet, t.Name)})
}

// newIdentityHooks returns the hooks for the identity tokens of a task, its secrets, and its socket of the agent's API.
func (b *hookBuilder) newIdentityHooks(runner *taskrunner.Runner, t *api.Task) []runnerhooks.OrderedHook {
	var list []runnerhooks.OrderedHook
	alloc := b.config.Alloc
	if identities := runnerhooks.ExposedIdentities(t); b.config.Identities != nil && len(identities) > 0 {
		list = append(list, runnerhooks.OrderedHook{Order: runnerhooks.OrderFirst, Hook: runnerhooks.NewIdentityHook(runnerhooks.IdentityHookConfig{
			Issuer: b.config.Identities, Workload: identity.NewWorkload(alloc, t.Name), Identities: identities,
			WriteFile: func(path string, data []byte) error {
				return b.dir.WriteTaskFile(t.Name, path, taskDirOptions(runner, t, b.limits), data)
			},
			SetTokens: b.envBuilders.builderOfTask[t.Name].SetTokens,
			Restart: func(ctx context.Context, reason string) error {
				return ignoreNotRunning(runner.Restart(ctx, model.EventRestartSignal(reason), false))
			},
			Signal: func(ctx context.Context, signal, reason string) error {
				return ignoreNotRunning(runner.Signal(ctx, model.EventSignalingReason(signal, reason), signal))
			},
			EmitEvent: runner.EmitEvent, Logger: b.logger.With("task", t.Name),
		})})
	}
	if read := b.config.Host.VariableReader; read != nil && len(t.Secrets) > 0 {
		list = append(list, runnerhooks.OrderedHook{Order: runnerhooks.OrderFirst, Hook: runnerhooks.NewSecretsHook(t, alloc.Namespace, read, b.envBuilders.builderOfTask[t.Name])})
	}
	if b.config.TaskAPI != nil {
		list = append(list, runnerhooks.OrderedHook{Order: runnerhooks.OrderFirst, Hook: runnerhooks.NewTaskAPIHook(b.config.TaskAPI, taskapi.Addr{AllocID: alloc.ID, Task: t.Name}, func() (int, error) {
			return b.dir.ListenInSecrets(t.Name, taskenv.TaskAPISocketName, taskDirOptions(runner, t, b.limits))
		}, b.logger)})
	}
	return list
}

// taskDirOptions returns the options for a task directory. They depend on the driver's capabilities, as far as they are known.
func taskDirOptions(runner *taskrunner.Runner, t *api.Task, limits Limits) allocdir.TaskOptions {
	o := allocdir.TaskOptions{
		Isolation:           runner.DriverCapabilities().FSIsolation,
		User:                runner.Task().User,
		AdmittedUsers:       model.UsersSwitchedToByTask(t),
		AllowNomadFileModes: limits.AllowNomadFileModes,
		ChrootEnv:           limits.ChrootEnv,
	}
	if t.Resources != nil {
		o.SecretsMB = pointer.Value(t.Resources.SecretsMB)
	}
	return o
}

// newAttachTarget returns the target to which the HookFactory attaches hooks: the allocation if task is empty, otherwise one of
// its tasks. previous has the configurations of the hooks that the target had under an earlier agent, by hook name.
func (b *hookBuilder) newAttachTarget(task string, emit func(*api.TaskEvent), previous map[string]string) pluginhooks.AttachTarget {
	return pluginhooks.AttachTarget{
		AllocID: b.config.Alloc.ID, TaskName: task, EmitEvent: emit, PreviousAttachments: previous,
		AllocJSON: func() ([]byte, error) { return json.Marshal(b.alloc()) },
	}
}

// restoredAllocAttachments returns the configurations of the hooks that the allocation had under an earlier agent, by hook name.
func (b *hookBuilder) restoredAllocAttachments() map[string]string {
	if b.config.EarlierRecords == nil {
		return nil
	}
	return b.config.EarlierRecords.HookAttachmentsOfAlloc(b.config.Alloc.ID)
}

// recordPluginHooks records the hooks of list, which run in plugins, and returns list.
func (b *hookBuilder) recordPluginHooks(list []runnerhooks.OrderedHook) []runnerhooks.OrderedHook {
	for _, o := range list {
		b.hooks.recordPluginHook(o.Hook.Name())
		b.health.addHealthReporter(o.Hook)
	}
	return list
}

func (b *hookBuilder) newAllocHooks() []runnerhooks.OrderedHook {
	first := []runnerhooks.Hook{
		runnerhooks.NewAllocDirHook(b.dir),
		runnerhooks.NewMaxRunDurationHook(func() time.Time { return maxRunDeadline(b.alloc()) }, b.onMaxRunExceeded),
	}
	first = append(first, b.newPreviousAllocHooks()...)
	if network := b.newNetworkHook(); network != nil {
		first = append(first, network)
	}
	health := b.health.newHealthHook(b.currentStatus)
	first = append(first, health)
	var hookEntries []runnerhooks.OrderedHook
	for _, h := range first {
		hookEntries = append(hookEntries, runnerhooks.OrderedHook{Order: runnerhooks.OrderFirst, Hook: h})
	}
	if factory := b.config.HookFactory; factory != nil {
		hookEntries = append(hookEntries, b.recordPluginHooks(factory.NewAllocHooks(b.config.Alloc, b.newAttachTarget("", b.tasks.emitEvent, b.restoredAllocAttachments())))...)
	}
	return append(hookEntries,
		runnerhooks.OrderedHook{Order: runnerhooks.OrderLast, Hook: b.services.groupServices},
		runnerhooks.OrderedHook{Order: runnerhooks.OrderLast, Hook: runnerhooks.NewChecksHook(b.services.serviceSet)},
		runnerhooks.OrderedHook{Order: runnerhooks.OrderLast, Hook: health.WatchRestartHook()})
}

// newPreviousAllocHooks returns the hooks that wait for the allocation that this one replaces, and move its data here. It
// returns none if an earlier agent has called these hooks.
func (b *hookBuilder) newPreviousAllocHooks() []runnerhooks.Hook {
	id := b.config.Alloc.PreviousAllocation
	if id == "" || !b.previousAllocDataPending {
		return nil
	}
	var previousHooks []runnerhooks.Hook
	if previous := b.config.AllocDone; previous != nil {
		previousHooks = append(previousHooks, runnerhooks.NewPreviousAllocWaitHook(func() <-chan struct{} { return previous(id) }))
	}
	group := b.config.Alloc.GetTaskGroup()
	disk := group.EphemeralDisk
	if disk == nil || !pointer.Value(disk.Sticky) && !pointer.Value(disk.Migrate) {
		return previousHooks
	}
	dir, err := allocdir.New(b.config.AllocDirRoot, id)
	if err != nil {
		b.logger.Error("data of the allocation before is left behind", "error", err)
		return previousHooks
	}
	var tasks []string
	for _, t := range group.Tasks {
		tasks = append(tasks, t.Name)
	}
	return append(previousHooks, runnerhooks.NewDiskMigrationHook(b.dir, dir, tasks, b.logger))
}

// maxRunDeadline returns the time at which max_run_duration has passed since the creation of the allocation. It returns the
// zero time if the allocation has no such limit, which only batch and sysbatch jobs have.
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

func logsDisabled(t *api.Task) bool {
	return t.LogConfig != nil && pointer.Value(t.LogConfig.Disabled)
}

const (
	defaultLogFiles = 10
	defaultLogSize  = 10 // MB
)

func (b *hookBuilder) newLogTask(t *api.Task) logs.Task {
	limits := logs.Limits{MaxFiles: defaultLogFiles, MaxFileSize: defaultLogSize * mebibyte}
	if c := t.LogConfig; c != nil {
		if c.MaxFiles != nil {
			limits.MaxFiles = *c.MaxFiles
		}
		if c.MaxFileSizeMB != nil {
			limits.MaxFileSize = int64(*c.MaxFileSizeMB) * mebibyte
		}
	}
	return logs.Task{AllocID: b.config.Alloc.ID, Name: t.Name, LogDir: b.dir.LogDir(), StdoutLimits: limits, StderrLimits: limits}
}

// taskStore implements taskrunner.Store for one task. If its store is nil, it discards the records.
type taskStore struct {
	store         Store
	allocID, task string
}

func nopWaitFunc() error { return nil }

func (s taskStore) PutState(state *api.TaskState, h state.Durability) state.WaitDurableFunc {
	if s.store == nil {
		return nopWaitFunc
	}
	return s.store.PutTaskState(s.allocID, s.task, state, h)
}

func (s taskStore) Put(local state.LocalState, state *api.TaskState, h state.Durability) state.WaitDurableFunc {
	if s.store == nil {
		return nopWaitFunc
	}
	return s.store.PutTask(s.allocID, s.task, local, state, h)
}
