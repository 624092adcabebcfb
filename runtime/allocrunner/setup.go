package allocrunner

import (
	"context"
	"encoding/json"
	"maps"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/allocdir"
	"github.com/nomad-lite/nomad-lite/runtime/hookplugin"
	"github.com/nomad-lite/nomad-lite/runtime/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/lifecycle"
	"github.com/nomad-lite/nomad-lite/runtime/logs"
	"github.com/nomad-lite/nomad-lite/runtime/model"
	"github.com/nomad-lite/nomad-lite/runtime/state"
	"github.com/nomad-lite/nomad-lite/runtime/taskenv"
	"github.com/nomad-lite/nomad-lite/runtime/taskrunner"
)

// HookFactory creates hooks other than the builtin ones, with their order relative to
// the builtin hooks. *hookplugin.Set implements it.
type HookFactory interface {
	AllocHooks(*api.Allocation, hookplugin.Target) []hooks.Entry
	TaskHooks(*api.Allocation, *api.Task, hookplugin.Target) []hooks.Entry

	// Pending returns a function that blocks until AllocHooks and TaskHooks can return
	// complete lists, and emits an event if that takes long. It returns nil if the
	// lists are complete already. It is called before AllocHooks and TaskHooks.
	Pending(*api.Allocation) func(ctx context.Context, emit func(*api.TaskEvent))
}

// makeTasks creates a runner for each task of the group. Tasks of the same stage share
// a gate.
func (r *Runner) makeTasks(group *api.TaskGroup) error {
	tasks := make([]taskrunner.Task, len(group.Tasks))
	stages := make([]lifecycle.Task, len(group.Tasks))
	for i, t := range group.Tasks {
		task, err := taskOf(r.alloc, group, t.Name, r.limits)
		if err != nil {
			return err
		}
		tasks[i] = task
		stages[i] = lifecycle.Task{Name: t.Name, Stage: task.Stage()}
	}
	r.lifecycle = lifecycle.New(r.logger, stages)
	extensions, err := model.Extensions(r.alloc.Job, group)
	if err != nil {
		// Only an agent that did not support these keys can have accepted the job.
		r.logger.Error("extensions of the lifecycle are ignored", "error", err)
	}
	r.group = extensions
	for i, t := range group.Tasks {
		r.tasks = append(r.tasks, r.makeTask(tasks[i], t))
	}
	return nil
}

func (r *Runner) makeTask(task taskrunner.Task, t *api.Task) *taskrunner.Runner {
	group := r.alloc.GetTaskGroup()
	env := taskenv.NewBuilder(r.config.Node, envAlloc(r.alloc), envTask(r.alloc, group, task.Name))
	env.SetHostEnv(r.config.HostEnv)
	r.envs[task.Name] = env

	runner := taskrunner.New(taskrunner.Config{
		Alloc:   taskAlloc(r.alloc, group),
		Task:    task,
		TaskDir: r.dir.Task(task.Name),
		Env:     env,
		Gate:    r.gateOf(task),
		Driver: func(ctx context.Context) (driver.Driver, error) {
			return r.config.Drivers.Driver(ctx, task.Driver)
		},
		Store:     taskStore{r.config.Store, r.id, task.Name},
		Notify:    r.changed,
		Deadlines: taskrunner.Deadlines{Prestart: r.limits.PrerunDeadline, Others: r.limits.HookDeadline},
		Restored:  r.restoredTask(task.Name),
		Recovery:  r.config.Recovery,
		EndTask:   r.config.EndTask,
		Logger:    r.logger,
	})
	r.stats[t.Name] = hooks.NewStats(runner.Stats, r.limits.StatsInterval, r.logger)
	return runner
}

