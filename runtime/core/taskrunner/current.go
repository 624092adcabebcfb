package taskrunner

import (
	"context"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/runtime/core"
	"github.com/nomad-lite/nomad-lite/runtime/core/record"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskdriver"
)

// restartAttempt is one attempt to restart a process on request.
type restartAttempt struct {
	requested chan struct{} // closed when the request is stored
	failed    chan struct{} // closed if the process was not stopped
	err       error         // why the process was not stopped; set before failed is closed
}

func newRestartAttempt() *restartAttempt {
	return &restartAttempt{requested: make(chan struct{}), failed: make(chan struct{})}
}

// getProcess returns the task's process. It returns nil if no process was started or recovered since the last exit.
func (q *taskRequests) getProcess() *taskdriver.Process {
	q.records.mu.Lock()
	defer q.records.mu.Unlock()
	return q.process
}

// restartRequested returns a channel that is closed when a process restart is requested and stored. The process must not be nil.
func (q *taskRequests) restartRequested() <-chan struct{} {
	q.records.mu.Lock()
	defer q.records.mu.Unlock()
	return q.restartAttempt.requested
}

// setStartedProcess sets a process started by this agent.
func (q *taskRequests) setStartedProcess(p *taskdriver.Process) {
	q.setDriverPortsInEnv(p)
	q.records.mu.Lock()
	defer q.records.mu.Unlock()
	q.process, q.restartAttempt, q.leakErr = p, newRestartAttempt(), nil
}

// setRecoveredProcess sets a process started by an earlier agent. A restart requested under that agent is requested again.
func (q *taskRequests) setRecoveredProcess(p *taskdriver.Process) {
	q.setDriverPortsInEnv(p)
	q.records.mu.Lock()
	defer q.records.mu.Unlock()
	q.process, q.restartAttempt = p, newRestartAttempt()
	if q.records.record.Fields().RestartRequest != nil {
		close(q.restartAttempt.requested)
	}
}

func (q *taskRequests) setDriverPortsInEnv(p *taskdriver.Process) {
	if p.Network != nil {
		q.records.env.SetDriverPortByLabel(p.Network.PortMap)
	}
}

// clearExitedProcess removes the process, which has exited.
func (q *taskRequests) clearExitedProcess() {
	q.records.mu.Lock()
	defer q.records.mu.Unlock()
	q.process, q.restartAttempt = nil, nil
}

// failRestart ends a requested restart when its process was not stopped, so that another one can be requested.
func (q *taskRequests) failRestart(err error) {
	_, _ = q.records.commitIf(func(record.Record) record.Fact { // retryFailedPut retries a failed put
		q.restartAttempt.err = err
		close(q.restartAttempt.failed)
		q.restartAttempt = newRestartAttempt()
		return record.RestartFailed{}
	})
}

// Restart stops the running process and returns when it has exited; the runner then
// starts the task again. If countsAsFailure is set, the restart counts as a failure for the
// restart policy. Restart waits for the shutdown delay. A call during another restart of
// the same process waits for that restart, and adds no event.
func (r *Runner) Restart(ctx context.Context, event *api.TaskEvent, countsAsFailure bool) error {
	q := r.requests
	var p *taskdriver.Process
	var attempt *restartAttempt
	change, _ := q.records.commitIf(func(record.Record) record.Fact { // retryFailedPut retries a failed put
		if !q.isRestartableLocked() {
			return nil
		}
		p, attempt = q.process, q.restartAttempt
		return record.RestartRequested{Now: time.Now(), Request: q.newRestartRequest(event, countsAsFailure), Event: q.records.redacted(event)}
	})
	if p == nil {
		return core.ErrNotRunning
	}
	if change.Applied() {
		close(attempt.requested)
	}
	select {
	case <-p.Exited():
		return nil
	case <-attempt.failed:
		return attempt.err
	case <-r.done: // the agent shuts down, and the next agent restarts the process
		return core.ErrNotRunning
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (q *taskRequests) newRestartRequest(event *api.TaskEvent, countsAsFailure bool) record.RestartRequest {
	return record.RestartRequest{CountsAsFailure: countsAsFailure, Reason: q.records.secrets.Text(event.RestartReason)}
}

// IsRestartable reports whether the task has a process for Restart to stop: it has not exited and was not killed.
func (r *Runner) IsRestartable() bool {
	r.records.mu.Lock()
	defer r.records.mu.Unlock()
	return r.requests.isRestartableLocked()
}

func (q *taskRequests) isRestartableLocked() bool {
	return q.process != nil && !wait.IsClosed(q.process.Exited()) && !q.isKillRequested() && !wait.IsClosed(q.records.runReturned)
}

// AllProcessesEnded reports whether no task process can be alive: each process's exit was observed, or the driver has destroyed
// it. It is false for a task that this runner has not started or has failed to start, because such a task may have a process.
func (r *Runner) AllProcessesEnded() bool {
	r.records.mu.Lock()
	defer r.records.mu.Unlock()
	return r.requests.lastProcessEnded && !r.requests.earlierProcessMayRun
}

// recordStartAttempt records that the driver may start a new task process from now on.
func (q *taskRequests) recordStartAttempt() {
	q.records.mu.Lock()
	defer q.records.mu.Unlock()
	q.lastProcessEnded, q.lastExitUnobserved, q.earlierProcessMayRun = false, false, q.earlierProcessMayRun || q.lastExitUnobserved
}

// recordProcessEnd records that the last process has ended; exitObserved is false if its exit status is unknown.
func (q *taskRequests) recordProcessEnd(exitObserved bool) {
	q.records.mu.Lock()
	defer q.records.mu.Unlock()
	q.lastProcessEnded, q.lastExitUnobserved = exitObserved, !exitObserved
}

// recordProcessDestroyed records that the last process was destroyed, so it cannot be alive even if its exit status is unknown.
func (q *taskRequests) recordProcessDestroyed() {
	q.records.mu.Lock()
	defer q.records.mu.Unlock()
	q.lastProcessEnded, q.lastExitUnobserved = true, false
}
