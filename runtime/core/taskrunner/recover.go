package taskrunner

import (
	"context"
	"errors"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/core/record"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskdriver"
)

// recoverer recovers an earlier agent's task: first for RecoverTaskOfEarlierAgent, then as a part of the run, which asks the
// driver again about an interrupted start. An interrupted start has no stored handle, because that agent died after it had put
// the id and before it put the handle, or because the plugin process died during StartTask. The recoverer belongs to Run's
// goroutine and, before Run, to the callers that prepare it.
// It is large because it is the Runner, too, whose records and requests it needs.
type recoverer struct {
	*Runner
	start processStart // an earlier agent's interrupted start, then the run's last start
}

func (r *recoverer) recoverTaskOfEarlierAgent(ctx context.Context, facts RecoveryFacts) {
	earlier := r.records.current()
	fields := earlier.Fields()
	if fields.RunComplete {
		return // a completed task needs no driver
	}
	r.restartReattachedPlugin = facts.RestartReattachedPlugin
	ctx, cancel := r.fetchDescriptionAndNewRecoveryContext(ctx)
	defer cancel()
	if facts.Rebooted {
		r.forgetStartsBeforeBoot()
		return
	}
	start := earlier.LastStart()
	answer, found, cause := r.recoverOrQueryStart(ctx, start)
	action := startActionFor(start, answer)
	switch {
	case start == record.WithID, start == record.RunningByID, start == record.WithNextID:
		if !r.applyStartQueryAnswer(start, answer, found, cause, !facts.DriverKnowsInterruptedStarts) || r.requests.getProcess() != nil {
			return
		}
	case action == actionKeep, action == actionAdopt, action == actionAwait:
		return // recoverAndSetCurrentProcess has set the current process
	case action == actionMarkLost:
		owed := record.PendingDestroy{StartID: r.records.wildcardStartID(), NotFoundIsInconclusive: !facts.DriverFindsTasksByName}
		if fields.Handle != nil {
			owed = record.PendingDestroy{StartID: fields.Handle.Config.ID, NotFoundIsInconclusive: fields.HandleUnrecoverable}
		}
		if fields.Handle != nil && !fields.HandleUnrecoverable {
			owed.Handle = fields.Handle
		}
		r.ender.owe(record.DestroyOwed{Start: owed})
		r.recordExitUnknown(cause)
	case action == actionDestroy && fields.StartID != "":
		r.ender.owe(record.DestroyOwed{Start: record.PendingDestroy{
			StartID: fields.StartID, Handle: fields.Handle, NotFoundIsInconclusive: fields.Handle == nil && !facts.DriverKnowsInterruptedStarts,
		}})
	}
	if r.ender.destroyPendingStarts(ctx) != nil {
		r.records.commit(record.DestroyDoubtful{DriverFindsTasksByName: facts.DriverFindsTasksByName})
	}
	if ctx.Err() == nil && r.records.current().LastStart() != record.Ended {
		r.records.commit(record.NothingExecuted{})
	}
}

// forgetStartsBeforeBoot records that no task process is left.
func (r *recoverer) forgetStartsBeforeBoot() {
	change := r.records.commit(record.Rebooted{Now: time.Now()})
	if change.TellAlloc {
		r.logger.Warn("task has ended with the machine, starting it again")
	}
}

// recoverOrQueryStart returns what is known about the start in the record. For record.WithHandle it recovers the process, unless
// the driver answers that it does not have the task.
func (r *recoverer) recoverOrQueryStart(ctx context.Context, start record.Start) (taskdriver.Answer, *taskdriver.FoundTask, error) {
	switch start {
	case record.WithHandle:
		answer, err := r.recoverAndSetCurrentProcess(ctx)
		return answer, nil, err
	case record.Lost:
		return taskdriver.AnswerUnknown, nil, errRecordLost
	case record.NoStart, record.Ended:
		return taskdriver.AnswerNone, nil, nil
	}
	return r.queryStartOrRestartPlugin(ctx, start)
}

// driverResponseTimeout is how long a recovery waits for a driver's first answer.
const driverResponseTimeout = 2 * time.Second

// fetchDescriptionAndNewRecoveryContext fetches the driver's description, and returns the context for the recovery. The context
// is done already if the driver has not answered within driverResponseTimeout, because its plugin is still starting. A driver
// error is not reported here, because the description is fetched again when the task starts.
func (r *recoverer) fetchDescriptionAndNewRecoveryContext(ctx context.Context) (context.Context, context.CancelFunc) {
	limited, cancel := context.WithTimeout(ctx, driverResponseTimeout)
	if _ = r.FetchDriverDescription(limited, false); limited.Err() != nil {
		return limited, cancel
	}
	cancel()
	return context.WithTimeout(ctx, r.hooks.callLimits.StartHookPointTimeout)
}

