package taskrunner

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/descriptors"
	"github.com/nomad-lite/nomad-lite/internal/failpoint"
	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// abandonedStartTimeout is the timeout for destroying a task whose start was abandoned.
const abandonedStartTimeout = 5 * time.Second

// startEventDelay is how long StartTask may take before the task gets an event. It is long enough for a driver that
// downloads an image to send its own events first.
const startEventDelay = 10 * time.Second

// startCaller calls StartTask of the driver. It belongs to the goroutine of Run.
type startCaller struct {
	startQuery        startQuery
	dispense          dispenseDriverFunc
	awaitDriver       dispenseDriverFunc // returns the driver, and blocks while it is unavailable; see dispenseWhenAvailable
	callRecorder      driverCallRecorder
	pluginTaskTracker *pluginTaskTracker
	destroyer         *destroyer
	processTracker    *processTracker
	killRequest       *killRequest
	task              func() Task
	emitEvent         func(*api.TaskEvent)
	reportOutage      func(error) // emits the event for an outage of the driver; called once per outage
	logger            hclog.Logger

	pluginDeathsDuringStart int // plugin deaths during StartTask since the last successful start
}

// startProcess starts the task in the driver with callWithRetry. After a kill or a shutdown it waits at most kill_timeout
// for the result, and not at all after ForceKill. If the wait ends without a result, it destroys the task, because the
// driver may have started the task.
func (s *startCaller) startProcess(killCtx, forceKillCtx context.Context, config *driver.TaskConfig) (*process, error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(killCtx))
	var watchWG sync.WaitGroup
	defer watchWG.Wait()
	defer cancel()
	watchWG.Go(func() {
		select {
		case <-killCtx.Done():
		case <-ctx.Done():
			return
		}
		select {
		case <-time.After(s.task().KillTimeout):
		case <-s.killRequest.forceKilled:
		case <-ctx.Done():
		}
		cancel()
	})

	p, err := s.callWithRetry(ctx, killCtx, config)
	if err != nil && ctx.Err() != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(forceKillCtx), abandonedStartTimeout)
		defer cancel()
		s.destroyer.setPendingDestroy(state.PendingDestroy{StartID: config.ID})
		if err := s.destroyer.destroyPendingStart(ctx); err != nil {
			s.logger.Error("task may have leaked: its start was abandoned", "task_id", config.ID, "error", err)
		}
	}
	return p, err
}

// callWithRetry calls StartTask. If the plugin dies during the call, callWithRetry asks the next plugin process whether the
// start was executed. If it was not, callWithRetry calls StartTask once more, after a pause and after the running tasks of
// the driver were recovered. While the driver is unavailable, callWithRetry waits.
func (s *startCaller) callWithRetry(ctx, killCtx context.Context, config *driver.TaskConfig) (*process, error) {
	var handle *driver.Handle
	var network *driver.NetworkOverride
	var err error
	calls := 0
	undecided := false // a plugin process has died during the last call, and it is not known whether the start was executed
	for {
		if undecided {
			p, executed, askErr := s.awaitStartQueryAnswer(ctx, killCtx, config)
			if executed {
				return p, nil
			}
			if err = askErr; err != nil {
				break
			}
			undecided = false
			if calls > 1 {
				err = fmt.Errorf("failed to start task after driver exited unexpectedly: %w", driver.ErrPluginDown)
				break
			}
		}
		var d driver.Driver
		if d, err = s.awaitDriverForStart(killCtx); err != nil {
			if calls > 0 {
				err = fmt.Errorf("failed to initialize driver after it exited unexpectedly: %w", err)
			}
			break
		}
		if err = s.destroyer.destroyPendingStart(ctx); err != nil {
			break
		}
		calls++
		s.processTracker.recordStartAttempt()
		handle, network, err = s.callWhenResourcesFree(ctx, killCtx, d, config)
		if !errors.Is(err, driver.ErrPluginDown) {
			break
		}
		s.pluginDeathsDuringStart++
		undecided = true
		s.logger.Warn("plugin died while it started the task", "task_id", config.ID)
	}
	if err == nil && handle == nil {
		err = errors.New("driver started the task but returned no handle")
	}
	if undecided {
		s.destroyer.setPendingDestroy(state.PendingDestroy{StartID: config.ID})
	} else if err != nil && calls > 0 && ctx.Err() == nil && s.destroyer.pendingDestroy() == nil {
		s.destroyFailedStart(ctx, config.ID)
	}
	if IsDriverTemporarilyUnavailable(err) || s.destroyer.pendingDestroy() != nil {
		err = driver.Recoverable(err)
	}
	if err != nil {
		return nil, err
	}
	if handle.Config == nil || handle.Config.ID != config.ID {
		handle.Config = config // later driver calls use the id in handle.Config
	}
	return s.newStartedProcess(handle, network), nil
}

