package allocrunner

import (
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/core"
	"github.com/nomad-lite/nomad-lite/runtime/core/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskrunner"
	"github.com/nomad-lite/nomad-lite/runtime/core/timeline"
	"github.com/nomad-lite/nomad-lite/runtime/job/health"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// newHealthHook returns the builtin hook that watches the allocation's health.
func (a *allocTasks) newHealthHook(events timeline.Recorder) *hooks.HealthHook {
	return hooks.NewHealthHook(hooks.HealthHookConfig{
		NewParams: func() (health.Params, bool) {
			alloc := a.state.allocUnlessHealthKnown()
			if alloc == nil {
				return health.Params{}, false
			}
			return healthParams(alloc)
		},
		Snapshot: func() (snapshot health.Snapshot, reconciled, checksChanged <-chan struct{}) {
			reconciled = a.state.nextReconcileDone()
			snapshot, checksChanged = a.newHealthSnapshot()
			return snapshot, reconciled, checksChanged
		},
		OnVerdict: func(v health.Verdict) { a.recordVerdict(v, events) },
	})
}

// newHealthSnapshot returns the input for health.Evaluate. checksChanged is closed when check results change.
func (a *allocTasks) newHealthSnapshot() (snapshot health.Snapshot, checksChanged <-chan struct{}) {
	status, alloc := a.currentStatus(), a.state.currentAlloc()
	results, ready, checksChanged := a.services.CheckResults()
	snapshot = health.Snapshot{
		Now:                 time.Now(),
		StopRequested:       alloc.ServerTerminalStatus() || a.state.isStopRequested(),
		AllocFailed:         status.ClientStatus == api.AllocClientStatusFailed,
		Hooks:               a.state.hookHealthReports(),
		CheckResultsMissing: !ready && model.HasServiceChecks(alloc.GetTaskGroup()),
		Checks:              toHealthChecks(results),
	}
	for _, t := range a.taskSet {
		task, state := t.Task(), status.TaskStates[t.Name()]
		snapshot.Tasks = append(snapshot.Tasks, health.Task{
			Name:          task.Name,
			LifecycleHook: task.LifecycleHook,
			Sidecar:       task.Sidecar,
			Pending:       state.State == model.TaskPending,
			Dead:          state.State == model.TaskDead || !state.FinishedAt.IsZero(),
			Failed:        state.Failed,
			LastStart:     startTimeNotInFuture(state, a.runnerCreateTime),
		})
	}
	return snapshot, checksChanged
}

func toHealthChecks(results []core.CheckResult) (checks []health.Check) {
	for _, c := range results {
		checks = append(checks, health.Check{
			Task:             c.Task,
			Service:          c.Service,
			Name:             c.Check,
			IsReadinessCheck: c.IsReadiness(),
			Passing:          c.Status == model.CheckSuccess,
			NeverRun:         c.LastRunStartedAt.IsZero(),
			Output:           model.CheckFailureText(&c.AllocCheckStatus),
			LastRun:          c.LastRunStartedAt,
			LastStatusChange: c.StatusSince,
		})
	}
	return checks
}

// startTimeNotInFuture returns when a task was last started. If the stored time is in the future, it comes from an
// earlier agent with a fast clock: then startTimeNotInFuture returns the runner's creation time, because the task has
// run at least since then.
func startTimeNotInFuture(s *api.TaskState, runnerCreatedAt time.Time) time.Time {
	if s.StartedAt.After(time.Now()) {
		return runnerCreatedAt
	}
	return s.StartedAt
}

// healthEvents are the names of the allocation's events in its time line. Tasks do not get these events.
var healthEvents = map[health.State]string{health.Healthy: "Alloc Healthy", health.Unhealthy: "Alloc Unhealthy"}

// recordVerdict records whether the allocation is healthy, and emits the events about it. An allocation that was stopped
// before it was healthy gets no event.
func (a *allocTasks) recordVerdict(v health.Verdict, events timeline.Recorder) {
	if deployment := a.state.currentAlloc().DeploymentID; v.State == health.Unhealthy && deployment != "" {
		a.logger.Info("alloc unhealthy", "deployment_id", deployment)
		for _, t := range a.taskSet {
			if reason := v.UnhealthyReasonByTask[t.Name()]; reason != "" {
				taskrunner.RecordUnhealthy(t, deployment, reason) // before the health, which can fail the deployment
			}
		}
	}
	if !a.state.recordHealth(v.State) {
		return
	}
	if name := healthEvents[v.State]; name != "" {
		events.RecordEvent(name, "", time.Now())
	}
	a.state.requestReconcile()
}
