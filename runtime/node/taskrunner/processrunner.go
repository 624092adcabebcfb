package taskrunner

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/failpoint"
	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/job/restart"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// processRunner runs a process of the task, from its start until the driver has destroyed it. It belongs to the goroutine
// of Run, which calls it once for each process.
type processRunner struct {
	ref                    taskRef
	records                *taskRecords
	processTracker         *processTracker
	starter                *starter
	currentProcess         *currentProcess
	hooks                  *taskHooks
	killRequest            *killRequest
	stopper                *stopper
	destroyer              *destroyer
	restartDecider         *restartDecider
	awaitExitWithoutDriver AwaitExitFunc
	callRecorder           driverCallRecorder
	logger                 hclog.Logger
}

// runOneProcess starts the task, or continues with a recovered process, and waits for the end of the process. It returns
// false if the restart policy has no outcome to decide about: the task was killed before it started, or the agent shuts
// down.
func (r *processRunner) runOneProcess(killCtx, forceKillCtx context.Context) (restart.Outcome, bool) {
	p := r.currentProcess.getProcess()
	recovered := p != nil
	if recovered {
		r.resumeRecoveredProcess(killCtx, p)
	} else {
		var err error
		if p, err = r.starter.callPrestartHooksAndStart(killCtx, forceKillCtx); err != nil {
			return startFailureOutcome(err), killCtx.Err() == nil
		}
	}

	task, _ := r.records.snapshot()
	p.runSpan = r.callRecorder.startRunSpan(p.id(), task.StartedAt)
	if wait.IsClosed(p.exited) {
		return r.recordExitAndDestroyTask(killCtx, forceKillCtx, p) // awaitStartQueryAnswer found that the start was executed and its exit status is unknown
	}
	var watchWG sync.WaitGroup
	defer watchWG.Wait()
	watched, stopWatch := context.WithCancel(context.WithoutCancel(killCtx))
	defer stopWatch()
	p.awaitExitWithoutDriver = r.awaitExitWithoutDriver
	p.onOutage = func(err error) { r.records.emitEvent(model.EventDriverUnavailable(err.Error())) }
	p.onOutageEnd = func() {
		r.records.emitEvent(model.EventDriverMessage("driver available again, the task was recovered", nil, time.Time{}))
	}
	watchWG.Go(func() { p.watchUntilExit(watched) })

	r.finishRestartOfEarlierAgent(watched, &watchWG, p)
	r.hooks.callPoststartHooks(killCtx, p, recovered)
	// The repeated Poststart calls end before the PreKilling or Exited hooks are called.
	var repeatWG sync.WaitGroup
	running, stopRepeating := context.WithCancel(killCtx)
	r.hooks.repeatPoststartHooks(running, &repeatWG, p)
	failpoint.Hit(failpoint.StepRunning, failpoint.PhaseBefore)
	select {
	case <-p.exited:
	case <-killCtx.Done():
	}
	stopRepeating()
	repeatWG.Wait()
	if r.killRequest.isRequested() {
		r.stopper.killProcess(forceKillCtx, p)
	}
	if isAgentShutdown(killCtx, forceKillCtx) {
		return restart.Outcome{}, false
	}
	return r.recordExitAndDestroyTask(killCtx, forceKillCtx, p)
}

