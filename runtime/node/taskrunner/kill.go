package taskrunner

import (
	"context"
	"errors"
	"sync"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// killRequest is the request to end the task for good. It cancels killCtx and forceKillCtx, the contexts of Run. It may be
// made before, during and after Run. mu is held to close the channels and to use the other fields.
type killRequest struct {
	records *taskRecords
	mu      *sync.Mutex // mu of records

	killed               chan struct{} // closed by the first Kill
	forceKilled          chan struct{} // closed by the first ForceKill
	jobPurged            chan struct{} // closed by the first SetJobPurged
	shutdownDelaySkipped chan struct{} // closed by the first SkipShutdownDelay

	omitEvents      bool                    // the task gets no event when the kill starts or ends
	leakErr         error                   // error of the kill, which may have leaked resources; nil if the kill succeeded
	cancelKill      context.CancelCauseFunc // cancels killCtx; nil outside Run
	cancelForceKill context.CancelCauseFunc // cancels forceKillCtx; nil outside Run
}

func newKillRequest(records *taskRecords) *killRequest {
	return &killRequest{
		records:              records,
		mu:                   &records.mu,
		killed:               make(chan struct{}),
		forceKilled:          make(chan struct{}),
		jobPurged:            make(chan struct{}),
		shutdownDelaySkipped: make(chan struct{}),
	}
}

func (k *killRequest) isRequested() bool { return wait.IsClosed(k.killed) }
func (k *killRequest) isForced() bool    { return wait.IsClosed(k.forceKilled) }

// requestKill implements [Runner.Kill] and, if force is set, [Runner.ForceKill].
func (k *killRequest) requestKill(event *api.TaskEvent, force bool) {
	k.records.changeAndStoreBothRecords(state.DurabilitySync, func(s *api.TaskState) bool {
		first := !k.isRequested()
		if first {
			// An existing event comes from an earlier agent, which died before it killed the
			// task.
			if event != nil && s.FinishedAt.IsZero() && model.FindEventSinceStart(s, event.Type) == nil {
				k.records.appendEvent(s, event)
			}
			k.records.killedSinceStart = k.records.killedSinceStart || s.FinishedAt.IsZero()
			k.omitEvents = event == nil
		}
		k.requestKillLocked(force)
		return first
	})
}

// restoreEarlierKill requests the kill of an earlier agent again, which that agent did not finish and whose event is stored. It
// must be called before any other method.
func (k *killRequest) restoreEarlierKill() {
	k.omitEvents = true
	close(k.killed)
}

// requestKillLocked closes killed, and forceKilled if force is set, and cancels the contexts. It cancels forceKillCtx before
// killCtx, so that no goroutine starts a graceful stop after ForceKill. The caller holds mu.
func (k *killRequest) requestKillLocked(force bool) {
	if force {
		closeOnce(k.forceKilled)
	}
	closeOnce(k.killed)
	if k.cancelForceKill != nil && k.isForced() {
		k.cancelForceKill(errForceKilled)
	}
	if k.cancelKill != nil {
		k.cancelKill(ErrKilled)
	}
}

// newKillContexts returns killCtx and forceKillCtx. Both are canceled with ctx; killCtx also
// by the first Kill, and forceKillCtx also by ForceKill. The cause of the cancellation
// distinguishes a shutdown from a kill.
func (k *killRequest) newKillContexts(ctx context.Context) (forceKillCtx, killCtx context.Context) {
	k.mu.Lock()
	defer k.mu.Unlock()
	forceKillCtx, k.cancelForceKill = context.WithCancelCause(ctx)
	killCtx, k.cancelKill = context.WithCancelCause(forceKillCtx)
	if k.isForced() {
		k.cancelForceKill(errForceKilled)
	}
	if k.isRequested() {
		k.cancelKill(ErrKilled)
	}
	return forceKillCtx, killCtx
}

// releaseKillContexts cancels the contexts that newKillContexts has returned, to free their resources.
func (k *killRequest) releaseKillContexts() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.cancelKill(nil)
	k.cancelForceKill(nil)
	k.cancelKill, k.cancelForceKill = nil, nil
}

// closeChannel closes c, one of the channels of k, unless it is closed already.
func (k *killRequest) closeChannel(c chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	closeOnce(c)
}

func (k *killRequest) setLeakErr(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.leakErr = err
}

// killedEvent returns the event for the end of a kill, or nil if the kill had no event.
func (k *killRequest) killedEvent() *api.TaskEvent {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.omitEvents:
		return nil
	case k.leakErr != nil:
		return model.EventKilled(k.leakErr.Error())
	}
	return model.EventKilled("")
}

// isAgentShutdown reports whether a shutdown of the agent, and not only a kill, has canceled the contexts of Run.
func isAgentShutdown(killCtx, forceKillCtx context.Context) bool {
	if forceKillCtx.Err() != nil {
		return context.Cause(forceKillCtx) != errForceKilled
	}
	return killCtx.Err() != nil && !errors.Is(context.Cause(killCtx), ErrKilled)
}

// closeOnce closes c unless it is closed. All callers must hold the same lock.
func closeOnce(c chan struct{}) {
	if !wait.IsClosed(c) {
		close(c)
	}
}
