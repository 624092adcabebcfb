package allocrunner

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/runtime/job/lifecycle"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/taskrunner"
)

// stopReason is the reason of a stop, which task events show. The zero value means that a user has requested the stop.
type stopReason struct {
	newReasonEvent func() *api.TaskEvent // creates the event that each live task gets before the Killing event; nil for no such event
	killingText    string                // text of the Killing events; if empty, the text names the kill timeout
	// omitEvents means that the stop adds no events, because the tasks have events with the reason already.
	omitEvents bool
}

// stopSequence stops an allocation once, in kill order. Its methods may be called concurrently.
type stopSequence struct {
	tasks            taskSet
	shutdownDelay    *shutdownDelay
	callPreKillHooks func(context.Context) // calls the PreKill hooks

	stopRequested chan struct{} // closed by the first requestStop or forceKillTasks
	forceKilled   chan struct{} // closed by the first call of forceKillTasks

	mu     sync.Mutex
	reason stopReason // set before stopRequested is closed

	// These functions cancel the contexts that newRunContexts returns; they are nil outside Run.
	cancelShutdown, cancelKill, cancelStop context.CancelCauseFunc
}

func newStopSequence(tasks taskSet, delay *shutdownDelay, preKill func(context.Context)) *stopSequence {
	return &stopSequence{
		tasks: tasks, shutdownDelay: delay, callPreKillHooks: preKill,
		stopRequested: make(chan struct{}), forceKilled: make(chan struct{}),
	}
}

// newRunContexts returns three contexts for Run. untilKill is derived from untilShutdown, and untilStop from untilKill.
// cancelForShutdown cancels untilShutdown, forceKillTasks cancels untilKill, and requestStop cancels untilStop, which is the
// context of all work before the tasks run.
func (s *stopSequence) newRunContexts(ctx context.Context) (untilShutdown, untilKill, untilStop context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	untilShutdown, s.cancelShutdown = context.WithCancelCause(context.WithoutCancel(ctx))
	untilKill, s.cancelKill = context.WithCancelCause(untilShutdown)
	untilStop, s.cancelStop = context.WithCancelCause(untilKill)
	if wait.IsClosed(s.forceKilled) {
		s.cancelKill(taskrunner.ErrKilled)
	}
	if s.isRequested() {
		s.cancelStop(taskrunner.ErrKilled)
	}
	return untilShutdown, untilKill, untilStop
}

// releaseRunContexts cancels the contexts that newRunContexts has returned, to free their resources.
func (s *stopSequence) releaseRunContexts() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cancelShutdown(nil) // the other two contexts are derived from untilShutdown and are canceled with it
	s.cancelShutdown, s.cancelKill, s.cancelStop = nil, nil, nil
}

// cancelForShutdown cancels untilShutdown with ErrShutdown, so that Run returns and leaves the tasks running.
func (s *stopSequence) cancelForShutdown() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cancelShutdown != nil {
		s.cancelShutdown(ErrShutdown)
	}
}

// requestStop requests the stop. Only the reason of the first request is used.
func (s *stopSequence) requestStop(reason stopReason) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requestStopLocked(reason)
	if s.cancelStop != nil {
		s.cancelStop(taskrunner.ErrKilled)
	}
}

func (s *stopSequence) requestStopLocked(reason stopReason) {
	if !s.isRequested() {
		s.reason = reason
		close(s.stopRequested)
	}
}

func (s *stopSequence) isRequested() bool { return wait.IsClosed(s.stopRequested) }

// forceKillTasks requests the stop and kills all tasks at once, without hooks, kill order and delays. It does not block.
func (s *stopSequence) forceKillTasks() {
	s.mu.Lock()
	s.requestStopLocked(stopReason{})
	closeOnce(s.forceKilled)
	if s.cancelKill != nil {
		s.cancelKill(taskrunner.ErrKilled) // cancels untilStop too, so that no goroutine starts a graceful stop
	}
	s.mu.Unlock()
	for _, t := range s.tasks {
		t.ForceKill(s.killingEvent(t))
	}
}

func (s *stopSequence) killPoststopTasks() {
	for _, t := range s.tasks {
		if t.Task().Stage() == lifecycle.PoststopTask {
			t.Kill(s.killingEvent(t))
		}
	}
}

// killingEvent returns the event that the stop adds to a task that it kills.
func (s *stopSequence) killingEvent(t *taskrunner.Runner) *api.TaskEvent {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reason.omitEvents {
		return nil
	}
	if s.reason.killingText != "" {
		return model.EventKillingReason(s.reason.killingText, false)
	}
	return model.EventKilling(t.Task().KillTimeout)
}

// emitStopReason adds the event with the reason of the stop to the live tasks.
func (s *stopSequence) emitStopReason() {
	s.mu.Lock()
	why := s.reason.newReasonEvent
	s.mu.Unlock()
	if why == nil {
		return
	}
	for _, t := range s.tasks {
		if t.Task().Stage() != lifecycle.PoststopTask && t.State().State != model.TaskDead {
			t.EmitEvent(why())
		}
	}
}

// killTasks calls the PreKill hooks, waits for the shutdown delay and kills the tasks in kill order. It blocks until the
// tasks have ended or the agent shuts down. It does nothing and returns false if no stop was requested.
func (s *stopSequence) killTasks(untilKill context.Context) (calledPreKillHooks bool) {
	if !s.isRequested() {
		return false
	}
	s.emitStopReason()
	s.callPreKillHooks(untilKill)
	s.shutdownDelay.waitForDelay(untilKill)
	for _, wave := range s.tasks.killOrder() {
		if errors.Is(context.Cause(untilKill), ErrShutdown) {
			return true
		}
		for _, t := range wave {
			if wait.IsClosed(s.forceKilled) {
				t.ForceKill(s.killingEvent(t))
			} else {
				t.Kill(s.killingEvent(t))
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

// shutdownDelay waits for the shutdown_delay of the group, which gives clients of the group's services time to notice the
// deregistration.
type shutdownDelay struct {
	duration   func() time.Duration // returns the shutdown_delay of the current version of the allocation
	tasksEnded chan struct{}        // closed by Run when all task runners have returned

	skipOnce sync.Once
	skipped  chan struct{} // closed by the first skipDelay
}

func newShutdownDelay(length func() time.Duration) *shutdownDelay {
	return &shutdownDelay{duration: length, tasksEnded: make(chan struct{}), skipped: make(chan struct{})}
}

// waitForDelay waits for shutdown_delay. It returns early when the delay is skipped, when all tasks have ended,
// and when ctx is done.
func (d *shutdownDelay) waitForDelay(ctx context.Context) {
	length := d.duration()
	if length == 0 {
		return
	}
	select {
	case <-time.After(length):
	case <-d.skipped:
	case <-d.tasksEnded:
	case <-ctx.Done():
	}
}

// skipDelay makes the current calls of waitForDelay and all later calls return at once.
func (d *shutdownDelay) skipDelay() { d.skipOnce.Do(func() { close(d.skipped) }) }

// closeOnce closes the channel c unless it is closed. All callers must hold the same lock.
func closeOnce(c chan struct{}) {
	if !wait.IsClosed(c) {
		close(c)
	}
}

// callAfterDone calls f in a goroutine of its own when ctx is done. The returned function
// must be called once: it prevents the call of f, or blocks until f has returned. It
// reports whether f was called.
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
