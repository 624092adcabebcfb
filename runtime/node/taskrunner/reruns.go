package taskrunner

import (
	"context"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/runtime/job/lifecycle"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// RequestRerunIfSucceeded runs a dead task again that has ended successfully and was not killed. It returns false for
// any other task, and for a poststop task: a task that has failed for good fails its allocation, and does not run
// again. RequestRerunIfSucceeded does not wait for the start of the task.
func (r *Runner) RequestRerunIfSucceeded(event *api.TaskEvent) bool {
	q := r.requests
	dead, first := false, false
	q.records.storeBothRecordsIfChanged(state.DurabilitySync, func(s *api.TaskState) bool {
		dead = q.mayRerun(s)
		first = dead && q.records.restartRequest == nil
		if first {
			q.records.restartRequest = &state.RestartRequest{Reason: event.RestartReason}
			q.records.redactAndAppendEvent(s, event)
		}
		return first
	})
	if first {
		q.rerunRequested <- struct{}{} // never blocks: the channel is empty unless a rerun was requested
	}
	return dead
}

// mayRerun reports whether a task with this state has ended successfully and may run again.
func (q *taskRequests) mayRerun(s *api.TaskState) bool {
	return q.task.Stage() != lifecycle.PoststopTask && s.State == model.TaskDead && !s.Failed && !q.isKillRequested() && !wait.IsClosed(q.records.runReturned)
}

// IsRerunnable reports whether RequestRerunIfSucceeded would run the task again, and whether no rerun is requested yet.
// It is false for a poststop task.
func (r *Runner) IsRerunnable() bool {
	q := r.requests
	q.records.mu.Lock()
	defer q.records.mu.Unlock()
	return q.mayRerun(q.records.taskState) && q.records.restartRequest == nil
}

// restoreEarlierRerunRequest sets a rerun request that was made under an earlier agent. It must be called before any
// other method.
func (q *taskRequests) restoreEarlierRerunRequest(request *state.RestartRequest) {
	q.records.restartRequest = request
	q.rerunRequested <- struct{}{}
}

// cancelRerunRequest removes the request, if there is one.
func (q *taskRequests) cancelRerunRequest() {
	select {
	case <-q.rerunRequested:
	default:
	}
	q.records.clearRestartRequest()
}

// awaitRerunRequest blocks until a rerun of the dead task is requested, or killCtx is done because the allocation no
// longer needs the task. It reports whether a rerun was requested. For a poststop task, which runs only once, it
// returns false at once.
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
