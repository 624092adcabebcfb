package taskrunner

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/model"
	"github.com/nomad-lite/nomad-lite/runtime/taskrunner/restart"
)

// Restored is what the store has of a task that an earlier agent has run. It
// belongs to the runner from then on.
type Restored struct {
	Local LocalState
	State *api.TaskState // nil if there is no record
}

// RecoverInfo is what is known about the time between two agents.
type RecoverInfo struct {
	// Rebooted says that the machine was started again: no process of before is
	// there, and whatever has its number is a stranger.
	Rebooted bool
	// Reliable says that the driver would know a task that was being started: its
	// plugin is the same process as then, or looks for such tasks itself.
	Reliable bool
	// Discoverable says that the driver looks for a task by its names.
	Discoverable bool
}

// restore is the part of New for a task that is not new.
func (r *Runner) restore(was Restored) {
	r.local, r.stored = was.Local, was.Local
	r.killNoted, r.reported = was.Local.Killed, was.Local.Reported
	r.env.SetDirs(r.dir, driver.FSIsolationNone) // until the driver has said more
	if c := r.local.Capabilities; c != nil {
		r.setCapabilities(c)
	}
	if !r.local.Restart.WindowStart.IsZero() {
		r.tracker.Resume(r.local.Restart)
	}
	if r.local.Handle != nil && r.local.Exit == nil { // Exit has the request too
		r.restartReq = r.local.RestartRequest
	}
	if was.State == nil {
		model.AppendTaskEvent(r.state, model.EventReceived(), time.Now())
		return
	}
	r.state = model.CopyTaskState(was.State)
	if r.local.RestartRequest != nil && r.state.State == model.TaskDead && !r.state.Failed && !r.local.RunComplete {
		r.restartReq = r.local.RestartRequest
		r.rerunCh <- struct{}{}
	}
	if r.state.Failed && r.state.State != model.TaskDead {
		// It was told why it has to go, and its end was not seen to.
		r.quiet = true
		close(r.killed)
	}
}

// Completed reports whether the task will never run again, as far as an earlier agent
// has got. Such a task needs no driver.
func (r *Runner) Completed() bool {
	select {
	case <-r.done:
		return r.State().State == model.TaskDead
	default:
		return r.local.RunComplete // nobody changes it before Run
	}
}

// PreviouslyStarted reports whether an earlier agent has done anything for the task. It must
// be called before Run.
func (r *Runner) PreviouslyStarted() bool {
	return len(r.local.Hooks) > 0 || r.local.StartID != "" || r.local.Destroy != nil || r.local.RunComplete || r.State().State != model.TaskPending
}

// Recover takes over what an earlier agent has left: the process, unless its driver
// says that it does not have it, and what may have come of a start that the agent
// did not live to see the end of. A process whose driver is unavailable is taken over
// without an answer: Run waits for the driver. What cannot be taken over is
// destroyed. It is called once, before Run, for a runner with Restored; when ctx
// ends, everything is left as it is.
//
// What the record says, and what follows for the task:
//
//	handle, driver has the task                  the process is taken over
//	handle, driver unavailable                   the same
//	handle, driver does not have the task        ended, exit status unknown: the restart policy decides
//	id of a start, no handle                     the start is destroyed, the task starts
//	running, local record lost                   all starts are destroyed; ended, exit status unknown
//	ended, or dead, and the id of its start      the start is destroyed
//	anything, but the machine was booted since   the task starts again
func (r *Runner) Recover(ctx context.Context, past RecoverInfo) {
	state := r.State().State
	handle := r.local.Handle
	if handle != nil && handle.Config == nil {
		handle.Config = &driver.TaskConfig{ID: r.local.StartID, Name: r.name, AllocID: r.alloc.ID}
	}
	switch {
	case r.local.RunComplete:
		return
	case past.Rebooted:
		r.local.Destroy = nil // drivers are not asked: not all of them look twice at a number
	case state == model.TaskDead || r.local.Exit != nil:
		if r.local.StartID != "" {
			r.setPendingDestroy(PendingDestroy{ID: r.local.StartID, Handle: handle, Uncertain: handle == nil && !past.Reliable})
		}
	case handle != nil:
		err := r.recoverProcess(ctx, handle)
		if err == nil {
			return
		}
		r.setPendingDestroy(PendingDestroy{ID: handle.Config.ID, Handle: handle})
		r.recordLost(err)
	case r.local.StartID != "":
		r.setPendingDestroy(PendingDestroy{ID: r.local.StartID, Uncertain: !past.Reliable})
		if state == model.TaskRunning {
			r.recordLost(errRecordLost)
		}
	case state == model.TaskRunning:
		r.setPendingDestroy(PendingDestroy{ID: r.alloc.ID + "/" + r.name + "/" + driver.WildcardStart, Uncertain: !past.Discoverable})
		r.recordLost(errRecordLost)
	}
	if err := r.destroyPending(ctx); err != nil && r.local.Destroy.Handle == nil {
		// The plugin process of before, if there was one, may be gone at the next try.
		later := *r.local.Destroy
		later.Uncertain = !past.Discoverable
		r.local.Destroy = &later
	}
	if ctx.Err() != nil || state == model.TaskDead || r.local.Exit != nil {
		return
	}
	r.local.StartID, r.local.Handle, r.local.Network = "", nil, nil
	r.clearRestartRequest()
	if state == model.TaskRunning {
		r.logger.Warn("task has ended with the machine, starting it again")
		r.transition(Sync, model.TaskPending, model.EventRestoreFailed("the machine was booted since; the task is started again"))
	}
}

