package model

import "github.com/hashicorp/nomad/api"

// The states of a task.
const (
	TaskPending = "pending"
	TaskRunning = "running"
	TaskDead    = "dead"
)

// MaxRunDurationExceeded is the description of an allocation that ran out of
// its max_run_duration, and the reason in the Killing events of its tasks.
const MaxRunDurationExceeded = "allocation exceeded max_run_duration"

// ClientStatus rolls the states of all tasks of an allocation, poststop tasks
// and sidecars alike, up into its client status and the description of it. The
// first line that holds decides. Without tasks both are empty.
func ClientStatus(tasks map[string]*api.TaskState) (status, description string) {
	any := func(holds func(*api.TaskState) bool) bool {
		for _, t := range tasks {
			if holds(t) {
				return true
			}
		}
		return false
	}
	switch {
	case any(func(t *api.TaskState) bool { return t.State == TaskDead && t.Failed }):
		return api.AllocClientStatusFailed, "Failed tasks"
	case any(func(t *api.TaskState) bool { return t.State == TaskRunning }):
		return api.AllocClientStatusRunning, "Tasks are running"
	case any(func(t *api.TaskState) bool { return t.State == TaskPending }):
		return api.AllocClientStatusPending, "No tasks have started"
	case any(func(t *api.TaskState) bool { return t.State == TaskDead }):
		return api.AllocClientStatusComplete, "All tasks have completed"
	}
	return "", ""
}
