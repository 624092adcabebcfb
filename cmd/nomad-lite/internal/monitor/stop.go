package monitor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/tables"
	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/runtime/explain/reason"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// ListAllocsWithUnendedTasks returns the allocations of a job that have a task that has not ended.
func ListAllocsWithUnendedTasks(ctx context.Context, c *api.Client, namespace, jobID string) ([]*api.AllocationListStub, error) {
	allocs, _, err := c.Jobs().Allocations(jobID, true, apiclient.QueryOptions(ctx, namespace))
	if err != nil {
		return nil, apiclient.WrapErrorWithAdvice(fmt.Sprintf("list allocations of job %q", jobID), err)
	}
	return slices.DeleteFunc(tables.SortAllocationsNewestFirst(allocs), haveAllTasksEnded), nil
}

// haveAllTasksEnded reports whether all tasks of an allocation have ended. The client status alone can be
// failed while a poststop task runs.
func haveAllTasksEnded(a *api.AllocationListStub) bool {
	switch a.ClientStatus {
	case api.AllocClientStatusLost:
		return true
	case api.AllocClientStatusComplete, api.AllocClientStatusFailed:
		return !slices.ContainsFunc(slices.Collect(maps.Values(a.TaskStates)), func(t *api.TaskState) bool {
			return t != nil && t.State == model.TaskRunning
		})
	}
	return false
}

// WatchJobStop follows the evaluation of a stopped job, unless evalID is empty, and prints how the tasks of the job
// end. It returns when all tasks of the allocations have ended, including poststop tasks. The end of ctx ends only the
// output: the agent continues to stop the allocations.
func (m *Monitor) WatchJobStop(ctx context.Context, jobID, evalID string, stopping []*api.AllocationListStub) error {
	if evalID != "" {
		// The stop cancels a deployment that is active, which is no error.
		if _, err := m.watchEvaluationUntilProcessed(ctx, evalID); err != nil {
			return err
		}
	}
	p := m.newPage()
	p.AddTimedHeading("Stopping job %q", jobID)
	taskStates := make(map[string]string) // allocation ID/task name -> task state
	eventTimes := make(map[string]int64)  // allocation ID/task name -> time of the newest event that was read
	for _, a := range stopping {
		p.AddTimedDetailLine("Allocation %q, group %q: stopping %s", m.formatID(a.ID), a.TaskGroup, formatUnendedTasks(a))
		for name, state := range a.TaskStates {
			taskStates[a.ID+"/"+name] = pointer.Value(state).State
			eventTimes[a.ID+"/"+name] = newestEventTime(state)
		}
	}
	q := apiclient.QueryOptions(ctx, m.namespace)
	for len(stopping) > 0 {
		if err := m.printPageWithLiveText(p, ""); err != nil {
			return err
		}
		p = m.newPage()
		allocs, meta, err := m.client.Jobs().Allocations(jobID, true, q)
		if err != nil {
			return apiclient.WrapErrorWithAdvice(fmt.Sprintf("list allocations of job %q", jobID), err)
		}
		if i := slices.IndexFunc(allocs, func(a *api.AllocationListStub) bool { return a.ClientStatus == "" }); i >= 0 {
			return fmt.Errorf("list allocations of job %q: the answer does not contain the status of allocation %q", jobID, m.formatID(allocs[i].ID))
		}
		// An allocation that is no longer listed has ended, because the agent removes only such allocations.
		stopping = slices.DeleteFunc(stopping, func(before *api.AllocationListStub) bool {
			i := slices.IndexFunc(allocs, func(a *api.AllocationListStub) bool { return a.ID == before.ID })
			if i < 0 {
				return true
			}
			m.addDriverMessages(p, allocs[i], eventTimes)
			m.addTaskStateChanges(p, allocs[i], taskStates)
			if !haveAllTasksEnded(allocs[i]) {
				return false
			}
			p.AddTimedDetailLine("Allocation %q stopped: %s", m.formatID(before.ID), output.StatusCell(allocs[i].ClientStatus))
			return true
		})
		if len(stopping) == 0 {
			break
		}
		if err := MakeNextQueryBlockOrSleep(ctx, q, meta); err != nil {
			return err
		}
	}
	p.AddTimedHeading("Job %q stopped", jobID)
	return m.printPageWithLiveText(p, "")
}

// formatUnendedTasks lists the tasks of an allocation that have not ended, each with its state.
func formatUnendedTasks(a *api.AllocationListStub) string {
	var tasks []string
	for _, name := range slices.Sorted(maps.Keys(a.TaskStates)) {
		if state := pointer.Value(a.TaskStates[name]).State; state != model.TaskDead {
			tasks = append(tasks, fmt.Sprintf("task %q (%s)", name, state))
		}
	}
	if len(tasks) == 0 {
		return "tasks that have not started"
	}
	return strings.Join(tasks, ", ")
}

// newestEventTime returns the time of the newest event of a task in nanoseconds since 1970, or 0 if the task has no event.
func newestEventTime(state *api.TaskState) (newest int64) {
	if state != nil {
		for _, e := range state.Events {
			newest = max(newest, e.Time)
		}
	}
	return newest
}

// addDriverMessages adds a line for each event with a message about the driver that is newer than newestByAllocAndTask, and
// updates newestByAllocAndTask. Such an event is the reason why a stop is pending.
func (m *Monitor) addDriverMessages(p *output.Page, a *api.AllocationListStub, newestByAllocAndTask map[string]int64) {
	for _, name := range slices.Sorted(maps.Keys(a.TaskStates)) {
		key := a.ID + "/" + name
		state := a.TaskStates[name]
		if state == nil {
			continue
		}
		for _, e := range state.Events {
			if e.Type == api.TaskDriverMessage && e.Time > newestByAllocAndTask[key] {
				p.AddTimedDetailLine("Task %q of allocation %q: %s", name, m.formatID(a.ID), e.DisplayMessage)
			}
		}
		newestByAllocAndTask[key] = max(newestByAllocAndTask[key], newestEventTime(state))
	}
}

// addTaskStateChanges adds a line for each task whose state is not the one in stateByAllocAndTask, and updates
// stateByAllocAndTask.
func (m *Monitor) addTaskStateChanges(p *output.Page, a *api.AllocationListStub, stateByAllocAndTask map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(a.TaskStates)) {
		state := a.TaskStates[name]
		if state == nil || stateByAllocAndTask[a.ID+"/"+name] == state.State {
			continue
		}
		stateByAllocAndTask[a.ID+"/"+name] = state.State
		switch state.State {
		case model.TaskRunning:
			p.AddTimedDetailLine("Task %q of allocation %q started", name, m.formatID(a.ID))
		case model.TaskDead:
			change := "ended"
			if why := reason.FromTaskState(state, time.Time{}); why != (reason.Reason{}) {
				change += ": " + why.String()
			}
			p.AddTimedDetailLine("Task %q of allocation %q %s", name, m.formatID(a.ID), change)
		}
	}
}