// errRecordLost means that the state has a running task, and no record with which its
// driver could recover it.
var errRecordLost = errors.New("its record was lost")

// recordLost records that the process has ended, and that its exit status is unknown.
func (r *Runner) recordLost(cause error) {
	r.logger.Warn("task not recovered", "task_id", r.local.StartID, "error", cause)
	r.noteExit(false)
	r.local.Exit = &Exit{Lost: true, Error: unknownText(cause)}
	r.record(Sync, func(s *api.TaskState) bool {
		if request := r.restartReq; request != nil {
			r.local.Exit.Asked, r.local.Exit.Failure = true, request.Failure
		}
		model.AppendTaskEvent(s, model.EventRestoreFailed(unknownText(cause)), time.Now())
		return true
	})
}

// recoverProcess takes the process over, unless the driver answers that it does not
// have it: that answer is the error.
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
	r.unfinished = r.restartReq != nil
	return nil
}

// Reset lets the task begin anew, as if nothing had been done for it: what it has
// made is gone. Hooks still have their state: they may have made something elsewhere.
// It must be called between Recover and Run, for a task without a process.
func (r *Runner) Reset() {
	before := r.local.Hooks
	r.local = LocalState{Capabilities: r.local.Capabilities}
	r.clearRestartRequest() // the new start answers it
	select {
	case <-r.rerunCh:
	default:
	}
	for name, state := range before {
		r.local.setHook(name, HookState{Attachment: state.Attachment, Data: state.Data})
		r.setHookEnv(name, nil)
	}
	r.record(Sync, func(s *api.TaskState) bool {
		if s.State == model.TaskPending {
			return false
		}
		model.ResetTask(s)
		model.SetTaskState(s, model.TaskPending, time.Now())
		return true
	})
}

// resume says how Run goes on: at once for a task that is new or whose process
// was taken over, after the rest of its delay, or as the restart policy decides
// about an end that it has not been asked about. It returns false if the agent shuts
// down.
func (r *Runner) resume(forceKillCtx context.Context) (restart.Decision, bool) {
	if exit := r.local.Exit; exit != nil {
		if !r.exitedHooks(forceKillCtx) {
			return restart.Decision{}, false
		}
		return r.decide(exit.outcome()), true
	}
	return restart.Decision{Action: restart.Restart, Delay: r.tracker.Remaining(time.Now())}, true
}

// takeOver does for a process that runs already what comes before and with a
// start. Nobody hears of it unless the agent before this one had not come to say
// that the task has started.
func (r *Runner) takeOver(killCtx context.Context, p *process) {
	if killCtx.Err() == nil {
		_ = r.prestart(killCtx, true) // an event already
	}
	r.logger.Info("task taken over", "task_id", p.id())
	if r.State().State != model.TaskRunning {
		r.tracker.Started()
		r.local.Restart = r.tracker.State()
		r.transition(Grouped, model.TaskRunning, model.EventStarted())
	}
}

// finishRestart does the rest of a restart that was requested under an earlier
// agent.
func (r *Runner) finishRestart(ctx context.Context, wg *sync.WaitGroup, p *process) {
	if !r.unfinished {
		return
	}
	r.unfinished = false
	r.logger.Info("finishing the restart that was requested under an earlier agent", "task_id", p.id(), "reason", r.local.RestartRequest.Reason)
	wg.Go(func() {
		if err := r.stopForRestart(ctx, p); err != nil && ctx.Err() == nil {
			r.logger.Error("restart of a recovered task", "task_id", p.id(), "error", err)
		}
	})
}
