package taskrunner

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/failpoint"
	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/core/lifecycle"
	"github.com/nomad-lite/nomad-lite/runtime/core/record"
	"github.com/nomad-lite/nomad-lite/runtime/core/restart"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskdriver"
	"github.com/nomad-lite/nomad-lite/runtime/core/tasksteps"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/job/tracespan"
)

// taskRun holds the data that the steps in one Run call share, in addition to the task's records. It belongs to Run's goroutine.
// It is large because each step is a method.
type taskRun struct {
	recoverer
	ctx, killCtx, forceKillCtx context.Context // see taskRequests.newKillContexts
	untilAllocStop             context.Context // see Runner.Run

	outcome      restart.RunOutcome // how the last process or start has ended; input of tasksteps.DecideRestart
	restartDelay time.Duration
	process      *taskdriver.Process // process that was started or taken over; nil before the first one
	recovered    bool                // an earlier agent has started the process
	endWatch     func()              // ends the process watch, and waits for it; nil if the process is not watched
	stop         processStop
	ended        taskdriver.Exit // how the process has ended; set by tasksteps.RecordExit
}

// execute executes one step, and returns its result. Package tasksteps has the following step.
func (t *taskRun) execute(step tasksteps.Step) tasksteps.Result {
	switch step {
	case tasksteps.RecoverTask:
		return t.resultOfRecovery()
	case tasksteps.QueryEarlierStart:
		return t.queryEarlierStart()
	case tasksteps.TakeOverProcess:
		return t.takeOverProcess()
	case tasksteps.CallExitedHooks:
		return t.callExitedHooks()
	case tasksteps.DecideRestart:
		return t.resultOfDecision(t.decideRestart(t.outcome, false))
	case tasksteps.AwaitRestartDelay:
		return t.awaitRestartDelay()
	case tasksteps.AwaitStartGate:
		return t.awaitStartGate()
	case tasksteps.AwaitDriver:
		return t.resultOfStartStep(t.awaitDriverAndDestroyPending())
	case tasksteps.CallPrestartHooks:
		return t.resultOfStartStep(t.hooks.callPrestartHooks(t.killCtx, false, false))
	case tasksteps.StoreStartID:
		return t.storeStartID()
	case tasksteps.AwaitPluginTasks:
		return t.awaitPluginTasks()
	case tasksteps.StartTask:
		return t.startTask()
	case tasksteps.QueryStart:
		return t.queryStart()
	case tasksteps.StoreHandle:
		return t.storeHandle()
	case tasksteps.CallPoststartHooks:
		t.callPoststartHooks()
		return tasksteps.Done
	case tasksteps.AwaitExit:
		return t.awaitExit()
	case tasksteps.CallPreKillingHooks:
		return t.callPreKillingHooks()
	case tasksteps.AwaitShutdownDelay:
		return t.awaitShutdownDelay()
	case tasksteps.StopTask:
		return t.stopTask()
	case tasksteps.AwaitStopRetry:
		return t.awaitStopRetry()
	case tasksteps.AwaitExitAfterStop:
		return t.awaitExitAfterStop()
	case tasksteps.DestroyWithoutExit:
		return t.destroyWithoutExit()
	case tasksteps.ForceKill:
		t.ender.forceKillProcess(context.WithoutCancel(t.forceKillCtx), t.process)
		return tasksteps.Done
	case tasksteps.RecordExit:
		return t.recordExit()
	case tasksteps.DestroyProcess:
		t.destroyProcess()
		return tasksteps.Done
	case tasksteps.MarkDead:
		t.records.commit(record.UnusedStartDropped{})
		t.records.commit(record.Died{Now: time.Now()})
		return tasksteps.Done
	case tasksteps.AwaitRerun:
		return t.awaitRerun()
	case tasksteps.DecideRerun:
		t.records.commit(record.RerunBegun{})
		return t.resultOfDecision(t.decideRestart(restart.RunOutcome{RestartRequested: true}, false))
	case tasksteps.DestroyRemaining:
		return t.destroyRemaining()
	case tasksteps.CallStopHooks:
		t.recordCompleteAndCallStopHooks()
		return tasksteps.Done
	case tasksteps.DropUnusedStartID:
		t.records.commit(record.UnusedStartDropped{})
		return tasksteps.Done
	case tasksteps.CallShutdownHooks:
		t.stopWatch()
		t.hooks.callShutdownHooks(t.ctx)
		return tasksteps.Done
	case tasksteps.AbandonTask:
		return t.abandonTask()
	}
	return tasksteps.NoResult
}

