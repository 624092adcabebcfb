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
	tracker     *restart.Tracker
	records     *taskRecords
	killRequest *killRequest
	task        func() Task
	logger      hclog.Logger
}

// restoreTracker sets the restart attempts that an earlier agent has counted.
func (r *restartDecider) restoreTracker(stored restart.State) {
	if !stored.WindowStart.IsZero() {
		r.tracker.Resume(stored)
	}
}

// recordRestartState clears the restart delay, because the task starts now, and copies the state of the tracker to the
// local state, which the next put stores.
func (r *restartDecider) recordRestartState() {
	r.tracker.ClearDelay()
	r.records.localState.Restart = r.tracker.State()
}

// predictDecision returns what decideAndRecord would decide now, without the jitter of the delay. A later kill, restart
// request or version of the task may change the decision.
func (r *restartDecider) predictDecision(outcome restart.Outcome) restart.Decision {
	outcome.Killed = r.killRequest.isRequested()
	tracker := restart.New(r.task().Restart, time.Now(), func(int64) int64 { return 0 })
	tracker.Resume(r.tracker.State())
	return tracker.Decide(time.Now(), outcome)
}

// willRestart reports whether predictDecision restarts the task after this outcome.
func (r *restartDecider) willRestart(outcome restart.Outcome) bool {
	return r.predictDecision(outcome).Action == restart.ActionRestart
}

// decideAndRecord applies the restart policy, and stores the decision with the state of the task. If the agent dies before
// the decision is on the disk, the next agent decides again, because the exit is stored.
func (r *restartDecider) decideAndRecord(outcome restart.Outcome) restart.Decision {
	outcome.Killed = r.killRequest.isRequested()
	r.tracker.SetPolicy(r.task().Restart)
	decision := r.tracker.Decide(time.Now(), outcome)
	local := &r.records.localState
	local.Restart = r.tracker.State()
	next := local.NextStartID
	if decision.Action != restart.ActionRestart || decision.Delay > 0 || local.Destroy != nil {
		next = ""
	}
	local.StartID, local.NextStartID, local.Handle, local.Network, local.Unrecoverable, local.Exit = next, "", nil, nil, false, nil

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
	r.records.resetFinishedState()
	defer r.records.clearRestartRequest()
	return r.decideAndRecord(restart.Outcome{Requested: true}).Action == restart.ActionRestart
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
