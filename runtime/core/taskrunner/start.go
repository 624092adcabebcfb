package taskrunner

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/nomad-lite/nomad-lite/internal/descriptors"
	"github.com/nomad-lite/nomad-lite/internal/failpoint"
	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/core/record"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskdriver"
	"github.com/nomad-lite/nomad-lite/runtime/core/tasksteps"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// fileTimeLag is how far file times, compared with the last start, may lag behind the clock: one kernel tick.
const fileTimeLag = 10 * time.Millisecond

// awaitDriverAndDestroyPending waits until the driver is available, lets the driver destroy a pending start, and
// fetches the driver's description, which Prestart hooks need.
func (t *taskRun) awaitDriverAndDestroyPending() error {
	_, err := t.driver.AwaitDriver(t.killCtx)
	if err != nil {
		err = fmt.Errorf("driver %q: %w", t.driver.DriverName, err)
	} else if err = t.ender.destroyPendingStarts(t.killCtx); err != nil {
		err = driver.Recoverable(err)
	} else if err = t.FetchDriverDescription(t.killCtx, true); taskdriver.IsTemporarilyUnavailable(err) {
		err = driver.Recoverable(err)
	}
	if err != nil {
		t.reportStartError(err)
	}
	return err
}

// startEventDelay is how long StartTask may take before the task gets an event. It is long enough for a driver that
// downloads an image to send its own events first.
const startEventDelay = 10 * time.Second

// maxStartCalls is how many StartTask calls a start has, if the plugin dies during each call and nothing is executed. The task
// may be the reason: each further call could end the plugin again, which other tasks need.
const maxStartCalls = 5

// processStart is one start, from its id to the process's handle.
type processStart struct {
	config        *driver.TaskConfig // nil for an earlier agent's start until buildConfigAndQueryStart builds it
	calls         int                // StartTask calls
	pluginProcess driver.Driver      // plugin process that has recovered the driver's tasks, for the next call
	outage        taskdriver.Outage  // since the driver was asked whether the start was executed
}

// storeStartID stores the start's id before StartTask is called, so that the next agent can find the process if this agent dies
// before it has stored the handle.
func (t *taskRun) storeStartID() tasksteps.Result {
	if t.killCtx.Err() != nil {
		return t.resultOfStartError(context.Cause(t.killCtx))
	}
	config, err := t.buildTaskConfig()
	if err != nil {
		err = t.records.secrets.Error(err)
		t.records.emitEvent(model.EventFailedValidation(err.Error()))
		return t.resultOfStartError(err)
	}
	if _, err := t.records.commitOrError(record.StartChosen{LastStart: time.Now().Add(-fileTimeLag), CandidateID: t.records.newStartID()}); err != nil {
		t.records.emitEvent(model.EventDriverFailure(err.Error()))
		return t.resultOfStartError(driver.Recoverable(err))
	}
	config.ID = t.records.fields().StartID
	config.Env = withTraceparent(config.Env, t.driver.Timeline.TaskTraceparent(config.ID))
	t.records.countStartAttempt()
	t.start = processStart{config: config}
	return tasksteps.Done
}

// awaitPluginTasks waits for the driver. After a plugin process has died, it also waits until the next plugin process has
// recovered the driver's running tasks. Each start that kills a plugin process doubles the delay before the next start.
func (t *taskRun) awaitPluginTasks() tasksteps.Result {
	var err error
	if t.pluginDeathsDuringStart > 0 && wait.Sleep(t.killCtx, min(time.Second<<min(t.pluginDeathsDuringStart-1, 10), time.Minute)) != nil {
		err = context.Cause(t.killCtx)
	} else {
		t.start.pluginProcess, err = t.driver.Plugins.AwaitTasksRecoveredOrTimeout(t.killCtx, t.driver.AwaitDriver)
	}
	if err != nil && t.start.calls > 0 {
		err = fmt.Errorf("failed to initialize driver after it exited unexpectedly: %w", err)
	}
	if err == nil {
		err = t.ender.destroyPendingStarts(t.killCtx)
	}
	if err != nil && isAgentShutdown(t.killCtx, t.forceKillCtx) {
		return tasksteps.AgentShutdown // the record still has the start's id; tasksteps.DropUnusedStartID removes it
	}
	if err != nil {
		return t.failStart(err)
	}
	return tasksteps.Done
}