// killAfterUnknownResult kills the task because a step has returned a result unknown to package tasksteps. The task has failed
// unless it was killed or dead already.
func (t *taskRun) killAfterUnknownResult(step tasksteps.Step, result tasksteps.Result) {
	t.logger.Error("step of the task has an unknown result, killing the task", "step", step, "result", result)
	fails := !t.requests.isKillRequested() && t.State().State != model.TaskDead
	event := model.EventKillingReason(fmt.Sprintf("The task ends because of an error in nomad-lite, please report it: the step %q cannot have the result %q", step, result), fails)
	t.records.emitEvent(event)
	t.requests.requestKill(event, false) // adds no second Killing event
}

// abandonTask finds what is left of a task killed by killAfterUnknownResult.
func (t *taskRun) abandonTask() tasksteps.Result {
	fields := t.records.fields()
	t.process = t.requests.getProcess()
	if t.startUndecided || t.process == nil && fields.StartID != "" && fields.UnhandledExit == nil {
		t.oweUndecidedStart()
	}
	if t.process != nil && t.endWatch == nil {
		t.startWatch()
	}
	return t.resultOfDecidedStart(tasksteps.Done)
}

// shutdownOr returns the result agent shutdown if the agent shuts down, and r otherwise.
func (t *taskRun) shutdownOr(r tasksteps.Result) tasksteps.Result {
	if isAgentShutdown(t.killCtx, t.forceKillCtx) {
		return tasksteps.AgentShutdown
	}
	return r
}

// resultOfStartStep returns the result when a step before the start has returned err.
func (t *taskRun) resultOfStartStep(err error) tasksteps.Result {
	if err == nil {
		return tasksteps.Done
	}
	return t.resultOfStartError(err)
}

// resultOfStartError returns the result when the start, or a step before it, has failed with err.
func (t *taskRun) resultOfStartError(err error) tasksteps.Result {
	if t.killCtx.Err() != nil {
		return t.shutdownOr(tasksteps.Killed)
	}
	t.records.commit(record.StartFailed{Now: time.Now(), Error: t.records.secrets.Text(err.Error())})
	t.outcome = startFailureOutcome(err)
	return tasksteps.Failed
}

// resultOfDecision returns the result for the restart policy's decision, and keeps its delay.
func (t *taskRun) resultOfDecision(d restart.Decision) tasksteps.Result {
	if d.Action != restart.ActionRestart {
		return tasksteps.NoRestart
	}
	t.restartDelay = d.Delay
	return tasksteps.Restart
}

// resultOfRecovery returns what RecoverTaskOfEarlierAgent has found.
func (t *taskRun) resultOfRecovery() tasksteps.Result {
	task := t.State()
	switch {
	case t.ctx.Err() != nil:
		return tasksteps.AgentShutdown
	case t.records.fields().RunComplete:
		return tasksteps.RunComplete
	case task.State == model.TaskDead:
		return tasksteps.TaskDead
	case t.startUndecided:
		return tasksteps.StartUndecided
	}
	return t.resultOfDecidedStart(tasksteps.Done)
}

