package taskrunner

import (
	"context"
	"errors"
	"time"

	"github.com/hashicorp/go-hclog"
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
	// DriverKnowsInterruptedStarts means that the driver knows a task even if the earlier agent died during StartTask: the plugin
	// process is still the same, or the driver searches for such tasks.
	DriverKnowsInterruptedStarts bool
	// DriverFindsTasksByName means that the driver can find a task by the names of the task and its allocation.
	DriverFindsTasksByName bool
}

// Started reports whether an earlier agent has called hooks for the task or has started it.
func (r *RestoredTask) Started() bool {
	local := &r.LocalState
	return len(local.Hooks) > 0 || local.StartID != "" || local.FirstPendingDestroy != nil || local.RunComplete ||
		r.TaskState != nil && r.TaskState.State != model.TaskPending
}

// Attachments returns the configurations of the hooks that an earlier agent had attached to the task, by hook name. It
// returns nil if there were none.
func (r *RestoredTask) Attachments() map[string]string {
	var attachments map[string]string
	for name, state := range r.LocalState.Hooks {
		if state.AttachmentJSON != "" {
			if attachments == nil {
				attachments = make(map[string]string)
			}
			attachments[name] = state.AttachmentJSON
		}
	}
	return attachments
}

// restoreRecords sets, for New, the state that an earlier agent has stored.
func (r *Runner) restoreRecords(was RestoredTask) {
	local, task := was.LocalState, was.TaskState
	r.records.restoreRecords(was)
	r.description.restoreCapabilities(local.Capabilities)
	r.taskUpdater.setDynamicUser(runnerhooks.WorkloadUserName(runnerhooks.WorkloadUserID(local.Hooks[runnerhooks.WorkloadUserHookName].Data)))
	r.restartDecider.restoreRestartTracker(local.RestartState)
	if local.Handle != nil && local.Exit == nil { // a stored Exit says already whether a restart was requested
		r.records.restartRequest = local.RestartRequest
	}
	if task == nil {
		return
	}
	if local.RestartRequest != nil && task.State == model.TaskDead && !task.Failed && !local.RunComplete {
		r.rerunRequests.restoreEarlierRequest(local.RestartRequest)
	}
	if task.Failed && task.State != model.TaskDead {
		r.killRequest.restoreEarlierKill() // the kill's event is stored, but the earlier agent did not finish the kill
	}
}

// Recover is called once, before Run, instead of FetchDriverDescription, for a runner with Config.RestoredTask. It recovers the process
// that an earlier agent left, unless the driver answers that it does not have the task. If an earlier agent died during
// StartTask, Recover asks the driver whether the start was executed. While the driver is unavailable, Recover keeps the
// recorded process, and Run asks the driver later. When ctx is done, Recover changes nothing more.
//
// The stored record and the answer of the driver determine the result: see startActions.
func (r *Runner) Recover(ctx context.Context, facts RecoveryFacts) {
	r.recoverer.recoverTask(ctx, facts)
}

// ResetToNewTask makes Run start the task as a new task, because its files are lost. Hooks keep their state, because they
// may have created resources elsewhere. It must be called between Recover and Run, for a task without a process.
func (r *Runner) ResetToNewTask() {
	r.rerunRequests.cancelRequest() // the new start fulfils the rerun request
	r.records.resetToNewTask()
	r.hooks.restoreHookEnvs()
}

// recoverer implements [Runner.Recover].
type recoverer struct {
	ref                     taskRef
	records                 *taskRecords
	dispense                dispenseDriverFunc
	callRecorder            driverCallRecorder
	pluginTaskTracker       *pluginTaskTracker
	description             *driverDescription
	destroyer               *destroyer
	currentProcess          *currentProcess
	interruptedStartAdopter *interruptedStartAdopter
	recoverTimeout          time.Duration // timeout of the recovery, counted from the time at which the driver has returned its description
	logger                  hclog.Logger
}

