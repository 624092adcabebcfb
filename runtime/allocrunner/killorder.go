package allocrunner

import (
	"github.com/nomad-lite/nomad-lite/runtime/lifecycle"
	"github.com/nomad-lite/nomad-lite/runtime/taskrunner"
)

// killOrder returns the tasks in the order in which they are stopped: the leader, then
// the other tasks, then the sidecars that those may still need. A wave is stopped when
// the wave before it has ended. Poststop tasks are in no wave: they start when all
// waves have ended.
func killOrder(tasks []*taskrunner.Runner) [][]*taskrunner.Runner {
	order := make([][]*taskrunner.Runner, 3)
	for _, t := range tasks {
		switch task := t.Task(); {
		case task.Stage() == lifecycle.PoststopTask:
		case task.Leader:
			order[0] = append(order[0], t)
		case task.Stage().Sidecar():
			order[2] = append(order[2], t)
		default:
			order[1] = append(order[1], t)
		}
	}
	return order
}
