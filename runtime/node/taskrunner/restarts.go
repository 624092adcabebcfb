package taskrunner

import (
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/internal/failpoint"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/job/restart"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// restartDecider applies the restart policy of the task. It belongs to the goroutine of Run and,
// before Run, to the callers that prepare it.
type restartDecider struct {
	restartTracker *restart.Tracker
	records        *taskRecords
	killRequest    *killRequest
	task           func() Task
	logger         hclog.Logger
}

// restoreRestartTracker sets the restart attempts that an earlier agent has counted.
func (r *restartDecider) restoreRestartTracker(stored restart.State) {
	if !stored.WindowStart.IsZero() {
		r.restartTracker.RestoreState(stored)
	}
}

// recordRestartStateAtStart clears the restart delay, because the task starts now, and copies the state of the tracker to the
// local state, which the next put stores.
func (r *restartDecider) recordRestartStateAtStart() {
	r.restartTracker.ClearDelay()
	r.records.localState.RestartState = r.restartTracker.State()
}

// predictRestartDecision returns what decideAndRecord would decide now, without the jitter of the delay. A later kill, restart
// request or version of the task may change the decision.
func (r *restartDecider) predictRestartDecision(outcome restart.Outcome) restart.Decision {
	outcome.Killed = r.killRequest.isRequested()
	tracker := restart.NewTracker(r.task().RestartPolicy, time.Now(), func(int64) int64 { return 0 })
	tracker.RestoreState(r.restartTracker.State())
	return tracker.Decide(time.Now(), outcome)
}

// willRestart reports whether predictRestartDecision restarts the task after this outcome.
func (r *restartDecider) willRestart(outcome restart.Outcome) bool {
	return r.predictRestartDecision(outcome).Action == restart.ActionRestart
}

// decideAndRecord applies the restart policy, and stores the decision with the state of the task. If the agent dies before
// the decision is on the disk, the next agent decides again, because the exit is stored.
func (r *restartDecider) decideAndRecord(outcome restart.Outcome) restart.Decision {
	outcome.Killed = r.killRequest.isRequested()
	r.restartTracker.SetPolicy(r.task().RestartPolicy)
	decision := r.restartTracker.Decide(time.Now(), outcome)
	local := &r.records.localState
	local.RestartState = r.restartTracker.State()
	next := local.NextStartID
	if decision.Action != restart.ActionRestart || decision.Delay > 0 || local.FirstPendingDestroy != nil {
		next = ""
	}
	local.StartID, local.NextStartID, local.Handle, local.Network, local.HandleUnrecoverable, local.Exit = next, "", nil, nil, false, nil

	switch decision.Action {
	case restart.ActionFinish:
		r.records.setTaskState(state.DurabilityAsync, model.TaskDead, nil)
	case restart.ActionKill:
		r.records.setTaskState(state.DurabilityAsync, model.TaskDead, r.killRequest.killedEvent())
	case restart.ActionGiveUp:
		r.logger.Info("not restarting", "reason", decision.Reason)
		r.records.setTaskState(state.DurabilityAsync, model.TaskDead, model.EventNotRestarting(decision.Reason))
	case restart.ActionRestart:
		r.logger.Info("restarting", "reason", decision.Reason, "delay", decision.Delay)
		point := failpoint.EnterStep(failpoint.StepRestartDelay)
		r.records.setTaskState(state.DurabilityAsync, model.TaskPending, model.EventRestarting(decision.Reason, decision.Delay))
		point.Leave()
	}
	return decision
}

// startRerun makes a dead task pending again, for a requested rerun. It reports whether the restart policy allows the
// rerun.
func (r *restartDecider) startRerun() bool {
	r.records.resetDeadTaskState()
	defer r.records.clearRestartRequest()
	return r.decideAndRecord(restart.Outcome{RestartRequested: true}).Action == restart.ActionRestart
}

// dropUnusedStartID removes the stored id of a start for which StartTask was not called, so that the next agent does not
// search for its processes.
func (r *restartDecider) dropUnusedStartID() {
	local := &r.records.localState
	switch {
	case local.NextStartID != "":
		local.NextStartID = ""
	case local.StartID != "" && local.Handle == nil && local.Exit == nil:
		local.StartID = ""
	default:
		return
	}
	r.records.putLocalState(state.DurabilityAsync)
}