// queryEarlierStart asks the driver once about an earlier agent's interrupted start. After a kill it does not ask again, but
// records that the driver must destroy the start.
func (t *taskRun) queryEarlierStart() tasksteps.Result {
	switch {
	case t.killCtx.Err() == nil && !t.queryEarlierStartOnce(t.killCtx):
		return tasksteps.NoAnswer
	case t.startUndecided && isAgentShutdown(t.killCtx, t.forceKillCtx):
		return tasksteps.AgentShutdown
	case t.startUndecided:
		t.oweUndecidedStart()
	}
	if t.State().State == model.TaskDead {
		return tasksteps.TaskDead
	}
	return t.resultOfDecidedStart(tasksteps.NothingExecuted)
}

// resultOfDecidedStart returns the result exit found or process found if the records or the driver have one, and
// otherwise if they have neither. The driver must have answered about the last start.
func (t *taskRun) resultOfDecidedStart(otherwise tasksteps.Result) tasksteps.Result {
	if exit := t.records.fields().UnhandledExit; exit != nil {
		t.outcome = exit.Outcome()
		return tasksteps.ExitFound
	}
	if t.process = t.requests.getProcess(); t.process != nil {
		t.recovered = true
		return tasksteps.ProcessFound
	}
	t.restartDelay = t.records.current().RemainingDelay(time.Now())
	return otherwise
}

// takeOverProcess calls the Prestart hooks for a process started by an earlier agent. If that agent had not recorded the task as
// running, takeOverProcess sets the state running and emits the Started event.
func (t *taskRun) takeOverProcess() tasksteps.Result {
	if t.killCtx.Err() == nil {
		_ = t.hooks.callPrestartHooks(t.killCtx, true, false) // errors from Prestart hooks are reported as events
	}
	t.logger.Info("task taken over", "task_id", t.process.ID())
	if wait.IsClosed(t.requests.restartRequested()) {
		t.logger.Info("finishing the restart that was requested under an earlier agent", "task_id", t.process.ID())
	}
	t.records.commit(record.TakenOver{Now: time.Now()})
	t.startWatch()
	return tasksteps.Done
}

func (t *taskRun) awaitRestartDelay() tasksteps.Result {
	if t.restartDelay <= 0 {
		return tasksteps.Done
	}
	span := t.driver.Timeline.StartWaitSpan(tracespan.WaitRestartDelay)
	var err error
	t.ender.retryDestroyWhileWaiting(t.killCtx, func() { err = wait.Sleep(t.killCtx, t.restartDelay) })
	span.End("", context.Cause(t.killCtx))
	if err != nil {
		return t.shutdownOr(tasksteps.Killed)
	}
	return tasksteps.Done
}

func (t *taskRun) awaitStartGate() tasksteps.Result {
	span := t.driver.Timeline.StartWaitSpan(tracespan.WaitOtherTasks)
	var err error
	t.ender.retryDestroyWhileWaiting(t.killCtx, func() { err = t.startGate.Wait(t.killCtx) })
	span.End("", err)
	if err == nil {
		err = t.awaitNewStartAllowed()
	}
	if err != nil {
		return t.shutdownOr(tasksteps.Killed)
	}
	return tasksteps.Done
}

// awaitNewStartAllowed blocks until the task may be started. A task started or taken over by this agent does not wait: it runs
// nowhere else, and its restarts are the restart policy's. Nor does a poststop task, which ends what has run here.
func (t *taskRun) awaitNewStartAllowed() (err error) {
	if t.awaitNewStart == nil || t.process != nil || t.Task().Stage() == lifecycle.PoststopTask {
		return nil
	}
	endSpan := func(error) {}
	onWait := func(spanName string, event *api.TaskEvent) {
		endSpan(nil) // the earlier wait is complete
		t.logger.Info("task waits before its start", "reason", event.DisplayMessage)
		t.records.emitEvent(event)
		span := t.driver.Timeline.StartWaitSpan(spanName)
		endSpan = func(err error) { span.End("", err) }
	}
	t.ender.retryDestroyWhileWaiting(t.killCtx, func() { err = t.awaitNewStart(t.killCtx, t.records.alloc.ID, onWait) })
	endSpan(err)
	return err
}

