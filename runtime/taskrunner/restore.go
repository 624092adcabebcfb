package taskrunner

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/model"
	"github.com/nomad-lite/nomad-lite/runtime/restart"
	"github.com/nomad-lite/nomad-lite/runtime/state"
)

// Restored is the stored state of a task that an earlier agent ran. The runner owns it
// after New.
type Restored struct {
	Local state.LocalState
	State *api.TaskState // nil if there is no record
}

// RecoverInfo describes the time between two agents.
type RecoverInfo struct {
	// Rebooted means that the machine has rebooted: no earlier process exists, and a
	// process with the same pid is unrelated.
	Rebooted bool
	// Reliable means that the driver would know a task that was being started: its
	// plugin process is still the same, or the driver searches for such tasks.
	Reliable bool
	// Discoverable means that the driver searches for a task by its names.
	Discoverable bool
}

// restore is the part of New for a restored task.
func (r *Runner) restore(was Restored) {
	*r.local, r.records.stored = was.Local, was.Local
	r.records.killed, r.records.reported = was.Local.Killed, was.Local.Reported
	r.env.SetDirs(r.dir, driver.FSIsolationNone) // replaced when the driver's capabilities are known
	if c := r.local.Capabilities; c != nil {
		r.setCapabilities(c)
	}
	if !r.local.Restart.WindowStart.IsZero() {
		r.restarts.tracker.Resume(r.local.Restart)
	}
	if r.local.Handle != nil && r.local.Exit == nil { // Exit includes the request already
		r.records.restartReq = r.local.RestartRequest
	}
	if was.State == nil {
		model.AppendTaskEvent(r.records.state, model.EventReceived(), time.Now())
		return
	}
	r.records.state = model.CopyTaskState(was.State)
	if r.local.RestartRequest != nil && r.records.state.State == model.TaskDead && !r.records.state.Failed && !r.local.RunComplete {
		r.records.restartReq = r.local.RestartRequest
		r.rerunCh <- struct{}{}
	}
	if r.records.state.Failed && r.records.state.State != model.TaskDead {
		// The event with the reason of the kill exists, but the kill did not finish.
		r.kill.quiet = true
		close(r.kill.killed)
	}
}

// Completed reports whether the task will never run again, as far as the record of an
// earlier agent shows. Such a task needs no driver.
func (r *Runner) Completed() bool {
	select {
	case <-r.done:
		return r.State().State == model.TaskDead
	default:
		return r.local.RunComplete // does not change before Run
	}
}

// PreviouslyStarted reports whether an earlier agent has done anything for the task. It
// must be called before Run.
func (r *Runner) PreviouslyStarted() bool {
	return len(r.local.Hooks) > 0 || r.local.StartID != "" || r.local.Destroy != nil || r.local.RunComplete || r.State().State != model.TaskPending
}

// Recover recovers what an earlier agent left: the process, unless its driver answers
// that it does not have the task, and the result of a start during which the agent
// died. A process whose driver is unavailable is kept without an answer: Run waits for
// the driver. A start that cannot be recovered is destroyed. Recover is called once,
// before Run, for a runner with Restored. When ctx is done, it leaves everything as it
// is.
//
// The record determines the result for the task:
//
//	handle, driver has the task                  the process is recovered
//	handle, driver unavailable                   the process is kept, Run waits for the driver
//	handle, driver does not have the task        ended, exit status unknown: the restart policy decides
//	id of a start, no handle                     the start is destroyed, the task starts
//	running, local record lost                   all starts are destroyed; ended, exit status unknown
//	ended, or dead, and the id of its start      the start is destroyed, and the next one if it has an id
//	any record, but the machine has rebooted     the task starts again
func (r *Runner) Recover(ctx context.Context, past RecoverInfo) {
	status := r.State().State
	handle := r.local.Handle
	if handle != nil && handle.Config == nil {
		handle.Config = &driver.TaskConfig{ID: r.local.StartID, Name: r.name, AllocID: r.alloc.ID}
	}
	switch {
	case r.local.RunComplete:
		return
	case past.Rebooted:
		r.local.Destroy = nil // drivers are not called: not all of them verify that a pid is still the same process
	case status == model.TaskDead || r.local.Exit != nil:
		if r.local.StartID != "" {
			d := state.PendingDestroy{ID: r.local.StartID, Handle: handle, Uncertain: handle == nil && !past.Reliable}
			if r.local.NextStartID != "" {
				d.Next = &state.PendingDestroy{ID: r.local.NextStartID, Uncertain: !past.Reliable}
			}
			r.destroyer.set(d)
		}
	case handle != nil:
		err := r.recoverProcess(ctx, handle)
		if err == nil {
			return
		}
		r.destroyer.set(state.PendingDestroy{ID: handle.Config.ID, Handle: handle})
		r.recordLost(err)
	case r.local.StartID != "":
		r.destroyer.set(state.PendingDestroy{ID: r.local.StartID, Uncertain: !past.Reliable})
		if status == model.TaskRunning {
			r.recordLost(errRecordLost)
		}
	case status == model.TaskRunning:
		r.destroyer.set(state.PendingDestroy{ID: r.alloc.ID + "/" + r.name + "/" + driver.WildcardStart, Uncertain: !past.Discoverable})
		r.recordLost(errRecordLost)
	}
	r.local.NextStartID = "" // pending to be destroyed
	if r.destroyer.try(ctx) != nil {
		r.local.Destroy = afterPluginExit(r.local.Destroy, past)
	}
	if ctx.Err() != nil || status == model.TaskDead || r.local.Exit != nil {
		return
	}
	r.local.StartID, r.local.Handle, r.local.Network = "", nil, nil
	r.records.clearRestartRequest()
	if status == model.TaskRunning {
		r.logger.Warn("task has ended with the machine, starting it again")
		r.records.transition(state.Sync, model.TaskPending, model.EventRestoreFailed("the machine was booted since; the task is started again"))
	}
}

