package taskrunner

import (
	"context"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/failpoint"
	"github.com/nomad-lite/nomad-lite/runtime/model"
	"github.com/nomad-lite/nomad-lite/runtime/state"
)

// start starts the task in its driver. The handle is stored together with the running
// state. An error is reported as an event unless killCtx is done.
func (r *Runner) start(killCtx, forceKillCtx context.Context) (*process, error) {
	if killCtx.Err() != nil {
		return nil, context.Cause(killCtx)
	}
	config, err := r.taskConfig()
	if err != nil {
		r.EmitEvent(model.EventFailedValidation(err.Error()))
		return nil, err
	}

	// With the id in the store, the next agent can find a process whose handle was not
	// stored because this agent died.
	r.restarts.started()
	if r.local.StartID == "" { // not stored with the last exit
		r.local.StartID = newStartID(r.alloc.ID, r.name)
		if err := r.records.putLocal(state.Sync); err != nil {
			r.EmitEvent(model.EventDriverFailure(err.Error()))
			return nil, driver.Recoverable(err)
		}
	}
	config.ID = r.local.StartID
	handle, network, err := r.starter.start(killCtx, forceKillCtx, config)
	if err != nil {
		r.local.StartID = "" // not stored yet: an agent that reads the old id destroys the start by that id
		if killCtx.Err() == nil {
			r.logger.Info("start failed", "error", err)
			r.EmitEvent(model.EventDriverFailure(err.Error()))
		}
		return nil, err
	}

	r.local.Handle, r.local.Network = storedHandle(handle), network
	if network != nil {
		r.env.SetDriverPorts(network.PortMap)
	}
	p := newProcess(handle, network, r.dispense)
	p.recovery = r.recovery
	r.mu.Lock()
	r.process, r.records.restartReq, r.kill.leak = p, nil, nil
	r.records.killed = r.kill.requested() // includes a kill during the start
	r.mu.Unlock()
	r.logger.Info("task started", "task_id", config.ID)
	point := failpoint.Enter(failpoint.HandleStored)
	r.records.transition(state.Grouped, model.TaskRunning, model.EventStarted())
	point.Leave()
	return p, nil
}

// storedHandle returns the handle without the driver config, which may hold passwords
// and which drivers must not need to recover a task.
func storedHandle(h *driver.Handle) *driver.Handle {
	stored, config := *h, *h.Config
	config.DriverConfig = nil
	stored.Config = &config
	return &stored
}

// prepareStart makes the driver calls that must precede task setup. An error is
// reported as an event unless killCtx is done.
func (r *Runner) prepareStart(killCtx context.Context) error {
	err := r.destroyer.try(killCtx)
	if err != nil {
		err = driver.Recoverable(err)
	} else if err = r.Prepare(killCtx); Temporary(err) {
		err = driver.Recoverable(err)
	}
	if err != nil && killCtx.Err() == nil {
		r.logger.Info("start failed", "error", err)
		r.EmitEvent(model.EventDriverFailure(err.Error()))
	}
	return err
}
