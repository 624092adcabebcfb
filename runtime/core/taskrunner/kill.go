package taskrunner

import (
	"context"
	"errors"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/runtime/core/record"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

func (q *taskRequests) isKillRequested() bool { return wait.IsClosed(q.killed) }

// killedUnlessAlready returns a channel that the first Kill closes, or nil if the task was killed already.
func (q *taskRequests) killedUnlessAlready() <-chan struct{} { return nilIfClosed(q.killed) }

// jobPurgedUnlessAlready returns a channel that the first SetJobPurged closes, or nil if the job was purged already.
func (q *taskRequests) jobPurgedUnlessAlready() <-chan struct{} { return nilIfClosed(q.jobPurged) }

func nilIfClosed(c <-chan struct{}) <-chan struct{} {
	if wait.IsClosed(c) {
		return nil
	}
	return c
}

func (q *taskRequests) isForceKillRequested() bool { return wait.IsClosed(q.forceKilled) }

// requestKill implements [Runner.Kill] and, if force is set, [Runner.ForceKill].
func (q *taskRequests) requestKill(event *api.TaskEvent, force bool) {
	_, _ = q.records.commitIf(func(record.Record) record.Fact { // retryFailedPut retries a failed put
		if !q.isKillRequested() {
			q.omitKillEvents = event == nil
		}
		q.requestKillLocked(force)
		return record.Killed{Now: time.Now(), Event: q.records.redacted(event)}
	})
}

// restoreEarlierKill requests a kill again if an earlier agent did not finish it. The kill's event is stored. It must be called
// before any other method.
func (q *taskRequests) restoreEarlierKill() {
	q.omitKillEvents = true
	close(q.killed)
}

// requestKillLocked closes killed, and forceKilled if force is set, and cancels the contexts. The caller holds mu.
func (q *taskRequests) requestKillLocked(force bool) {
	if force {
		wait.CloseUnlessClosed(q.forceKilled)
	}
	wait.CloseUnlessClosed(q.killed)
	if q.cancelKilled != nil {
		q.cancelKilled()
	}
}

// newKillContexts returns killCtx and forceKillCtx for Run. Both are canceled with ctx; killCtx also by the first Kill, and
// forceKillCtx also by ForceKill. The cancellation cause distinguishes a shutdown from a kill. Run must call release at its end.
func (q *taskRequests) newKillContexts(ctx context.Context) (forceKillCtx, killCtx context.Context, release func()) {
	q.records.mu.Lock()
	defer q.records.mu.Unlock()
	forceKillCtx, cancelForceKill := context.WithCancelCause(ctx)
	killCtx, cancelKill := context.WithCancelCause(forceKillCtx)
	q.killCtx, q.cancelKilled = killCtx, func() {
		// forceKillCtx is canceled first, so that no goroutine starts a graceful stop after ForceKill.
		if q.isForceKillRequested() {
			cancelForceKill(errForceKilled)
		}
		if q.isKillRequested() {
			cancelKill(ErrKilled)
		}
	}
	q.cancelKilled()
	return forceKillCtx, killCtx, func() {
		q.records.mu.Lock()
		defer q.records.mu.Unlock()
		q.killCtx, q.cancelKilled = nil, nil
		cancelKill(nil)
		cancelForceKill(nil)
	}
}

// newContextWithGrace returns a context that is done when grace has passed since a kill or an agent shutdown, and at once after
// ForceKill.
func (q *taskRequests) newContextWithGrace(killCtx context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(killCtx))
	go func() {
		select {
		case <-killCtx.Done():
		case <-ctx.Done():
			return
		}
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-q.forceKilled:
		case <-ctx.Done():
		}
		cancel()
	}()
	return ctx, cancel
}

// closeChannelOnce closes c, one of q's channels, unless it is closed already.
func (q *taskRequests) closeChannelOnce(c chan struct{}) {
	q.records.mu.Lock()
	defer q.records.mu.Unlock()
	wait.CloseUnlessClosed(c)
}

func (q *taskRequests) setLeakErr(err error) {
	q.records.mu.Lock()
	defer q.records.mu.Unlock()
	q.leakErr = err
}

// killedEventOrNil returns the event for a finished kill, or nil if the kill had no event.
func (q *taskRequests) killedEventOrNil() *api.TaskEvent {
	q.records.mu.Lock()
	defer q.records.mu.Unlock()
	switch {
	case q.omitKillEvents:
		return nil
	case q.leakErr != nil:
		return model.EventKilled(q.leakErr.Error())
	}
	return model.EventKilled("")
}

// isAgentShutdown reports whether an agent shutdown, and not only a kill, has canceled Run's contexts.
func isAgentShutdown(killCtx, forceKillCtx context.Context) bool {
	if forceKillCtx.Err() != nil {
		return context.Cause(forceKillCtx) != errForceKilled
	}
	return killCtx.Err() != nil && !errors.Is(context.Cause(killCtx), ErrKilled)
}