// errRecordLost: the task state is running, but the record has neither id nor handle, so the driver cannot find the task.
var errRecordLost = errors.New("its record was lost")

// recoverAndSetCurrentProcess recovers the process from the recorded handle and makes it the current process. It also makes the
// process current if the driver is unavailable, with taskdriver.AnswerNone. It returns taskdriver.AnswerUnknown if the driver
// does not have the task.
func (r *recoverer) recoverAndSetCurrentProcess(ctx context.Context) (taskdriver.Answer, error) {
	fields := r.records.fields()
	p := r.driver.NewProcess(fields.Handle, fields.NetworkOverride)
	p.Unrecoverable = fields.HandleUnrecoverable
	d, err := p.RecoverTask(ctx)
	if errors.Is(err, driver.ErrPluginDown) && ctx.Err() == nil {
		d, err = p.RecoverTask(ctx)
	}
	answer := taskdriver.AnswerTask
	switch {
	case err == nil && p.Unrecoverable:
		answer = taskdriver.AnswerTaskWithoutHandle
	case err == nil:
		r.logger.Debug("task recovered", "task_id", p.ID())
	case taskdriver.IsTaskStateUnknown(err) || ctx.Err() != nil:
		r.logger.Warn("task not recovered yet", "task_id", p.ID(), "error", err)
		p.NoPluginHasConfirmedTask, answer = true, taskdriver.AnswerNone
	default:
		return taskdriver.AnswerUnknown, err
	}
	r.driver.Plugins.SetPluginOfTask(p, d)
	r.requests.setRecoveredProcess(p)
	return answer, nil
}

// queryStartOrRestartPlugin asks the driver whether the interrupted start was executed. If a driver made without package sdk does
// not know the start, and its plugin process was launched by an earlier agent, queryStartOrRestartPlugin restarts the plugin.
func (r *recoverer) queryStartOrRestartPlugin(ctx context.Context, start record.Start) (taskdriver.Answer, *taskdriver.FoundTask, error) {
	fields := r.records.fields()
	id := fields.StartID
	if start == record.WithNextID {
		id = fields.NextStartID
	}
	answer, found, err := r.driver.QueryStartOrSearchTask(ctx, id, r.start.config)
	if answer == taskdriver.AnswerUnknown && start == record.WithNextID {
		// The agent lets the driver destroy a task before the next start. If the driver still has the former task, the
		// next start was not executed.
		switch before, _, beforeErr := r.driver.QueryStartOrSearchTask(ctx, fields.StartID, nil); {
		case before == taskdriver.AnswerTask, before == taskdriver.AnswerTaskWithoutHandle:
			return taskdriver.AnswerNotExecuted, nil, nil
		case before == taskdriver.AnswerNone && !errors.Is(beforeErr, taskdriver.ErrStartNotFound):
			return before, nil, beforeErr
		}
	}
	if errors.Is(err, taskdriver.ErrStartUnknown) && start != record.RunningByID && r.restartReattachedPlugin != nil {
		// Such a driver does not know a task before StartTask has returned. The process may still execute the earlier agent's
		// call, and would complete it beside the next start.
		if restartErr := r.restartReattachedPlugin(ctx); restartErr != nil {
			return taskdriver.AnswerNone, nil, restartErr
		}
		r.pluginRestarted = true
	}
	return answer, found, err
}

// applyStartQueryAnswer does what startActions say for an answer. If the driver must destroy a start, it only records that; the
// caller calls destroyPendingStarts. It returns false if the driver must be asked again. If destroyUncertain is set, the answer
// "not found" to a lost start's destroy proves nothing; it proves nothing either if the plugin was restarted.
func (r *recoverer) applyStartQueryAnswer(start record.Start, answer taskdriver.Answer, found *taskdriver.FoundTask, cause error, destroyUncertain bool) (decided bool) {
	action := startActionFor(start, answer)
	r.startUndecided = action == actionAsk
	if r.startUndecided {
		r.logger.Info("an interrupted start is not decided yet", "error", cause)
		return false
	}
	if start == record.WithNextID && action != actionDestroy && !r.decideAboutNextStart() {
		return true
	}
	fields := r.records.fields()
	switch action {
	case actionAdopt, actionAwait:
		r.adoptTask(found, action == actionAwait)
	case actionMarkLost:
		r.ender.owe(record.DestroyOwed{Start: record.PendingDestroy{StartID: fields.StartID, NotFoundIsInconclusive: destroyUncertain || r.pluginRestarted}})
		r.recordExitUnknown(cause)
	case actionDestroy:
		r.ender.owe(record.DestroyOwed{Start: record.PendingDestroy{StartID: fields.StartID, Handle: fields.Handle}})
		r.records.commit(record.NothingExecuted{})
	case actionStart:
		r.logger.Info("an interrupted start has executed nothing, the task starts", "task_id", fields.StartID)
		r.records.commit(record.NothingExecuted{})
	}
	return true
}