// startTask calls StartTask. After a kill or an agent shutdown it waits at most kill_timeout for the result, and not at all after
// ForceKill.
func (t *taskRun) startTask() tasksteps.Result {
	ctx, cancel := t.requests.newContextWithGrace(t.killCtx, t.Task().KillTimeout)
	defer cancel()
	t.start.calls++
	t.requests.recordStartAttempt()
	handle, network, err := t.callStartTaskWhenResourcesFree(ctx)
	if err == nil && handle == nil {
		err = errors.New("driver started the task but returned no handle")
	}
	switch {
	case errors.Is(err, driver.ErrPluginDown):
		t.pluginDeathsDuringStart++
		t.logger.Warn("plugin died while it started the task", "task_id", t.start.config.ID)
		return tasksteps.PluginDied
	case err != nil && ctx.Err() != nil:
		return t.abandonStart(err)
	case err != nil:
		if t.ender.pendingDestroy() == nil {
			t.ender.destroyFailedStart(ctx, t.start.config.ID)
		}
		if reason := t.hooks.explainStartFailure(); reason != "" {
			err = driver.Recoverable(fmt.Errorf("%w; %s", err, reason))
		}
		return t.failStart(err)
	}
	if handle.Config == nil || handle.Config.ID != t.start.config.ID {
		handle.Config = t.start.config // later driver calls use the id in handle.Config
	}
	t.setProcess(handle, network)
	return tasksteps.Done
}

// callStartTaskWhenResourcesFree calls StartTask, and repeats the call as long as the driver has no free file descriptor or
// process. Such a call has executed nothing and is not the task's failure. The task gets an event when the first call has failed
// this way.
func (t *taskRun) callStartTaskWhenResourcesFree(ctx context.Context) (handle *driver.Handle, network *driver.NetworkOverride, err error) {
	onWait := func(err error) {
		t.records.emitEvent(model.EventDriverOutOfFDsOrProcesses(t.driver.DriverName, err.Error()))
	}
	err = descriptors.RetryIf(t.killCtx, driver.IsResourceExhausted, onWait, func() (err error) {
		handle, network, err = t.callStartTask(ctx)
		return err
	})
	return handle, network, err
}

// callStartTask calls StartTask once, and emits an event if the driver does not answer within startEventDelay.
func (t *taskRun) callStartTask(ctx context.Context) (*driver.Handle, *driver.NetworkOverride, error) {
	emitted := make(chan struct{})
	timer := time.AfterFunc(startEventDelay, func() {
		defer close(emitted)
		t.records.emitEvent(model.EventStartTaskNotAnswered(t.driver.DriverName, startEventDelay))
	})
	defer func() {
		if !timer.Stop() {
			<-emitted // the event must precede the events after the call
		}
	}()
	point := failpoint.EnterStep(failpoint.StepStartTask)
	defer point.Leave()
	return t.driver.StartTask(ctx, t.start.pluginProcess, t.start.config)
}

// queryStart asks the driver once whether a start was executed, after the plugin has died during that start.
func (t *taskRun) queryStart() tasksteps.Result {
	ctx, cancel := t.requests.newContextWithGrace(t.killCtx, t.Task().KillTimeout)
	defer cancel()
	config := t.start.config
	answer, found, err := t.driver.QueryStartOrSearchTask(ctx, config.ID, config)
	switch startActionFor(record.WithID, answer) {
	case actionStart:
		if t.start.calls < maxStartCalls {
			return tasksteps.NothingExecuted
		}
		t.ender.destroyFailedStart(ctx, t.start.config.ID)
		return t.failStart(fmt.Errorf("failed to start task after driver exited unexpectedly: %w", driver.ErrPluginDown))
	case actionAdopt, actionAwait:
		found.Handle.Config = config
		t.setProcess(found.Handle, found.Status.NetworkOverride)
		t.process.Unrecoverable = answer == taskdriver.AnswerTaskWithoutHandle
		t.logger.Info("task of an interrupted start adopted", "task_id", config.ID, "recoverable", !t.process.Unrecoverable)
		return tasksteps.ProcessFound
	case actionMarkLost:
		t.setProcess(&driver.Handle{Config: config}, nil)
		t.process.Unrecoverable = errors.Is(err, taskdriver.ErrStartUnknown)
		t.process.RecordExit(taskdriver.Exit{ExitResult: driver.ExitResult{Err: err}, StatusUnknown: true})
		task := t.State()
		t.process.RunSpan = t.driver.StartRunSpan(config.ID, task.StartedAt)
		return tasksteps.ExitUnknown
	}
	if t.start.outage.AwaitRetryUnlessDone(t.killCtx, err, t.driver.ReportOutage) {
		return tasksteps.NoAnswer
	}
	return t.abandonStart(context.Cause(t.killCtx))
}

