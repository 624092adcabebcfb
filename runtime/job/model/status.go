package model

import (
	"slices"
	"strconv"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
)

// Task states.
const (
	TaskPending = "pending"
	TaskRunning = "running"
	TaskDead    = "dead"
)

// MaxRunDurationExceeded describes an allocation that exceeded its max_run_duration, and is the reason in the Killing events of
// its tasks.
const MaxRunDurationExceeded = "allocation exceeded max_run_duration"

// AllocClientStatus computes an allocation's client status and description from all task states, including poststop tasks and
// sidecars. The first matching case decides. Without tasks both are empty.
func AllocClientStatus(taskStates map[string]*api.TaskState) (status, description string) {
	any := func(holds func(*api.TaskState) bool) bool {
		for _, t := range taskStates {
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

// IsEvalPendingOrBlocked reports whether an evaluation is pending or blocked.
func IsEvalPendingOrBlocked(e *api.Evaluation) bool {
	return e.Status == api.EvalStatusPending || e.Status == api.EvalStatusBlocked
}

// AllocTerminal reports whether an allocation has ended or must stop. Its runner may not have finished, see the runner's method
// Finished.
func AllocTerminal(a *api.Allocation) bool {
	return a.ServerTerminalStatus() || a.ClientTerminalStatus()
}

// Job states.
const (
	JobPending = "pending"
	JobRunning = "running"
	JobDead    = "dead"
)

// CanHaveChildren reports whether a job has child jobs instead of allocations.
func CanHaveChildren(job *api.Job) bool { return job.Periodic != nil || job.IsParameterized() }

// JobStatus derives a job's status from its allocations, evaluations and deployments. The first matching case decides.
func JobStatus(job *api.Job, allocs []*api.Allocation, evals []*api.Evaluation, deployments []*api.Deployment) string {
	switch {
	case pointer.Value(job.Type) == api.JobTypeSystem || CanHaveChildren(job):
		if pointer.Value(job.Stop) {
			return JobDead
		}
		return JobRunning
	case slices.ContainsFunc(deployments, DeploymentActive) || slices.ContainsFunc(allocs, func(a *api.Allocation) bool { return !AllocTerminal(a) }):
		return JobRunning
	case slices.ContainsFunc(evals, IsEvalPendingOrBlocked):
		return JobPending
	case len(evals) > 0 || pointer.Value(job.Stop):
		return JobDead
	}
	return JobPending
}

// AllocName returns the name of a group's allocation with this index.
func AllocName(job *api.Job, g *api.TaskGroup, index int) string {
	return *job.ID + "." + *g.Name + "[" + strconv.Itoa(index) + "]"
}