// newStartedProcess returns the process of a successful start, and resets pluginDeathsDuringStart.
func (s *startCaller) newStartedProcess(handle *driver.Handle, network *driver.NetworkOverride) *process {
	s.pluginDeathsDuringStart = 0
	p := newProcess(handle, network, s.dispense, s.callRecorder)
	p.pluginTaskTracker = s.pluginTaskTracker
	return p
}

// awaitStartQueryAnswer asks the driver, until it answers, whether a start during which a plugin process has died was executed.
// If it was, executed is true and p is its process, which has ended if its exit status is unknown. An error means that
// killCtx was done before an answer.
func (s *startCaller) awaitStartQueryAnswer(ctx, killCtx context.Context, config *driver.TaskConfig) (p *process, executed bool, err error) {
	var outage driverOutage
	for {
		answer, found, err := s.startQuery.queryStart(ctx, config.ID, config)
		switch startActionFor(recordID, answer) {
		case actionStart:
			return nil, false, nil
		case actionAdopt, actionAwait:
			found.handle.Config = config
			p := s.newStartedProcess(found.handle, found.status.NetworkOverride)
			p.unrecoverable = answer == answerTaskWithoutHandle
			s.logger.Info("task of an interrupted start adopted", "task_id", config.ID, "recoverable", !p.unrecoverable)
			return p, true, nil
		case actionMarkLost:
			p := s.newStartedProcess(&driver.Handle{Config: config}, nil)
			p.unrecoverable = errors.Is(err, errStartUnknown)
			p.recordResult(processResult{ExitResult: driver.ExitResult{Err: err}, exitUnknown: true})
			return p, true, nil
		}
		if !outage.awaitRetry(killCtx, err, s.reportOutage) {
			return nil, false, context.Cause(killCtx)
		}
	}
}

// callWhenResourcesFree calls StartTask, and repeats the call as long as the driver has no free file descriptor or process.
// Such a call has executed nothing and is no failure of the task. The task gets an event when the first call has failed
// this way.
func (s *startCaller) callWhenResourcesFree(ctx, killCtx context.Context, d driver.Driver, config *driver.TaskConfig) (handle *driver.Handle, network *driver.NetworkOverride, err error) {
	onWait := func(err error) {
		s.emitEvent(model.EventDriverExhausted(s.task().Driver, err.Error()))
	}
	err = descriptors.RetryIf(killCtx, driver.IsResourceExhausted, onWait, func() (err error) {
		handle, network, err = s.callStartTask(ctx, d, config)
		return err
	})
	return handle, network, err
}

// callStartTask calls StartTask once, and emits an event if the driver does not answer within startEventDelay.
func (s *startCaller) callStartTask(ctx context.Context, d driver.Driver, config *driver.TaskConfig) (*driver.Handle, *driver.NetworkOverride, error) {
	emitted := make(chan struct{})
	timer := time.AfterFunc(startEventDelay, func() {
		defer close(emitted)
		s.emitEvent(model.EventWaitingForStart(s.task().Driver, startEventDelay))
	})
	defer func() {
		if !timer.Stop() {
			<-emitted // the event must precede the events that follow the call
		}
	}()
	point := failpoint.EnterStep(failpoint.StepStartTask)
	defer point.Leave()
	return s.callRecorder.recordCallsOf(d).StartTask(ctx, config)
}

// destroyFailedStart destroys a start whose StartTask has returned an error. The driver may have started the task
// nevertheless, for example if the agent could not read the response. Otherwise the driver does not find the task.
func (s *startCaller) destroyFailedStart(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(ctx, abandonedStartTimeout)
	defer cancel()
	err := destroyByID(ctx, s.dispense, s.callRecorder, id)
	switch {
	case err == nil:
		s.logger.Warn("a task whose start failed was destroyed", "task_id", id)
	case !errors.Is(err, driver.ErrTaskNotFound):
		s.logger.Warn("task may have leaked: its start failed, and it was not destroyed", "task_id", id, "error", err)
	}
}

// awaitDriverForStart returns the driver for a start of the task. After the death of a plugin process, it waits until the
// next plugin process has recovered the running tasks of the driver. Each start that a plugin process does not survive
// doubles the delay before the next start.
func (s *startCaller) awaitDriverForStart(ctx context.Context) (driver.Driver, error) {
	if s.pluginDeathsDuringStart > 0 {
		delay := min(time.Second<<min(s.pluginDeathsDuringStart-1, 10), time.Minute)
		if wait.Sleep(ctx, delay) != nil {
			return nil, context.Cause(ctx)
		}
	}
	return s.pluginTaskTracker.awaitTasksRecovered(ctx, s.awaitDriver)
}
