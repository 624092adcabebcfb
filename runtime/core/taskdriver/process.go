package taskdriver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nomad-lite/nomad-lite/internal/failpoint"
	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/core/timeline"
)

// Process is one start of a task in its driver. Its methods may be called concurrently, also after the process has
// exited: a late call fails in the driver and never affects the next start, which has another id. The exported fields
// must be set before StartWatch.
type Process struct {
	Handle                   *driver.Handle          // may lack its environment; see Access.CompleteHandle
	Network                  *driver.NetworkOverride // nil unless the driver returned an address
	OnOutage                 func(error)             // called once per driver outage; may be nil
	OnOutageEnd              func()                  // called when a driver outage ends; may be nil
	NoPluginHasConfirmedTask bool                    // no plugin process has confirmed the task
	Unrecoverable            bool                    // the task cannot be recovered in another plugin process; see record.Fields.HandleUnrecoverable
	RunSpan                  *timeline.ActiveSpan    // span for the process run

	access        *Access
	outageStarted chan struct{} // receives a value when a driver outage starts; buffered

	exitOnce sync.Once
	exited   chan struct{} // closed by RecordExit, after it has set exit
	exit     Exit
}

// Exit says how a process ended.
type Exit struct {
	driver.ExitResult
	// StatusUnknown means the exit status is unknown: the driver answered that it does not have the task, the
	// driver reports no exit, or the agent ended the process without the driver.
	StatusUnknown bool
	// NeedsNoDestroy means the driver no longer has to destroy the task.
	NeedsNoDestroy bool
}

// ID returns the start's id, which is the task's id in the driver.
func (p *Process) ID() string { return p.Handle.Config.ID }

// Exited returns a channel that RecordExit closes.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Exit returns how the process ended. It must be called after Exited is closed.
func (p *Process) Exit() Exit { return p.exit }

// OutageStarted returns a channel that receives a value when a driver outage starts. It has room for one value.
func (p *Process) OutageStarted() <-chan struct{} { return p.outageStarted }

// RecordExit records how the process ended, and closes Exited. Only the first call has an effect.
func (p *Process) RecordExit(exit Exit) {
	p.exitOnce.Do(func() {
		p.exit = exit
		p.access.Plugins.removeTask(p)
		close(p.exited)
	})
}

// callWithRecovery calls f with the driver. If the plugin has died before or during f, or the driver does not know the
// task, callWithRecovery recovers the task in the current plugin process and calls f once more.
func (p *Process) callWithRecovery(ctx context.Context, f func(driver.Driver) error) error {
	d, err := p.access.Dispense(ctx)
	if err != nil {
		return err
	}
	err = f(p.access.recordCallsOf(d))
	down := errors.Is(err, driver.ErrPluginDown)
	unknown := errors.Is(err, driver.ErrTaskNotFound) && !wait.IsClosed(p.exited)
	if !down && !unknown {
		return err
	}
	d, recoverErr := p.RecoverTask(ctx)
	switch {
	case recoverErr == nil:
		return f(p.access.recordCallsOf(d))
	case unknown && !IsTaskStateUnknown(recoverErr):
		return err
	}
	return recoverErr
}

