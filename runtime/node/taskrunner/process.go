package taskrunner

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nomad-lite/nomad-lite/internal/failpoint"
	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/node/timeline"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// dispenseDriverFunc returns the driver of the task. It blocks while the driver's plugin is
// starting. All calls return the same value for one plugin process, and another value
// for the next process.
type dispenseDriverFunc func(context.Context) (driver.Driver, error)

// process is one start of the task in its driver. Its methods may be called concurrently, also after the process has
// exited: a late call fails in the driver and never affects the next start, which has another id.
type process struct {
	handle                   *driver.Handle
	network                  *driver.NetworkOverride // nil unless the driver returned an address
	dispenseDriver           dispenseDriverFunc
	callRecorder             driverCallRecorder
	pluginTaskTracker        *pluginTaskTracker // records which plugin process has the task; may be nil
	outageStarted            chan struct{}      // receives a value when an outage of the driver starts; buffered
	onOutage                 func(error)        // called once per outage of the driver; may be nil
	onOutageEnd              func()             // called at the end of each outage of the driver; may be nil
	awaitExitWithoutDriver   AwaitExitFunc      // used during outages of a driver whose tasks are processes of this machine; may be nil
	noPluginHasConfirmedTask bool               // no plugin process has confirmed that it has the task; set before watchUntilExit
	unrecoverable            bool               // the task cannot be recovered in another plugin process; see state.LocalState.HandleUnrecoverable

	runSpan *timeline.ActiveSpan // span for the run of the process; nil before runOneProcess starts it

	unfinishedEarlierRestart *state.RestartRequest // restart that an earlier agent did not finish; nil if there is none

	resultOnce sync.Once
	exited     chan struct{} // closed by recordResult, after it has set result
	result     processResult
}

// processResult says how a process ended.
type processResult struct {
	driver.ExitResult
	// exitUnknown means that the exit status is unknown: the driver answered that it does not have the task, the driver
	// reports no exit, or the agent ended the process without the driver.
	exitUnknown bool
	// destroyed means that the driver no longer has to destroy the task.
	destroyed bool
}

func newProcess(handle *driver.Handle, network *driver.NetworkOverride, d dispenseDriverFunc, calls driverCallRecorder) *process {
	return &process{handle: handle, network: network, dispenseDriver: d, callRecorder: calls, outageStarted: make(chan struct{}, 1), exited: make(chan struct{})}
}

func (p *process) id() string { return p.handle.Config.ID }

// recordResult records how the process ended, and closes exited. Only the first call has an effect.
func (p *process) recordResult(result processResult) {
	p.resultOnce.Do(func() {
		p.result = result
		p.pluginTaskTracker.removeTask(p)
		close(p.exited)
	})
}

// callWithRecovery calls f with the driver. If the plugin has died before or during f, or the driver does not know the task,
// callWithRecovery recovers the task in the current plugin process and calls f once more.
func (p *process) callWithRecovery(ctx context.Context, f func(driver.Driver) error) error {
	d, err := p.dispenseDriver(ctx)
	if err != nil {
		return err
	}
	err = f(p.callRecorder.recordCallsOf(d))
	down := errors.Is(err, driver.ErrPluginDown)
	unknown := errors.Is(err, driver.ErrTaskNotFound) && !wait.IsClosed(p.exited)
	if !down && !unknown {
		return err
	}
	d, recoverErr := p.recoverTask(ctx)
	switch {
	case recoverErr == nil:
		return f(p.callRecorder.recordCallsOf(d))
	case unknown && !isTaskStateUnknown(recoverErr):
		return err
	}
	return recoverErr
}

// recoverTask recovers the task in the current plugin process of the driver, and returns that process.
func (p *process) recoverTask(ctx context.Context) (driver.Driver, error) {
	d, err := p.dispenseDriver(ctx)
	if err != nil {
		return nil, err
	}
	if err := p.recoverOrInspect(ctx, d); err != nil {
		err = fmt.Errorf("recover task: %w", err)
		if driver.IsRecoverable(err) || ctx.Err() != nil {
			err = &inconclusiveRecoveryError{err}
		}
		return nil, err
	}
	return d, nil
}

// recoverOrInspect calls RecoverTask, or InspectTask for a task that cannot be recovered. It returns nil if the plugin
// process has the task.
func (p *process) recoverOrInspect(ctx context.Context, d driver.Driver) error {
	if !p.unrecoverable {
		return p.callRecorder.recordCallsOf(d).RecoverTask(ctx, p.handle)
	}
	_, err := d.InspectTask(ctx, p.id())
	return err
}

// inconclusiveRecoveryError wraps an error of RecoverTask that does not tell whether the task still exists.
type inconclusiveRecoveryError struct{ error }

func (e *inconclusiveRecoveryError) Unwrap() error { return e.error }