// startWatch starts the process's time span, and watches the process until endWatch is called.
func (t *taskRun) startWatch() {
	p := t.process
	task := t.State()
	p.RunSpan = t.driver.StartRunSpan(p.ID(), task.StartedAt)
	p.OnOutage = func(err error) { t.records.emitEvent(model.EventDriverUnavailable(err.Error())) }
	p.OnOutageEnd = func() {
		t.records.emitEvent(model.EventDriverMessage("driver available again, the task was recovered", nil, time.Time{}))
	}
	watched, cancel := context.WithCancel(context.WithoutCancel(t.killCtx))
	ended := make(chan struct{})
	p.StartWatch(watched, func() { close(ended) })
	t.endWatch = func() {
		cancel()
		<-ended
	}
}

func (t *taskRun) stopWatch() {
	if t.endWatch != nil {
		t.endWatch()
		t.endWatch = nil
	}
}

func (t *taskRun) callPoststartHooks() {
	ctx, cancel := t.newPoststartContext()
	defer cancel()
	t.hooks.callPoststartHooks(ctx, t.process, t.recovered)
}

// newPoststartContext returns the context for the Poststart hooks. It is done after a kill, and when an allocation stop is
// requested: the kill follows after the PreKill hooks, the shutdown delay, and the tasks that stop first.
func (t *taskRun) newPoststartContext() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(t.killCtx)
	if t.untilAllocStop.Err() != nil {
		cancel() // AfterFunc would call its function later
	}
	detach := context.AfterFunc(t.untilAllocStop, cancel)
	return ctx, func() {
		detach()
		cancel()
	}
}

// awaitExit waits for the process's exit, and repeats the Poststart hooks in hook plugins with a new process. These calls end
// before the PreKilling or Exited hooks are called.
func (t *taskRun) awaitExit() tasksteps.Result {
	var repeatWG sync.WaitGroup
	running, stopRepeating := t.newPoststartContext()
	t.hooks.repeatPoststartAfterPluginRestart(running, &repeatWG, t.process)
	failpoint.Hit(failpoint.StepRunning, failpoint.PhaseBefore)
	requested := t.requests.restartRequested()
	select {
	case <-t.process.Exited():
	case <-t.killCtx.Done():
	case <-requested:
	}
	stopRepeating()
	repeatWG.Wait()
	switch {
	case t.requests.isKillRequested():
		return tasksteps.Killed
	case t.killCtx.Err() != nil:
		return tasksteps.AgentShutdown
	case wait.IsClosed(requested):
		return tasksteps.RestartRequested
	}
	return tasksteps.Done
}

// recordExit records the process's end. The exit status is stored before the driver destroys the task, because no driver can
// report it afterwards.
func (t *taskRun) recordExit() tasksteps.Result {
	p := t.process
	p.RecordExit(taskdriver.Exit{StatusUnknown: true}) // if the process has not exited after ForceKill
	t.ended = p.Exit()
	result := t.ended
	t.requests.recordProcessEnd(!result.StatusUnknown && result.Err == nil)
	end := restart.RunEnd{
		StatusUnknown: result.StatusUnknown, Success: !result.StatusUnknown && result.Successful(),
		ExitCode: result.ExitCode, Signal: result.Signal, OOMKilled: result.OOMKilled,
	}
	if result.Err != nil {
		end.Error = t.records.secrets.Text(result.Err.Error())
	} else if result.StatusUnknown {
		end.Error = exitUnknownMessage
	}
	event := terminatedEvent(result.ExitResult)
	if result.StatusUnknown {
		event = model.EventDriverMessage(exitStatusUnknownText(result.Err), nil, time.Time{})
	}
	point := failpoint.EnterStep(failpoint.StepExitObserved)
	change, err := t.records.commitOrError(record.Exited{
		Now: time.Now(), End: end, Policy: t.Task().RestartPolicy, CandidateID: t.records.newStartID(), Event: t.records.redacted(event),
	})
	point.Leave()
	exit := t.records.fields().UnhandledExit
	message := change.Events[0].DisplayMessage
	p.RunSpan.EndRun(message, exit)
	t.logger.Info("task ended", "task_id", p.ID(), "status", message)
	t.outcome = exit.Outcome()
	if err == nil {
		return tasksteps.Done
	}
	// Until the exit status is stored, only the driver can report it to the next agent, so the driver must keep the task.
	if !t.records.awaitRecordStored(t.killCtx) {
		return t.shutdownOr(tasksteps.Done)
	}
	return tasksteps.Done
}

