package allocrunner

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/runtime/job/health"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/hooks/runnerhooks"
	"github.com/nomad-lite/nomad-lite/runtime/node/services"
	"github.com/nomad-lite/nomad-lite/runtime/node/timeline"
)

// Health is the health of an allocation in its deployment. The caller copies Healthy and Time to the
// DeploymentStatus of the allocation as long as DeploymentID matches. The runner treats canaries like
// other allocations.
type Health struct {
	DeploymentID string // id of the deployment; empty for an allocation without one
	Healthy      bool
	Time         time.Time
}

// healthTracker records the health of the current version of an allocation. Its methods
// may be called concurrently.
type healthTracker struct {
	alloc            func() *api.Allocation // returns the current version of the allocation
	tasks            taskSet
	checkResults     func() (results []services.CheckResult, ready bool, changed <-chan struct{})
	stopRequested    func() bool // reports whether a stop was requested
	reconcileSignal  *reconcileSignal
	runnerCreateTime time.Time // when the runner was created; see startTimeNotInFuture
	timeline         timeline.Recorder
	logger           hclog.Logger

	mu              sync.Mutex
	recordedVerdict *Health            // health of the allocation; nil until known
	healthReporters []runnerhooks.Hook // hooks that may report the health of the allocation, see runnerhooks.Hook
	hookReports     hookReports
}

// hookReports are the reports of hooks about the health of one version of the allocation.
type hookReports struct {
	deploymentID string // deployment of the version that the reports are about
	reportOfHook map[string]health.Hook
}

// addHealthReporter adds a hook that may report the health of the allocation.
func (h *healthTracker) addHealthReporter(r runnerhooks.Hook) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.healthReporters = append(h.healthReporters, r)
}

// setHookHealth implements [Runner.SetHookHealth].
func (h *healthTracker) setHookHealth(name string, healthy bool, reason string) {
	h.mu.Lock()
	// The version is read under the lock, so that a report about an earlier version
	// never replaces the reports about a later one.
	if deployment := h.alloc().DeploymentID; h.hookReports.reportOfHook == nil || h.hookReports.deploymentID != deployment {
		h.hookReports = hookReports{deployment, make(map[string]health.Hook)}
	}
	if !h.hookReports.reportOfHook[name].ReportedUnhealthy {
		h.hookReports.reportOfHook[name] = health.Hook{Name: name, ReportedHealthy: healthy, ReportedUnhealthy: !healthy, Reason: reason}
	}
	h.mu.Unlock()
	h.reconcileSignal.requestReconcile()
}