// isTaskStateUnknown reports whether err means that no plugin process has answered, or that the driver could not find out
// whether it has the task. The task may still run.
func isTaskStateUnknown(err error) bool {
	var unavailableErr *driver.UnavailableError
	var undecidedErr *inconclusiveRecoveryError
	return errors.As(err, &unavailableErr) || errors.As(err, &undecidedErr) || errors.Is(err, driver.ErrPluginDown)
}

// watchedTaskState is what watchUntilExit knows about the task and its plugin process.
type watchedTaskState int

const (
	stateStarted       watchedTaskState = iota // the plugin process is assumed to have started the task
	stateRecovered                             // the plugin process has confirmed RecoverTask
	stateWithoutPlugin                         // no plugin process is known to have the task
	stateExited                                // WaitTask has returned the exit status, or an error in its place
	stateLost                                  // the driver does not have the task: exit status unknown
)

// watchCallOutcome is the outcome of one driver call of watchUntilExit: RecoverTask in stateWithoutPlugin, WaitTask in
// stateStarted and stateRecovered.
type watchCallOutcome int

const (
	outcomeSuccess     watchCallOutcome = iota // the call succeeded
	outcomeUnavailable                         // no answer about the task, see isTaskStateUnknown
	outcomeNotFound                            // the driver does not know the task
	outcomeError                               // any other error of the driver
)

// watchTransitions maps a watchedTaskState and the outcome of its driver call to the next state. The death of a plugin
// process never ends the watch: only an answer of the driver does, or in stateWithoutPlugin an exit that AwaitExitFunc
// returns.
var watchTransitions = [...][4]watchedTaskState{
	// columns: outcomeSuccess, outcomeUnavailable, outcomeNotFound, outcomeError
	stateStarted:       {stateExited, stateWithoutPlugin, stateWithoutPlugin, stateExited},
	stateRecovered:     {stateExited, stateWithoutPlugin, stateLost, stateExited},
	stateWithoutPlugin: {stateRecovered, stateWithoutPlugin, stateLost, stateLost},
}

func classifyWatchCallError(err error) watchCallOutcome {
	switch {
	case err == nil:
		return outcomeSuccess
	case isTaskStateUnknown(err):
		return outcomeUnavailable
	case errors.Is(err, driver.ErrTaskNotFound):
		return outcomeNotFound
	}
	return outcomeError
}

// watchUntilExit blocks until the process has exited or ctx is done. It continues through any
// number of plugin deaths and while the driver is unavailable.
func (p *process) watchUntilExit(ctx context.Context) {
	defer p.pluginTaskTracker.removeTask(p)
	state := stateStarted
	if p.noPluginHasConfirmedTask {
		state = stateWithoutPlugin
	}
	var currentOutage driverOutage
	var d driver.Driver // driver that returned the last answer
	for {
		var result driver.ExitResult
		var err error
		d, result, err = p.callDriverForWatchState(ctx, state, d)
		if err != nil && ctx.Err() != nil {
			return
		}
		switch state = watchTransitions[state][classifyWatchCallError(err)]; state {
		case stateRecovered:
			p.pluginTaskTracker.setPluginOfTask(p, d)
			if currentOutage.outageReported && p.onOutageEnd != nil {
				p.onOutageEnd()
			}
			currentOutage.resetAfterAnswer()
		case stateWithoutPlugin:
			p.pluginTaskTracker.setPluginOfTask(p, nil)
			exit, ok := p.awaitDriverOrExit(ctx, &currentOutage, err)
			if exit != nil {
				p.recordResult(processResult{ExitResult: *exit})
			}
			if exit != nil || !ok {
				return
			}
		case stateExited:
			if err != nil {
				result = driver.ExitResult{Err: err}
			}
			p.recordResult(processResult{ExitResult: result})
			return
		case stateLost:
			p.recordResult(processResult{ExitResult: driver.ExitResult{Err: err}, exitUnknown: true})
			return
		}
	}
}

// awaitDriverOrExit blocks until the driver call that failed with err may be repeated. It returns false when ctx is done. If
// the process exits in the meantime and AwaitExitFunc returns its exit status, awaitDriverOrExit returns the status at once,
// because the delay before the next launch of a plugin can be two minutes.
func (p *process) awaitDriverOrExit(ctx context.Context, outage *driverOutage, err error) (exit *driver.ExitResult, mayRetry bool) {
	unavailableErr, _ := errors.AsType[*driver.UnavailableError](err)
	if p.awaitExitWithoutDriver == nil || unavailableErr == nil || !unavailableErr.TasksAreHostProcesses {
		return nil, outage.awaitRetry(ctx, err, p.reportOutage)
	}
	untilExit, cancel := context.WithCancel(ctx)
	var exitWG sync.WaitGroup
	exitWG.Go(func() {
		if result, err := p.awaitExitWithoutDriver(untilExit, p.callRecorder.driver, p.handle); err == nil {
			exit = result
			cancel()
		}
	})
	mayRetry = outage.awaitRetry(untilExit, err, p.reportOutage)
	cancel()
	exitWG.Wait()
	return exit, mayRetry
}

