package allocrunner

import (
	"context"
	"errors"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/core/lifecycle"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskrunner"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// stopReason is a stop's reason, which task events show. The zero value means a user requested the stop.
type stopReason struct {
	newReasonEvent   func() *api.TaskEvent // creates the event for each live task before the Killing event; nil for no such event
	killingEventText string                // Killing event text; if empty, the event names the kill timeout
	omitEvents       bool                  // the stop adds no events, because the task events already have the reason
}

// killingEvent returns the event that the stop adds to a task it kills.
func (r stopReason) killingEvent(task taskrunner.Task) *api.TaskEvent {
	switch {
	case r.omitEvents:
		return nil
	case r.killingEventText != "":
		return model.EventKillingReason(r.killingEventText, false)
	}
	return model.EventKilling(task.KillTimeout)
}

// forceKill requests the stop and kills all tasks at once, without hooks, kill order and delays. It does not block.
func (a *allocTasks) forceKill() {
	a.state.requestForceKill()
	reason, _ := a.state.currentStop()
	for _, t := range a.taskSet {
		t.ForceKill(reason.killingEvent(t.Task()))
	}
}

// completeForMaxRunDuration sets the client status to complete, whatever the task results, and stops the allocation
// without running its poststop tasks.
func (a *allocTasks) completeForMaxRunDuration() {
	a.state.setPermanentOverride(statusOverride{api.AllocClientStatusComplete, model.MaxRunDurationExceeded})
	a.state.requestStop(stopReason{killingEventText: model.MaxRunDurationExceeded})
	a.killPoststopTasks()
}

func (a *allocTasks) killPoststopTasks() {
	reason, _ := a.state.currentStop()
	for _, t := range a.taskSet {
		if task := t.Task(); task.Stage() == lifecycle.PoststopTask {
			t.Kill(reason.killingEvent(task))
		}
	}
}

// skipShutdownDelay skips the shutdown delays for the group and all tasks, in a current stop and in later ones.
func (a *allocTasks) skipShutdownDelay() {
	a.state.endShutdownDelay()
	for _, t := range a.taskSet {
		t.SkipShutdownDelay()
	}
}

// killInOrder calls the PreKill hooks, waits for the shutdown delay and kills the tasks in kill order. It blocks until
// the tasks have ended or the agent shuts down. If no stop was requested, it does nothing and returns false.
func (a *allocTasks) killInOrder(untilKill context.Context) (calledPreKillHooks bool) {
	if !a.state.isStopRequested() {
		return false
	}
	reason, _ := a.state.currentStop()
	if reason.newReasonEvent != nil {
		for _, t := range a.taskSet {
			if t.Task().Stage() != lifecycle.PoststopTask && t.State().State != model.TaskDead {
				t.EmitEvent(reason.newReasonEvent())
			}
		}
	}
	callPreKillHooks(untilKill, a.state)
	a.state.waitForShutdownDelay(untilKill)
	for _, wave := range a.killWaves() {
		if errors.Is(context.Cause(untilKill), ErrShutdown) {
			return true
		}
		for _, t := range wave {
			if _, forceKilled := a.state.currentStop(); forceKilled {
				t.ForceKill(reason.killingEvent(t.Task()))
			} else {
				t.Kill(reason.killingEvent(t.Task()))
			}
		}
		for _, t := range wave {
			select {
			case <-t.Done():
			case <-t.OnlyDestroyRemains():
			}
		}
	}
	return true
}

// callAfterDone calls f in its own goroutine when ctx is done. The returned function must be called once: it prevents
// the call, or blocks until f has returned. It reports whether f was called.
func callAfterDone(ctx context.Context, f func()) (preventOrWait func() (called bool)) {
	returned := make(chan struct{})
	prevent := context.AfterFunc(ctx, func() {
		defer close(returned) // deferred, because f may panic or call runtime.Goexit
		f()
	})
	return func() bool {
		if prevent() {
			return false
		}
		<-returned
		return true
	}
}
