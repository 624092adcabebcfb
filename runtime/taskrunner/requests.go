package taskrunner

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/model"
	"github.com/nomad-lite/nomad-lite/runtime/state"
)

// Kill ends the task for good. It does not wait for the end; Done does. The first call
// decides; its event is added unless the task has finished already or event is nil.
// Kill may be called before Run.
func (r *Runner) Kill(event *api.TaskEvent) {
	r.changeBoth(state.Sync, func(s *api.TaskState) bool { return r.killLocked(s, event) })
}

// ForceKill kills the task without hooks, delay or timeout.
func (r *Runner) ForceKill(event *api.TaskEvent) {
	r.changeBoth(state.Sync, func(s *api.TaskState) bool {
		closeOnce(r.forceKilled)
		return r.killLocked(s, event)
	})
}

// killLocked closes killed and cancels the contexts. forceKillCtx is canceled first, so
// that no goroutine starts a graceful stop after ForceKill.
func (r *Runner) killLocked(s *api.TaskState, event *api.TaskEvent) bool {
	first := !r.isKilled()
	if first {
		// An event that exists already is from an agent that died before the kill.
		if event != nil && s.FinishedAt.IsZero() && model.EventSinceStart(s, event.Type) == nil {
			model.AppendTaskEvent(s, event, time.Now())
		}
		r.killNoted = r.killNoted || s.FinishedAt.IsZero()
		r.quiet = event == nil
		close(r.killed)
	}
	if r.endGrace != nil && isClosed(r.forceKilled) {
		r.endGrace(errHurry)
	}
	if r.endLive != nil {
		r.endLive(ErrKilled)
	}
	return first
}

// Purge allows the agent to end a task that is being stopped without its driver, once
// kill_timeout has passed and while the driver is unavailable. The exit status of such
// a task is unknown.
func (r *Runner) Purge() {
	r.mu.Lock()
	defer r.mu.Unlock()
	closeOnce(r.purged)
}

// SkipShutdownDelay skips the shutdown delay of the current or a later kill.
func (r *Runner) SkipShutdownDelay() {
	r.mu.Lock()
	defer r.mu.Unlock()
	closeOnce(r.skipDelay)
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

func (r *Runner) isKilled() bool { return isClosed(r.killed) }

// setKillError records why the kill of the task's process may have leaked resources;
// nil if it succeeded.
func (r *Runner) setKillError(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.killError = err
}

// killedEvent returns the event for the end of a kill, or nil if the kill had no event.
func (r *Runner) killedEvent() *api.TaskEvent {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.quiet:
		return nil
	case r.killError != nil:
		return model.EventKilled(r.killError.Error())
	}
	return model.EventKilled("")
}

