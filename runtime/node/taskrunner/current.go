package taskrunner

import (
	"context"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/runtime/node/taskenv"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// currentProcess holds the process of a running task, and restarts it on request. Its
// methods may be called concurrently.
type currentProcess struct {
	records     *taskRecords
	killRequest *killRequest
	stopper     *stopper
	env         *taskenv.Builder // receives the ports that the driver has mapped for the process
	runReturned <-chan struct{}  // closed by Run

	process *process // running process of the task; nil if none runs; guarded by mu of records
}

// getProcess returns the process of the task. It returns nil if no process was started or recovered since the last exit.
func (c *currentProcess) getProcess() *process {
	c.records.mu.Lock()
	defer c.records.mu.Unlock()
	return c.process
}

// setStartedProcess sets a process that this agent has started. It drops a restart request for the previous process.
func (c *currentProcess) setStartedProcess(p *process) {
	c.setEnvPorts(p)
	c.records.mu.Lock()
	defer c.records.mu.Unlock()
	c.process, c.records.restartRequest, c.killRequest.leakErr = p, nil, nil
	c.records.killedSinceStart = c.killRequest.isRequested() // a kill during the start counts as a kill of this process
}

// setRecoveredProcess sets a process that an earlier agent has started. A restart that was requested under that agent becomes
// the pending restart of the process.
func (c *currentProcess) setRecoveredProcess(p *process) {
	c.setEnvPorts(p)
	c.records.mu.Lock()
	defer c.records.mu.Unlock()
	c.process, p.unfinishedEarlierRestart = p, c.records.restartRequest
}

func (c *currentProcess) setEnvPorts(p *process) {
	if p.network != nil {
		c.env.SetDriverPorts(p.network.PortMap)
	}
}

// clearExitedProcess removes the process, which has exited, and the restart request for it.
func (c *currentProcess) clearExitedProcess() {
	c.records.mu.Lock()
	defer c.records.mu.Unlock()
	c.process, c.records.restartRequest = nil, nil
}

// restartAndWait implements [Runner.Restart].
func (c *currentProcess) restartAndWait(ctx context.Context, event *api.TaskEvent, failure bool) error {
	var p *process
	first := false
	c.records.changeAndStoreBothRecords(state.DurabilitySync, func(s *api.TaskState) bool {
		if !c.isRestartableLocked() {
			return false
		}
		p, first = c.process, c.records.restartRequest == nil
		if first {
			c.records.restartRequest = &state.RestartRequest{Failure: failure, Reason: event.RestartReason}
			c.records.appendEvent(s, event)
		}
		return first
	})
	if p == nil {
		return ErrNotRunning
	}
	if first {
		if err := c.stopper.stopForRestart(ctx, p); err != nil {
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

// isRestartable implements [Runner.IsRestartable].
func (c *currentProcess) isRestartable() bool {
	c.records.mu.Lock()
	defer c.records.mu.Unlock()
	return c.isRestartableLocked()
}

func (c *currentProcess) isRestartableLocked() bool {
	return c.process != nil && !wait.IsClosed(c.process.exited) && !c.killRequest.isRequested() && !wait.IsClosed(c.runReturned)
}