// recordExitAndDestroyTask records the end of the process and calls the Exited hooks. The exit status is
// stored before the driver destroys the task, because no driver can report it afterwards. It returns false if a shutdown
// of the agent has interrupted the hooks, or has come before the exit status was stored: then the next agent continues.
func (r *processRunner) recordExitAndDestroyTask(killCtx, forceKillCtx context.Context, p *process) (restart.Outcome, bool) {
	local := &r.records.localState
	var result processResult
	select {
	case <-p.exited:
		result = p.result
	default:
		result.exitUnknown = true // the process has not exited after ForceKill, so its exit status is unknown
	}
	r.processTracker.recordProcessEnd(!result.exitUnknown && result.Err == nil)
	local.Exit = &state.ProcessExit{
		Lost: result.exitUnknown, Success: !result.exitUnknown && result.Successful(),
		Code: result.ExitCode, Signal: result.Signal, OOMKilled: result.OOMKilled,
	}
	if result.Err != nil {
		local.Exit.Error = r.records.redactSecrets(result.Err.Error())
	} else if result.exitUnknown {
		local.Exit.Error = exitUnknownMessage
	}
	event := terminatedEvent(result.ExitResult)
	if result.exitUnknown {
		event = model.EventDriverMessage(exitUnknownText(result.Err), nil, time.Time{})
	}
	point := failpoint.EnterStep(failpoint.StepExitObserved)
	err := r.records.changeAndPutBothRecords(state.DurabilitySync, func(s *api.TaskState) bool {
		if request := r.records.restartRequest; request != nil {
			local.Exit.Asked, local.Exit.Failure = true, request.Failure
		}
		// The id of the next start is stored in this record, so that an immediate restart
		// needs no write of its own.
		if next := r.restartDecider.predictRestartDecision(local.Exit.RestartOutcome()); !result.exitUnknown && next.Action == restart.ActionRestart && next.Delay == 0 {
			local.NextStartID = r.ref.newStartID()
		}
		r.records.appendEvent(s, event)
		return true
	})
	point.Leave()
	p.runSpan.EndRun(event.DisplayMessage, !local.Exit.Success)
	r.logger.Info("task ended", "task_id", p.id(), "status", event.DisplayMessage)
	if err != nil {
		local.NextStartID = "" // an id that is not stored must not be used
	}
	// Until the exit status is stored, only the driver can report it to the next agent, so the driver must keep the task.
	if err != nil && !r.records.awaitRecordsStored(killCtx) && isAgentShutdown(killCtx, forceKillCtx) {
		return restart.Outcome{}, false
	}
	// The context is not canceled with killCtx, because the driver must destroy a killed task too.
	if result.destroyed {
		r.processTracker.recordProcessDestroyed()
	} else {
		d := state.PendingDestroy{StartID: p.id(), NotFoundIsInconclusive: p.unrecoverable && result.exitUnknown}
		if !p.unrecoverable {
			d.Handle = handleWithoutConfig(p.handle)
		}
		r.destroyer.setPendingDestroy(d)
		point := failpoint.EnterStep(failpoint.StepDestroyTask)
		_ = r.destroyer.destroyPendingStart(context.WithoutCancel(killCtx)) // the destroyer reports errors as an event
		point.Leave()
	}
	r.currentProcess.clearExitedProcess()
	called := r.hooks.callExitedHooks(forceKillCtx, local.Exit, r.restartDecider.willRestart(local.Exit.RestartOutcome()))
	return local.Exit.RestartOutcome(), called
}

// resumeRecoveredProcess calls the Prestart hooks of a recovered process. If the earlier agent had not recorded that the task
// runs, it sets the state running and emits the Started event.
func (r *processRunner) resumeRecoveredProcess(killCtx context.Context, p *process) {
	if killCtx.Err() == nil {
		_ = r.hooks.callPrestartHooks(killCtx, true) // errors of Prestart hooks are reported as events
	}
	r.logger.Info("task taken over", "task_id", p.id())
	if task, _ := r.records.snapshot(); task.State != model.TaskRunning {
		r.restartDecider.recordRestartStateAtStart()
		r.records.setTaskState(state.DurabilityGrouped, model.TaskRunning, model.EventStarted())
	}
}

// finishRestartOfEarlierAgent stops a recovered process whose restart was requested under an earlier agent. The stop runs in a goroutine
// of wg.
func (r *processRunner) finishRestartOfEarlierAgent(ctx context.Context, wg *sync.WaitGroup, p *process) {
	if p.unfinishedEarlierRestart == nil {
		return
	}
	r.logger.Info("finishing the restart that was requested under an earlier agent", "task_id", p.id(), "reason", p.unfinishedEarlierRestart.Reason)
	wg.Go(func() {
		if err := r.stopper.stopForRestart(ctx, p); err != nil && ctx.Err() == nil {
			r.logger.Error("restart of a recovered task", "task_id", p.id(), "error", err)
		}
	})
}

func terminatedEvent(result driver.ExitResult) *api.TaskEvent {
	message := ""
	if result.Err != nil {
		message = result.Err.Error()
	}
	return model.EventTerminated(result.ExitCode, result.Signal, result.OOMKilled, message)
}

// exitUnknownMessage is the error text of an exit whose status neither the driver nor the agent knows.
const exitUnknownMessage = "exit status unknown"

func exitUnknownText(err error) string {
	if err == nil {
		return exitUnknownMessage
	}
	return fmt.Sprintf("%s: %v", exitUnknownMessage, err)
}

func startFailureOutcome(err error) restart.Outcome {
	return restart.Outcome{StartUnrecoverable: !driver.IsRecoverable(err)}
}