func (r *recoverer) recoverTask(ctx context.Context, facts RecoveryFacts) {
	local := &r.records.localState
	if local.RunComplete {
		return // a completed task needs no driver
	}
	ctx, cancel := r.fetchDescriptionAndNewRecoveryContext(ctx)
	defer cancel()
	task, _ := r.records.snapshot()
	if handle := local.Handle; handle != nil && handle.Config == nil {
		handle.Config = &driver.TaskConfig{ID: local.StartID, Name: r.ref.name, AllocID: r.ref.allocID}
	}
	record := classifyRecordedStart(local, task.State)
	answer, found, cause := r.queryStart(ctx, record, facts)
	switch action := startActionFor(record, answer); {
	case action == actionForget: // no driver is called, because some drivers would take an unrelated process with the same pid for the task
		local.FirstPendingDestroy = nil
	case record == recordID, record == recordRunningID, record == recordNextID:
		if !r.interruptedStartAdopter.applyStartQueryAnswer(record, answer, found, cause, !facts.DriverKnowsInterruptedStarts) || r.currentProcess.getProcess() != nil {
			return
		}
	case action == actionKeep, action == actionAdopt, action == actionAwait:
		return // recoverProcess has set the current process
	case action == actionMarkLost:
		d := state.PendingDestroy{StartID: r.ref.wildcardStartID(), NotFoundIsInconclusive: !facts.DriverFindsTasksByName}
		if local.Handle != nil {
			d = state.PendingDestroy{StartID: local.Handle.Config.ID, NotFoundIsInconclusive: local.HandleUnrecoverable}
		}
		if local.Handle != nil && !local.HandleUnrecoverable {
			d.Handle = local.Handle
		}
		r.destroyer.setPendingDestroy(d)
		r.interruptedStartAdopter.recordExitUnknown(cause)
	case action == actionDestroy && local.StartID != "":
		r.destroyer.setPendingDestroy(state.PendingDestroy{StartID: local.StartID, Handle: local.Handle, NotFoundIsInconclusive: local.Handle == nil && !facts.DriverKnowsInterruptedStarts})
	}
	local.NextStartID = "" // the start with this id was not executed, or is a pending destroy now
	if r.destroyer.destroyPendingStart(ctx) != nil {
		local.FirstPendingDestroy = pendingDestroyAfterPluginExit(local.FirstPendingDestroy, facts)
	}
	if task, _ = r.records.snapshot(); ctx.Err() != nil || task.State == model.TaskDead || local.Exit != nil {
		return
	}
	local.StartID, local.Handle, local.Network, local.HandleUnrecoverable = "", nil, nil, false
	r.records.clearRestartRequest()
	if task.State == model.TaskRunning {
		r.logger.Warn("task has ended with the machine, starting it again")
		r.records.setTaskState(state.DurabilitySync, model.TaskPending, model.EventRestoreFailed("the machine was booted since; the task is started again"))
	}
}

// queryStart returns what is known about the start that the record describes. For recordHandle it recovers the process,
// unless the driver answers that it does not have the task.
func (r *recoverer) queryStart(ctx context.Context, record recordedStart, facts RecoveryFacts) (startQueryAnswer, *foundTask, error) {
	switch {
	case facts.Rebooted:
		return answerReboot, nil, nil
	case record == recordHandle:
		answer, err := r.recoverProcess(ctx, r.records.localState.Handle)
		return answer, nil, err
	case record == recordLost:
		return answerUnknown, nil, errRecordLost
	case record == recordNoStart, record == recordEnded:
		return answerNone, nil, nil
	}
	return r.interruptedStartAdopter.queryStart(ctx, record)
}

// driverResponseTimeout is how long a recovery waits for the first answer of a driver.
const driverResponseTimeout = 2 * time.Second

// fetchDescriptionAndNewRecoveryContext fetches the driver's description, and returns the context for the recovery. The context is done already
// if the driver has not answered within driverResponseTimeout, because its plugin is still starting. An error of the driver
// is not reported here, because the description is fetched again when the task starts.
func (r *recoverer) fetchDescriptionAndNewRecoveryContext(ctx context.Context) (context.Context, context.CancelFunc) {
	limited, cancel := context.WithTimeout(ctx, driverResponseTimeout)
	if _ = r.description.fetchOnce(limited); limited.Err() != nil {
		return limited, cancel
	}
	cancel()
	return context.WithTimeout(ctx, r.recoverTimeout)
}

// pendingDestroyAfterPluginExit returns a copy of the pending destroy in which Uncertain is set as if the plugin process of the
// earlier agent had exited, because that process may exit before the next attempt.
func pendingDestroyAfterPluginExit(d *state.PendingDestroy, facts RecoveryFacts) *state.PendingDestroy {
	if d == nil {
		return nil
	}
	later := *d
	later.NotFoundIsInconclusive = d.Handle == nil && !facts.DriverFindsTasksByName
	later.Next = pendingDestroyAfterPluginExit(d.Next, facts)
	return &later
}

// errRecordLost means that the task state is running, but the record has no id and no handle with which the driver could
// find the task.
var errRecordLost = errors.New("its record was lost")

// recoverProcess recovers the process with this handle and makes it the current process. It also makes the process current
// if the driver is unavailable, with answerNone. It returns answerUnknown if the driver does not have the task.
func (r *recoverer) recoverProcess(ctx context.Context, handle *driver.Handle) (startQueryAnswer, error) {
	p := newProcess(handle, r.records.localState.Network, r.dispense, r.callRecorder)
	p.pluginTaskTracker, p.unrecoverable = r.pluginTaskTracker, r.records.localState.HandleUnrecoverable
	d, err := p.recoverTask(ctx)
	if errors.Is(err, driver.ErrPluginDown) && ctx.Err() == nil {
		d, err = p.recoverTask(ctx)
	}
	answer := answerTask
	switch {
	case err == nil && p.unrecoverable:
		answer = answerTaskWithoutHandle
	case err == nil:
		r.logger.Debug("task recovered", "task_id", p.id())
	case isTaskStateUnknown(err) || ctx.Err() != nil:
		r.logger.Warn("task not recovered yet", "task_id", p.id(), "error", err)
		p.noPluginHasConfirmedTask, answer = true, answerNone
	default:
		return answerUnknown, err
	}
	p.pluginTaskTracker.setPluginOfTask(p, d)
	r.currentProcess.setRecoveredProcess(p)
	return answer, nil
}
