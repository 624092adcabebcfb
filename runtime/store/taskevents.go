package store

import (
	"slices"

	"github.com/hashicorp/nomad/api"
)

// taskEvents are the events of an allocation's tasks. Most differ from the events of its group's other allocations only in their
// times.
type taskEvents struct {
	tasks []eventsOfTask // shared by allocations
	times []int64        // of all events of all tasks, in the order of tasks
}

type eventsOfTask struct {
	task        string
	withoutTime []*api.TaskEvent // events with Time 0
}

func (e eventsOfTask) isSame(other eventsOfTask) bool {
	return e.task == other.task && slices.Equal(e.withoutTime, other.withoutTime)
}

// addTo sets the field Events in an allocation's task states.
func (e taskEvents) addTo(states map[string]*api.TaskState) {
	times := e.times
	for _, ofTask := range e.tasks {
		events := make([]*api.TaskEvent, len(ofTask.withoutTime))
		for i, withoutTime := range ofTask.withoutTime {
			if withoutTime != nil {
				event := *withoutTime
				event.Time, times = times[0], times[1:]
				events[i] = &event
			}
		}
		states[ofTask.task].Events = events
	}
}
