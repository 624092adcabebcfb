package allocrunner

import (
	"context"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/health"
	"github.com/nomad-lite/nomad-lite/runtime/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/model"
	"github.com/nomad-lite/nomad-lite/runtime/services"
	"github.com/nomad-lite/nomad-lite/runtime/taskenv"
	"github.com/nomad-lite/nomad-lite/runtime/taskrunner"
)

// Health is the health of an allocation for its deployment. The caller copies Healthy
// and Time to the DeploymentStatus of the allocation as long as DeploymentID matches.
// The node does not decide about canaries.
type Health struct {
	DeploymentID string // empty for an allocation without a deployment
	Healthy      bool
	Time         time.Time
}

// Checks returns the results of the allocation's checks, in a fixed order.
func (r *Runner) Checks() []api.AllocCheckStatus {
	results, _, _ := r.services.Checks()
	list := make([]api.AllocCheckStatus, len(results))
	for i, result := range results {
		list[i] = result.AllocCheckStatus
	}
	return list
}

func (r *Runner) makeServices() {
	r.services = services.New(services.Config{
		AllocID:   r.id,
		AllocName: r.alloc.Name,
		Spec:      func() *services.Spec { return servicesOf(r.Alloc(), r.config.Node, r.network) },
		Env:       r.envOf,
		Restart:   r.restartForCheck,
		Registry:  r.config.Services,
		Results:   r.config.Checks,
		Dial:      r.config.Dial,
		Logger:    r.logger,
	})
	r.groupServices = hooks.NewGroupServices(r.services)
}

// envOf returns the environment of a task, or of the allocation.
func (r *Runner) envOf(task string) *taskenv.Env {
	if env := r.envs[task]; env != nil {
		return env.Build()
	}
	return r.env()
}

// restartForCheck restarts the task of a failed check, or all running tasks for a check
// of the group. The restart counts as a failure.
func (r *Runner) restartForCheck(ctx context.Context, task, reason string) error {
	if task != services.Group {
		t, ok := r.task(task)
		if !ok {
			return ErrTaskNotFound
		}
		return ignoreNotRunning(t.Restart(ctx, model.EventRestartSignal(reason), true))
	}
	return forEachParallel(r.tasks, func(t *taskrunner.Runner) error {
		return ignoreNotRunning(t.Restart(ctx, model.EventRestartSignal(reason), true))
	})
}

// reregisterServices registers the services of the group again after a restart of tasks
// for which the hooks deregistered them.
func (r *Runner) reregisterServices() {
	if err := r.groupServices.Restarted(); err != nil {
		r.logger.Error("services of the group not registered again", "error", err)
	}
}

// makeHealth creates the hook that watches the health of the allocation.
func (r *Runner) makeHealth() *hooks.Health {
	var looked <-chan struct{}
	return hooks.NewHealth(hooks.HealthConfig{
		Params: func() (health.Params, bool) {
			alloc := r.Alloc()
			if r.healthOf(alloc) != nil || alloc.DeploymentStatus != nil && alloc.DeploymentStatus.Healthy != nil {
				return health.Params{}, false
			}
			return healthParams(alloc)
		},
		Look: func() (health.Snapshot, <-chan struct{}, <-chan struct{}) {
			if looked == nil || isClosed(looked) {
				looked = r.reconciled()
			}
			snapshot, checks := r.healthSnapshot()
			return snapshot, looked, checks
		},
		Decided: r.setHealth,
	})
}

// healthSnapshot returns the current inputs of the health decision, and a channel that
// is closed when check results change.
func (r *Runner) healthSnapshot() (health.Snapshot, <-chan struct{}) {
	alloc, status := r.Alloc(), r.Status()
	s := health.Snapshot{
		Now:      time.Now(),
		Stopping: alloc.ServerTerminalStatus() || r.isStopping(),
		Failed:   status.ClientStatus == api.AllocClientStatusFailed,
		Hooks:    r.hookHealth(),
	}
	for _, t := range r.tasks {
		task, state := t.Task(), status.TaskStates[t.Name()]
		s.Tasks = append(s.Tasks, health.Task{
			Name:    task.Name,
			Hook:    task.Hook,
			Sidecar: task.Sidecar,
			Pending: state.State == model.TaskPending,
			Dead:    state.State == model.TaskDead || !state.FinishedAt.IsZero(),
			Failed:  state.Failed,
			Started: r.startedAt(state),
		})
	}
	results, ready, changed := r.services.Checks()
	s.Missing = !ready && hasChecks(alloc)
	for _, c := range results {
		s.Checks = append(s.Checks, health.Check{
			Task:      c.Task,
			Service:   c.Service,
			Name:      c.Check,
			Readiness: c.Readiness(),
			Passing:   c.Status == services.StatusSuccess,
			Pending:   c.Began.IsZero(),
			Output:    c.Output,
			Began:     c.Began,
			Since:     c.Since,
		})
	}
	return s, changed
}

// startedAt returns when a task was last started. A time in the future was stored by an
// earlier agent whose clock was ahead; the task has then run at least as long as this
// runner, so startedAt returns the time of New.
func (r *Runner) startedAt(s *api.TaskState) time.Time {
	if s.StartedAt.After(time.Now()) {
		return r.made
	}
	return s.StartedAt
}

// setHealth records a verdict. An allocation that was stopped before it was healthy
// counts as unhealthy in its deployment, without an event.
func (r *Runner) setHealth(v health.Verdict) {
	deployment := r.Alloc().DeploymentID
	if v.State == health.Stopped && deployment == "" {
		return
	}
	r.mu.Lock()
	r.health = &Health{DeploymentID: deployment, Healthy: v.State == health.Healthy, Time: time.Now()}
	r.mu.Unlock()
	if v.State == health.Unhealthy && deployment != "" {
		r.logger.Info("alloc unhealthy", "deployment_id", deployment)
		for _, t := range r.tasks {
			if reason := v.Why[t.Name()]; reason != "" {
				t.EmitEvent(model.EventAllocUnhealthy(reason))
			}
		}
	}
	r.changed()
}

// healthOf returns the recorded health for a version of the allocation, or nil.
func (r *Runner) healthOf(alloc *api.Allocation) *Health {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.health == nil || r.health.DeploymentID != alloc.DeploymentID {
		return nil
	}
	return r.health
}

// reportedHealth returns the health of an allocation with a client status. An
// allocation that failed before its health was watched is unhealthy.
func (r *Runner) reportedHealth(clientStatus string) *Health {
	alloc := r.Alloc()
	if h := r.healthOf(alloc); h != nil {
		return h
	}
	known := alloc.DeploymentStatus != nil && alloc.DeploymentStatus.Healthy != nil
	if clientStatus != api.AllocClientStatusFailed || alloc.DeploymentID == "" || known {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.health == nil || r.health.DeploymentID != alloc.DeploymentID {
		r.health = &Health{DeploymentID: alloc.DeploymentID, Time: time.Now()}
	}
	return r.health
}
