package taskrunner

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/model"
)

// Kill lets the task end for good, and does not wait for it: Done does. The
// first call decides; its event is added unless the task has finished already
// or event is nil. Kill may come before Run.
func (r *Runner) Kill(event *api.TaskEvent) {
	r.changeBoth(Sync, func(s *api.TaskState) bool { return r.killLocked(s, event) })
}

// ForceKill kills the task without hooks, delay or timeout.
func (r *Runner) ForceKill(event *api.TaskEvent) {
	r.changeBoth(Sync, func(s *api.TaskState) bool {
		closeOnce(r.forceKilled)
		return r.killLocked(s, event)
	})
}

// killLocked makes known that the task shall end, and how: who sees the first must
// not begin what the second forbids.
func (r *Runner) killLocked(s *api.TaskState, event *api.TaskEvent) bool {
	first := !r.isKilled()
	if first {
		// One that is there already is of an agent that did not live to do it.
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

// Purge lets the agent end a task that is being stopped without its driver, as
// soon as kill_timeout has passed and while the driver is unavailable. The exit
// status of such a task is unknown.
func (r *Runner) Purge() {
	r.mu.Lock()
	defer r.mu.Unlock()
	closeOnce(r.purged)
}

// SkipShutdownDelay ends the shutdown delay of a kill, now or later.
func (r *Runner) SkipShutdownDelay() {
	r.mu.Lock()
	defer r.mu.Unlock()
	closeOnce(r.skipDelay)
}

// closeOnce must be called with a lock held that all its callers share.
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

// setKillError notes why the kill of the task's process may have left something
// behind; nil when all went well.
func (r *Runner) setKillError(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.killError = err
}

// killedEvent is the end of a kill that began with an event.
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

// Restart stops the running process and returns when it is gone; the runner
// then starts the task again. With failure the restart policy counts it. It
// honours the shutdown delay. Who comes second, while another restart waits for
// the same process, waits with it.
func (r *Runner) Restart(ctx context.Context, event *api.TaskEvent, failure bool) error {
	var p *process
	first := false
	r.changeBoth(Sync, func(s *api.TaskState) bool {
		if !r.restartableLocked() {
			return false
		}
		p, first = r.process, r.restartReq == nil
		if first {
			r.restartReq = &RestartRequest{Failure: failure, Reason: event.RestartReason}
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
		return nil // the kill does the rest
	}
	return r.stop(ctx, p)
}

// ForceRestart is Restart, but lets a task that has ended well, and whose
// allocation still lives, run again as well. One that has failed for good takes
// its allocation with it, and does not come back.
func (r *Runner) ForceRestart(ctx context.Context, event *api.TaskEvent, failure bool) error {
	if r.Rerun(event) {
		return nil
	}
	return r.Restart(ctx, event, failure)
}

// Rerun lets a task that has ended well, and whose allocation still lives, run
// again. It reports false for any other task, and does not wait.
func (r *Runner) Rerun(event *api.TaskEvent) bool {
	dead, first := false, false
	r.changeBoth(Sync, func(s *api.TaskState) bool {
		dead = s.State == model.TaskDead && !s.Failed && !r.isKilled() && !isClosed(r.done)
		first = dead && r.restartReq == nil
		if first {
			r.restartReq = &RestartRequest{Reason: event.RestartReason}
			model.AppendTaskEvent(s, event, time.Now())
		}
		return first
	})
	if first {
		r.rerunCh <- struct{}{} // has room: it is empty unless somebody has asked
	}
	return dead
}

// Signal sends one signal by its name. A name that does not exist is refused
// before the driver sees it.
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

// Exec runs a command in the task's surroundings.
func (r *Runner) Exec(ctx context.Context, command []string, timeout time.Duration) (*driver.ExecResult, error) {
	p := r.currentProcess()
	if p == nil {
		return nil, ErrNotRunning
	}
	return p.exec(ctx, command, timeout)
}

// ExecStreaming runs a command with live streams, and blocks until it has ended.
func (r *Runner) ExecStreaming(ctx context.Context, exec driver.Exec) (*driver.ExitResult, error) {
	p := r.currentProcess()
	if p == nil {
		return nil, ErrNotRunning
	}
	return p.execStreaming(ctx, exec)
}

// Stats asks the driver for samples of what the running process uses; the
// channel closes when ctx or the process ends, or the plugin dies.
func (r *Runner) Stats(ctx context.Context, interval time.Duration) (<-chan *driver.TaskStats, error) {
	samples, _, err := r.Sample(ctx, interval)
	return samples, err
}

// Sample is Stats with a channel that closes when the process has exited. Each
// process has another.
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

// Update gives the runner a new version of its task: the restart policy and how
// it is killed count from now on, the rest from the next start. The Update hooks
// follow.
func (r *Runner) Update(task Task) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.task, r.updated = task, true
	r.tellHooksLocked()
}

// SetTask is Update without the hooks, for a task that has to end.
func (r *Runner) SetTask(task Task) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.task = task
}

// tellHooksLocked has the Update hooks called, if there is something to tell and
// nobody is at it.
func (r *Runner) tellHooksLocked() {
	if r.updated && r.tellHooks != nil && !r.updating {
		r.updating = true
		r.tellHooks()
	}
}

// takeUpdate reports whether the Update hooks have yet to hear of a version.
func (r *Runner) takeUpdate() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.updating, r.updated = r.updated, false
	return r.updating
}

// clearProcess forgets the process that has exited.
func (r *Runner) clearProcess() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.process, r.restartReq = nil, nil
}
