package allocrunner

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/health"
	"github.com/nomad-lite/nomad-lite/runtime/model"
	"github.com/nomad-lite/nomad-lite/runtime/taskrunner"
)

// This file holds the requests of hooks in plugins. An empty task name means all
// running tasks.

// TaskDone returns a channel that is closed when the task has ended for good. It
// returns nil for an unknown task.
func (r *Runner) TaskDone(task string) <-chan struct{} {
	if t, ok := r.task(task); ok {
		return t.Done()
	}
	return nil
}

// Interpolate replaces the references in a text with their current values.
func (r *Runner) Interpolate(task, text string) string { return r.envOf(task).Replace(text) }

// SampleTask requests resource usage samples of a task from the driver, as
// [taskrunner.Runner.Sample].
func (r *Runner) SampleTask(ctx context.Context, task string, interval time.Duration) (samples <-chan *driver.TaskStats, exited <-chan struct{}, err error) {
	t, ok := r.task(task)
	if !ok {
		return nil, nil, ErrTaskNotFound
	}
	return t.Sample(ctx, interval)
}

// EmitEvent adds an event to a task, or to all tasks if task is empty.
func (r *Runner) EmitEvent(task string, event *api.TaskEvent) error {
	if task == "" {
		r.emitToAll(event)
		return nil
	}
	t, ok := r.task(task)
	if !ok {
		return ErrTaskNotFound
	}
	t.EmitEvent(event)
	return nil
}

// running returns the named task, or all running tasks if task is empty. It fails if
// none runs.
func (r *Runner) running(task string) (list []*taskrunner.Runner, err error) {
	err = ErrTaskNotFound
	for _, t := range r.tasks {
		if task != "" && t.Name() != task {
			continue
		}
		err = ErrNotRunning
		if t.Running() {
			list = append(list, t)
		}
	}
	if len(list) > 0 {
		return list, nil
	}
	return nil, err
}

// RestartWithReason restarts the running tasks for a reason. It does not wait for the
// restarts: Run does. If failure is set, they count for the restart policy.
func (r *Runner) RestartWithReason(task, reason string, failure bool) error {
	tasks, err := r.running(task)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.endTasks == nil {
		return ErrNotRunning // Run has returned, or is about to return
	}
	runCtx := r.runCtx
	for _, t := range tasks {
		r.restarts.Go(func() {
			err := ignoreNotRunning(t.Restart(runCtx, model.EventRestartSignal(reason), failure))
			if err != nil && runCtx.Err() == nil {
				r.logger.Error("restart that a hook has asked for", "task", t.Name(), "error", err)
			}
		})
	}
	return nil
}

// SignalWithReason sends a signal to the running tasks for a reason.
func (r *Runner) SignalWithReason(ctx context.Context, task, signal, reason string) error {
	tasks, err := r.running(task)
	if err != nil {
		return err
	}
	return forEachParallel(tasks, func(t *taskrunner.Runner) error {
		return t.Signal(ctx, model.EventSignalingReason(signal, reason), signal)
	})
}

// KillWithReason fails a task for a reason, or all tasks that are not dead if task is
// empty.
func (r *Runner) KillWithReason(task, reason string) error {
	found := task == ""
	r.forEach(func(t *taskrunner.Runner) {
		if task == "" || t.Name() == task {
			found = true
			t.Kill(model.EventKillingReason(reason, true))
		}
	})
	if !found {
		return ErrTaskNotFound
	}
	return nil
}

// healthReporter is a hook that may decide about the health of the allocation.
type healthReporter interface {
	Name() string
	ReportsHealth() bool
}

// healthReports are the hooks' reports about the health of one version of the
// allocation.
type healthReports struct {
	deployment string // deployment of the version
	said       map[string]health.Hook
}

// SetHookHealth records a hook's report about the health of the current version.
// Unhealthy is final.
func (r *Runner) SetHookHealth(name string, healthy bool, reason string) {
	r.mu.Lock()
	if r.healthReports.said == nil || r.healthReports.deployment != r.alloc.DeploymentID {
		r.healthReports = healthReports{r.alloc.DeploymentID, make(map[string]health.Hook)}
	}
	if said := r.healthReports.said[name]; !said.Unhealthy {
		r.healthReports.said[name] = health.Hook{Name: name, Healthy: healthy, Unhealthy: !healthy, Reason: reason}
	}
	r.mu.Unlock()
	r.changed()
}

// hookHealth returns the health reports of the hooks, and an empty report for each hook
// that has not reported yet.
func (r *Runner) hookHealth() (list []health.Hook) {
	r.mu.Lock()
	defer r.mu.Unlock()
	said := make(map[string]health.Hook)
	if r.healthReports.deployment == r.alloc.DeploymentID {
		maps.Copy(said, r.healthReports.said)
	}
	for _, d := range r.deciders {
		if _, spoken := said[d.Name()]; !spoken && d.ReportsHealth() {
			said[d.Name()] = health.Hook{Name: d.Name()}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(said)) {
		list = append(list, said[name])
	}
	return list
}
