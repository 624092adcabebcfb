package taskrunner

import (
	"context"
	"errors"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/job/restart"
	"github.com/nomad-lite/nomad-lite/runtime/node/taskrunner/taskdriver"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// recoverer recovers the task of an earlier agent: first for RecoverTaskOfEarlierAgent, then as a part of the run,
// which asks the driver again about an interrupted start. An interrupted start is a start that has no stored handle,
// because that agent or the plugin process died during StartTask. The recoverer belongs to the goroutine of Run and,
// before Run, to the callers that prepare it.
type recoverer struct {
	*Runner
	start processStart // interrupted start of an earlier agent, then the last start of the run
}

func (r *recoverer) recoverTaskOfEarlierAgent(ctx context.Context, facts RecoveryFacts) {
	local := &r.records.localState
	if local.RunComplete {
		return // a completed task needs no driver
	}
	r.restartReattachedPlugin = facts.RestartReattachedPlugin
	ctx, cancel := r.fetchDescriptionAndNewRecoveryContext(ctx)
	defer cancel()
	task := r.State()
	if handle := local.Handle; handle != nil && handle.Config == nil {
		handle.Config = &driver.TaskConfig{ID: local.StartID, Name: r.records.taskName, AllocID: r.records.alloc.ID}
	}
	record := classifyRecordedStart(local, task.State)
	answer, found, cause := r.recoverOrQueryStart(ctx, record, facts)
	action := startActionFor(record, answer)
	switch {
	case action == actionForget: // no driver is called, because some drivers would take an unrelated process with the same pid for the task
		local.FirstPendingDestroy = nil
	case record == recordID, record == recordRunningID, record == recordNextID:
		if !r.applyStartQueryAnswer(record, answer, found, cause, !facts.DriverKnowsInterruptedStarts) || r.requests.getProcess() != nil {
			return
		}
	case action == actionKeep, action == actionAdopt, action == actionAwait:
		return // recoverAndSetCurrentProcess has set the current process
	case action == actionMarkLost:
		d := state.PendingDestroy{StartID: r.records.wildcardStartID(), NotFoundIsInconclusive: !facts.DriverFindsTasksByName}
		if local.Handle != nil {
			d = state.PendingDestroy{StartID: local.Handle.Config.ID, NotFoundIsInconclusive: local.HandleUnrecoverable}
		}
		if local.Handle != nil && !local.HandleUnrecoverable {
			d.Handle = local.Handle
		}
		r.ender.setPendingDestroy(d)
		r.recordExitUnknown(cause)
	case action == actionDestroy && local.StartID != "":
		r.ender.setPendingDestroy(state.PendingDestroy{StartID: local.StartID, Handle: local.Handle, NotFoundIsInconclusive: local.Handle == nil && !facts.DriverKnowsInterruptedStarts})
	}
	local.NextStartID = "" // the start with this id was not executed, or is a pending destroy now
	if r.ender.destroyPendingStarts(ctx) != nil {
		local.FirstPendingDestroy = pendingDestroyAfterPluginExit(local.FirstPendingDestroy, facts)
	}
	answered := action == actionForget || ctx.Err() == nil // after a reboot no answer of a driver is needed
	if task = r.State(); !answered || task.State == model.TaskDead || local.UnhandledExit != nil {
		return
	}
	local.StartID, local.Handle, local.NetworkOverride, local.HandleUnrecoverable = "", nil, nil, false
	r.records.clearRestartRequest()
	if task.State == model.TaskRunning {
		local.LastEnd = nil
		r.logger.Warn("task has ended with the machine, starting it again")
		r.records.setTaskState(state.DurabilitySync, model.TaskPending, model.EventRestoreFailed("the machine was booted since; the task is started again"))
	}
}

// recoverOrQueryStart returns what is known about the start that the record describes. For recordHandle it recovers the
// process, unless the driver answers that it does not have the task.
func (r *recoverer) recoverOrQueryStart(ctx context.Context, record recordedStartState, facts RecoveryFacts) (taskdriver.Answer, *taskdriver.FoundTask, error) {
	switch {
	case facts.Rebooted:
		return taskdriver.AnswerReboot, nil, nil
	case record == recordHandle:
		answer, err := r.recoverAndSetCurrentProcess(ctx, r.records.localState.Handle)
		return answer, nil, err
	case record == recordLost:
		return taskdriver.AnswerUnknown, nil, errRecordLost
	case record == recordNoStart, record == recordEnded:
		return taskdriver.AnswerNone, nil, nil
	}
	return r.queryStartOrRestartPlugin(ctx, record)
}

// driverResponseTimeout is how long a recovery waits for the first answer of a driver.
const driverResponseTimeout = 2 * time.Second

// fetchDescriptionAndNewRecoveryContext fetches the driver's description, and returns the context for the recovery. The
// context is done already if the driver has not answered within driverResponseTimeout, because its plugin is still
// starting. An error of the driver is not reported here, because the description is fetched again when the task starts.
func (r *recoverer) fetchDescriptionAndNewRecoveryContext(ctx context.Context) (context.Context, context.CancelFunc) {
	limited, cancel := context.WithTimeout(ctx, driverResponseTimeout)
	if _ = r.FetchDriverDescription(limited, false); limited.Err() != nil {
		return limited, cancel
	}
	cancel()
	return context.WithTimeout(ctx, r.hooks.callLimits.StartHookPointTimeout)
}

// pendingDestroyAfterPluginExit returns a copy of a pending destroy for the next attempt. The plugin process that has
// started the task may exit before, and the next plugin process finds a start only by its handle or by its names.
// Without these, the answer "not found" of that process is inconclusive.
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

// recoverAndSetCurrentProcess recovers the process with this handle and makes it the current process. It also makes the
// process current if the driver is unavailable, with taskdriver.AnswerNone. It returns taskdriver.AnswerUnknown if the
// driver does not have the task.
func (r *recoverer) recoverAndSetCurrentProcess(ctx context.Context, handle *driver.Handle) (taskdriver.Answer, error) {
	p := r.driver.NewProcess(handle, r.records.localState.NetworkOverride)
	p.Unrecoverable = r.records.localState.HandleUnrecoverable
	d, err := p.RecoverTask(ctx)
	if errors.Is(err, driver.ErrPluginDown) && ctx.Err() == nil {
		d, err = p.RecoverTask(ctx)
	}
	answer := taskdriver.AnswerTask
	switch {
	case err == nil && p.Unrecoverable:
		answer = taskdriver.AnswerTaskWithoutHandle
	case err == nil:
		r.logger.Debug("task recovered", "task_id", p.ID())
	case taskdriver.IsTaskStateUnknown(err) || ctx.Err() != nil:
		r.logger.Warn("task not recovered yet", "task_id", p.ID(), "error", err)
		p.NoPluginHasConfirmedTask, answer = true, taskdriver.AnswerNone
	default:
		return taskdriver.AnswerUnknown, err
	}
	r.driver.Plugins.SetPluginOfTask(p, d)
	r.requests.setRecoveredProcess(p)
	return answer, nil
}

// classifyRecordedStart returns what a record says about the last start.
func classifyRecordedStart(local *state.LocalState, taskState string) recordedStartState {
	switch {
	case local.UnhandledExit != nil && local.NextStartID != "":
		return recordNextID
	case local.UnhandledExit != nil || taskState == model.TaskDead:
		return recordEnded
	case local.Handle != nil:
		return recordHandle
	case local.StartID != "" && taskState == model.TaskRunning:
		return recordRunningID
	case local.StartID != "":
		return recordID
	case taskState == model.TaskRunning:
		return recordLost
	}
	return recordNoStart
}

// queryStartOrRestartPlugin asks the driver whether the interrupted start was executed. If a driver that is not made
// with package sdk does not know the start, and its plugin process was launched by an earlier agent,
// queryStartOrRestartPlugin restarts the plugin.
func (r *recoverer) queryStartOrRestartPlugin(ctx context.Context, record recordedStartState) (taskdriver.Answer, *taskdriver.FoundTask, error) {
	local := &r.records.localState
	id := local.StartID
	if record == recordNextID {
		id = local.NextStartID
	}
	answer, found, err := r.driver.QueryStartOrSearchTask(ctx, id, r.start.config)
	if answer == taskdriver.AnswerUnknown && record == recordNextID {
		// The agent lets the driver destroy a task before the next start. If the driver still has the former task, the
		// next start was not executed.
		if before, _, _ := r.driver.QueryStartOrSearchTask(ctx, local.StartID, nil); before == taskdriver.AnswerTask || before == taskdriver.AnswerTaskWithoutHandle {
			return taskdriver.AnswerNotExecuted, nil, nil
		}
	}
	if errors.Is(err, taskdriver.ErrStartUnknown) && record != recordRunningID && r.restartReattachedPlugin != nil {
		// Such a driver does not know a task whose StartTask has not returned. The process may still execute the call
		// of the earlier agent, and would complete it beside the next start.
		if restartErr := r.restartReattachedPlugin(ctx); restartErr != nil {
			return taskdriver.AnswerNone, nil, restartErr
		}
		r.pluginRestarted = true
	}
	return answer, found, err
}

// applyStartQueryAnswer does what startActions say for an answer. It only records a start that the driver must destroy;
// the caller calls destroyPendingStarts. It returns false if the driver must be asked again. destroyUncertain becomes the
// field NotFoundIsInconclusive of the state.PendingDestroy of a lost start.
func (r *recoverer) applyStartQueryAnswer(record recordedStartState, answer taskdriver.Answer, found *taskdriver.FoundTask, cause error, destroyUncertain bool) (decided bool) {
	action := startActionFor(record, answer)
	r.startUndecided = action == actionAsk
	if r.startUndecided {
		r.logger.Info("an interrupted start is not decided yet", "error", cause)
		return false
	}
	local := &r.records.localState
	if record == recordNextID && action != actionDestroy && !r.makeNextStartCurrentUnlessKilled() {
		return true
	}
	switch action {
	case actionAdopt, actionAwait:
		r.adoptTask(found, action == actionAwait)
	case actionMarkLost:
		r.ender.setPendingDestroy(state.PendingDestroy{StartID: local.StartID, NotFoundIsInconclusive: destroyUncertain || r.pluginRestarted})
		r.recordExitUnknown(cause)
	case actionDestroy:
		r.ender.setPendingDestroy(state.PendingDestroy{StartID: local.StartID, Handle: local.Handle})
		local.NextStartID = ""
	case actionStart:
		r.logger.Info("an interrupted start has executed nothing, the task starts", "task_id", local.StartID)
		local.StartID = ""
	}
	return true
}

// makeNextStartCurrentUnlessKilled makes the start that follows a stored exit the current one. That start may have been
// executed, so the earlier agent had decided to restart the task. It returns false if the restart policy does not
// restart the task now, because the task was killed: then it records that the driver must destroy the start.
func (r *recoverer) makeNextStartCurrentUnlessKilled() bool {
	local := &r.records.localState
	next := local.NextStartID
	r.decideRestartAndSetTaskState(local.UnhandledExit.Outcome())
	if local.StartID == next {
		return true
	}
	r.ender.setPendingDestroy(state.PendingDestroy{StartID: next})
	return false
}

// adoptTask makes a task that the driver has found the current process of this runner, and stores its handle.
// withoutHandle means that the driver has returned no handle, so the task cannot be recovered.
func (r *recoverer) adoptTask(found *taskdriver.FoundTask, withoutHandle bool) {
	local, handle := &r.records.localState, found.Handle
	if handle.Config == nil {
		handle.Config = &driver.TaskConfig{Name: r.records.taskName, AllocID: r.records.alloc.ID}
		if r.start.config != nil {
			handle.Config = r.start.config
		}
	}
	handle.Config.ID = local.StartID
	local.Handle, local.NetworkOverride, local.HandleUnrecoverable = handleWithoutDriverConfig(handle), found.Status.NetworkOverride, withoutHandle
	_ = r.records.storeBothRecords(state.DurabilitySync) // a failed put is retried
	p := r.driver.NewProcess(handle, local.NetworkOverride)
	p.Unrecoverable = withoutHandle
	r.driver.Plugins.SetPluginOfTask(p, found.Driver)
	r.requests.setRecoveredProcess(p)
	r.logger.Info("task of an interrupted start adopted", "task_id", local.StartID, "recoverable", !withoutHandle)
}

// recordExitUnknown records that the process of the start has ended with an unknown exit status.
func (r *recoverer) recordExitUnknown(cause error) {
	r.logger.Warn("task not recovered", "task_id", r.records.localState.StartID, "error", cause)
	r.requests.recordProcessEnd(false)
	local := &r.records.localState
	_ = r.records.changeAndAlwaysStoreBothRecords(state.DurabilitySync, func(s *api.TaskState) bool { // a failed put is retried
		local.UnhandledExit = r.records.recordEndLocked(restart.RunEnd{StatusUnknown: true, Error: exitStatusUnknownText(cause)}, r.requests.isKillRequested())
		r.records.redactAndAppendEvent(s, model.EventRestoreFailed(exitStatusUnknownText(cause)))
		return true
	})
	if local.StartID != "" {
		task := r.State()
		r.driver.StartRunSpan(local.StartID, task.StartedAt).EndRun(exitStatusUnknownText(cause), local.UnhandledExit)
	}
}

// queryEarlierStartOnce asks the driver about an interrupted start. If the driver does not answer,
// queryEarlierStartOnce waits until it may be asked again or killCtx is done, and returns false.
func (r *recoverer) queryEarlierStartOnce(killCtx context.Context) (decided bool) {
	task := r.State()
	record := classifyRecordedStart(&r.records.localState, task.State)
	answer, found, err := r.queryStartOrRestartPlugin(killCtx, record)
	if errors.Is(err, taskdriver.ErrStartNotFound) && killCtx.Err() == nil {
		answer, found, err = r.buildConfigAndQueryStart(killCtx, record)
	}
	if !r.applyStartQueryAnswer(record, answer, found, err, false) {
		r.start.outage.AwaitRetryUnlessDone(killCtx, err, r.driver.ReportOutage)
		return false
	}
	_ = r.ender.destroyPendingStarts(killCtx) // destroyPendingStarts reports errors as an event; later steps retry
	return true
}

// buildConfigAndQueryStart asks a plugin process that has not started the task, and that needs the config of the start
// to find it. It calls the builtin Prestart hooks to build the config. It does not call hooks in plugins, whose stored
// responses are those for this start.
func (r *recoverer) buildConfigAndQueryStart(killCtx context.Context, record recordedStartState) (taskdriver.Answer, *taskdriver.FoundTask, error) {
	if err := r.FetchDriverDescription(killCtx, false); err != nil {
		return taskdriver.AnswerNone, nil, err
	}
	_ = r.hooks.callPrestartHooks(killCtx, true, true) // errors of Prestart hooks are reported as events
	if killCtx.Err() != nil {
		return taskdriver.AnswerNone, nil, context.Cause(killCtx)
	}
	config, err := r.buildTaskConfig()
	if err != nil {
		return taskdriver.AnswerUnknown, nil, r.records.secrets.Error(err)
	}
	r.start.config = config
	return r.queryStartOrRestartPlugin(killCtx, record)
}

// setPendingDestroyOfUndecidedStart records that the driver must destroy an undecided start, because the task was
// killed.
func (r *recoverer) setPendingDestroyOfUndecidedStart() {
	r.startUndecided = false
	local := &r.records.localState
	d := state.PendingDestroy{StartID: local.StartID, Handle: local.Handle}
	if local.NextStartID != "" {
		d.Next = &state.PendingDestroy{StartID: local.NextStartID}
		local.NextStartID = ""
	}
	r.ender.setPendingDestroy(d)
	if local.UnhandledExit == nil {
		local.StartID = ""
	}
}
