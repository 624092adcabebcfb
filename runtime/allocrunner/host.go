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

// What hooks in plugins ask for. A task "" means all that run.

// TaskDone returns a channel that is closed when nothing follows for a task. It is
// nil for one that does not exist.
func (r *Runner) TaskDone(task string) <-chan struct{} {
	if t, ok := r.task(task); ok {
		return t.Done()
	}
	return nil
}

// Interpolate fills in the references of a text, as of now.
func (r *Runner) Interpolate(task, text string) string { return r.envOf(task).Replace(text) }

// SampleTask asks the driver for samples of what a task uses, as
// [taskrunner.Runner.Sample].
func (r *Runner) SampleTask(ctx context.Context, task string, interval time.Duration) (samples <-chan *driver.TaskStats, exited <-chan struct{}, err error) {
	t, ok := r.task(task)
	if !ok {
		return nil, nil, ErrTaskNotFound
	}
	return t.Sample(ctx, interval)
}

// EmitEvent adds an event to a task, or to all.
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

// running returns a task, or all, if at least one of them runs.
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

// RestartWithReason restarts what runs for a reason, and does not wait for it: Run does.
// With failure the restart policy counts it.
func (r *Runner) RestartWithReason(task, reason string, failure bool) error {
	tasks, err := r.running(task)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.endTasks == nil {
		return ErrNotRunning // Run has returned, or is about to
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

// SignalWithReason sends a signal to what runs for a reason.
func (r *Runner) SignalWithReason(ctx context.Context, task, signal, reason string) error {
	tasks, err := r.running(task)
	if err != nil {
		return err
	}
	return forEachParallel(tasks, func(t *taskrunner.Runner) error {
		return t.Signal(ctx, model.EventSignalingReason(signal, reason), signal)
	})
}

// KillWithReason fails a task, or all that are not dead, for a reason.
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

// healthReporter is a hook that may have a say in the health of the allocation.
type healthReporter interface {
	Name() string
	DecidesHealth() bool
}

// healthReports are what hooks have said about the health of one version of the
// allocation.
type healthReports struct {
	deployment string // that the version belongs to
	said       map[string]health.Hook
}

// SetHookHealth takes over what a hook says about the health of the current
// version. Unhealthy is final.
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

// hookHealth returns what hooks say about the health, and who has still to speak.
func (r *Runner) hookHealth() (list []health.Hook) {
	r.mu.Lock()
	defer r.mu.Unlock()
	said := make(map[string]health.Hook)
	if r.healthReports.deployment == r.alloc.DeploymentID {
		maps.Copy(said, r.healthReports.said)
	}
	for _, d := range r.deciders {
		if _, spoken := said[d.Name()]; !spoken && d.DecidesHealth() {
			said[d.Name()] = health.Hook{Name: d.Name()}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(said)) {
		list = append(list, said[name])
	}
	return list
}
