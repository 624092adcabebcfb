package taskrunner

import (
	"context"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/lifecycle"
	"github.com/nomad-lite/nomad-lite/runtime/model"
	"github.com/nomad-lite/nomad-lite/runtime/state"
)

// reruns holds the request to run a dead task again. Its methods may be called
// concurrently.
type reruns struct {
	records *records
	kill    *killRequest
	task    func() Task
	done    <-chan struct{} // closed by Run

	requested chan struct{} // holds the request
}

// request implements [Runner.Rerun].
func (r *reruns) request(event *api.TaskEvent) bool {
	dead, first := false, false
	r.records.changeWithLocal(state.Sync, func(s *api.TaskState) bool {
		dead = s.State == model.TaskDead && !s.Failed && !r.kill.requested() && !isClosed(r.done)
		first = dead && r.records.restartReq == nil
		if first {
			r.records.restartReq = &state.RestartRequest{Reason: event.RestartReason}
			model.AppendTaskEvent(s, event, time.Now())
		}
		return first
	})
	if first {
		r.requested <- struct{}{} // never blocks: the channel is empty unless a rerun was requested
	}
	return dead
}

// restore sets the request that was made under an earlier agent. It must be called before
// any other method.
func (r *reruns) restore(request *state.RestartRequest) {
	r.records.restartReq = request
	r.requested <- struct{}{}
}

// cancel removes the request, if there is one.
func (r *reruns) cancel() {
	select {
	case <-r.requested:
	default:
	}
	r.records.clearRestartRequest()
}

// await blocks while the task is dead, until a rerun is requested or the allocation no
// longer needs the task, and reports whether a rerun was requested. A poststop task runs
// once.
func (r *reruns) await(killCtx context.Context) bool {
	if r.task().Stage() == lifecycle.PoststopTask {
		return false
	}
	select {
	case <-r.requested:
	case <-killCtx.Done():
	}
	return killCtx.Err() == nil
}
