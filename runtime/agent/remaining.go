package agent

import (
	"context"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper"
	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/core"
	"github.com/nomad-lite/nomad-lite/runtime/core/record"
	"github.com/nomad-lite/nomad-lite/runtime/node/orphans"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// keeperTimeout is the timeout for requests to the keeper while the agent shuts down.
const keeperTimeout = 5 * time.Second

// remainingProcesses describes the processes that must continue after the agent has exited, because tasks may run. The zero value
// means that no recorded task runs and no plugin has children.
type remainingProcesses struct {
	taskMayRun             bool // a recorded task may run, so the keeper and the log collector must continue
	keepAllPlugins         bool // a task's plugin is unknown, so all plugins must continue
	keptPluginKeys         map[supervisor.PluginKey]bool
	pluginPIDsWithChildren map[int]bool // pids of plugin processes with child processes
}

// mustKeepPlugin reports whether a plugin must continue.
func (r *remainingProcesses) mustKeepPlugin(key supervisor.PluginKey, pid int) bool {
	return r.keepAllPlugins || r.keptPluginKeys[key] || r.pluginPIDsWithChildren[pid]
}

// keepPluginBecauseTaskMayRun records that a plugin's task may run.
func (r *remainingProcesses) keepPluginBecauseTaskMayRun(key supervisor.PluginKey) {
	r.taskMayRun = true
	if r.keptPluginKeys == nil {
		r.keptPluginKeys = make(map[supervisor.PluginKey]bool)
	}
	r.keptPluginKeys[key] = true
}

// keepAllForUnknownDriver records that a task with an unknown driver may run.
func (r *remainingProcesses) keepAllForUnknownDriver() { r.taskMayRun, r.keepAllPlugins = true, true }

// remainingProcessDecider decides which processes continue after the agent has exited.
type remainingProcessDecider struct {
	store         *store.Store
	orphanCleaner *orphans.Cleaner // nil if the agent has not looked for orphans yet
	logger        hclog.Logger

	decision atomic.Pointer[remainingProcesses] // nil before decideRemainingProcesses is called
}

// mustKeepPlugin implements supervisor.Config.KeepRunning. Before decideRemainingProcesses is called, the result depends on
// the state alone.
func (r *remainingProcessDecider) mustKeepPlugin(key supervisor.PluginKey, pid int) bool {
	remaining := r.decision.Load()
	if remaining == nil {
		remaining = r.remainingProcessesFromState()
	}
	return remaining.mustKeepPlugin(key, pid)
}

// decideRemainingProcesses returns the processes that must continue: the plugins of tasks that may run according to the state,
// and plugins with child processes, because an agent can exit before it has restored its tasks, and the state can be lost.
// pluginsOfTasks are those of the tasks that this agent knows. Plugin processes without tasks, in pidsWithoutTasks, need not
// continue even if they have child processes.
func (r *remainingProcessDecider) decideRemainingProcesses(pluginsOfTasks map[core.Plugin]bool, k *keeper.Client, pidsWithoutTasks []int) *remainingProcesses {
	remaining := r.remainingProcessesFromState()
	for key := range pluginsOfTasks {
		remaining.keepPluginBecauseTaskMayRun(supervisor.PluginKey(key))
	}
	ctx, cancel := context.WithTimeout(context.Background(), keeperTimeout)
	defer cancel()
	parents, err := k.ListProcessesThatMayHaveTasks(ctx)
	if err != nil {
		r.logger.Warn("tasks may run", "error", err)
		remaining.keepAllForUnknownDriver()
	}
	for _, p := range parents {
		if slices.Contains(pidsWithoutTasks, p.PID) {
			continue
		}
		if remaining.pluginPIDsWithChildren == nil {
			remaining.pluginPIDsWithChildren = make(map[int]bool)
		}
		remaining.pluginPIDsWithChildren[p.PID] = true
	}
	r.decision.Store(remaining)
	return remaining
}

// decidedOrDecide returns the last result of decideRemainingProcesses. If it was not called, because the agent has started no
// plugins, decidedOrDecide calls it.
func (r *remainingProcessDecider) decidedOrDecide(k *keeper.Client) *remainingProcesses {
	if remaining := r.decision.Load(); remaining != nil {
		return remaining
	}
	return r.decideRemainingProcesses(nil, k, nil)
}

// tasksMayRun reports whether tasks may run according to the state.
func (r *remainingProcessDecider) tasksMayRun() bool {
	state := r.store.Snapshot()
	ended := state.EndedAllocations()
	for _, alloc := range state.WithoutEndedEvents().Allocations(nil, "") {
		if !ended[alloc.ID] {
			return true
		}
	}
	return r.remainingProcessesFromState().taskMayRun
}

// remainingProcessesFromState returns the processes that must continue according to the state.
func (r *remainingProcessDecider) remainingProcessesFromState() *remainingProcesses {
	remaining := new(remainingProcesses)
	remaining.keepPluginsOfTasksInState(r.store, r.orphanCleaner != nil && r.orphanCleaner.OrphansHandled())
	return remaining
}

// keepPluginsOfTasksInState keeps the plugins of tasks that may run according to the state. A task may run if its record has a
// start id or a handle, or cannot be read. If the state was damaged, keepPluginsOfTasksInState keeps all plugins if an allocation
// has the status running, or if the orphans have not been destroyed.
func (r *remainingProcesses) keepPluginsOfTasksInState(s *store.Store, orphansDestroyed bool) {
	state := s.Snapshot()
	for _, id := range state.AllocIDsWithLocalRecords() {
		for _, task := range state.TaskNamesWithLocalRecords(id) {
			local, known, err := state.TaskFields(id, task)
			switch {
			case err != nil:
				r.keepAllForUnknownDriver()
			case known && (local.StartID != "" || local.Handle != nil):
				r.keepPluginsOfTask(state.Allocation(nil, id), task, local)
			}
		}
	}
	if len(s.Damage()) == 0 {
		return
	}
	// The damage may have destroyed the records of running tasks, so their drivers are unknown.
	if !orphansDestroyed {
		r.keepAllForUnknownDriver()
	}
	for _, alloc := range state.WithoutEndedEvents().Allocations(nil, "") {
		if alloc.ClientStatus == api.AllocClientStatusRunning && !state.AllocationEnded(alloc.ID) {
			r.keepAllForUnknownDriver()
		}
	}
}

// keepPluginsOfTask records that a task may run, so its driver and hooks must continue. alloc is nil if the allocation is
// unknown.
func (r *remainingProcesses) keepPluginsOfTask(alloc *api.Allocation, task string, local record.Fields) {
	r.taskMayRun = true
	for name := range maps.Keys(local.AllocHookConfigByName) {
		r.keepPluginBecauseTaskMayRun(supervisor.PluginKey{Type: base.TypeHook, Name: name})
	}
	for name := range maps.Keys(local.HookStateByName) {
		r.keepPluginBecauseTaskMayRun(supervisor.PluginKey{Type: base.TypeHook, Name: name})
	}
	if alloc != nil && alloc.Job != nil {
		if group := alloc.Job.LookupTaskGroup(alloc.TaskGroup); group != nil {
			if i := slices.IndexFunc(group.Tasks, func(t *api.Task) bool { return t.Name == task }); i >= 0 {
				r.keepPluginBecauseTaskMayRun(supervisor.PluginKey{Type: base.TypeDriver, Name: group.Tasks[i].Driver})
				return
			}
		}
	}
	r.keepAllPlugins = true
}