// reportOutage signals outageStarted and calls onOutage. It is called once per outage of the driver.
func (p *process) reportOutage(err error) {
	select {
	case p.outageStarted <- struct{}{}:
	default:
	}
	if p.onOutage != nil {
		p.onOutage(err)
	}
}

// callDriverForWatchState makes the driver call that belongs to a state of the watch. For a recovered task it calls WaitTask on
// the plugin process that has recovered the task, because the next plugin process does not have the task.
func (p *process) callDriverForWatchState(ctx context.Context, state watchedTaskState, d driver.Driver) (_ driver.Driver, result driver.ExitResult, err error) {
	switch state {
	case stateWithoutPlugin:
		d, err = p.recoverTask(ctx)
		return d, result, err
	case stateStarted:
		if d, err = p.dispenseDriver(ctx); err != nil {
			return nil, result, err
		}
		p.pluginTaskTracker.setPluginOfTask(p, d)
	}
	r, err := d.WaitTask(ctx, p.id())
	if err == nil {
		result = *r
	}
	return d, result, err
}

// destroyTask calls DestroyTask, which also kills a process that still runs. It returns nil if the driver does not have
// the task, and an error if the driver could not find out whether it has the task.
func (p *process) destroyTask(ctx context.Context) error {
	err := p.destroyTaskIfFound(ctx)
	if errors.Is(err, driver.ErrTaskNotFound) {
		return nil
	}
	return err
}

// destroyTaskIfFound is like destroyTask, but returns ErrTaskNotFound if the driver does not have the task. A plugin process
// that has not started the task recovers it first, because it could not remove the remains of a task that it does not know.
func (p *process) destroyTaskIfFound(ctx context.Context) error {
	err := destroyByID(ctx, p.dispenseDriver, p.callRecorder, p.id())
	down, unknown := errors.Is(err, driver.ErrPluginDown), errors.Is(err, driver.ErrTaskNotFound)
	if down || unknown {
		d, recoverErr := p.recoverTask(ctx)
		switch {
		case recoverErr == nil:
			err = p.callRecorder.recordCallsOf(d).DestroyTask(ctx, p.id(), true)
		case isTaskStateUnknown(recoverErr):
			err = recoverErr
		case down:
			err = destroyByID(ctx, p.dispenseDriver, p.callRecorder, p.id())
		}
	}
	return err
}

// destroyByID destroys a start by its id. It returns ErrTaskNotFound if the driver
// does not have the task.
func destroyByID(ctx context.Context, dispense dispenseDriverFunc, calls driverCallRecorder, id string) error {
	d, err := dispense(ctx)
	if err != nil {
		return err
	}
	return calls.recordCallsOf(d).DestroyTask(ctx, id, true)
}

func (p *process) stopTask(ctx context.Context, timeout time.Duration, signal string) error {
	err := p.callWithRecovery(ctx, func(d driver.Driver) error { return d.StopTask(ctx, p.id(), timeout, signal) })
	if errors.Is(err, driver.ErrTaskNotFound) {
		return nil
	}
	return err
}

func (p *process) signalTask(ctx context.Context, name string) error {
	return p.callWithRecovery(ctx, func(d driver.Driver) error { return d.SignalTask(ctx, p.id(), name) })
}

func (p *process) execCommand(ctx context.Context, command []string, timeout time.Duration) (result *driver.ExecResult, err error) {
	err = p.callWithRecovery(ctx, func(d driver.Driver) (err error) {
		result, err = d.ExecTask(ctx, p.id(), command, timeout)
		return err
	})
	return result, err
}

// execCommandStreaming does not repeat the call after the death of the plugin, because a part of the input may already
// have been sent.
func (p *process) execCommandStreaming(ctx context.Context, exec driver.Exec) (result *driver.ExitResult, err error) {
	d, err := p.dispenseDriver(ctx)
	if err != nil {
		return nil, err
	}
	point := failpoint.EnterStep(failpoint.StepRunning)
	result, err = p.callRecorder.recordCallsOf(d).ExecTaskStreaming(ctx, p.id(), exec)
	point.Leave()
	return result, err
}

func (p *process) openStats(ctx context.Context, interval time.Duration) (stream <-chan *driver.TaskStats, err error) {
	err = p.callWithRecovery(ctx, func(d driver.Driver) (err error) {
		stream, err = d.TaskStats(ctx, p.id(), interval)
		return err
	})
	return stream, err
}
