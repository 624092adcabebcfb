package taskrunner

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/failpoint"
	"github.com/nomad-lite/nomad-lite/runtime/model"
	"github.com/nomad-lite/nomad-lite/runtime/state"
)

// abandonedStart is the timeout for destroying a task whose start was abandoned.
const abandonedStart = 5 * time.Second

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
	r.tracker.Started()
	r.local.Restart = r.tracker.State()
	if r.local.StartID != "" {
		config.ID = r.local.StartID // stored with the last exit
	} else {
		r.local.StartID = config.ID
		if err := r.putLocal(state.Sync); err != nil {
			r.EmitEvent(model.EventDriverFailure(err.Error()))
			return nil, driver.Recoverable(err)
		}
	}
	handle, network, err := r.startTask(killCtx, forceKillCtx, config)
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
	r.process, r.restartReq, r.killError = p, nil, nil
	r.killNoted = r.isKilled() // includes a kill during the start
	r.mu.Unlock()
	r.logger.Info("task started", "task_id", config.ID)
	point := failpoint.Enter(failpoint.HandleStored)
	r.transition(state.Grouped, model.TaskRunning, model.EventStarted())
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

// startTask calls the driver, and once more if the plugin dies during the call. After a
// kill or a shutdown it waits for the driver for the kill timeout, and not at all after
// ForceKill. When the wait ends without a result, the task is destroyed, because it may
// have started.
func (r *Runner) startTask(killCtx, forceKillCtx context.Context, config *driver.TaskConfig) (*driver.Handle, *driver.NetworkOverride, error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(killCtx))
	var watch sync.WaitGroup
	defer watch.Wait()
	defer cancel()
	watch.Go(func() {
		select {
		case <-killCtx.Done():
		case <-ctx.Done():
			return
		}
		select {
		case <-time.After(r.Task().KillTimeout):
		case <-r.forceKilled:
		case <-ctx.Done():
		}
		cancel()
	})

	handle, network, err := r.callStartTask(ctx, killCtx, config)
	if err != nil && ctx.Err() != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(forceKillCtx), abandonedStart)
		defer cancel()
		r.setPendingDestroy(state.PendingDestroy{ID: config.ID})
		if err := r.destroyPending(ctx); err != nil {
			r.logger.Error("task may have leaked: its start was abandoned", "task_id", config.ID, "error", err)
		}
	}
	return handle, network, err
}

// prepareStart makes the driver calls that must precede task setup. An error is
// reported as an event unless killCtx is done.
func (r *Runner) prepareStart(killCtx context.Context) error {
	err := r.destroyPending(killCtx)
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

// callStartTask calls StartTask, and once more if the plugin dies during the call:
// after a pause, and after the plugin's running tasks were recovered. If the driver is
// unavailable, the error is recoverable.
func (r *Runner) callStartTask(ctx, killCtx context.Context, config *driver.TaskConfig) (*driver.Handle, *driver.NetworkOverride, error) {
	var handle *driver.Handle
	var network *driver.NetworkOverride
	var err error
	for first := true; ; first = false {
		var d driver.Driver
		if d, err = r.driverForStart(killCtx); err != nil {
			if !first {
				err = fmt.Errorf("failed to initialize driver after it exited unexpectedly: %w", err)
			}
			break
		}
		// A process that the dead plugin may have started must not run beside the next
		// attempt.
		if err = r.destroyPending(ctx); err != nil {
			break
		}
		r.noteStart()
		point := failpoint.Enter(failpoint.StartTask)
		handle, network, err = d.StartTask(ctx, config)
		point.Leave()
		if !errors.Is(err, driver.ErrPluginDown) {
			break
		}
		r.startDeaths++
		r.setPendingDestroy(state.PendingDestroy{ID: config.ID})
		r.logger.Warn("plugin died while it started the task", "task_id", config.ID)
		if !first {
			err = fmt.Errorf("failed to start task after driver exited unexpectedly: %w", err)
		}
		if !first || ctx.Err() != nil {
			break
		}
	}
	if Temporary(err) || r.local.Destroy != nil {
		err = driver.Recoverable(err)
	}
	if err != nil {
		return nil, nil, err
	}
	if handle == nil {
		return nil, nil, errors.New("driver started the task but returned no handle")
	}
	if handle.Config == nil || handle.Config.ID != config.ID {
		handle.Config = config // all later calls use this id
	}
	r.startDeaths = 0
	return handle, network, nil
}

// driverForStart returns the driver for a start of the task. After the death of a
// plugin process, its running tasks are recovered before any task is started. After
// each start that a plugin process does not survive, the delay grows.
func (r *Runner) driverForStart(ctx context.Context) (driver.Driver, error) {
	if r.startDeaths > 0 {
		delay := min(time.Second<<min(r.startDeaths-1, 10), time.Minute)
		if !sleep(ctx, delay) {
			return nil, context.Cause(ctx)
		}
	}
	return r.recovery.await(ctx, r.dispense)
}
