package allocrunner

import (
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/lifecycle"
	"github.com/nomad-lite/nomad-lite/runtime/model"
)

// taskView is what matters of a task for the fate of the others.
type taskView struct {
	name   string
	stage  lifecycle.Stage
	leader bool
	state  lifecycle.State
}

// evaluateTasks says what the states of the tasks ask for, given in the order of the job.
// why makes the event that tells a live task why it has to go; it is nil as long
// as the tasks shall live. finished means that nothing but poststop tasks is left.
//
// A failed task, or a leader that has ended well, takes the others with it;
// sidecars do not outlive what they serve. Poststop tasks have no say and no
// part in this. A task that waits for its start or its restart lives.
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
