package taskrunner

import (
	"context"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/runtime/job/lifecycle"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// rerunRequests holds the request to run a dead task again, at most one at a time. Its methods may be called concurrently.
type rerunRequests struct {
	records     *taskRecords
	killRequest *killRequest
	task        func() Task
	runReturned <-chan struct{} // closed by Run

	rerunRequested chan struct{} // contains a value while a rerun is requested; capacity 1
}

// requestRerun implements [Runner.Rerun].
func (r *rerunRequests) requestRerun(event *api.TaskEvent) bool {
	dead, first := false, false
	r.records.changeAndStoreBothRecords(state.DurabilitySync, func(s *api.TaskState) bool {
		dead = r.mayRerun(s)
		first = dead && r.records.restartRequest == nil
		if first {
			r.records.restartRequest = &state.RestartRequest{Reason: event.RestartReason}
			r.records.appendEvent(s, event)
		}
		return first
	})
	if first {
		r.rerunRequested <- struct{}{} // never blocks: the channel is empty unless a rerun was requested
	}
	return dead
}

// mayRerun reports whether a task with this state has ended successfully and may run again.
func (r *rerunRequests) mayRerun(s *api.TaskState) bool {
	return s.State == model.TaskDead && !s.Failed && !r.killRequest.isRequested() && !wait.IsClosed(r.runReturned)
}

// isRerunnable implements [Runner.IsRerunnable].
func (r *rerunRequests) isRerunnable() bool {
	if r.task().Stage() == lifecycle.PoststopTask {
		return false
	}
	r.records.mu.Lock()
	defer r.records.mu.Unlock()
	return r.mayRerun(r.records.taskState) && r.records.restartRequest == nil
}

// restoreEarlierRequest sets a rerun request that was made under an earlier agent. It must be called before any other method.
func (r *rerunRequests) restoreEarlierRequest(request *state.RestartRequest) {
	r.records.restartRequest = request
	r.rerunRequested <- struct{}{}
}

// cancelRequest removes the request, if there is one.
func (r *rerunRequests) cancelRequest() {
	select {
	case <-r.rerunRequested:
	default:
	}
	r.records.clearRestartRequest()
}

// awaitRerun blocks until a rerun of the dead task is requested, or killCtx is done because the allocation no longer needs
// the task. It reports whether a rerun was requested. For a poststop task, which runs only once, it returns false at once.
func (r *rerunRequests) awaitRerun(killCtx context.Context) bool {
	if r.task().Stage() == lifecycle.PoststopTask {
		return false
	}
	select {
	case <-r.rerunRequested:
	case <-killCtx.Done():
	}
	return killCtx.Err() == nil
}