func (r *Runner) makeTaskHooks(runner *taskrunner.Runner, t *api.Task) []hook.Hook {
	list := []hooks.Entry{
		{Order: hooks.OrderFirst, Hook: hooks.NewValidate(r.limits.UserDenylist, r.limits.UserCheckedDrivers, r.limits.DownloadUIDs, model.AdmittedUsers(t), func() error { return r.services.Validate(t.Name) })},
		{Order: hooks.OrderFirst, Hook: hooks.NewTaskDir(r.dir, func() allocdir.TaskOptions {
			return r.taskOptions(runner, t)
		}, runner.EmitEvent, r.logger)},
	}
	if r.config.Cgroups != nil {
		if groups := r.config.Cgroups(t.Driver); groups != nil {
			list = append(list, hooks.Entry{Order: hooks.OrderFirst, Hook: hooks.NewCgroup(groups, runner.SetCgroup, r.logger)})
		}
	}
	if factory := r.config.Hooks; factory != nil {
		list = append(list, r.noteHooks(factory.TaskHooks(r.config.Alloc, t, r.hookContext(t.Name, runner.EmitEvent, runner.Attachments())))...)
	}
	list = append(list, hooks.Entry{Order: hooks.OrderLogs, Hook: hooks.NewLogs(r.config.Logs, func() (logs.Task, bool) {
		return r.logsOf(t), !logsDisabled(t) && !runner.Capabilities().DisableLogCollection
	}, func(stdout, stderr string) {
		runner.SetOutput(taskrunner.Output{Stdout: stdout, Stderr: stderr})
	}, runner.ProcessEnded, runner.EmitEvent)})
	if p, job := t.DispatchPayload, r.config.Alloc.Job; p != nil && p.File != "" && (job.Dispatched || len(job.Payload) > 0) {
		list = append(list, hooks.Entry{Order: hooks.OrderPayload, Hook: hooks.NewDispatchPayload(r.dir, p.File, r.config.Alloc.Job.Payload)})
	}
	return hooks.Sort(append(list,
		hooks.Entry{Order: hooks.OrderLast, Hook: r.stats[t.Name]},
		hooks.Entry{Order: hooks.OrderLast, Hook: hooks.NewTaskServices(r.services, t.Name)}))
}

// taskOptions returns the options for a task directory, based on the driver
// capabilities that are known so far.
func (r *Runner) taskOptions(runner *taskrunner.Runner, t *api.Task) allocdir.TaskOptions {
	o := allocdir.TaskOptions{
		Isolation:  runner.Capabilities().FSIsolation,
		User:       runner.Task().User,
		Admitted:   model.AdmittedUsers(t),
		NomadModes: r.limits.NomadModes,
	}
	if t.Resources != nil {
		o.SecretsMB = value(t.Resources.SecretsMB)
	}
	return o
}

// restrictDir closes a directory to other accounts if an earlier version left it open
// and tasks of the allocation may be running.
func (r *Runner) restrictDir() {
	var tasks []allocdir.TaskOptions
	for i, t := range r.config.Alloc.GetTaskGroup().Tasks {
		tasks = append(tasks, r.taskOptions(r.tasks[i], t))
	}
	if err := r.dir.Restrict(tasks); err != nil {
		r.logger.Error("other accounts of this machine can enter the directory of the allocation", "error", err)
	}
}

// hookContext returns the target that ties hooks of a factory to this allocation, or to
// one of its tasks. before are the hooks that the target had under an earlier agent.
func (r *Runner) hookContext(task string, emit func(*api.TaskEvent), before map[string]string) hookplugin.Target {
	return hookplugin.Target{
		AllocID: r.id, Task: task, Emit: emit, Before: before,
		AllocJSON: func() ([]byte, error) { return json.Marshal(r.Alloc()) },
	}
}

// attachments returns the hooks that the allocation had under an earlier agent, with
// their configurations.
func (r *Runner) attachments() map[string]string {
	if r.config.Records == nil {
		return nil
	}
	return r.config.Records.AllocHooks(r.id)
}

// keepAttachments stores the attachments of the allocation's own hooks for the next
// agent.
func (r *Runner) keepAttachments(list []hooks.Entry) {
	var all map[string]string
	for _, o := range list {
		if at, ok := o.Hook.(interface{ Attachment() string }); ok {
			if all == nil {
				all = make(map[string]string)
			}
			all[o.Hook.Name()] = at.Attachment()
		}
	}
	for _, t := range r.tasks {
		t.SetAllocHooks(all)
	}
}

// noteHooks records which plugin hooks the allocation needs.
func (r *Runner) noteHooks(list []hooks.Entry) []hooks.Entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pluginHooks == nil && len(list) > 0 {
		r.pluginHooks = make(map[string]bool)
	}
	for _, o := range list {
		r.pluginHooks[o.Hook.Name()] = true
		if d, ok := o.Hook.(healthReporter); ok {
			r.deciders = append(r.deciders, d)
		}
	}
	return list
}

// emitToAll adds an event to each task.
func (r *Runner) emitToAll(e *api.TaskEvent) {
	r.forEach(func(t *taskrunner.Runner) {
		copied := *e
		copied.Details = maps.Clone(e.Details)
		t.EmitEvent(&copied)
	})
}

// attachHooks sets the hooks of the allocation and of its tasks. It is called once,
// before any hook is called.
func (r *Runner) attachHooks() {
	for i, t := range r.config.Alloc.GetTaskGroup().Tasks {
		r.tasks[i].SetHooks(r.makeTaskHooks(r.tasks[i], t))
	}
	list := r.makeHooks()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hooks = list
}

