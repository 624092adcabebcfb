package allocrunner

import (
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/core/lifecycle"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// siblingState is the task state that decides whether other tasks are stopped.
type siblingState struct {
	name   string
	stage  lifecycle.Stage
	leader bool
	state  lifecycle.State
}

// evaluateSiblingStop decides from the task states, given in job order, whether the allocation stops. newStopReasonEvent
// is nil while the tasks continue; otherwise it creates the event with the stop reason for a running or waiting task.
// onlyPoststopRemains means all tasks except poststop tasks have ended.
//
// A failed task, or a leader that has succeeded, stops the other tasks. Sidecars are stopped when the tasks they serve
// have ended. Poststop tasks neither cause a stop nor are stopped here. A task waiting to start or restart counts as
// running.
func evaluateSiblingStop(tasks []siblingState) (newStopReasonEvent func() *api.TaskEvent, onlyPoststopRemains bool) {
	var liveCount, liveSidecarCount, sidecarCount int
	for _, t := range tasks {
		if t.stage == lifecycle.PoststopTask {
			continue
		}
		if t.stage.Sidecar() {
			sidecarCount++
		}
		switch {
		case !t.state.Dead():
			liveCount++
			if t.stage.Sidecar() {
				liveSidecarCount++
			}
		case t.state == lifecycle.Failed && newStopReasonEvent == nil:
			newStopReasonEvent = func() *api.TaskEvent { return model.EventSiblingFailed(t.name) }
		case t.state == lifecycle.Succeeded && t.leader:
			newStopReasonEvent = model.EventLeaderDead
		}
	}
	switch {
	case liveCount == 0:
		return nil, true
	case newStopReasonEvent == nil && sidecarCount > 0 && liveCount == liveSidecarCount:
		newStopReasonEvent = model.EventMainDead
	}
	return newStopReasonEvent, false
}
