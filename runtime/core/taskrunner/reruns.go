package taskrunner

import (
	"context"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/runtime/core/lifecycle"
	"github.com/nomad-lite/nomad-lite/runtime/core/record"
)

// RequestRerunIfSucceeded runs a dead task again if it has ended successfully and was not killed. It returns false for any other
// task, and for a poststop task: a task that has failed for good fails its allocation, and does not run again.
// RequestRerunIfSucceeded does not wait for the task's start.
func (r *Runner) RequestRerunIfSucceeded(event *api.TaskEvent) bool {
	q := r.requests
	dead := false
	change, _ := q.records.commitIf(func(r record.Record) record.Fact { // retryFailedPut retries a failed put
		if dead = q.mayRerun(r); !dead {
			return nil
		}
		return record.RerunRequested{Now: time.Now(), Request: q.newRestartRequest(event, false), Event: q.records.redacted(event)}
	})
	if change.Applied() {
		q.rerunRequested <- struct{}{} // never blocks: the channel is empty unless a rerun was requested
	}
	return dead
}

// mayRerun reports whether a task with this record has ended successfully and may run again.
func (q *taskRequests) mayRerun(r record.Record) bool {
	return q.task.Stage() != lifecycle.PoststopTask && r.MayRerun() && !wait.IsClosed(q.records.runReturned)
}

// IsRerunnable reports whether RequestRerunIfSucceeded would run the task again, and whether no rerun is requested yet.
// It is false for a poststop task.
func (r *Runner) IsRerunnable() bool {
	q := r.requests
	q.records.mu.Lock()
	defer q.records.mu.Unlock()
	return q.mayRerun(q.records.record) && q.records.record.Fields().RestartRequest == nil
}

// restoreEarlierRerunRequest repeats a rerun request that was made under an earlier agent. It must be called before any other
// method.
func (q *taskRequests) restoreEarlierRerunRequest() { q.rerunRequested <- struct{}{} }

// cancelRerunRequest removes the request, if there is one.
func (q *taskRequests) cancelRerunRequest() {
	select {
	case <-q.rerunRequested:
	default:
	}
	q.records.commit(record.RerunCancelled{})
}

// awaitRerunRequest blocks until another run of the dead task is requested, or killCtx is done because the allocation no longer
// needs the task. It reports whether a rerun was requested. For a poststop task, which runs only once, it returns false at once.
func (q *taskRequests) awaitRerunRequest(killCtx context.Context) bool {
	if q.currentTask().Stage() == lifecycle.PoststopTask {
		return false
	}
	select {
	case <-q.rerunRequested:
	case <-killCtx.Done():
	}
	return killCtx.Err() == nil
}