// decideAboutNextStart lets the restart policy decide again about a stored exit after which the next start may have been
// executed. If it restarts the task now, the next start becomes the current one. Otherwise, because the task was killed or has
// another policy, the driver must destroy the next start, and decideAboutNextStart returns false.
func (r *recoverer) decideAboutNextStart() bool {
	fields := r.records.fields()
	r.decideRestart(fields.UnhandledExit.Outcome(), true)
	return r.records.fields().StartID == fields.NextStartID
}

// adoptTask sets a task that the driver has found as the runner's current process, and stores its handle. If withoutHandle is
// set, the driver has returned no handle, so the task cannot be recovered.
func (r *recoverer) adoptTask(found *taskdriver.FoundTask, withoutHandle bool) {
	handle := found.Handle
	if handle.Config == nil {
		handle.Config = &driver.TaskConfig{Name: r.records.taskName, AllocID: r.records.alloc.ID}
		if r.start.config != nil {
			handle.Config = r.start.config
		}
	}
	handle.Config.ID = r.records.fields().StartID
	network := found.Status.NetworkOverride
	r.records.commit(record.Adopted{Handle: handleWithoutDriverConfig(handle), Network: network, Unrecoverable: withoutHandle})
	p := r.driver.NewProcess(handle, network)
	p.Unrecoverable = withoutHandle
	r.driver.Plugins.SetPluginOfTask(p, found.Driver)
	r.requests.setRecoveredProcess(p)
	r.logger.Info("task of an interrupted start adopted", "task_id", handle.Config.ID, "recoverable", !withoutHandle)
}

// recordExitUnknown records that the start's process has ended with an unknown exit status.
func (r *recoverer) recordExitUnknown(cause error) {
	id := r.records.fields().StartID
	r.logger.Warn("task not recovered", "task_id", id, "error", cause)
	r.requests.recordProcessEnd(false)
	text := exitStatusUnknownText(cause)
	r.records.commit(record.ExitUnknown{Now: time.Now(), Error: r.records.secrets.Text(text)})
	if id != "" {
		r.driver.StartRunSpan(id, r.State().StartedAt).EndRun(text, r.records.fields().UnhandledExit)
	}
}

// queryEarlierStartOnce asks the driver about an interrupted start. If the driver does not answer, queryEarlierStartOnce waits
// until it may be asked again or killCtx is done, and returns false.
func (r *recoverer) queryEarlierStartOnce(killCtx context.Context) (decided bool) {
	start := r.records.current().LastStart()
	answer, found, err := r.queryStartOrRestartPlugin(killCtx, start)
	if errors.Is(err, taskdriver.ErrStartNotFound) && killCtx.Err() == nil {
		answer, found, err = r.buildConfigAndQueryStart(killCtx, start)
	}
	if !r.applyStartQueryAnswer(start, answer, found, err, false) {
		r.start.outage.AwaitRetryUnlessDone(killCtx, err, r.driver.ReportOutage)
		return false
	}
	_ = r.ender.destroyPendingStarts(killCtx) // destroyPendingStarts reports errors as an event; later steps retry
	return true
}

// buildConfigAndQueryStart asks a plugin process that has not started the task, and needs the start's config to find it. It calls
// the builtin Prestart hooks to build the config. It does not call hooks in plugins: their stored responses are from this start.
func (r *recoverer) buildConfigAndQueryStart(killCtx context.Context, start record.Start) (taskdriver.Answer, *taskdriver.FoundTask, error) {
	if err := r.FetchDriverDescription(killCtx, false); err != nil {
		return taskdriver.AnswerNone, nil, err
	}
	_ = r.hooks.callPrestartHooks(killCtx, true, true) // errors from Prestart hooks are reported as events
	if killCtx.Err() != nil {
		return taskdriver.AnswerNone, nil, context.Cause(killCtx)
	}
	config, err := r.buildTaskConfig()
	if err != nil {
		return taskdriver.AnswerUnknown, nil, r.records.secrets.Error(err)
	}
	r.start.config = config
	return r.queryStartOrRestartPlugin(killCtx, start)
}

// oweUndecidedStart records that the driver must destroy an undecided start, because the task was killed.
func (r *recoverer) oweUndecidedStart() {
	r.startUndecided = false
	r.ender.owe(record.UndecidedStartOwed{})
}
