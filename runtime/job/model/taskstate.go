package model

import (
	"maps"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"
)

// maxTaskEvents is the maximum number of events in a task state; the oldest are dropped.
const maxTaskEvents = 10

// SetTaskState sets the task's state at now. StartedAt is set on each change to running and FinishedAt on the first change to
// dead.
func SetTaskState(t *api.TaskState, state string, now time.Time) {
	if state == TaskRunning && t.State != TaskRunning {
		t.StartedAt = now
	}
	if state == TaskDead && t.FinishedAt.IsZero() {
		t.FinishedAt = now
	}
	t.State = state
}

// ResetTaskForRerun clears a dead task's FinishedAt and Failed before the task runs again.
func ResetTaskForRerun(t *api.TaskState) {
	t.FinishedAt = time.Time{}
	t.Failed = false
}

// AppendTaskEvent adds event to the task's last ten events. It fills in the time and the display message unless they are set, and
// applies the event to the state: a failure is permanent, and each Restarting is counted. An operation's event replaces its
// ongoing event. The event must not be changed afterwards, because all copies of the state share it.
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
	if id := EventOperationID(event); id != "" {
		t.Events = slices.DeleteFunc(slices.Clone(t.Events), func(e *api.TaskEvent) bool {
			return IsEventOfOngoingOperation(e) && EventOperationID(e) == id
		})
	}
	if drop := len(t.Events) + 1 - maxTaskEvents; drop > 0 {
		t.Events = append([]*api.TaskEvent(nil), t.Events[drop:]...)
	}
	t.Events = append(t.Events, event)
}

// RedactTaskEvent applies redact to all texts in an event. The map of its details is replaced and not changed, because several
// tasks' events can share it.
func RedactTaskEvent(event *api.TaskEvent, redact func(string) string) {
	for _, text := range []*string{
		&event.DisplayMessage, &event.Message, &event.DriverError, &event.DriverMessage, &event.DownloadError, &event.KillError, &event.KillReason,
		&event.RestartReason, &event.SetupError, &event.TaskSignalReason, &event.ValidationError, &event.VaultError,
	} {
		*text = redact(*text)
	}
	event.Details = maps.Clone(event.Details)
	for name, text := range event.Details {
		event.Details[name] = redact(text)
	}
}

// LastEventOfTypeSinceStart returns a type's last event since the last start, nil if there is none.
func LastEventOfTypeSinceStart(t *api.TaskState, eventType string) *api.TaskEvent {
	for i := len(t.Events) - 1; i >= 0 && t.Events[i].Type != api.TaskStarted; i-- {
		if t.Events[i].Type == eventType {
			return t.Events[i]
		}
	}
	return nil
}

// CopyTaskState returns a copy that shares nothing with t but its events, which are immutable.
func CopyTaskState(t *api.TaskState) *api.TaskState {
	c := *t
	c.Events = slices.Clone(t.Events)
	return &c
}
