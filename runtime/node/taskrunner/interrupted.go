package taskrunner

import (
	"context"
	"errors"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// interruptedStartAdopter decides about an interrupted start: a start of an earlier agent that has no stored handle, because that agent or
// the plugin process died during StartTask. It belongs to the goroutine of Run and, before Run, to the callers that prepare it.
type interruptedStartAdopter struct {
	ref               taskRef
	records           *taskRecords
	processTracker    *processTracker
	startQuery        startQuery
	pluginTaskTracker *pluginTaskTracker
	description       *driverDescription
	configBuilder     *taskConfigBuilder
	hooks             *taskHooks
	destroyer         *destroyer
	restartDecider    *restartDecider
	currentProcess    *currentProcess
	reportOutage      func(error) // emits the event for an outage of the driver; called once per outage
	logger            hclog.Logger

	startUndecided bool               // the driver has not answered yet whether the start was executed, so Run asks again
	startConfig    *driver.TaskConfig // config of the start; nil until queryStartWithConfig builds it
}

// classifyRecordedStart returns what a record says about the last start.
func classifyRecordedStart(local *state.LocalState, status string) recordedStart {
	switch {
	case local.Exit != nil && local.NextStartID != "":
		return recordNextID
	case local.Exit != nil || status == model.TaskDead:
		return recordEnded
	case local.Handle != nil:
		return recordHandle
	case local.StartID != "" && status == model.TaskRunning:
		return recordRunningID
	case local.StartID != "":
		return recordID
	case status == model.TaskRunning:
		return recordLost
	}
	return recordNoStart
}

// queryStart asks the driver whether the interrupted start was executed.
func (a *interruptedStartAdopter) queryStart(ctx context.Context, record recordedStart) (startQueryAnswer, *foundTask, error) {
	local := &a.records.localState
	if record != recordNextID {
		return a.startQuery.queryStart(ctx, local.StartID, a.startConfig)
	}
	answer, found, err := a.startQuery.queryStart(ctx, local.NextStartID, a.startConfig)
	if answer == answerUnknown {
		// The agent lets the driver destroy a task before the next start. If the driver still has the former task, the next
		// start was not executed.
		if before, _, _ := a.startQuery.queryStart(ctx, local.StartID, nil); before == answerTask || before == answerTaskWithoutHandle {
			return answerNotExecuted, nil, nil
		}
	}
	return answer, found, err
}

// applyStartQueryAnswer does what startActions say for an answer. It only records a start that the driver must destroy; the caller calls
// the destroyer. It returns false if the driver must be asked again. destroyUncertain becomes the field Uncertain of the
// state.PendingDestroy of a lost start.
func (a *interruptedStartAdopter) applyStartQueryAnswer(record recordedStart, answer startQueryAnswer, found *foundTask, cause error, destroyUncertain bool) bool {
	action := startActionFor(record, answer)
	a.startUndecided = action == actionAsk
	if a.startUndecided {
		a.logger.Info("an interrupted start is not decided yet", "error", cause)
		return false
	}
	local := &a.records.localState
	if record == recordNextID && action != actionDestroy && !a.makeNextStartCurrent() {
		return true
	}
	switch action {
	case actionAdopt, actionAwait:
		a.adoptTask(found, action == actionAwait)
	case actionMarkLost:
		a.destroyer.setPendingDestroy(state.PendingDestroy{StartID: local.StartID, NotFoundIsInconclusive: destroyUncertain})
		a.recordExitUnknown(cause)
	case actionDestroy:
		a.destroyer.setPendingDestroy(state.PendingDestroy{StartID: local.StartID, Handle: local.Handle})
		local.NextStartID = ""
	case actionStart:
		a.logger.Info("an interrupted start has executed nothing, the task starts", "task_id", local.StartID)
		local.StartID = ""
	}
	return true
}

// makeNextStartCurrent makes the start that follows a stored exit the current one. That start may have been executed, so the earlier
// agent had decided to restart the task. It returns false if the restart policy does not restart the task now, because the task
// was killed: then it records that the driver must destroy the start.
func (a *interruptedStartAdopter) makeNextStartCurrent() bool {
	local := &a.records.localState
	next := local.NextStartID
	a.restartDecider.decideAndRecord(local.Exit.RestartOutcome())
	if local.StartID == next {
		return true
	}
	a.destroyer.setPendingDestroy(state.PendingDestroy{StartID: next})
	return false
}

// adoptTask makes a task that the driver has found the current process of this runner, and stores its handle. withoutHandle means
// that the driver has returned no handle, so the task cannot be recovered.
func (a *interruptedStartAdopter) adoptTask(found *foundTask, withoutHandle bool) {
	local, handle := &a.records.localState, found.handle
	if handle.Config == nil {
		handle.Config = &driver.TaskConfig{Name: a.ref.name, AllocID: a.ref.allocID}
		if a.startConfig != nil {
			handle.Config = a.startConfig
		}
	}
	handle.Config.ID = local.StartID
	local.Handle, local.Network, local.HandleUnrecoverable = handleWithoutConfig(handle), found.status.NetworkOverride, withoutHandle
	_ = a.records.putLocalState(state.DurabilitySync) // a failed put is retried
	p := newProcess(handle, local.Network, a.startQuery.dispense, a.startQuery.callRecorder)
	p.unrecoverable = withoutHandle
	p.pluginTaskTracker = a.pluginTaskTracker
	p.pluginTaskTracker.setPluginOfTask(p, found.driver)
	a.currentProcess.setRecoveredProcess(p)
	a.logger.Info("task of an interrupted start adopted", "task_id", local.StartID, "recoverable", !withoutHandle)
}

// recordExitUnknown records that the process of the start has ended with an unknown exit status.
func (a *interruptedStartAdopter) recordExitUnknown(cause error) {
	a.logger.Warn("task not recovered", "task_id", a.records.localState.StartID, "error", cause)
	a.processTracker.recordProcessEnd(false)
	if id := a.records.localState.StartID; id != "" {
		task, _ := a.records.snapshot()
		a.startQuery.callRecorder.startRunSpan(id, task.StartedAt).EndRun(exitUnknownText(cause), true)
	}
	a.records.localState.Exit = &state.ProcessExit{Lost: true, Error: exitUnknownText(cause)}
	_ = a.records.changeAndPutBothRecords(state.DurabilitySync, func(s *api.TaskState) bool { // a failed put is retried
		if request := a.records.restartRequest; request != nil {
			a.records.localState.Exit.Asked, a.records.localState.Exit.Failure = true, request.Failure
		}
		a.records.appendEvent(s, model.EventRestoreFailed(exitUnknownText(cause)))
		return true
	})
}

// awaitStartDecision asks the driver about an interrupted start until it has answered or the task was killed. It returns false if the
// agent shuts down first: then the record stays as it is for the next agent.
func (a *interruptedStartAdopter) awaitStartDecision(killCtx, forceKillCtx context.Context) bool {
	var outage driverOutage
	for a.startUndecided && killCtx.Err() == nil {
		task, _ := a.records.snapshot()
		record := classifyRecordedStart(&a.records.localState, task.State)
		answer, found, err := a.queryStart(killCtx, record)
		if errors.Is(err, errStartNotFound) && killCtx.Err() == nil {
			answer, found, err = a.queryStartWithConfig(killCtx, record)
		}
		switch {
		case a.applyStartQueryAnswer(record, answer, found, err, false):
			_ = a.destroyer.destroyPendingStart(killCtx) // the destroyer reports errors as an event, and retries
		case !outage.awaitRetry(killCtx, err, a.reportOutage):
		}
	}
	if !a.startUndecided {
		return true
	}
	if isAgentShutdown(killCtx, forceKillCtx) {
		return false
	}
	a.abandonUndecidedStart()
	return true
}

// queryStartWithConfig asks a plugin process that has not started the task, and that needs the config of the start to find it. It calls
// the builtin Prestart hooks to build the config. It does not call hooks in plugins, whose stored responses are those for this
// start.
func (a *interruptedStartAdopter) queryStartWithConfig(killCtx context.Context, record recordedStart) (startQueryAnswer, *foundTask, error) {
	if err := a.description.fetchOnce(killCtx); err != nil {
		return answerNone, nil, err
	}
	a.hooks.callBuiltinPrestartHooks(killCtx)
	if killCtx.Err() != nil {
		return answerNone, nil, context.Cause(killCtx)
	}
	config, err := a.configBuilder.buildTaskConfig()
	if err != nil {
		return answerUnknown, nil, a.records.redactError(err)
	}
	a.startConfig = config
	return a.queryStart(killCtx, record)
}

// abandonUndecidedStart records that the driver must destroy an undecided start, because the task was killed.
func (a *interruptedStartAdopter) abandonUndecidedStart() {
	a.startUndecided = false
	local := &a.records.localState
	d := state.PendingDestroy{StartID: local.StartID, Handle: local.Handle}
	if local.NextStartID != "" {
		d.Next = &state.PendingDestroy{StartID: local.NextStartID}
		local.NextStartID = ""
	}
	a.destroyer.setPendingDestroy(d)
	if local.Exit == nil {
		local.StartID = ""
	}
}
