package taskrunner

import (
	"math/rand/v2"
	"time"

	"github.com/nomad-lite/nomad-lite/internal/failpoint"
	"github.com/nomad-lite/nomad-lite/runtime/core/record"
	"github.com/nomad-lite/nomad-lite/runtime/core/restart"
)

// decideRestart applies the restart policy, and stores the decision with the task's state. If the agent dies before the decision
// is on the disk, the next agent decides again, because the exit is stored. nextMayRun is record.Decided.NextMayRun.
func (r *Runner) decideRestart(outcome restart.RunOutcome, nextMayRun bool) restart.Decision {
	fact := record.Decided{
		Now: time.Now(), Policy: r.Task().RestartPolicy, Outcome: outcome, RandomInt64N: rand.Int64N, KilledEvent: r.records.redacted(r.requests.killedEventOrNil()),
		NextMayRun: nextMayRun,
	}
	restarts := r.records.current().PredictedDecision(fact.Now, fact.Policy, outcome).Action == restart.ActionRestart
	if restarts {
		point := failpoint.EnterStep(failpoint.StepRestartDelay)
		defer point.Leave()
	}
	change := r.records.commit(fact)
	switch decision := change.Decision; decision.Action {
	case restart.ActionGiveUp:
		r.logger.Info("not restarting", "reason", decision.Reason)
	case restart.ActionRestart:
		r.logger.Info("restarting", "reason", decision.Reason, "delay", decision.Delay)
	}
	return change.Decision
}
