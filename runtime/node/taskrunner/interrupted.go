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

// startAdopter decides about a start of an earlier agent that has no handle, because that agent or the plugin process has
// died during StartTask. It belongs to the goroutine of Run and, before Run, to the callers that prepare it.
type startAdopter struct {
	ref            taskRef
	records        *taskRecords
	processTracker *processTracker
	query          startQuery
	driverRecovery *driverRecovery
	description    *driverDescription
	configBuilder  *configBuilder
	hooks          *taskHooks
	destroyer      *destroyer
	restartDecider *restartDecider
	currentProcess *currentProcess
	reportOutage   func(error) // called once per outage of the driver
	logger         hclog.Logger

	undecided bool               // the driver has not answered yet, so Run asks it again
	config    *driver.TaskConfig // config of the start, built when the driver needs it
}

// classifyRecord returns what a record says about the last start.
func classifyRecord(local *state.LocalState, status string) startRecord {
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

// ask asks the driver about the start without a handle.
func (a *startAdopter) ask(ctx context.Context, record startRecord) (startAnswer, *foundTask, error) {
	local := &a.records.localState
	if record != recordNextID {
		return a.query.ask(ctx, local.StartID, a.config)
	}
	answer, found, err := a.query.ask(ctx, local.NextStartID, a.config)
	if answer == answerUnknown {
		// The driver destroys the former task before the next start. If it still has the former task, it did not start the next one.
		if before, _, _ := a.query.ask(ctx, local.StartID, nil); before == answerTask || before == answerTaskAlone {
			return answerNotExecuted, nil, nil
		}
	}
	return answer, found, err
}

// settle carries out the action for an answer, except that the driver destroys nothing yet. It returns false if
// the driver must be asked again. uncertain is stored with a start that the driver must destroy, see
// state.PendingDestroy.
func (a *startAdopter) settle(record startRecord, answer startAnswer, found *foundTask, cause error, uncertain bool) bool {
	action := startActionFor(record, answer)
	a.undecided = action == actionAsk
	if a.undecided {
		a.logger.Info("an interrupted start is not decided yet", "error", cause)
		return false
	}
	local := &a.records.localState
	if record == recordNextID && action != actionDestroy && !a.promoteNextStart() {
		return true
	}
	switch action {
	case actionAdopt, actionAwait:
		a.adopt(found, action == actionAwait)
	case actionLose:
		a.destroyer.set(state.PendingDestroy{ID: local.StartID, Uncertain: uncertain})
		a.recordLost(cause)
	case actionDestroy:
		a.destroyer.set(state.PendingDestroy{ID: local.StartID, Handle: local.Handle})
		local.NextStartID = ""
	case actionStart:
		a.logger.Info("an interrupted start has executed nothing, the task starts", "task_id", local.StartID)
		local.StartID = ""
	}
	return true
}

// promoteNextStart makes the start that follows a stored exit the current one: it was executed, so the earlier agent had
// decided about the exit. It returns false if the task does not run again now, because it was killed: then the start is
// to be destroyed.
func (a *startAdopter) promoteNextStart() bool {
	local := &a.records.localState
	next := local.NextStartID
	a.restartDecider.decide(local.Exit.RestartOutcome())
	if local.StartID == next {
		return true
	}
	a.destroyer.set(state.PendingDestroy{ID: next})
	return false
}

// adopt makes a task that the driver has the task of this runner. alone means that the driver has returned no handle.
func (a *startAdopter) adopt(found *foundTask, alone bool) {
	local, handle := &a.records.localState, found.handle
	if handle.Config == nil {
		handle.Config = &driver.TaskConfig{Name: a.ref.name, AllocID: a.ref.allocID}
		if a.config != nil {
			handle.Config = a.config
		}
	}
	handle.Config.ID = local.StartID
	local.Handle, local.Network, local.Unrecoverable = handleWithoutConfig(handle), found.status.NetworkOverride, alone
	_ = a.records.putLocalState(state.DurabilitySync) // a refused put is retried
	p := newProcess(handle, local.Network, a.query.dispense, a.query.calls)
	p.unrecoverable = alone
	p.driverRecovery = a.driverRecovery
	p.driverRecovery.set(p, found.driver)
	a.currentProcess.setRecovered(p)
	a.logger.Info("task of an interrupted start adopted", "task_id", local.StartID, "recoverable", !alone)
}

// recordLost records that the process of the start has ended with an unknown exit status.
func (a *startAdopter) recordLost(cause error) {
	a.logger.Warn("task not recovered", "task_id", a.records.localState.StartID, "error", cause)
	a.processTracker.noteExit(false)
	if id := a.records.localState.StartID; id != "" {
		task, _ := a.records.snapshot()
		a.query.calls.startRun(id, task.StartedAt).EndRun(exitUnknownText(cause), true)
	}
	a.records.localState.Exit = &state.ProcessExit{Lost: true, Error: exitUnknownText(cause)}
	_ = a.records.put(state.DurabilitySync, func(s *api.TaskState) bool { // a refused put is retried
		if request := a.records.restartReq; request != nil {
			a.records.localState.Exit.Asked, a.records.localState.Exit.Failure = true, request.Failure
		}
		a.records.appendEvent(s, model.EventRestoreFailed(exitUnknownText(cause)))
		return true
	})
}

// await blocks until it is decided what becomes of an interrupted start: the driver has answered, or the task was killed.
// It returns false if the agent shuts down before, and the record stays for the next agent.
func (a *startAdopter) await(killCtx, forceKillCtx context.Context) bool {
	var outage driverOutage
	for a.undecided && killCtx.Err() == nil {
		task, _ := a.records.snapshot()
		record := classifyRecord(&a.records.localState, task.State)
		answer, found, err := a.ask(killCtx, record)
		if errors.Is(err, errStartNotFound) && killCtx.Err() == nil {
			answer, found, err = a.search(killCtx, record)
		}
		switch {
		case a.settle(record, answer, found, err, false):
			_ = a.destroyer.try(killCtx) // the destroyer reports errors as an event, and retries
		case !outage.wait(killCtx, err, a.reportOutage):
		}
	}
	if !a.undecided {
		return true
	}
	if isShutdown(killCtx, forceKillCtx) {
		return false
	}
	a.abandon()
	return true
}

// search asks a plugin process that has not started the task, and needs the config to find it. Hooks in plugins are called
// only when the answer tells whether the task runs: the state has their responses for this start.
func (a *startAdopter) search(killCtx context.Context, record startRecord) (startAnswer, *foundTask, error) {
	if err := a.description.fetch(killCtx); err != nil {
		return answerNone, nil, err
	}
	a.hooks.prestartBuiltin(killCtx)
	if killCtx.Err() != nil {
		return answerNone, nil, context.Cause(killCtx)
	}
	config, err := a.configBuilder.build()
	if err != nil {
		return answerUnknown, nil, a.records.redactError(err)
	}
	a.config = config
	return a.ask(killCtx, record)
}

// abandon leaves an undecided start to be destroyed, because the task was killed.
func (a *startAdopter) abandon() {
	a.undecided = false
	local := &a.records.localState
	d := state.PendingDestroy{ID: local.StartID, Handle: local.Handle}
	if local.NextStartID != "" {
		d.Next = &state.PendingDestroy{ID: local.NextStartID}
		local.NextStartID = ""
	}
	a.destroyer.set(d)
	if local.Exit == nil {
		local.StartID = ""
	}
}
