package taskrunner

import (
	"context"
	"fmt"
	"maps"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/internal/failpoint"
	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// starter starts the task in its driver, and stores the id and the handle of the start.
// It belongs to the goroutine of Run.
type starter struct {
	ref            taskRef
	records        *taskRecords
	awaitDriver    dispenseDriverFunc // returns the driver, and blocks while it is unavailable; see dispenseWhenAvailable
	description    *driverDescription
	configBuilder  *taskConfigBuilder
	hooks          *taskHooks
	startCaller    *startCaller
	destroyer      *destroyer
	restartDecider *restartDecider
	currentProcess *currentProcess
	logger         hclog.Logger
}

// callPrestartHooksAndStart calls the Prestart hooks and starts the task. It emits an event for an error, unless killCtx is done.
func (s *starter) callPrestartHooksAndStart(killCtx, forceKillCtx context.Context) (*process, error) {
	if err := s.prepareStart(killCtx); err != nil {
		return nil, err
	}
	if err := s.hooks.callPrestartHooks(killCtx, false); err != nil {
		return nil, err
	}
	return s.startTask(killCtx, forceKillCtx)
}

// prepareStart waits until the driver is available, lets the driver destroy a pending start, and fetches the driver's
// description, which Prestart hooks need.
func (s *starter) prepareStart(killCtx context.Context) error {
	_, err := s.awaitDriver(killCtx)
	if err != nil {
		err = fmt.Errorf("driver %q: %w", s.description.task().Driver, err)
	} else if err = s.destroyer.destroyPendingStart(killCtx); err != nil {
		err = driver.Recoverable(err)
	} else if err = s.description.fetchWhenAvailable(killCtx, s.awaitDriver); IsDriverTemporarilyUnavailable(err) {
		err = driver.Recoverable(err)
	}
	if err != nil {
		s.reportStartError(killCtx, err)
	}
	return err
}

// startTask starts the task in its driver. It stores the handle together with the task state running.
func (s *starter) startTask(killCtx, forceKillCtx context.Context) (*process, error) {
	if killCtx.Err() != nil {
		return nil, context.Cause(killCtx)
	}
	config, err := s.configBuilder.buildTaskConfig()
	if err != nil {
		err = s.records.redactError(err)
		s.records.emitEvent(model.EventFailedValidation(err.Error()))
		return nil, err
	}

	// The id is stored before the start, so that the next agent can find a process whose
	// handle was not stored because this agent died.
	s.restartDecider.recordRestartStateAtStart()
	local := &s.records.localState
	if local.StartID == "" { // recordExitAndDestroyTask has stored no id for this start with the last exit
		local.StartID = s.ref.newStartID()
		if err := s.records.putLocalState(state.DurabilitySync); err != nil {
			s.records.emitEvent(model.EventDriverFailure(err.Error()))
			return nil, driver.Recoverable(err)
		}
	}
	config.ID = local.StartID
	config.Env = withTraceparent(config.Env, s.startCaller.callRecorder.timeline.TaskTraceparent(config.ID))
	s.records.taskMetrics.countStart()
	p, err := s.startCaller.startProcess(killCtx, forceKillCtx, config)
	if err != nil {
		err = s.records.redactError(err)
		local.StartID = "" // stored with the next put: an agent that reads the old id asks the driver whether the start was executed
		s.reportStartError(killCtx, err)
		return nil, err
	}

	if wait.IsClosed(p.exited) {
		return p, nil // the start was executed and its exit status is unknown; recordExitAndDestroyTask stores the exit
	}
	local.Handle, local.Network, local.HandleUnrecoverable = handleWithoutConfig(p.handle), p.network, p.unrecoverable
	s.currentProcess.setStartedProcess(p)
	s.logger.Info("task started", "task_id", config.ID)
	point := failpoint.EnterStep(failpoint.StepHandleStored)
	s.records.setTaskState(state.DurabilityGrouped, model.TaskRunning, model.EventStarted())
	point.Leave()
	return p, nil
}

// traceparentVar is the variable in which programs receive their trace context, as OpenTelemetry defines it.
const traceparentVar = "TRACEPARENT"

// withTraceparent returns env with the variable TRACEPARENT, unless the value is empty or the job sets the
// variable. It does not change env, which can be shared.
func withTraceparent(env map[string]string, value string) map[string]string {
	if _, set := env[traceparentVar]; set || value == "" {
		return env
	}
	extended := make(map[string]string, len(env)+1)
	maps.Copy(extended, env)
	extended[traceparentVar] = value
	return extended
}

// reportStartError logs the error of a failed start and emits an event for it, unless killCtx is done.
func (s *starter) reportStartError(killCtx context.Context, err error) {
	if killCtx.Err() == nil {
		s.logger.Info("start failed", "error", err)
		s.records.emitEvent(model.EventDriverFailure(err.Error()))
	}
}

// handleWithoutConfig returns a copy of the handle without the driver config, which may contain passwords. Drivers must
// be able to recover a task without the config.
func handleWithoutConfig(h *driver.Handle) *driver.Handle {
	stored, config := *h, *h.Config
	config.DriverConfig = nil
	stored.Config = &config
	return &stored
}
