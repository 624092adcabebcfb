package model

import (
	"slices"

	"github.com/hashicorp/nomad/api"
)

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

// EvalActive tells whether an evaluation has not come to its end.
func EvalActive(e *api.Evaluation) bool {
	return e.Status == api.EvalStatusPending || e.Status == api.EvalStatusBlocked
}

// ClientTerminal tells whether the tasks of an allocation are said to be through.
// The allocation may still be at work: see what the runner says about its end.
func ClientTerminal(a *api.Allocation) bool {
	switch a.ClientStatus {
	case api.AllocClientStatusComplete, api.AllocClientStatusFailed, api.AllocClientStatusLost:
		return true
	}
	return false
}

// Terminal tells whether an allocation is through, or is not wanted any more.
func Terminal(a *api.Allocation) bool { return a.ServerTerminalStatus() || ClientTerminal(a) }

// The states of a job.
const (
	JobPending = "pending"
	JobRunning = "running"
	JobDead    = "dead"
)

// HasChildren tells whether a job has children in place of allocations.
func HasChildren(job *api.Job) bool { return job.Periodic != nil || job.IsParameterized() }

// JobStatus derives the status of a job from all that belongs to it. The first
// line that holds decides.
func JobStatus(job *api.Job, allocs []*api.Allocation, evals []*api.Evaluation, deployments []*api.Deployment) string {
	switch {
	case val(job.Type) == api.JobTypeSystem || HasChildren(job):
		if val(job.Stop) {
			return JobDead
		}
		return JobRunning
	case slices.ContainsFunc(deployments, DeploymentActive) || slices.ContainsFunc(allocs, func(a *api.Allocation) bool { return !Terminal(a) }):
		return JobRunning
	case slices.ContainsFunc(evals, EvalActive):
		return JobPending
	case len(evals) > 0 || val(job.Stop):
		return JobDead
	}
	return JobPending
}
