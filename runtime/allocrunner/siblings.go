package allocrunner

import (
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/lifecycle"
	"github.com/nomad-lite/nomad-lite/runtime/model"
)

// taskView is the part of a task's state that decides whether other tasks of the allocation are
// stopped.
type taskView struct {
	name   string
	stage  lifecycle.Stage
	leader bool
	state  lifecycle.State
}

// evaluateTasks decides from the states of the tasks, given in the order of the job, whether the
// allocation stops. why is nil while the tasks continue; otherwise it creates the event that gives a
// running or waiting task the reason of its stop. finished means that only poststop tasks remain.
//
// A failed task, or a leader that has succeeded, stops the other tasks. Sidecars are stopped when the
// tasks for which they run have ended. Poststop tasks neither cause a stop nor are stopped here. A task
// that waits for its start or its restart counts as running.
func evaluateTasks(tasks []taskView) (why func() *api.TaskEvent, finished bool) {
	var live, liveSidecars, sidecars int
	for _, t := range tasks {
		if t.stage == lifecycle.PoststopTask {
			continue
		}
		if t.stage.Sidecar() {
			sidecars++
		}
		switch {
		case !t.state.Dead():
			live++
			if t.stage.Sidecar() {
				liveSidecars++
			}
		case t.state == lifecycle.Failed && why == nil:
			why = func() *api.TaskEvent { return model.EventSiblingFailed(t.name) }
		case t.state == lifecycle.Succeeded && t.leader:
			why = model.EventLeaderDead
		}
	}
	switch {
	case live == 0:
		return nil, true
	case why == nil && sidecars > 0 && live == liveSidecars:
		why = model.EventMainDead
	}
	return why, false
}
