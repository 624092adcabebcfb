package model

import (
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"
)

// maxTaskEvents is how many events a task state keeps; the oldest go first.
const maxTaskEvents = 10

// SetTaskState moves the task into state at now. StartedAt is set on each step
// into running and FinishedAt on the first step into dead.
func SetTaskState(t *api.TaskState, state string, now time.Time) {
	if state == TaskRunning && t.State != TaskRunning {
		t.StartedAt = now
	}
	if state == TaskDead && t.FinishedAt.IsZero() {
		t.FinishedAt = now
	}
	t.State = state
}

// ResetTask takes back that a dead task has finished and failed, because it is
// about to run again.
func ResetTask(t *api.TaskState) {
	t.FinishedAt = time.Time{}
	t.Failed = false
}

// AppendTaskEvent adds event to the task's ring of ten. It fills the time and
// the display message unless they are set, and applies what the event says
// about the task: a failure sticks, and each Restarting counts. Nobody may change
// the event any more: all copies of the state have it.
func AppendTaskEvent(t *api.TaskState, event *api.TaskEvent, now time.Time) {
	if event.Time == 0 {
		event.Time = now.UnixNano()
	}
	if event.DisplayMessage == "" {
		event.DisplayMessage = displayMessage(event)
	}
	if event.FailsTask {
		t.Failed = true
	}
	if event.Type == api.TaskRestarting {
		t.Restarts++
		t.LastRestart = time.Unix(0, event.Time)
	}
	if drop := len(t.Events) + 1 - maxTaskEvents; drop > 0 {
		t.Events = append([]*api.TaskEvent(nil), t.Events[drop:]...)
	}
	t.Events = append(t.Events, event)
}

// EventSinceStart finds the last event of a type that has come after the last
// start, nil if there is none.
func EventSinceStart(t *api.TaskState, event string) *api.TaskEvent {
	for i := len(t.Events) - 1; i >= 0 && t.Events[i].Type != api.TaskStarted; i-- {
		if t.Events[i].Type == event {
			return t.Events[i]
		}
	}
	return nil
}

// CopyTaskState returns a copy that shares nothing with t but its events, which
// nobody may change.
func CopyTaskState(t *api.TaskState) *api.TaskState {
	c := *t
	c.Events = slices.Clone(t.Events)
	return &c
}
