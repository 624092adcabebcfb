package allocrunner

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/lifecycle"
	"github.com/nomad-lite/nomad-lite/runtime/model"
	"github.com/nomad-lite/nomad-lite/runtime/taskrunner"
)

// stopReason is the reason of a stop, as shown in task events. The zero value is a
// requested stop.
type stopReason struct {
	why  func() *api.TaskEvent // creates the event for each live task, before Killing; may be nil
	text string                // text of the Killing events; empty for the text with the kill timeout
	// quiet adds no event: the stop was requested under an earlier agent.
	quiet bool
}

// Stop starts to end the allocation: its tasks are killed in kill order, and its
// poststop tasks run. It does not block.
func (r *Runner) Stop() { r.stop(stopReason{}) }

// Purge is called when the job of the allocation was purged: a task that is being
// stopped while its driver is unavailable is ended without the driver. It does not
// block.
func (r *Runner) Purge() { r.forEach((*taskrunner.Runner).Purge) }

// skipShutdownDelay skips the shutdown delays of the current or a later stop.
func (r *Runner) skipShutdownDelay() {
	r.mu.Lock()
	closeOnce(r.skipDelay)
	r.mu.Unlock()
	r.forEach((*taskrunner.Runner).SkipShutdownDelay)
}

// Kill ends the allocation without hooks, order or delay; poststop tasks do not run. It
// does not block.
func (r *Runner) Kill() {
	r.mu.Lock()
	r.decideLocked(stopReason{})
	closeOnce(r.forceKilled)
	if r.endGrace != nil {
		r.endGrace(taskrunner.ErrKilled) // cancels live as well, so that no goroutine starts a graceful stop
	}
	r.mu.Unlock()
	r.forEach(func(t *taskrunner.Runner) { t.ForceKill(r.killingEvent(t)) })
}

// exceedMaxRunDuration sets the client status to complete, whatever the results of the
// tasks, and stops the allocation without running its poststop tasks.
func (r *Runner) exceedMaxRunDuration() {
	r.force(statusOverride{api.AllocClientStatusComplete, model.MaxRunDurationExceeded})
	r.stop(stopReason{text: model.MaxRunDurationExceeded})
	r.killPoststop()
}

func (r *Runner) killPoststop() {
	r.forEach(func(t *taskrunner.Runner) {
		if t.Task().Stage() == lifecycle.PoststopTask {
			t.Kill(r.killingEvent(t))
		}
	})
}

// stop starts the only stop of an allocation. The first reason counts.
func (r *Runner) stop(reason stopReason) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.decideLocked(reason)
	if r.endLive != nil {
		r.endLive(taskrunner.ErrKilled)
	}
}

func (r *Runner) decideLocked(reason stopReason) {
	if !isClosed(r.stopping) {
		r.reason = reason
		close(r.stopping)
	}
}

func (r *Runner) isStopping() bool { return isClosed(r.stopping) }

// killingEvent returns the event that the stop adds to a task that it kills.
func (r *Runner) killingEvent(t *taskrunner.Runner) *api.TaskEvent {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.reason.quiet {
		return nil
	}
	if r.reason.text != "" {
		return model.EventKillingReason(r.reason.text, false)
	}
	return model.EventKilling(t.Task().KillTimeout)
}

// stopTasks kills the tasks for a requested stop; it does nothing when the agent shuts
// down instead. It reports whether it has called the PreKill hooks. grace is canceled
// by Kill and by the agent's shutdown.
func (r *Runner) stopTasks(grace context.Context) (preKilled bool) {
	if !r.isStopping() {
		return false
	}
	r.mu.Lock()
	why := r.reason.why
	r.mu.Unlock()
	if why != nil {
		r.forEach(func(t *taskrunner.Runner) {
			if t.Task().Stage() != lifecycle.PoststopTask && t.State().State != model.TaskDead {
				t.EmitEvent(why())
			}
		})
	}
	r.preKill(grace)
	r.awaitShutdownDelay(grace)
	for _, wave := range killOrder(r.tasks) {
		if errors.Is(context.Cause(grace), ErrShutdown) {
			return true
		}
		for _, t := range wave {
			if isClosed(r.forceKilled) {
				t.ForceKill(r.killingEvent(t))
			} else {
				t.Kill(r.killingEvent(t))
			}
		}
		for _, t := range wave {
			select {
			case <-t.Done():
			case <-t.Destroying():
			}
		}
	}
	return true
}

// awaitShutdownDelay gives the clients of the group's services time to notice the
// deregistration.
func (r *Runner) awaitShutdownDelay(ctx context.Context) {
	delay := r.Alloc().GetTaskGroup().ShutdownDelay
	if delay == nil || *delay == 0 {
		return
	}
	select {
	case <-time.After(*delay):
	case <-r.skipDelay:
	case <-r.tasksEnded:
	case <-ctx.Done():
	}
}

// forEachParallel calls f concurrently for each task of a wave, and returns the joined
// errors.
func forEachParallel(wave []*taskrunner.Runner, f func(*taskrunner.Runner) error) error {
	errs := make([]error, len(wave))
	var wg sync.WaitGroup
	for i, t := range wave {
		wg.Go(func() { errs[i] = f(t) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// closeOnce closes c unless it is closed. All callers must hold the same lock.
func closeOnce(c chan struct{}) {
	if !isClosed(c) {
		close(c)
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
