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

// Health is what a deployment wants to know of an allocation. Whoever keeps it
// takes Healthy and Time over into the DeploymentStatus of the allocation, as
// long as that belongs to the deployment: a canary is none of the node's
// business.
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

// restartForCheck restarts what a failed check belongs to, as a failure: one
// task, or all that run.
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

// reregisterServices registers the services of the group again, after a restart of tasks
// for which the hooks have taken them away.
func (r *Runner) reregisterServices() {
	if err := r.groupServices.Restarted(); err != nil {
		r.logger.Error("services of the group not registered again", "error", err)
	}
}

// makeHealth makes the hook that watches the health.
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

// healthSnapshot returns what is known of the health, and a channel that closes
// when there is news of the checks.
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

// startedAt is when a task was started the last time. A time in the future was stored
// by an earlier agent whose clock was ahead; the task runs at least as long as this
// runner then.
func (r *Runner) startedAt(s *api.TaskState) time.Time {
	if s.StartedAt.After(time.Now()) {
		return r.made
	}
	return s.StartedAt
}

// setHealth takes a verdict over. One that was stopped before it was healthy
// counts as unhealthy in its deployment, without blame.
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

// healthOf returns what was found out about a version of the allocation, nil if
// nothing was.
func (r *Runner) healthOf(alloc *api.Allocation) *Health {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.health == nil || r.health.DeploymentID != alloc.DeploymentID {
		return nil
	}
	return r.health
}

// reportedHealth returns the health of an allocation with a client status. One
// that has failed before it was watched is unhealthy.
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