// RecoverTask recovers the task in the driver's current plugin process, and returns the process.
func (p *Process) RecoverTask(ctx context.Context) (driver.Driver, error) {
	d, err := p.access.Dispense(ctx)
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

// recoverOrInspect calls RecoverTask, or InspectTask if the task cannot be recovered. It returns nil if the plugin
// process has the task.
func (p *Process) recoverOrInspect(ctx context.Context, d driver.Driver) error {
	if p.Unrecoverable {
		_, err := d.InspectTask(ctx, p.ID())
		return err
	}
	handle := p.Handle
	if p.access.CompleteHandle != nil {
		handle = cmp.Or(p.access.CompleteHandle(p.ID()), handle)
	}
	return p.access.recordCallsOf(d).RecoverTask(ctx, handle)
}

// inconclusiveRecoveryError wraps a RecoverTask error that leaves open whether the task still exists.
type inconclusiveRecoveryError struct{ error }

func (e *inconclusiveRecoveryError) Unwrap() error { return e.error }

// IsTaskStateUnknown reports whether err means no plugin process has answered, or the driver could not find out
// whether it has the task. The task may still run.
func IsTaskStateUnknown(err error) bool {
	var unavailableErr *driver.UnavailableError
	var undecidedErr *inconclusiveRecoveryError
	return errors.As(err, &unavailableErr) || errors.As(err, &undecidedErr) || errors.Is(err, driver.ErrPluginDown)
}

// StartWatch watches the process until it has exited or ctx is done, and then calls onEnd. It continues through any
// number of plugin deaths and while the driver is unavailable. StartWatch does not block. While the task runs, the watch
// has no goroutine if the driver is a driver.ExitNotifier.
func (p *Process) StartWatch(ctx context.Context, onEnd func()) {
	w := &exitWatch{process: p, onEnd: onEnd, state: stateStarted}
	if p.NoPluginHasConfirmedTask {
		w.state = stateWithoutPlugin
	}
	go w.run(ctx)
}

// exitWatch is one StartWatch call. One goroutine at a time uses it, or none while the task runs.
type exitWatch struct {
	process       *Process
	onEnd         func()
	state         watchedTaskState
	currentOutage Outage
	driver        driver.Driver // driver that returned the last answer
}

// run makes driver calls until a plugin process has the task. notifyExit then continues the watch when the task exits.
func (w *exitWatch) run(ctx context.Context) {
	for {
		var err error
		if w.state == stateWithoutPlugin {
			w.driver, err = w.process.RecoverTask(ctx)
		} else if err = w.dispenseUnlessRecovered(ctx); err == nil {
			w.notifyExit(ctx)
			return
		}
		if !w.advance(ctx, nil, err) {
			w.end()
			return
		}
	}
}

func (w *exitWatch) end() {
	w.process.access.Plugins.removeTask(w.process)
	w.onEnd()
}

// dispenseUnlessRecovered sets a started task's driver. A recovered task keeps the plugin process that recovered it,
// because the next plugin process does not have the task.
func (w *exitWatch) dispenseUnlessRecovered(ctx context.Context) (err error) {
	if w.state == stateRecovered {
		return nil
	}
	if w.driver, err = w.process.access.Dispense(ctx); err == nil {
		w.process.access.Plugins.SetPluginOfTask(w.process, w.driver)
	}
	return err
}

// notifyExit continues the watch in another goroutine when the driver has reported the exit, or when ctx is done.
func (w *exitWatch) notifyExit(ctx context.Context) {
	var once sync.Once
	resume := func(result *driver.ExitResult, err error) {
		once.Do(func() {
			go func() {
				if w.advance(ctx, result, err) {
					w.run(ctx)
				} else {
					w.end()
				}
			}()
		})
	}
	stop := context.AfterFunc(ctx, func() { resume(nil, ctx.Err()) })
	driver.NotifyExit(ctx, w.driver, w.process.ID(), func(result *driver.ExitResult, err error) {
		stop()
		resume(result, err)
	})
}

// advance handles the outcome of the current state's driver call. It returns false when the watch ends.
func (w *exitWatch) advance(ctx context.Context, result *driver.ExitResult, err error) (watching bool) {
	if err != nil && ctx.Err() != nil {
		return false
	}
	p := w.process
	switch w.state = watchTransitions[w.state][classifyWatchCallError(err)]; w.state {
	case stateRecovered:
		p.access.Plugins.SetPluginOfTask(p, w.driver)
		if w.currentOutage.outageReported && p.OnOutageEnd != nil {
			p.OnOutageEnd()
		}
		w.currentOutage.resetAfterAnswer()
	case stateWithoutPlugin:
		p.access.Plugins.SetPluginOfTask(p, nil)
		exit, ok := p.awaitDriverOrExit(ctx, &w.currentOutage, err)
		if exit != nil {
			p.RecordExit(Exit{ExitResult: *exit})
		}
		return exit == nil && ok
	case stateExited:
		if err != nil {
			result = &driver.ExitResult{Err: err}
		}
		p.RecordExit(Exit{ExitResult: *result})
		return false
	case stateLost:
		p.RecordExit(Exit{ExitResult: driver.ExitResult{Err: err}, StatusUnknown: true})
		return false
	}
	return true
}

// awaitDriverOrExit blocks until the driver call that failed with err may be repeated. It returns false when ctx is
// done. If the process exits in the meantime and AwaitExitWithoutDriverFunc returns its exit status, awaitDriverOrExit
// returns the status at once, because the delay before the next plugin launch may be two minutes.
func (p *Process) awaitDriverOrExit(ctx context.Context, outage *Outage, err error) (exit *driver.ExitResult, mayRetry bool) {
	unavailableErr, _ := errors.AsType[*driver.UnavailableError](err)
	if p.access.AwaitExit == nil || unavailableErr == nil || !unavailableErr.TasksAreHostProcesses {
		return nil, outage.AwaitRetryUnlessDone(ctx, err, p.reportOutage)
	}
	untilExit, cancel := context.WithCancel(ctx)
	var exitWG sync.WaitGroup
	exitWG.Go(func() {
		if result, err := p.access.AwaitExit(untilExit, p.access.DriverName, p.Handle); err == nil {
			exit = result
			cancel()
		}
	})
	mayRetry = outage.AwaitRetryUnlessDone(untilExit, err, p.reportOutage)
	cancel()
	exitWG.Wait()
	return exit, mayRetry
}

// reportOutage signals outageStarted and calls OnOutage. It is called once per driver outage.
func (p *Process) reportOutage(err error) {
	wait.Notify(p.outageStarted)
	if p.OnOutage != nil {
		p.OnOutage(err)
	}
}

// DestroyTask calls the driver's DestroyTask, which also kills a running process. It returns nil if the driver does
// not have the task, and an error if the driver could not find out.
func (p *Process) DestroyTask(ctx context.Context) error {
	err := p.DestroyTaskOrErrNotFound(ctx)
	if errors.Is(err, driver.ErrTaskNotFound) {
		return nil
	}
	return err
}

// DestroyTaskOrErrNotFound is like DestroyTask, but returns ErrTaskNotFound if the driver does not have the task. A
// plugin process that has not started the task recovers it first, because it could not remove what remains from an
// unknown task.
func (p *Process) DestroyTaskOrErrNotFound(ctx context.Context) error {
	err := p.access.DestroyTaskByStartID(ctx, p.ID())
	down, unknown := errors.Is(err, driver.ErrPluginDown), errors.Is(err, driver.ErrTaskNotFound)
	if down || unknown {
		d, recoverErr := p.RecoverTask(ctx)
		switch {
		case recoverErr == nil:
			err = p.access.recordCallsOf(d).DestroyTask(ctx, p.ID(), true)
		case IsTaskStateUnknown(recoverErr):
			err = recoverErr
		case down:
			err = p.access.DestroyTaskByStartID(ctx, p.ID())
		}
	}
	return err
}

func (p *Process) StopTask(ctx context.Context, timeout time.Duration, signal string) error {
	err := p.callWithRecovery(ctx, func(d driver.Driver) error { return d.StopTask(ctx, p.ID(), timeout, signal) })
	if errors.Is(err, driver.ErrTaskNotFound) {
		return nil
	}
	return err
}

func (p *Process) SignalTask(ctx context.Context, signalName string) error {
	return p.callWithRecovery(ctx, func(d driver.Driver) error { return d.SignalTask(ctx, p.ID(), signalName) })
}

func (p *Process) ExecCommand(ctx context.Context, command []string, timeout time.Duration) (result *driver.ExecResult, err error) {
	err = p.callWithRecovery(ctx, func(d driver.Driver) (err error) {
		result, err = d.ExecTask(ctx, p.ID(), command, timeout)
		return err
	})
	return result, err
}

// ExecCommandStreaming does not repeat the call after the plugin has died, because some input may already have been
// sent.
func (p *Process) ExecCommandStreaming(ctx context.Context, exec driver.Exec) (result *driver.ExitResult, err error) {
	d, err := p.access.Dispense(ctx)
	if err != nil {
		return nil, err
	}
	point := failpoint.EnterStep(failpoint.StepRunning)
	result, err = p.access.recordCallsOf(d).ExecTaskStreaming(ctx, p.ID(), exec)
	point.Leave()
	return result, err
}

func (p *Process) OpenStats(ctx context.Context, interval time.Duration) (stream <-chan *driver.TaskStats, err error) {
	err = p.callWithRecovery(ctx, func(d driver.Driver) (err error) {
		stream, err = d.TaskStats(ctx, p.ID(), interval)
		return err
	})
	return stream, err
}