// destroyProcess lets the driver destroy the process after its exit is recorded. A kill does not end the call, because the driver
// must destroy a killed task too.
func (t *taskRun) destroyProcess() {
	p := t.process
	if t.ended.NeedsNoDestroy {
		t.requests.recordProcessDestroyed()
	} else {
		start := record.PendingDestroy{StartID: p.ID(), NotFoundIsInconclusive: p.Unrecoverable && t.ended.StatusUnknown}
		if fields := t.records.fields(); !p.Unrecoverable && fields.HandleStartID() == p.ID() {
			start.Handle = fields.Handle // has the environment if it is not stored yet
		} else if !p.Unrecoverable {
			start.Handle = handleWithoutDriverConfig(p.Handle)
		}
		t.ender.owe(record.DestroyOwed{Start: start})
		point := failpoint.EnterStep(failpoint.StepDestroyTask)
		_ = t.ender.destroyPendingStarts(context.WithoutCancel(t.killCtx)) // destroyPendingStarts reports errors as an event
		point.Leave()
	}
	t.requests.clearExitedProcess()
}

func (t *taskRun) callExitedHooks() tasksteps.Result {
	current := t.records.current()
	exit := current.Fields().UnhandledExit
	willRestart := current.PredictedDecision(time.Now(), t.Task().RestartPolicy, exit.Outcome()).Action == restart.ActionRestart
	completed := t.hooks.callExitedHooks(t.forceKillCtx, exit, willRestart)
	t.stopWatch()
	if !completed {
		return tasksteps.AgentShutdown
	}
	return tasksteps.Done
}

func (t *taskRun) awaitRerun() tasksteps.Result {
	requested := false
	t.ender.retryDestroyWhileWaiting(t.killCtx, func() { requested = t.requests.awaitRerunRequest(t.killCtx) })
	switch {
	case requested:
		return tasksteps.RerunRequested
	case t.killCtx.Err() != nil:
		return t.shutdownOr(tasksteps.Killed)
	}
	return tasksteps.NoRerun
}

// destroyRemaining destroys what the driver has not destroyed yet. It blocks until that succeeds.
func (t *taskRun) destroyRemaining() tasksteps.Result {
	if t.ender.pendingDestroy() != nil {
		close(t.onlyDestroyRemains)
		t.ender.retryUntilDestroyed(t.forceKillCtx)
	}
	if t.ctx.Err() != nil {
		return tasksteps.AgentShutdown
	}
	return tasksteps.Done
}

// recordCompleteAndCallStopHooks records that the task will never run again, and calls the Stop hooks.
func (t *taskRun) recordCompleteAndCallStopHooks() {
	t.records.commit(record.Completed{})
	point := failpoint.EnterStep(failpoint.StepStopHooks)
	t.hooks.callStopHooks(context.WithoutCancel(t.ctx))
	point.Leave()
}

func terminatedEvent(result driver.ExitResult) *api.TaskEvent {
	message := ""
	if result.Err != nil {
		message = result.Err.Error()
	}
	return model.EventTerminated(result.ExitCode, result.Signal, result.OOMKilled, message)
}

// exitUnknownMessage is the error text when neither the driver nor the agent knows an exit status.
const exitUnknownMessage = "exit status unknown"

func exitStatusUnknownText(err error) string {
	if err == nil {
		return exitUnknownMessage
	}
	return fmt.Sprintf("%s: %v", exitUnknownMessage, err)
}

func startFailureOutcome(err error) restart.RunOutcome {
	return restart.RunOutcome{StartUnrecoverable: !driver.IsRecoverable(err)}
}
