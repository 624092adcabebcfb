package taskrunner

import (
	"context"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/hooks/runnerhooks"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// RestoredTask holds the records of a task that an earlier agent ran. The caller of New must not change them afterwards.
type RestoredTask struct {
	LocalState state.LocalState
	TaskState  *api.TaskState // stored state of the task; nil if there is no record
}

// RecoveryFacts describes what the agent knows about the tasks of an earlier agent.
type RecoveryFacts struct {
	// Rebooted means that the machine has rebooted: no earlier process exists, and a
	// process with the same pid is unrelated.
	Rebooted bool
	// DriverKnowsInterruptedStarts means that the driver knows a task even if the earlier agent died during StartTask:
	// the plugin process is still the same, or the driver searches for such tasks.
	DriverKnowsInterruptedStarts bool
	// DriverFindsTasksByName means that the driver can find a task by the names of the task and its allocation.
	DriverFindsTasksByName bool
	// RestartReattachedPlugin replaces the plugin process of the driver if an earlier agent has launched it, and
	// returns when that process has exited. It does nothing for a builtin driver. It may be nil.
	RestartReattachedPlugin func(context.Context) error
}

// HooksCalledOrStarted reports whether an earlier agent has called hooks for the task or has started it.
func (r *RestoredTask) HooksCalledOrStarted() bool {
	local := &r.LocalState
	return len(local.HookStateByName) > 0 || local.StartID != "" || local.FirstPendingDestroy != nil || local.RunComplete ||
		r.TaskState != nil && r.TaskState.State != model.TaskPending
}

// AttachmentJSONByHookName returns the configurations of the hooks that an earlier agent had attached to the task, by
// hook name. It returns nil if there were none.
func (r *RestoredTask) AttachmentJSONByHookName() map[string]string {
	var attachments map[string]string
	for name, state := range r.LocalState.HookStateByName {
		if state.AttachmentJSON != "" {
			if attachments == nil {
				attachments = make(map[string]string)
			}
			attachments[name] = state.AttachmentJSON
		}
	}
	return attachments
}

// restoreFromEarlierAgent sets, for New, the state that an earlier agent has stored.
func (r *Runner) restoreFromEarlierAgent(restored RestoredTask) {
	local, task := restored.LocalState, restored.TaskState
	r.records.restoreRecords(restored)
	r.records.env.SetDirs(r.hooks.dir, driver.FSIsolationNone) // setCapabilitiesAndEnvDirs replaces the directories when the isolation of the driver is known
	if local.LastKnownCapabilities != nil {
		r.setCapabilitiesAndEnvDirs(local.LastKnownCapabilities)
	}
	r.SetDynamicUser(runnerhooks.WorkloadUserNameOrEmpty(runnerhooks.StoredWorkloadUserID(local.HookStateByName[runnerhooks.WorkloadUserHookName].Data)))
	if !local.RestartState.WindowStart.IsZero() {
		r.restartTracker.RestoreState(local.RestartState)
	}
	if local.Handle != nil && local.UnhandledExit == nil { // a stored UnhandledExit says already whether a restart was requested
		r.records.restartRequest = local.RestartRequest
	}
	if task == nil {
		return
	}
	if local.RestartRequest != nil && task.State == model.TaskDead && !task.Failed && !local.RunComplete {
		r.requests.restoreEarlierRerunRequest(local.RestartRequest)
	}
	if task.Failed && task.State != model.TaskDead {
		r.requests.restoreEarlierKill() // the kill's event is stored, but the earlier agent did not finish the kill
	}
}

// RecoverTaskOfEarlierAgent is called once, before Run, instead of FetchDriverDescription, for a runner with
// Config.RestoredTask. It recovers the process that an earlier agent left, unless the driver answers that it does not
// have the task. If an earlier agent died during StartTask, RecoverTaskOfEarlierAgent asks the driver whether the start
// was executed. While the driver is unavailable, RecoverTaskOfEarlierAgent keeps the recorded process, and Run asks the
// driver later. When ctx is done, RecoverTaskOfEarlierAgent changes nothing more.
//
// The stored record and the answer of the driver determine the result: see startActions.
func (r *Runner) RecoverTaskOfEarlierAgent(ctx context.Context, facts RecoveryFacts) {
	(&recoverer{Runner: r}).recoverTaskOfEarlierAgent(ctx, facts)
}

// ResetToNewTask makes Run start the task as a new task, because its files are lost. Hooks keep their state, because
// they may have created resources elsewhere. It must be called between RecoverTaskOfEarlierAgent and Run, for a task
// without a process.
func (r *Runner) ResetToNewTask() {
	r.requests.cancelRerunRequest() // the new start fulfils the rerun request
	r.records.resetToNewTaskKeepingHookData()
	r.hooks.restoreHookEnvs()
}