// awaitHooks attaches the hooks if New could not, because the hooks were not known yet.
// It blocks until they are known or live is done.
func (r *Runner) awaitHooks(live context.Context) {
	if r.pending == nil {
		return
	}
	if !r.Alloc().ServerTerminalStatus() {
		r.pending(live, r.emitToAll)
	}
	r.attachHooks()
}

// attached returns the hooks of the allocation, or none until they are known.
func (r *Runner) attached() []hook.Hook {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.hooks
}

func (r *Runner) makeHooks() []hook.Hook {
	first := []hook.Hook{
		hooks.NewAllocDir(r.dir),
		hooks.NewMaxRunDuration(func() time.Time { return deadline(r.Alloc()) }, r.exceedMaxRunDuration),
	}
	first = append(first, r.makePrevious()...)
	health := r.makeHealth()
	first = append(first, health)
	var list []hooks.Entry
	for _, h := range first {
		list = append(list, hooks.Entry{Order: hooks.OrderFirst, Hook: h})
	}
	if factory := r.config.Hooks; factory != nil {
		pluginHooks := r.noteHooks(factory.AllocHooks(r.config.Alloc, r.hookContext("", r.emitToAll, r.attachments())))
		list = append(list, pluginHooks...)
		r.keepAttachments(pluginHooks)
	}
	return hooks.Sort(append(list,
		hooks.Entry{Order: hooks.OrderLast, Hook: r.groupServices},
		hooks.Entry{Order: hooks.OrderLast, Hook: hooks.NewChecks(r.services)},
		hooks.Entry{Order: hooks.OrderLast, Hook: health.AfterUpdate()}))
}

// makePrevious creates the hooks that take data over from the allocation that this one
// replaces, unless an earlier agent did that.
func (r *Runner) makePrevious() []hook.Hook {
	id := r.config.Alloc.PreviousAllocation
	if id == "" || r.started {
		return nil
	}
	var list []hook.Hook
	if previous := r.config.Previous; previous != nil {
		list = append(list, hooks.NewAwaitPrevious(func() <-chan struct{} { return previous(id) }))
	}
	group := r.config.Alloc.GetTaskGroup()
	disk := group.EphemeralDisk
	if disk == nil || !value(disk.Sticky) && !value(disk.Migrate) {
		return list
	}
	dir, err := allocdir.New(r.config.AllocDirRoot, id)
	if err != nil {
		r.logger.Error("data of the allocation before is left behind", "error", err)
		return list
	}
	var tasks []string
	for _, t := range group.Tasks {
		tasks = append(tasks, t.Name)
	}
	return append(list, hooks.NewMigrateDisk(r.dir, dir, tasks, r.logger))
}

// deadline returns when the allocation must have ended, counted from its creation and
// not from its start; zero means never. Only batch and sysbatch jobs have a deadline.
func deadline(a *api.Allocation) time.Time {
	limit := a.GetTaskGroup().MaxRunDuration
	if jobType := value(a.Job.Type); limit == nil || *limit <= 0 || jobType != "batch" && jobType != "sysbatch" {
		return time.Time{}
	}
	created := time.Unix(0, a.CreateTime)
	if now := time.Now(); created.After(now) {
		created = now // CreateTime comes from a clock that was ahead
	}
	return created.Add(*limit)
}

func logsDisabled(t *api.Task) bool {
	return t.LogConfig != nil && value(t.LogConfig.Disabled)
}

const (
	defaultLogFiles = 10
	defaultLogSize  = 10 // MB
)

func (r *Runner) logsOf(t *api.Task) logs.Task {
	limits := logs.Limits{MaxFiles: defaultLogFiles, MaxFileSize: defaultLogSize * mebibyte}
	if c := t.LogConfig; c != nil {
		if c.MaxFiles != nil {
			limits.MaxFiles = *c.MaxFiles
		}
		if c.MaxFileSizeMB != nil {
			limits.MaxFileSize = int64(*c.MaxFileSizeMB) * mebibyte
		}
	}
	return logs.Task{AllocID: r.id, Name: t.Name, Dir: r.dir.LogDir(), Stdout: limits, Stderr: limits}
}

// taskStore stores the records of one task. A nil store discards them.
type taskStore struct {
	store         Store
	allocID, task string
}

func errForgotten() error { return nil }

func (s taskStore) PutState(state *api.TaskState, h state.Durability) state.WaitFunc {
	if s.store == nil {
		return errForgotten
	}
	return s.store.PutTaskState(s.allocID, s.task, state, h)
}

func (s taskStore) Put(local state.LocalState, state *api.TaskState, h state.Durability) state.WaitFunc {
	if s.store == nil {
		return errForgotten
	}
	return s.store.PutTask(s.allocID, s.task, local, state, h)
}