// Restart stops the running process and returns when it has exited; the runner then
// starts the task again. If failure is set, the restart counts as a failure for the
// restart policy. Restart honours the shutdown delay. A call during another restart of
// the same process waits for that restart.
func (r *Runner) Restart(ctx context.Context, event *api.TaskEvent, failure bool) error {
	var p *process
	first := false
	r.changeBoth(state.Sync, func(s *api.TaskState) bool {
		if !r.restartableLocked() {
			return false
		}
		p, first = r.process, r.restartReq == nil
		if first {
			r.restartReq = &state.RestartRequest{Failure: failure, Reason: event.RestartReason}
			model.AppendTaskEvent(s, event, time.Now())
		}
		return first
	})
	if p == nil {
		return ErrNotRunning
	}
	if first {
		if err := r.stopForRestart(ctx, p); err != nil {
			return err
		}
	}
	select {
	case <-p.exited:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Restartable reports whether the task has a process that Restart would stop.
func (r *Runner) Restartable() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.restartableLocked()
}

func (r *Runner) restartableLocked() bool {
	return r.process != nil && !isClosed(r.process.exited) && !r.isKilled() && !isClosed(r.done)
}

func (r *Runner) stopForRestart(ctx context.Context, p *process) error {
	r.preKilling(ctx)
	r.awaitShutdownDelay(ctx, p, r.killed)
	if r.isKilled() {
		return nil // the kill stops the process
	}
	return r.stop(ctx, p)
}

// ForceRestart is Restart, but also reruns a task that has ended successfully if its
// allocation still lives. A task that has failed for good fails its allocation, and
// does not run again.
func (r *Runner) ForceRestart(ctx context.Context, event *api.TaskEvent, failure bool) error {
	if r.Rerun(event) {
		return nil
	}
	return r.Restart(ctx, event, failure)
}

// Rerun runs a task again that has ended successfully, if its allocation still lives.
// It returns false for any other task. It does not block.
func (r *Runner) Rerun(event *api.TaskEvent) bool {
	dead, first := false, false
	r.changeBoth(state.Sync, func(s *api.TaskState) bool {
		dead = s.State == model.TaskDead && !s.Failed && !r.isKilled() && !isClosed(r.done)
		first = dead && r.restartReq == nil
		if first {
			r.restartReq = &state.RestartRequest{Reason: event.RestartReason}
			model.AppendTaskEvent(s, event, time.Now())
		}
		return first
	})
	if first {
		r.rerunCh <- struct{}{} // never blocks: the channel is empty unless a rerun was requested
	}
	return dead
}

// Signal sends a signal by its name. It rejects an unknown name without calling the
// driver.
func (r *Runner) Signal(ctx context.Context, event *api.TaskEvent, name string) error {
	if unix.SignalNum(name) == 0 {
		return fmt.Errorf("unknown signal %q: use a name like SIGHUP", name)
	}
	p := r.currentProcess()
	if p == nil {
		return ErrNotRunning
	}
	r.EmitEvent(event)
	return p.signal(ctx, name)
}

// Exec runs a command in the context of the task.
func (r *Runner) Exec(ctx context.Context, command []string, timeout time.Duration) (*driver.ExecResult, error) {
	p := r.currentProcess()
	if p == nil {
		return nil, ErrNotRunning
	}
	return p.exec(ctx, command, timeout)
}

// ExecStreaming runs a command with streamed input and output, and blocks until the
// command has exited.
func (r *Runner) ExecStreaming(ctx context.Context, exec driver.Exec) (*driver.ExitResult, error) {
	p := r.currentProcess()
	if p == nil {
		return nil, ErrNotRunning
	}
	return p.execStreaming(ctx, exec)
}

// Stats requests resource usage samples of the running process from the driver. The
// channel is closed when ctx is done, the process exits, or the plugin dies.
func (r *Runner) Stats(ctx context.Context, interval time.Duration) (<-chan *driver.TaskStats, error) {
	samples, _, err := r.Sample(ctx, interval)
	return samples, err
}

// Sample is Stats with a channel that is closed when the process has exited. Each
// process has its own channel.
func (r *Runner) Sample(ctx context.Context, interval time.Duration) (samples <-chan *driver.TaskStats, exited <-chan struct{}, err error) {
	p := r.currentProcess()
	if p == nil {
		return nil, nil, ErrNotRunning
	}
	samples, err = p.stats(ctx, interval)
	return samples, p.exited, err
}

// Running reports whether the task has a process that has not exited.
func (r *Runner) Running() bool {
	p := r.currentProcess()
	return p != nil && !isClosed(p.exited)
}

// Update sets a new version of the task: the restart policy and the kill settings apply
// immediately, the rest from the next start. The Update hooks are called afterwards.
func (r *Runner) Update(task Task) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.task, r.updated = task, true
	r.tellHooksLocked()
}

// SetTask is Update without the hooks, for a task that must end.
func (r *Runner) SetTask(task Task) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.task = task
}

// tellHooksLocked starts the goroutine that calls the Update hooks, if there is a new
// version and no such goroutine.
func (r *Runner) tellHooksLocked() {
	if r.updated && r.tellHooks != nil && !r.updating {
		r.updating = true
		r.tellHooks()
	}
}

// takeUpdate reports whether the Update hooks must be called for a new version.
func (r *Runner) takeUpdate() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.updating, r.updated = r.updated, false
	return r.updating
}

// clearProcess drops the process that has exited.
func (r *Runner) clearProcess() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.process, r.restartReq = nil, nil
}