// hookHealthReports returns the reports of hooks about the current version, sorted by hook name, with an empty report for
// each hook that must report and has not.
func (h *healthTracker) hookHealthReports() (list []health.Hook) {
	h.mu.Lock()
	defer h.mu.Unlock()
	reports := make(map[string]health.Hook)
	if h.hookReports.deploymentID == h.alloc().DeploymentID {
		maps.Copy(reports, h.hookReports.reportOfHook)
	}
	for _, r := range h.healthReporters {
		if _, reported := reports[r.Name()]; !reported && r.ReportsHealth() {
			reports[r.Name()] = health.Hook{Name: r.Name()}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(reports)) {
		list = append(list, reports[name])
	}
	return list
}

// newHealthHook returns the builtin hook that watches the health of the allocation. status returns the
// current status of the allocation.
func (h *healthTracker) newHealthHook(status func() StatusUpdate) *runnerhooks.HealthHook {
	var nextReconcile <-chan struct{}
	return runnerhooks.NewHealthHook(runnerhooks.HealthHookConfig{
		NewParams: func() (health.Params, bool) {
			alloc := h.alloc()
			if h.recordedHealthOfVersion(alloc) != nil || alloc.DeploymentStatus != nil && alloc.DeploymentStatus.Healthy != nil {
				return health.Params{}, false
			}
			return healthParams(alloc)
		},
		Snapshot: func() (health.Snapshot, <-chan struct{}, <-chan struct{}) {
			if nextReconcile == nil || wait.IsClosed(nextReconcile) {
				nextReconcile = h.reconcileSignal.nextReconcile()
			}
			snapshot, checks := h.newHealthSnapshot(status())
			return snapshot, nextReconcile, checks
		},
		OnVerdict: h.recordVerdict,
	})
}

// newHealthSnapshot returns the data from which health.Evaluate decides the health. The channel is closed when check
// results change.
func (h *healthTracker) newHealthSnapshot(status StatusUpdate) (health.Snapshot, <-chan struct{}) {
	alloc := h.alloc()
	s := health.Snapshot{
		Now:           time.Now(),
		StopRequested: alloc.ServerTerminalStatus() || h.stopRequested(),
		AllocFailed:   status.ClientStatus == api.AllocClientStatusFailed,
		Hooks:         h.hookHealthReports(),
	}
	for _, t := range h.tasks {
		task, state := t.Task(), status.TaskStates[t.Name()]
		s.Tasks = append(s.Tasks, health.Task{
			Name:          task.Name,
			LifecycleHook: task.LifecycleHook,
			Sidecar:       task.Sidecar,
			Pending:       state.State == model.TaskPending,
			Dead:          state.State == model.TaskDead || !state.FinishedAt.IsZero(),
			Failed:        state.Failed,
			LastStart:     startTimeNotInFuture(state, h.runnerCreateTime),
		})
	}
	results, ready, changed := h.checkResults()
	s.CheckResultsMissing = !ready && hasServiceChecks(alloc)
	for _, c := range results {
		s.Checks = append(s.Checks, health.Check{
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
	return s, changed
}

// startTimeNotInFuture returns when a task was last started. If the stored time is in the future, it comes from an
// earlier agent whose clock was ahead: then startTimeNotInFuture returns the time at which the runner was created,
// because the task has run at least since then.
func startTimeNotInFuture(s *api.TaskState, created time.Time) time.Time {
	if s.StartedAt.After(time.Now()) {
		return created
	}
	return s.StartedAt
}

// healthEvents are the names of the events of the allocation in its time line. Tasks do not get these events.
var healthEvents = map[health.State]string{health.Healthy: "Alloc Healthy", health.Unhealthy: "Alloc Unhealthy"}

// recordVerdict records whether the allocation is healthy. An allocation that was stopped before it was healthy
// is recorded as unhealthy, without an event.
func (h *healthTracker) recordVerdict(v health.Verdict) {
	deployment := h.alloc().DeploymentID
	if v.State == health.Stopped && deployment == "" {
		return
	}
	h.mu.Lock()
	h.recordedVerdict = &Health{DeploymentID: deployment, Healthy: v.State == health.Healthy, Time: time.Now()}
	h.mu.Unlock()
	if name := healthEvents[v.State]; name != "" {
		h.timeline.RecordEvent(name, "", time.Now())
	}
	if v.State == health.Unhealthy && deployment != "" {
		h.logger.Info("alloc unhealthy", "deployment_id", deployment)
		for _, t := range h.tasks {
			if reason := v.ReasonsByTask[t.Name()]; reason != "" {
				t.EmitEvent(model.EventAllocUnhealthy(reason))
			}
		}
	}
	h.reconcileSignal.requestReconcile()
}

// recordedHealthOfVersion returns the health that was recorded for a version of the allocation. It is nil if none was recorded.
func (h *healthTracker) recordedHealthOfVersion(alloc *api.Allocation) *Health {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.recordedHealthOfVersionLocked(alloc)
}

func (h *healthTracker) recordedHealthOfVersionLocked(alloc *api.Allocation) *Health {
	if h.recordedVerdict == nil || h.recordedVerdict.DeploymentID != alloc.DeploymentID {
		return nil
	}
	return h.recordedVerdict
}

// healthForClientStatus returns the health for a StatusUpdate with the given client status: the recorded health or nil. If the
// allocation has failed in a deployment without recorded health, healthForClientStatus records it as unhealthy.
func (h *healthTracker) healthForClientStatus(clientStatus string) *Health {
	alloc := h.alloc()
	h.mu.Lock()
	defer h.mu.Unlock()
	if v := h.recordedHealthOfVersionLocked(alloc); v != nil {
		return v
	}
	known := alloc.DeploymentStatus != nil && alloc.DeploymentStatus.Healthy != nil
	if clientStatus != api.AllocClientStatusFailed || alloc.DeploymentID == "" || known {
		return nil
	}
	h.recordedVerdict = &Health{DeploymentID: alloc.DeploymentID, Time: time.Now()}
	return h.recordedVerdict
}
