package builtinhooks

import (
	"context"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/idrange"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/core"
	"github.com/nomad-lite/nomad-lite/runtime/core/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskenv"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/allocdir"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/taskapi"
	"github.com/nomad-lite/nomad-lite/runtime/node/services"
	"github.com/nomad-lite/nomad-lite/runtime/store/identity"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// MachineConfig configures a Machine. A nil field means that the machine lacks the feature, unless its comment says otherwise.
type MachineConfig struct {
	AllocDirRoot    string // parent of the allocation directories
	LogCollector    LogCollector
	Services        services.Registry         // required
	CheckResults    services.CheckResultStore // stores check results; nil keeps them in memory
	DialCheckTarget services.DialFunc         // connects checks to their targets; nil uses the host network
	Identities      TokenIssuer               // issues workload identity tokens
	TaskAPI         *taskapi.TaskSocketListener
	// NewCgroupManager returns the manager for a task with this driver and number of reserved cores, nil if the driver creates the
	// cgroup itself.
	NewCgroupManager func(driver string, reservedCores int) CgroupManager
	NetworkManager   NetworkManager
	DeviceReserver   DeviceReserver // reserves task devices
	DynamicUserPool  UserPool       // user ids for tasks that name no user
	VariableReader   VariableReader // reads variables for secret blocks
	FindVolume       FindVolumeFunc // finds host volumes for tasks
	// FindRemotePrevious returns an allocation's predecessor if its data must be fetched from another node, and nil otherwise. It
	// must not block. If it is nil, all allocations have run on this node.
	FindRemotePrevious func(*api.Allocation) PreviousAlloc
	// DriverMountsHostFiles reports whether a driver with isolation chroot itself mounts the chroot_env files; see
	// allocdir.TaskDirOptions. If it is nil, no driver does.
	DriverMountsHostFiles func(driver string) bool
	TaskRules             TaskRules
}

// TaskRules are the operator's rules for task users and directories. A zero field means its default.
type TaskRules struct {
	UserDenylist            []string          // users that no task may have; default root, Administrator
	UserCheckedDrivers      []string          // drivers that UserDenylist applies to; default exec, qemu, java
	ReservedDownloadUIDs    idrange.Set       // user ids reserved for downloads and forbidden for tasks; default none
	ChrootEnv               map[string]string // host path -> path in the task, for tasks with isolation chroot; see allocdir.TaskDirOptions; default as in Nomad
	AllowNomadOpenFileModes bool              // directories that cannot be closed to other accounts get Nomad's open file modes; see allocdir.TaskDirOptions
}

// WithDefaults returns the rules with defaults instead of zero values.
func (r TaskRules) WithDefaults() TaskRules {
	if r.ChrootEnv == nil {
		r.ChrootEnv = allocdir.DefaultChrootEnv()
	}
	if r.UserDenylist == nil {
		r.UserDenylist = []string{"root", "Administrator"}
	}
	if r.UserCheckedDrivers == nil {
		r.UserCheckedDrivers = []string{"exec", "qemu", "java"}
	}
	return r
}

// Machine implements core.Machine with the builtin hooks.
type Machine struct {
	config MachineConfig // rules have their defaults
}

var _ core.Machine = (*Machine)(nil)

// NewMachine returns a machine.
func NewMachine(c MachineConfig) *Machine {
	c.TaskRules = c.TaskRules.WithDefaults()
	return &Machine{config: c}
}

// NewWorkspace implements core.Machine.
func (m *Machine) NewWorkspace(a core.Alloc) (core.Workspace, error) {
	initial := a.Alloc()
	dir, err := allocdir.New(m.config.AllocDirRoot, initial.ID)
	if err != nil {
		return nil, err
	}
	w := &workspace{Dir: dir, config: &m.config, alloc: a, initial: initial}
	w.services = services.New(services.Config{
		AllocID:   initial.ID,
		AllocName: initial.Name,
		CurrentSpec: func() *services.AllocServicesSpec {
			return services.NewSpec(a.Alloc(), a.Node().Datacenter, a.NetworkStatus())
		},
		CurrentEnv:         a.Env,
		RestartTaskOrGroup: a.RestartForFailedCheck,
		Registry:           m.config.Services,
		CheckResultStore:   m.config.CheckResults,
		Dial:               m.config.DialCheckTarget,
		ExecInTask:         a.Exec,
		Secrets:            a.Secrets(),
		Logger:             a.Logger(),
	})
	w.groupServices = NewGroupServicesHook(w.services)
	return w, nil
}

// MayHaveAllocDir implements core.Machine.
func (m *Machine) MayHaveAllocDir(allocID string) bool {
	dir, err := allocdir.New(m.config.AllocDirRoot, allocID)
	if err != nil {
		return false
	}
	root, err := dir.Open()
	if err != nil {
		return osprocess.IsResourceExhausted(err) // the directory may exist
	}
	root.Close()
	return true
}

// RemoveAllocDir implements core.Machine.
func (m *Machine) RemoveAllocDir(allocID string) error {
	dir, err := allocdir.New(m.config.AllocDirRoot, allocID)
	if err != nil {
		return err
	}
	return dir.Destroy()
}

// workspace implements core.Workspace. TaskPaths, Open and OpenToAppend are those of its Dir.
type workspace struct {
	*allocdir.Dir
	config        *MachineConfig
	alloc         core.Alloc
	initial       *api.Allocation // version given to the new runner
	services      *services.AllocServices
	groupServices *GroupServicesHook
}

// RestrictAccess implements core.Directory.
func (w *workspace) RestrictAccess(tasks []core.Task) error {
	var options []allocdir.TaskDirOptions
	for i, spec := range w.initial.GetTaskGroup().Tasks {
		options = append(options, w.taskDirOptions(tasks[i], spec))
	}
	return w.RestrictToTaskUsers(options)
}

// taskDirOptions returns the options for a task's directory. They depend on the driver's known capabilities.
func (w *workspace) taskDirOptions(t core.Task, spec *api.Task) allocdir.TaskDirOptions {
	o := allocdir.TaskDirOptions{
		DriverMountsHostFiles:   w.config.DriverMountsHostFiles != nil && w.config.DriverMountsHostFiles(spec.Driver),
		Isolation:               t.DriverCapabilities().FSIsolation,
		User:                    t.User(),
		AdmittedUsers:           model.UsersSwitchedToByTask(spec),
		AllowNomadOpenFileModes: w.config.TaskRules.AllowNomadOpenFileModes,
		ChrootEnv:               w.config.TaskRules.ChrootEnv,
	}
	if spec.Resources != nil {
		o.SecretsMB = pointer.Value(spec.Resources.SecretsMB)
	}
	return o
}

// ActiveNetwork implements core.Network.
func (w *workspace) ActiveNetwork() *state.AllocNetwork {
	if w.config.NetworkManager == nil {
		return nil
	}
	return w.config.NetworkManager.ActiveNetwork(w.initial.ID)
}

// CheckResults implements core.Services.
func (w *workspace) CheckResults() (results []core.CheckResult, started bool, changed <-chan struct{}) {
	return w.services.CheckResults()
}

// CheckStatuses implements core.Services.
func (w *workspace) CheckStatuses() (statuses []api.AllocCheckStatus, changed <-chan struct{}) {
	return w.services.CheckStatuses()
}

// RegisterGroupServicesAgain implements core.Services.
func (w *workspace) RegisterGroupServicesAgain() error { return w.groupServices.RegisterAgain() }

// ReadVariable implements core.Variables.
func (w *workspace) ReadVariable(ctx context.Context, task, namespace, path string) (map[string]string, error) {
	if w.config.VariableReader == nil {
		return nil, nil
	}
	return w.config.VariableReader(ctx, identity.NewWorkload(w.initial, task), namespace, path)
}

// AllocHooks implements core.Hooks.
func (w *workspace) AllocHooks(tasks []core.Task) (list []hooks.OrderedHook) {
	c := w.config
	add := func(order int, h hooks.Hook) {
		list = append(list, hooks.OrderedHook{Order: order, Hook: h})
	}
	add(hooks.OrderAllocDir, NewAllocDirHook(w.Dir, w.alloc.Alloc, w.alloc.Logger()))
	if !w.alloc.StartedByEarlierAgent() { // an earlier agent has already called these hooks
		w.addPreviousAllocHooks(add)
		if issuer, ok := c.Identities.(AllocTokenIssuer); ok {
			add(hooks.OrderFirst, NewAllocIdentityHook(issuer, w.initial))
		}
	}
	if network := w.newNetworkHook(tasks); network != nil {
		add(hooks.OrderFirst, network)
	}
	add(hooks.OrderLogs, NewAllocLogsHook(c.LogCollector, taskNames(w.initial)))
	add(hooks.OrderLast, w.groupServices)
	add(hooks.OrderLast, NewChecksHook(w.services))
	return list
}

// addPreviousAllocHooks adds the hooks that wait for replaced allocations and move their data.
func (w *workspace) addPreviousAllocHooks(add func(order int, h hooks.Hook)) {
	var awaited []PreviousAlloc
	for _, id := range w.initial.PreemptedAllocations {
		awaited = append(awaited, &LocalPreviousAlloc{Ended: func() <-chan struct{} { return w.alloc.AllocDone(id) }})
	}
	previous := w.findPreviousAlloc()
	if previous != nil {
		awaited = append(awaited, previous)
	}
	if len(awaited) > 0 {
		add(hooks.OrderFirst, NewPreviousAllocWaitHook(awaited...))
	}
	if disk := w.initial.GetTaskGroup().EphemeralDisk; previous != nil && disk != nil && (pointer.Value(disk.Sticky) || pointer.Value(disk.Migrate)) {
		add(hooks.OrderFirst, NewDiskMigrationHook(w.Dir, previous, taskNames(w.initial), w.emitEvent, w.alloc.Logger()))
	}
}

// findPreviousAlloc returns the replaced allocation, nil for none.
func (w *workspace) findPreviousAlloc() PreviousAlloc {
	id := w.initial.PreviousAllocation
	if id == "" {
		return nil
	}
	if w.config.FindRemotePrevious != nil {
		if remote := w.config.FindRemotePrevious(w.initial); remote != nil {
			return remote
		}
	}
	dir, err := allocdir.New(w.config.AllocDirRoot, id)
	if err != nil {
		w.alloc.Logger().Error("data of the previous allocation not moved", "error", err)
		return nil
	}
	return &LocalPreviousAlloc{Ended: func() <-chan struct{} { return w.alloc.AllocDone(id) }, Dir: dir}
}

// emitEvent adds an event to all tasks.
func (w *workspace) emitEvent(e *api.TaskEvent) {
	_ = w.alloc.EmitEvent("", e) // fails only for an unknown task's name
}

// taskNames returns the names of an allocation's tasks.
func taskNames(a *api.Allocation) []string {
	var names []string
	for _, t := range a.GetTaskGroup().Tasks {
		names = append(names, t.Name)
	}
	return names
}

// TaskHooks implements core.Hooks.
func (w *workspace) TaskHooks(t core.Task, spec *api.Task) (list []hooks.OrderedHook) {
	c, logger := w.config, w.alloc.Logger()
	add := func(order int, h hooks.Hook) {
		list = append(list, hooks.OrderedHook{Order: order, Hook: h})
	}
	dirOptions := func() allocdir.TaskDirOptions { return w.taskDirOptions(t, spec) }

	add(hooks.OrderFirst, NewTaskValidationHook(c.TaskRules.UserDenylist, c.TaskRules.UserCheckedDrivers, c.TaskRules.ReservedDownloadUIDs, model.UsersSwitchedToByTask(spec), func() error { return w.services.ValidateServiceNames(spec.Name) }))
	if users := c.DynamicUserPool; users != nil && spec.User == "" {
		add(hooks.OrderFirst, NewWorkloadUserHook(users, t.DriverCapabilities, t.SetDynamicUser, w.RevokeUserAccess, logger))
	}
	add(hooks.OrderFirst, NewTaskDirHook(w.Dir, spec, dirOptions, t.EmitEvent, logger))
	if c.NewCgroupManager != nil {
		cores := 0
		if spec.Resources != nil {
			cores = pointer.Value(spec.Resources.Cores)
		}
		if groups := c.NewCgroupManager(spec.Driver, cores); groups != nil {
			add(hooks.OrderFirst, NewCgroupHook(groups, cores, t.SetCgroup, logger))
		}
	}
	if identities := IdentitiesWithEnvOrFile(spec); c.Identities != nil && len(identities) > 0 {
		add(hooks.OrderFirst, NewIdentityHook(IdentityHookConfig{
			Issuer: c.Identities, Workload: identity.NewWorkload(w.initial, spec.Name), IdentitiesWithEnvOrFile: identities,
			WriteTaskFile:         func(path string, data []byte) error { return w.WriteTaskFile(spec.Name, path, dirOptions(), data) },
			SetEnvTokenByIdentity: w.alloc.EnvBuilder(spec.Name).SetIdentityTokens,
			RestartTask: func(ctx context.Context, reason string) error {
				return core.IgnoreNotRunning(t.Restart(ctx, model.EventRestartSignal(reason), false))
			},
			SignalTask: func(ctx context.Context, signal, reason string) error {
				return core.IgnoreNotRunning(t.Signal(ctx, model.EventSignalingReason(signal, reason), signal))
			},
			EmitEvent: t.EmitEvent, Logger: logger.With("task", spec.Name),
		}))
	}
	if c.VariableReader != nil && len(spec.Secrets) > 0 {
		read := func(ctx context.Context, workload identity.Workload, namespace, path string) (map[string]string, error) {
			items, err := c.VariableReader(ctx, workload, namespace, path)
			w.alloc.HandOutVariable(workload.Task, namespace, path, items)
			return items, err
		}
		add(hooks.OrderFirst, NewSecretsHook(spec, identity.NewWorkload(w.initial, spec.Name), read, w.alloc.EnvBuilder(spec.Name), t.EmitEvent))
	}
	if c.TaskAPI != nil {
		add(hooks.OrderFirst, NewTaskAPIHook(c.TaskAPI, taskapi.TaskAddr{AllocID: w.initial.ID, Task: spec.Name}, func() (int, error) {
			return w.ListenInSecretsDir(spec.Name, taskenv.TaskAPISocketName, dirOptions())
		}, logger))
	}
	add(hooks.OrderLogs, NewLogsHook(c.LogCollector, func() (logs.Task, OutputMode) {
		return newLogTask(w.initial.ID, w.LogDir(), spec), outputMode(t.DriverCapabilities(), spec)
	}, t.SetOutput, t.AllProcessesEnded, t.EmitEvent))
	if p, job := spec.DispatchPayload, w.initial.Job; p != nil && p.File != "" && (job.Dispatched || len(job.Payload) > 0) {
		add(hooks.OrderPayload, NewDispatchPayloadHook(w.Dir, p.File, job.Payload))
	}
	if find := c.FindVolume; find != nil && len(spec.VolumeMounts) > 0 {
		add(hooks.OrderVolumes, NewVolumesHook(spec.VolumeMounts, func() []model.HostVolumeRequest {
			node := w.alloc.Node()
			return model.HostVolumeRequests(w.alloc.Alloc().GetTaskGroup(), w.initial.Name, &node.NodeFacts)
		}, find, func(text string) string { return w.alloc.Env(spec.Name).ReplaceReferences(text) }))
	}
	if allocated := model.AllocatedDevices(w.initial, spec.Name); len(allocated) > 0 {
		add(hooks.OrderDevices, NewDevicesHook(c.DeviceReserver, allocated, t.EmitEvent))
	}
	add(hooks.OrderLast, NewTaskServicesHook(w.services, spec.Name))
	return list
}

func outputMode(c driver.Capabilities, spec *api.Task) OutputMode {
	switch {
	case spec.LogConfig != nil && pointer.Value(spec.LogConfig.Disabled):
		return OutputDiscarded
	case c.DisableLogCollection:
		return OutputReadByDriver
	}
	return OutputCollected
}

const (
	mebibyte        = 1 << 20
	defaultLogFiles = 10
	defaultLogBytes = 10 * mebibyte
)

func newLogTask(allocID, logDir string, spec *api.Task) logs.Task {
	limits := logs.StreamLimits{MaxFiles: defaultLogFiles, MaxFileBytes: defaultLogBytes}
	if c := spec.LogConfig; c != nil {
		if c.MaxFiles != nil {
			limits.MaxFiles = *c.MaxFiles
		}
		if c.MaxFileSizeMB != nil {
			limits.MaxFileBytes = int64(*c.MaxFileSizeMB) * mebibyte
		}
	}
	return logs.Task{AllocID: allocID, Name: spec.Name, LogDir: logDir, StdoutLimits: limits, StderrLimits: limits}
}

// newNetworkHook returns the hook for the allocation's network, nil if its tasks use the host network.
func (w *workspace) newNetworkHook(tasks []core.Task) hooks.Hook {
	network := model.GroupNetworkUnlessHost(w.initial.GetTaskGroup())
	if network == nil || w.config.NetworkManager == nil {
		return nil
	}
	networkTasks := make([]NetworkTask, len(tasks))
	for i, t := range tasks {
		networkTasks[i] = NetworkTask{Name: t.Name(), Driver: t.Driver(), DriverCapabilities: func(ctx context.Context) (driver.Capabilities, error) {
			err := t.FetchDriverDescription(ctx, true)
			return t.DriverCapabilities(), err
		}}
	}
	return NewNetworkHook(NetworkHookConfig{
		Manager:       w.config.NetworkManager,
		NewRequest:    func() state.AllocNetwork { return newNetworkRequest(w.alloc.Alloc(), network, w.alloc.Env("")) },
		Tasks:         networkTasks,
		ReuseExisting: w.alloc.KeepsNetwork(),
		SetNetwork:    w.alloc.SetNetwork,
		EmitEvent:     w.emitEvent,
	})
}