// setProcess sets the process after a successful start.
func (t *taskRun) setProcess(handle *driver.Handle, network *driver.NetworkOverride) {
	t.pluginDeathsDuringStart = 0
	t.process, t.recovered = t.driver.NewProcess(handle, network), false
}

// storeHandle stores the handle together with the task state running, and watches the process. From then on only the store has the
// environment: a task has 5 KB of it, which the agent needs only if the plugin process dies.
func (t *taskRun) storeHandle() tasksteps.Result {
	p := t.process
	handle := handleWithoutDriverConfig(p.Handle)
	p.Handle = handleWithoutEnv(handle)
	t.requests.setStartedProcess(p)
	t.logger.Info("task started", "task_id", p.ID())
	point := failpoint.EnterStep(failpoint.StepHandleStored)
	_, err := t.records.commitOrError(record.Started{Now: time.Now(), Handle: handle, Network: p.Network, Unrecoverable: p.Unrecoverable})
	point.Leave()
	if err == nil {
		t.records.commit(record.HandleStored{WithoutEnv: p.Handle})
	}
	t.start.config = nil
	t.startWatch()
	return tasksteps.Done
}

// failStart returns the result when a start has failed with err. The record keeps the start's id until the decision about it is
// stored: an agent that reads the id before asks the driver whether the start was executed.
func (t *taskRun) failStart(err error) tasksteps.Result {
	if taskdriver.IsTemporarilyUnavailable(err) || t.ender.pendingDestroy() != nil {
		err = driver.Recoverable(err)
	}
	err = t.records.secrets.Error(err)
	t.reportStartError(err)
	return t.resultOfStartError(err)
}

// abandonStart ends a start with an unknown result, because of a kill or an agent shutdown. After a kill the driver destroys the
// task, which it may have started.
func (t *taskRun) abandonStart(err error) tasksteps.Result {
	if isAgentShutdown(t.killCtx, t.forceKillCtx) {
		t.startUndecided = true // the next agent asks the driver about the start, so the plugin process must stay
		return tasksteps.AgentShutdown
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.forceKillCtx), abandonedStartTimeout)
	defer cancel()
	t.ender.owe(record.DestroyOwed{Start: record.PendingDestroy{StartID: t.start.config.ID}})
	if err := t.ender.destroyPendingStarts(ctx); err != nil {
		t.logger.Error("task may have leaked: its start was abandoned", "task_id", t.start.config.ID, "error", err)
	}
	return t.failStart(err)
}

// traceparentVar is the variable in which programs receive their trace context, as OpenTelemetry defines it.
const traceparentVar = "TRACEPARENT"

// withTraceparent returns env with the variable TRACEPARENT, unless traceparent is empty or the job sets the variable. It does
// not change env, which may be shared.
func withTraceparent(env map[string]string, traceparent string) map[string]string {
	if _, set := env[traceparentVar]; set || traceparent == "" {
		return env
	}
	extended := make(map[string]string, len(env)+1)
	maps.Copy(extended, env)
	extended[traceparentVar] = traceparent
	return extended
}

// reportStartError logs a failed start's error and emits an event for it, unless killCtx is done.
func (t *taskRun) reportStartError(err error) {
	if t.killCtx.Err() == nil {
		t.logger.Info("start failed", "error", err)
		t.records.emitEvent(model.EventDriverFailure(err.Error()))
	}
}

// handleWithoutDriverConfig returns a copy of the handle without the driver config, which may contain passwords. Drivers must be
// able to recover a task without the config.
func handleWithoutDriverConfig(h *driver.Handle) *driver.Handle {
	stored := copyHandle(h)
	stored.Config.DriverConfig = nil
	return stored
}

func handleWithoutEnv(h *driver.Handle) *driver.Handle {
	without := copyHandle(h)
	without.Config.Env = nil
	return without
}

// copyHandle returns a copy with its own Config, which shares what Config refers to.
func copyHandle(h *driver.Handle) *driver.Handle {
	handle, config := *h, *h.Config
	handle.Config = &config
	return &handle
}
