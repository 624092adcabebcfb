package taskrunner

import (
	"time"

	"github.com/nomad-lite/nomad-lite/internal/failpoint"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/job/restart"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// clearDelayAndRecordRestartState clears the restart delay, because the task starts now, and copies the state of the
// tracker to the local state, which the next put stores.
func (t *taskRun) clearDelayAndRecordRestartState() {
	t.restartTracker.ClearDelay()
	t.records.localState.RestartState = t.restartTracker.State()
}

// predictRestart returns what decideRestartAndSetTaskState would decide now with this policy, without the jitter of the
// delay. A later kill, restart request or version of the task may change the decision.
func (t *taskRun) predictRestart(policy restart.Policy, outcome restart.RunOutcome) restart.Decision {
	outcome.Killed = t.requests.isKillRequested()
	tracker := restart.NewTracker(policy, time.Now(), func(int64) int64 { return 0 })
	tracker.RestoreState(t.restartTracker.State())
	return tracker.Decide(time.Now(), outcome)
}

// decideRestartAndSetTaskState applies the restart policy, and stores the decision with the state of the task. If the
// agent dies before the decision is on the disk, the next agent decides again, because the exit is stored.
// decideRestartAndSetTaskState belongs to the goroutine of Run and, before Run, to the callers that prepare it.
func (r *Runner) decideRestartAndSetTaskState(outcome restart.RunOutcome) restart.Decision {
	outcome.Killed = r.requests.isKillRequested()
	r.restartTracker.SetPolicy(r.Task().RestartPolicy)
	decision := r.restartTracker.Decide(time.Now(), outcome)
	local := &r.records.localState
	local.RestartState = r.restartTracker.State()
	next := local.NextStartID
	if decision.Action != restart.ActionRestart || decision.Delay > 0 || local.FirstPendingDestroy != nil {
		next = ""
	}
	if decision.Action == restart.ActionRestart && local.LastEnd != nil {
		decided := *local.LastEnd // a stored record is not changed
		decided.NextStart = local.RestartState.NextStart
		local.LastEnd = &decided
	}
	local.StartID, local.NextStartID, local.Handle, local.NetworkOverride, local.HandleUnrecoverable, local.UnhandledExit = next, "", nil, nil, false, nil

	switch decision.Action {
	case restart.ActionFinish:
		r.records.setTaskState(state.DurabilityAsync, model.TaskDead, nil)
	case restart.ActionKill:
		r.records.setTaskState(state.DurabilityAsync, model.TaskDead, r.requests.killedEventOrNil())
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
