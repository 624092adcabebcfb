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

// RestartFor restarts what runs for a reason, and does not wait for it: Run does.
// With failure the restart policy counts it.
func (r *Runner) RestartFor(task, reason string, failure bool) error {
	tasks, err := r.running(task)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.endTasks == nil {
		return ErrNotRunning // Run has returned, or is about to
	}
	life := r.life
	for _, t := range tasks {
		r.restarts.Go(func() {
			err := unlessNotRunning(t.Restart(life, model.EventRestartSignal(reason), failure))
			if err != nil && life.Err() == nil {
				r.logger.Error("restart that a hook has asked for", "task", t.Name(), "error", err)
			}
		})
	}
	return nil
}

// SignalFor sends a signal to what runs for a reason.
func (r *Runner) SignalFor(ctx context.Context, task, signal, reason string) error {
	tasks, err := r.running(task)
	if err != nil {
		return err
	}
	return together(tasks, func(t *taskrunner.Runner) error {
		return t.Signal(ctx, model.EventSignalingReason(signal, reason), signal)
	})
}

// KillFor fails a task, or all that are not dead, for a reason.
func (r *Runner) KillFor(task, reason string) error {
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

// decider is a hook that may have a say in the health of the allocation.
type decider interface {
	Name() string
	DecidesHealth() bool
}

// verdicts are what hooks have said about the health of one version of the
// allocation.
type verdicts struct {
	deployment string // that the version belongs to
	said       map[string]health.Hook
}

// SetHookHealth takes over what a hook says about the health of the current
// version. Unhealthy is final.
func (r *Runner) SetHookHealth(name string, healthy bool, reason string) {
	r.mu.Lock()
	if r.verdicts.said == nil || r.verdicts.deployment != r.alloc.DeploymentID {
		r.verdicts = verdicts{r.alloc.DeploymentID, make(map[string]health.Hook)}
	}
	if said := r.verdicts.said[name]; !said.Unhealthy {
		r.verdicts.said[name] = health.Hook{Name: name, Healthy: healthy, Unhealthy: !healthy, Reason: reason}
	}
	r.mu.Unlock()
	r.changed()
}

// hookHealth returns what hooks say about the health, and who has still to speak.
func (r *Runner) hookHealth() (list []health.Hook) {
	r.mu.Lock()
	defer r.mu.Unlock()
	said := make(map[string]health.Hook)
	if r.verdicts.deployment == r.alloc.DeploymentID {
		maps.Copy(said, r.verdicts.said)
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
