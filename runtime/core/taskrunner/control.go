package taskrunner

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/core"
)

// Kill ends the task for good. It does not block; Done returns a channel for the end. Only the first call has an
// effect: it adds its event unless the task has finished already or event is nil. Kill may be called before Run.
func (r *Runner) Kill(event *api.TaskEvent) { r.requests.requestKill(event, false) }

// ForceKill kills the task without PreKilling hooks, shutdown delay and kill timeout. It does not block.
func (r *Runner) ForceKill(event *api.TaskEvent) { r.requests.requestKill(event, true) }

// SetJobPurged allows the agent to end a stopping task without its driver, if the driver is still unavailable after kill_timeout.
// The task's exit status is then unknown.
func (r *Runner) SetJobPurged() { r.requests.closeChannelOnce(r.requests.jobPurged) }

// SkipShutdownDelay skips the shutdown delays in the current and in later kills and restarts.
func (r *Runner) SkipShutdownDelay() {
	r.requests.closeChannelOnce(r.requests.shutdownDelaySkipped)
}

// Signal sends a signal by its name. It rejects an unknown name without calling the
// driver.
func (r *Runner) Signal(ctx context.Context, event *api.TaskEvent, signalName string) error {
	if unix.SignalNum(signalName) == 0 {
		return fmt.Errorf("unknown signal %q: use a name like SIGHUP", signalName)
	}
	p := r.requests.getProcess()
	if p == nil {
		return core.ErrNotRunning
	}
	r.EmitEvent(event)
	return p.SignalTask(ctx, signalName)
}

// Exec runs a command in the task's context.
func (r *Runner) Exec(ctx context.Context, command []string, timeout time.Duration) (*driver.ExecResult, error) {
	p := r.requests.getProcess()
	if p == nil {
		return nil, core.ErrNotRunning
	}
	return p.ExecCommand(ctx, command, timeout)
}

// ExecStreaming runs a command with streamed input and output, and blocks until the
// command has exited.
func (r *Runner) ExecStreaming(ctx context.Context, exec driver.Exec) (*driver.ExitResult, error) {
	p := r.requests.getProcess()
	if p == nil {
		return nil, core.ErrNotRunning
	}
	return p.ExecCommandStreaming(ctx, exec)
}

// OpenStats requests resource usage samples for the running process from the driver. The channel is closed when ctx is done, the
// process exits, or the plugin dies.
func (r *Runner) OpenStats(ctx context.Context, interval time.Duration) (<-chan *driver.TaskStats, error) {
	samples, _, err := r.OpenStatsWithExitChannel(ctx, interval)
	return samples, err
}

// OpenStatsWithExitChannel is like OpenStats, and also returns a channel that is closed when the process has exited. Each process
// has its own channel.
func (r *Runner) OpenStatsWithExitChannel(ctx context.Context, interval time.Duration) (samples <-chan *driver.TaskStats, exited <-chan struct{}, err error) {
	p := r.requests.getProcess()
	if p == nil {
		return nil, nil, core.ErrNotRunning
	}
	samples, err = p.OpenStats(ctx, interval)
	return samples, p.Exited(), err
}

// RunningProcess is a task process that has not exited.
type RunningProcess struct {
	Driver   string
	StartID  string // the driver's id for the process
	Restarts uint64 // number of task restarts
}

// RunningProcess returns the task's process; ok is false if the task has no process or it has exited.
func (r *Runner) RunningProcess() (process RunningProcess, ok bool) {
	p := r.requests.getProcess()
	if p == nil || wait.IsClosed(p.Exited()) {
		return RunningProcess{}, false
	}
	r.records.mu.Lock()
	defer r.records.mu.Unlock()
	return RunningProcess{r.driver.DriverName, p.ID(), r.records.record.Status().Restarts}, true
}

// Update sets a new version of the task. The restart policy and the kill settings apply immediately, all other fields
// from the next start on. If callUpdateHooks is set, the Update hooks are called in another goroutine.
func (r *Runner) Update(task Task, callUpdateHooks bool) {
	r.records.mu.Lock()
	r.requests.task = task
	r.requests.updateHooksPending = r.requests.updateHooksPending || callUpdateHooks
	r.records.mu.Unlock()
	r.hooks.startUpdateHooksIfPending()
}
