package taskrunner

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// Kill ends the task for good. It does not block; Done returns a channel for the end. Only the first call has an effect: it adds
// its event unless the task has finished already or event is nil. Kill may be called before Run.
func (r *Runner) Kill(event *api.TaskEvent) { r.killRequest.requestKill(event, false) }

// ForceKill kills the task without PreKilling hooks, shutdown delay and kill timeout. It does not block.
func (r *Runner) ForceKill(event *api.TaskEvent) { r.killRequest.requestKill(event, true) }

// SetJobPurged allows the agent to end a task that is being stopped without its driver, if the driver is still unavailable after
// kill_timeout. The exit status of such a task is unknown.
func (r *Runner) SetJobPurged() { r.killRequest.closeChannel(r.killRequest.jobPurged) }

// SkipShutdownDelay skips the shutdown delays of the current and of later kills and restarts.
func (r *Runner) SkipShutdownDelay() { r.killRequest.closeChannel(r.killRequest.shutdownDelaySkipped) }

// Restart stops the running process and returns when it has exited; the runner then
// starts the task again. If failure is set, the restart counts as a failure for the
// restart policy. Restart waits for the shutdown delay. A call during another restart of
// the same process waits for that restart, and adds no event.
func (r *Runner) Restart(ctx context.Context, event *api.TaskEvent, failure bool) error {
	return r.currentProcess.restartAndWait(ctx, event, failure)
}

// IsRestartable reports whether the task has a process that Restart would stop: it has not exited and was not killed.
func (r *Runner) IsRestartable() bool { return r.currentProcess.isRestartable() }

// Rerun runs a dead task again that has ended successfully and was not killed. It returns false for any other task: a task that has
// failed for good fails its allocation, and does not run again. Rerun does not wait for the start of the task.
func (r *Runner) Rerun(event *api.TaskEvent) bool { return r.rerunRequests.requestRerun(event) }

// IsRerunnable reports whether Rerun would run the task again, and whether no rerun is requested yet. It is false for a poststop
// task.
func (r *Runner) IsRerunnable() bool { return r.rerunRequests.isRerunnable() }

// Signal sends a signal by its name. It rejects an unknown name without calling the
// driver.
func (r *Runner) Signal(ctx context.Context, event *api.TaskEvent, name string) error {
	if unix.SignalNum(name) == 0 {
		return fmt.Errorf("unknown signal %q: use a name like SIGHUP", name)
	}
	p := r.currentProcess.getProcess()
	if p == nil {
		return ErrNotRunning
	}
	r.EmitEvent(event)
	return p.signalTask(ctx, name)
}

// Exec runs a command in the context of the task.
func (r *Runner) Exec(ctx context.Context, command []string, timeout time.Duration) (*driver.ExecResult, error) {
	p := r.currentProcess.getProcess()
	if p == nil {
		return nil, ErrNotRunning
	}
	return p.execCommand(ctx, command, timeout)
}

// ExecStreaming runs a command with streamed input and output, and blocks until the
// command has exited.
func (r *Runner) ExecStreaming(ctx context.Context, exec driver.Exec) (*driver.ExitResult, error) {
	p := r.currentProcess.getProcess()
	if p == nil {
		return nil, ErrNotRunning
	}
	return p.execCommandStreaming(ctx, exec)
}

// Stats requests resource usage samples of the running process from the driver. The
// channel is closed when ctx is done, the process exits, or the plugin dies.
func (r *Runner) Stats(ctx context.Context, interval time.Duration) (<-chan *driver.TaskStats, error) {
	samples, _, err := r.SampleStats(ctx, interval)
	return samples, err
}

// SampleStats is like Stats, and also returns a channel that is closed when the process has
// exited. Each process has its own channel.
func (r *Runner) SampleStats(ctx context.Context, interval time.Duration) (samples <-chan *driver.TaskStats, exited <-chan struct{}, err error) {
	p := r.currentProcess.getProcess()
	if p == nil {
		return nil, nil, ErrNotRunning
	}
	samples, err = p.openStats(ctx, interval)
	return samples, p.exited, err
}

// Running reports whether the task has a process that has not exited.
func (r *Runner) Running() bool {
	p := r.currentProcess.getProcess()
	return p != nil && !wait.IsClosed(p.exited)
}

// Update sets a new version of the task. The restart policy and the kill settings apply immediately, all other fields from the
// next start on. If callHooks is set, the Update hooks are called in another goroutine.
func (r *Runner) Update(task Task, callHooks bool) { r.taskUpdater.setTask(task, callHooks) }
