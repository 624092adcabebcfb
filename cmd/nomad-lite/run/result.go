package run

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/taskreason"
	"github.com/nomad-lite/nomad-lite/runtime/model"
)

// jobResultError returns the error of a job whose allocations have all ended, or nil for success. An
// allocation that was replaced does not count.
func jobResultError(job *api.Job, allocs []*api.Allocation, stopped bool) error {
	var allocFailures []error
	for _, alloc := range allocs {
		switch {
		case alloc.NextAllocation != "":
		case alloc.ClientStatus == api.AllocClientStatusFailed:
			allocFailures = append(allocFailures, taskFailures(alloc)...)
		case stopped && isFiniteJob(job) && !mainTasksSucceeded(alloc):
			allocFailures = append(allocFailures, fmt.Errorf("alloc %s: stopped before it was complete", alloc.Name))
		}
	}
	if len(allocFailures) == 0 {
		return nil
	}
	return fmt.Errorf("job %q failed:\n%w", *job.ID, errors.Join(allocFailures...))
}

// isFiniteJob reports whether the job is expected to complete, and not to run until its
// user stops it.
func isFiniteJob(job *api.Job) bool {
	return *job.Type == api.JobTypeBatch || *job.Type == api.JobTypeSysbatch
}

// mainTasksSucceeded reports whether each main task completed successfully.
func mainTasksSucceeded(alloc *api.Allocation) bool {
	for _, task := range alloc.GetTaskGroup().Tasks {
		if task.Lifecycle != nil && task.Lifecycle.Hook != "" {
			continue
		}
		state := alloc.TaskStates[task.Name]
		if state == nil || state.Failed || lastEventOfType(state.Events, api.TaskKilling) != nil {
			return false
		}
		if end := lastEventOfType(state.Events, api.TaskTerminated); end == nil || end.ExitCode != 0 {
			return false
		}
	}
	return true
}

// taskFailures returns the failed tasks of an allocation, with their exit statuses and the
// reasons why they were not restarted.
func taskFailures(alloc *api.Allocation) []error {
	var errs []error
	for _, task := range alloc.GetTaskGroup().Tasks {
		state := alloc.TaskStates[task.Name]
		if state == nil || !state.Failed {
			continue
		}
		events := state.Events
		for i, e := range events {
			if e.Type == api.TaskRestarting {
				events = state.Events[i:] // events before the last restart are not the cause of the failure
			}
		}
		var failureMessages []string
		for _, kind := range []string{
			api.TaskSetupFailure, api.TaskArtifactDownloadFailed, api.TaskFailedValidation, api.TaskDriverFailure, model.TaskHookFailed,
			api.TaskTerminated, api.TaskNotRestarting,
		} {
			i := slices.IndexFunc(events, func(e *api.TaskEvent) bool { return e.Type == kind })
			if i >= 0 && events[i].DisplayMessage != "" {
				failureMessages = append(failureMessages, taskreason.OneLine(events[i].DisplayMessage))
			}
		}
		if e := lastEventOfType(events, api.TaskKilling); len(failureMessages) == 0 && e != nil {
			failureMessages = append(failureMessages, taskreason.OneLine(e.DisplayMessage)) // a task can be killed before its first start, for example if its template never renders
		}
		errs = append(errs, fmt.Errorf("task %q of alloc %s: %s", task.Name, alloc.Name, strings.Join(failureMessages, ": ")))
	}
	if len(errs) == 0 {
		errs = append(errs, fmt.Errorf("alloc %s: %s", alloc.Name, alloc.ClientDescription))
	}
	return errs
}

func lastEventOfType(events []*api.TaskEvent, kind string) *api.TaskEvent {
	for _, e := range slices.Backward(events) {
		if e.Type == kind {
			return e
		}
	}
	return nil
}
