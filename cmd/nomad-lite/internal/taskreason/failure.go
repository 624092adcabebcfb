package taskreason

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/runtime/explain/reason"
)

// FindFailures returns why a job whose allocations have ended was not successful: its failed tasks, the allocations
// that failed or were lost without a failed task and, for a batch or sysbatch job, those that were stopped before they
// were complete. A [TaskWithReason] without a task name stands for such an allocation. userStoppedAll means that the
// user has stopped all allocations. An allocation that was replaced does not count.
func FindFailures(job *api.Job, allocs []*api.AllocationListStub, userStoppedAll bool) []TaskWithReason {
	var failures []TaskWithReason
	for _, a := range allocs {
		wasStopped := userStoppedAll || a.DesiredStatus == api.AllocDesiredStatusStop
		switch {
		case a.NextAllocation != "":
		case a.ClientStatus == api.AllocClientStatusFailed:
			failures = append(failures, findFailedTasksOrAlloc(job, a)...)
		case a.ClientStatus == api.AllocClientStatusLost:
			failures = append(failures, TaskWithReason{Alloc: a, Reason: reason.Reason{Cause: cmp.Or(a.ClientDescription, a.ClientStatus)}})
		case wasStopped && IsBatchOrSysbatch(job) && !mainTasksSucceeded(job, a):
			failures = append(failures, TaskWithReason{Alloc: a, Reason: reason.Reason{Cause: "stopped before it was complete"}})
		}
	}
	return failures
}

// IsBatchOrSysbatch reports whether a job is a batch or sysbatch job, whose tasks are expected to complete.
func IsBatchOrSysbatch(job *api.Job) bool {
	kind := pointer.Value(job.Type)
	return kind == api.JobTypeBatch || kind == api.JobTypeSysbatch
}

// findFailedTasksOrAlloc returns the failed tasks of a failed allocation in the order of the job. If no task has
// failed, it returns one TaskWithReason without a task name, with the description of the allocation's status.
func findFailedTasksOrAlloc(job *api.Job, a *api.AllocationListStub) []TaskWithReason {
	var failures []TaskWithReason
	for _, name := range taskNamesInJobOrder(job, a) {
		if state := a.TaskStates[name]; state != nil && state.Failed {
			failures = append(failures, TaskWithReason{a, name, reason.FromTaskState(state, time.Time{})})
		}
	}
	if len(failures) == 0 {
		return []TaskWithReason{{Alloc: a, Reason: reason.Reason{Cause: cmp.Or(a.ClientDescription, a.ClientStatus)}}}
	}
	return failures
}

// taskNamesInJobOrder returns the names of an allocation's tasks in the order of the job, or sorted if the job
// no longer has their group.
func taskNamesInJobOrder(job *api.Job, a *api.AllocationListStub) []string {
	group := apiclient.FindTaskGroup(job, a.TaskGroup)
	if group == nil {
		return slices.Sorted(maps.Keys(a.TaskStates))
	}
	var names []string
	for _, t := range group.Tasks {
		if t != nil {
			names = append(names, t.Name)
		}
	}
	return names
}

// mainTasksSucceeded reports whether each main task of an allocation completed successfully.
func mainTasksSucceeded(job *api.Job, a *api.AllocationListStub) bool {
	group := apiclient.FindTaskGroup(job, a.TaskGroup)
	if group == nil {
		return false
	}
	for _, task := range group.Tasks {
		if task == nil || apiclient.LifecycleHookOf(task) != "" {
			continue
		}
		state := a.TaskStates[task.Name]
		if state == nil || state.Failed || lastEventOfType(state.Events, api.TaskKilling) != nil {
			return false
		}
		if end := lastEventOfType(state.Events, api.TaskTerminated); end == nil || end.ExitCode != 0 {
			return false
		}
	}
	return true
}

func lastEventOfType(events []*api.TaskEvent, eventType string) *api.TaskEvent {
	for _, e := range slices.Backward(events) {
		if e != nil && e.Type == eventType {
			return e
		}
	}
	return nil
}

// JobError returns an error with a line for each failure of a job, or nil if there is none.
func JobError(job *api.Job, failures []TaskWithReason) error {
	if len(failures) == 0 {
		return nil
	}
	lines := make([]string, len(failures))
	for i, failure := range failures {
		lines[i] = failure.String()
	}
	return fmt.Errorf("job %q failed:\n%s", pointer.Value(job.ID), strings.Join(lines, "\n"))
}

// JobSuccessText returns the message for a job whose tasks have all ended successfully.
func JobSuccessText(jobID string) string {
	return fmt.Sprintf("job %q completed: every task ended successfully", jobID)
}

// String returns the task, its allocation and the reason in one line.
func (t TaskWithReason) String() string {
	text := fmt.Sprintf("alloc %s: %s", t.Alloc.Name, t.Reason)
	if t.Name != "" {
		text = fmt.Sprintf("task %q of %s", t.Name, text)
	}
	return text
}