// afterPluginExit returns the pending destroy for a later attempt, before which the plugin
// process of the earlier agent may have exited.
func afterPluginExit(d *state.PendingDestroy, past RecoverInfo) *state.PendingDestroy {
	if d == nil {
		return nil
	}
	later := *d
	later.Uncertain = d.Handle == nil && !past.Discoverable
	later.Next = afterPluginExit(d.Next, past)
	return &later
}

// errRecordLost means that the task state is running, but no record exists with which
// the driver could recover the task.
var errRecordLost = errors.New("its record was lost")

// recordLost records that the process has ended with an unknown exit status.
func (r *Runner) recordLost(cause error) {
	r.logger.Warn("task not recovered", "task_id", r.local.StartID, "error", cause)
	r.runs.noteExit(false)
	r.local.Exit = &state.Exit{Lost: true, Error: unknownText(cause)}
	r.records.put(state.Sync, func(s *api.TaskState) bool {
		if request := r.records.restartReq; request != nil {
			r.local.Exit.Asked, r.local.Exit.Failure = true, request.Failure
		}
		model.AppendTaskEvent(s, model.EventRestoreFailed(unknownText(cause)), time.Now())
		return true
	})
}

// recoverProcess recovers the process. It returns an error only if the driver answers
// that it does not have the task.
func (r *Runner) recoverProcess(ctx context.Context, handle *driver.Handle) error {
	p := newProcess(handle, r.local.Network, r.dispense)
	p.recovery = r.recovery
	d, err := p.recover(ctx)
	if errors.Is(err, driver.ErrPluginDown) && ctx.Err() == nil {
		d, err = p.recover(ctx)
	}
	switch {
	case err == nil:
		r.logger.Debug("task recovered", "task_id", p.id())
	case isAway(err) || ctx.Err() != nil:
		r.logger.Warn("task not recovered yet", "task_id", p.id(), "error", err)
		p.detached = true
	default:
		return err
	}
	p.recovery.set(p, d)
	if p.network != nil {
		r.env.SetDriverPorts(p.network.PortMap)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.process = p
	r.unfinished = r.records.restartReq != nil
	return nil
}

// Reset makes the task start again as a new task, because its files are lost. Hooks
// keep their state: they may have created something elsewhere. Reset must be called
// between Recover and Run, for a task without a process.
func (r *Runner) Reset() {
	before := r.local.Hooks
	*r.local = state.LocalState{Capabilities: r.local.Capabilities}
	r.records.clearRestartRequest() // the new start fulfils the request
	select {
	case <-r.rerunCh:
	default:
	}
	for name, was := range before {
		r.local.SetHook(name, state.HookState{Attachment: was.Attachment, Data: was.Data})
	}
	r.restoreHookEnv()
	r.records.put(state.Sync, func(s *api.TaskState) bool {
		if s.State == model.TaskPending {
			return false
		}
		model.ResetTask(s)
		model.SetTaskState(s, model.TaskPending, time.Now())
		return true
	})
}

// resume returns how Run continues: immediately for a new task or a recovered process,
// after the rest of the restart delay, or as the restart policy decides about an exit
// that it has not decided yet. It returns false if the agent shuts down.
func (r *Runner) resume(forceKillCtx context.Context) (restart.Decision, bool) {
	if exit := r.local.Exit; exit != nil {
		if !r.exitedHooks(forceKillCtx) {
			return restart.Decision{}, false
		}
		return r.restarts.decide(exit.Outcome()), true
	}
	return restart.Decision{Action: restart.Restart, Delay: r.restarts.tracker.RemainingDelay(time.Now())}, true
}

// takeOver does for a recovered process what start does for a new one. It emits the
// Started event only if the earlier agent had not recorded that the task runs.
func (r *Runner) takeOver(killCtx context.Context, p *process) {
	if killCtx.Err() == nil {
		_ = r.prestart(killCtx, true) // errors are reported as events already
	}
	r.logger.Info("task taken over", "task_id", p.id())
	if r.State().State != model.TaskRunning {
		r.restarts.started()
		r.records.transition(state.Grouped, model.TaskRunning, model.EventStarted())
	}
}

// finishRestart completes a restart that was requested under an earlier agent.
func (r *Runner) finishRestart(ctx context.Context, wg *sync.WaitGroup, p *process) {
	if !r.unfinished {
		return
	}
	r.unfinished = false
	r.logger.Info("finishing the restart that was requested under an earlier agent", "task_id", p.id(), "reason", r.local.RestartRequest.Reason)
	wg.Go(func() {
		if err := r.stopper.restart(ctx, p); err != nil && ctx.Err() == nil {
			r.logger.Error("restart of a recovered task", "task_id", p.id(), "error", err)
		}
	})
}
