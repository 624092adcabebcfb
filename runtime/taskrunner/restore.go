package taskrunner

import (
	"context"
	"errors"
	"fmt"
	"strings"
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

// Past is what is known about the time between two agents.
type Past struct {
	// Rebooted says that the machine was started again: no process of before is
	// there, and whatever has its number is a stranger.
	Rebooted bool
	// Certain says that the driver would know a task that was being started: its
	// plugin is the same process as then, or looks for such tasks itself.
	Certain bool
	// Searched says that the driver looks for a task by its names.
	Searched bool
}

// restore is the part of New for a task that is not new.
func (r *Runner) restore(was Restored) {
	r.local = was.Local
	if !r.local.Restart.WindowStart.IsZero() {
		r.tracker.Resume(r.local.Restart)
	}
	if was.State == nil {
		model.AppendTaskEvent(r.state, model.EventReceived(), time.Now())
		return
	}
	r.state = model.CopyTaskState(was.State)
	if r.state.Failed && r.state.State != model.TaskDead {
		// It was told why it has to go, and its end was not seen to.
		r.quiet = true
		close(r.killed)
	}
}

// Over reports whether the task will never run again, as far as an earlier agent
// has got. Such a task needs no driver.
func (r *Runner) Over() bool {
	select {
	case <-r.done:
		return r.State().State == model.TaskDead
	default:
		return r.local.RunComplete // nobody changes it before Run
	}
}

// Begun reports whether an earlier agent has done anything for the task. It must
// be called before Run.
func (r *Runner) Begun() bool {
	return len(r.local.Hooks) > 0 || r.local.StartID != "" || r.local.RunComplete || r.State().State != model.TaskPending
}

// Recover takes over what an earlier agent has left: the process if it still
// runs or the driver knows how it has ended, and what may have come of a start
// that the agent did not live to see the end of. What cannot be taken over is
// ended, and Run starts the task again. It is called once, after Prepare and
// before Run, for a runner with Restored; when ctx ends, everything is left as it is.
func (r *Runner) Recover(ctx context.Context, past Past) {
	state := r.State().State
	switch handle := r.local.Handle; {
	case r.local.RunComplete:
		return
	case past.Rebooted:
		// Drivers are not asked: not all of them look twice at a number.
	case state == model.TaskDead || r.local.Exit != nil:
		if r.local.StartID != "" {
			r.sweep(ctx, past, r.local.StartID)
		}
	case handle != nil:
		if handle.Config == nil {
			handle.Config = &driver.TaskConfig{ID: r.local.StartID, Name: r.name, AllocID: r.alloc.ID}
		}
		if r.recoverProcess(ctx, handle) {
			return
		}
		r.sweep(ctx, Past{Certain: true}, handle.Config.ID) // it has run, and the driver says that it is gone
	case r.local.StartID != "":
		r.sweep(ctx, past, r.local.StartID)
	case state == model.TaskRunning: // a record was lost
		r.sweep(ctx, Past{Certain: past.Searched}, r.alloc.ID+"/"+r.name+"/"+driver.AnyStart)
	}
	if ctx.Err() != nil || state == model.TaskDead || r.local.Exit != nil {
		return
	}
	r.local.StartID, r.local.Handle, r.local.Network = "", nil, nil
	if state == model.TaskRunning {
		r.logger.Warn("task is gone, starting it again")
		r.transition(AtOnce, model.TaskPending, model.EventRestoreFailed())
	}
}

// recoverProcess reports whether the driver has the process.
func (r *Runner) recoverProcess(ctx context.Context, handle *driver.Handle) bool {
	p := newProcess(handle, r.local.Network, r.dispense)
	_, err := p.recover(ctx)
	if errors.Is(err, driver.ErrPluginDown) && ctx.Err() == nil {
		_, err = p.recover(ctx)
	}
	if err != nil {
		if ctx.Err() == nil {
			r.logger.Warn("task not recovered", "task_id", p.id(), "error", err)
		}
		return false
	}
	if p.network != nil {
		r.env.SetDriverPorts(p.network.PortMap)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.process = p
	if e := model.EventSinceStart(r.state, api.TaskRestartSignal); e != nil {
		// Checks ask for restarts that count.
		r.asked = &asked{failure: strings.HasPrefix(e.RestartReason, "healthcheck:")}
		r.unfinished = true
	}
	r.logger.Debug("task recovered", "task_id", p.id())
	return true
}

// sweep has the driver end what may run under an id. If nobody can know whether
// something does, the task's events say so.
func (r *Runner) sweep(ctx context.Context, past Past, id string) {
	call, cancel := context.WithTimeout(ctx, r.deadlines.Others)
	defer cancel()
	err := destroyKnown(call, r.dispense, id)
	text := ""
	switch {
	case err == nil, ctx.Err() != nil:
	case !errors.Is(err, driver.ErrTaskNotFound):
		text = fmt.Sprintf("an earlier start of the task may still run: destroy task: %v", err)
	case !past.Certain:
		text = "an earlier start of the task may still run: what is known of it is not enough for the driver to find it"
	}
	if text != "" {
		r.logger.Error("an earlier start may still run", "task_id", id, "error", err)
		r.EmitEvent(model.EventDriver(text, nil, time.Time{}))
	}
}

// Abandon says on the task that nobody can look after what may run of it. It must
// be called before Run.
func (r *Runner) Abandon(cause error) {
	if r.local.StartID != "" || r.local.Handle != nil {
		r.EmitEvent(model.EventDriver(fmt.Sprintf("an earlier start of the task may still run: %v", cause), nil, time.Time{}))
	}
}

// Renew lets the task begin anew, as if nothing had been done for it: what it has
// made is gone. Hooks still have their state: they may have made something elsewhere.
// It must be called between Recover and Run, for a task without a process.
func (r *Runner) Renew() {
	before := r.local.Hooks
	r.local = LocalState{}
	for name, state := range before {
		r.local.setHook(name, HookState{Attachment: state.Attachment, Data: state.Data})
		r.setHookEnv(name, nil)
	}
	r.record(AtOnce, func(s *api.TaskState) bool {
		if s.State == model.TaskPending {
			return false
		}
		model.ReviveTask(s)
		model.SetTaskState(s, model.TaskPending, time.Now())
		return true
	})
}

// resume says how Run goes on: at once for a task that is new or whose process
// was taken over, after the rest of its delay, or as the restart policy decides
// about an end that it has not been asked about. It returns false if the agent shuts
// down.
func (r *Runner) resume(grace context.Context) (restart.Decision, bool) {
	if exit := r.local.Exit; exit != nil {
		if !r.exitedHooks(grace) {
			return restart.Decision{}, false
		}
		return r.decide(exit.outcome()), true
	}
	return restart.Decision{Action: restart.Restart, Delay: r.tracker.Remaining(time.Now())}, true
}

// takeOver does for a process that runs already what comes before and with a
// start. Nobody hears of it unless the agent before this one had not come to say
// that the task has started.
func (r *Runner) takeOver(live context.Context, p *process) {
	if live.Err() == nil {
		_ = r.prestart(live, true) // an event already
	}
	r.logger.Info("task taken over", "task_id", p.id())
	if r.State().State != model.TaskRunning {
		r.tracker.Started()
		r.local.Restart = r.tracker.State()
		r.transition(Shared, model.TaskRunning, model.EventStarted())
	}
}

// finishRestart does the rest of a restart that somebody had asked an earlier
// agent for.
func (r *Runner) finishRestart(ctx context.Context, wg *sync.WaitGroup, p *process) {
	if !r.unfinished {
		return
	}
	r.unfinished = false
	wg.Go(func() {
		if err := r.stopForRestart(ctx, p); err != nil && ctx.Err() == nil {
			r.logger.Error("restart of a recovered task", "task_id", p.id(), "error", err)
		}
	})
}
