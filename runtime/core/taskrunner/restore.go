package taskrunner

import (
	"context"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/core/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/core/record"
)

// RestoredTask holds the record of a task that an earlier agent ran. The caller of New must not change it afterwards.
type RestoredTask struct {
	Fields    record.Fields
	TaskState *api.TaskState // the task's stored state; nil if there is none
}

// RecoveryFacts describes what the agent knows about an earlier agent's tasks.
type RecoveryFacts struct {
	// Rebooted means the machine has rebooted: no earlier process exists, and a process with the same pid is unrelated.
	Rebooted bool
	// DriverKnowsInterruptedStarts means the driver knows a task even if the earlier agent died during StartTask: the plugin
	// process is still the same, or the driver searches for such tasks.
	DriverKnowsInterruptedStarts bool
	// DriverFindsTasksByName means the driver can find a task by the names of the task and its allocation.
	DriverFindsTasksByName bool
	// RestartReattachedPlugin replaces the driver's plugin process if an earlier agent has launched it, and returns when that
	// process has exited. It does nothing for a builtin driver. It may be nil.
	RestartReattachedPlugin func(context.Context) error
}

// HooksCalledOrStarted reports whether an earlier agent has called hooks for the task or has started it.
func (r *RestoredTask) HooksCalledOrStarted() bool { return r.record().HooksCalledOrStarted() }

// AttachmentJSONByHookName returns the configurations of hooks attached to the task by an earlier agent, by hook name. It returns
// nil if there were none.
func (r *RestoredTask) AttachmentJSONByHookName() map[string]string {
	return r.record().AttachmentJSONByHookName()
}

func (r *RestoredTask) record() record.Record {
	return record.Restore(time.Now(), r.Fields, r.TaskState)
}

// restoreFromEarlierAgent sets, for New, the record stored by an earlier agent.
func (r *Runner) restoreFromEarlierAgent(restored RestoredTask) {
	if handle := restored.Fields.Handle; handle != nil && handle.Config == nil {
		withConfig := *handle
		withConfig.Config = &driver.TaskConfig{ID: restored.Fields.StartID, Name: r.records.taskName, AllocID: r.records.alloc.ID}
		restored.Fields.Handle = &withConfig
	}
	current := restored.record()
	fields := current.Fields()
	r.records.record = current
	r.records.env.SetDirs(r.hooks.dir, driver.FSIsolationNone) // setCapabilitiesAndEnvDirs replaces the directories when the driver's isolation is known
	if fields.LastKnownCapabilities != nil {
		r.setCapabilitiesAndEnvDirs(fields.LastKnownCapabilities)
	}
	r.SetDynamicUser(hooks.WorkloadUserNameOrEmpty(hooks.StoredWorkloadUserID(current.HookState(hooks.WorkloadUserHookName).Data)))
	if current.IsRerunRequestedByEarlierAgent() {
		r.requests.restoreEarlierRerunRequest()
	}
	if current.IsKilled() {
		r.requests.restoreEarlierKill() // the kill's event is stored, but the earlier agent did not finish the kill
	}
}

// RecoverTaskOfEarlierAgent is called once, before Run, instead of FetchDriverDescription, for a runner with Config.RestoredTask.
// It recovers the process left by an earlier agent, unless the driver answers that it does not have the task. If an earlier agent
// died during StartTask, RecoverTaskOfEarlierAgent asks the driver whether the start was executed. While the driver is
// unavailable, RecoverTaskOfEarlierAgent keeps the recorded process, and Run asks the driver later. When ctx is done,
// RecoverTaskOfEarlierAgent changes nothing more.
//
// The stored record and the driver's answer determine the result: see startActions.
func (r *Runner) RecoverTaskOfEarlierAgent(ctx context.Context, facts RecoveryFacts) {
	(&recoverer{Runner: r}).recoverTaskOfEarlierAgent(ctx, facts)
}

// ResetToNewTask makes Run start the task as a new task, because its files are lost. Hooks keep their state, because
// they may have created resources elsewhere. It must be called between RecoverTaskOfEarlierAgent and Run, for a task
// without a process.
func (r *Runner) ResetToNewTask() {
	r.requests.cancelRerunRequest() // the new start fulfils the rerun request
	r.records.commit(record.FilesLost{Now: time.Now()})
	r.hooks.restoreHookEnvs()
}
