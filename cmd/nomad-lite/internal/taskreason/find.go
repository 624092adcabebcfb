package taskreason

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/streaming"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/tables"
	"github.com/nomad-lite/nomad-lite/runtime/explain/reason"
)

// TaskWithReason is a task that does not run or has failed, and the reason.
type TaskWithReason struct {
	Alloc  *api.AllocationListStub
	Name   string // empty if the reason concerns the whole allocation
	Reason reason.Reason
}

// FindTasksNotRunning returns the tasks of a job that do not run although the job desires it, those of the newest
// allocation first. nowOrZero has the same meaning as for [reason.FromTaskState]; if nowOrZero is zero, the reasons have no
// progress. If the job is nil, the reasons do not say which tasks wait for other tasks.
func FindTasksNotRunning(job *api.Job, allocs []*api.AllocationListStub, nowOrZero time.Time) []TaskWithReason {
	var found []TaskWithReason
	for _, a := range tables.SortAllocationsNewestFirst(allocs) {
		if a.DesiredStatus != api.AllocDesiredStatusRun || a.NextAllocation != "" {
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(a.TaskStates)) {
			why := reason.FromTaskState(a.TaskStates[name], nowOrZero)
			if nowOrZero.IsZero() {
				why.ProgressText = ""
			}
			if why.IsBeingSetUp() {
				var mustRun bool
				if why, mustRun = reason.OfTaskBeingSetUp(apiclient.FindTaskGroup(job, a.TaskGroup), a.TaskStates, name); !mustRun {
					continue
				}
			}
			if why != (reason.Reason{}) {
				found = append(found, TaskWithReason{a, name, why})
			}
		}
	}
	return found
}

// AddLastStderrLines reads the end of the standard error of each task whose process has ended with an error, and adds a line
// of it to the task's reason, with a remedy for a known message. A task whose output cannot be read keeps its reason.
func AddLastStderrLines(ctx context.Context, c *api.Client, tasks []TaskWithReason) {
	for i, t := range tasks {
		if !t.Reason.CanOutputExplain {
			continue
		}
		request := streaming.LogRequest{
			Alloc: &api.Allocation{ID: t.Alloc.ID, NodeID: t.Alloc.NodeID, Namespace: t.Alloc.Namespace},
			Task:  t.Name, Stream: api.FSLogNameStderr, TailLines: reason.StderrTailLines, TailBytes: -1,
		}
		if !t.Reason.LastProcessOutputStart.IsZero() {
			if written, err := request.LastWriteTime(ctx, c); err != nil || written.Before(t.Reason.LastProcessOutputStart) {
				continue // the last line was written by an earlier process of the task
			}
		}
		var tail []byte
		err := request.StreamLog(ctx, c, func(data []byte) error {
			tail = append(tail, data...)
			return nil
		})
		if err == nil {
			tasks[i].Reason = t.Reason.WithStderrTail(string(tail))
		}
	}
}

// maxPrintedTasks is the largest number of tasks that printTasksNotRunning shows.
const maxPrintedTasks = 20

// printTasksNotRunning adds a section with a line for each task, unless there are none.
func printTasksNotRunning(p *output.Page, tasks []TaskWithReason, verbose bool) {
	if len(tasks) == 0 {
		return
	}
	p.AddSectionTitle("Tasks Not Running")
	t := output.NewTable("Alloc ID", "Task", "Reason")
	for _, task := range tasks[:min(len(tasks), maxPrintedTasks)] {
		t.AddRow(output.ShortIDUnlessVerbose(task.Alloc.ID, verbose), task.Name, task.Reason)
	}
	p.AddTable(t)
	if more := len(tasks) - maxPrintedTasks; more > 0 {
		p.AddLine("and %d more", more)
	}
}

// PrintTasksNotRunningAndChecks adds a section with the tasks of a job that do not run, and one with the service checks
// that fail. It leaves out an empty section. The job can be nil. nowOrZero has the same meaning as for [reason.FromTaskState].
func PrintTasksNotRunningAndChecks(ctx context.Context, p *output.Page, c *api.Client, job *api.Job, allocs []*api.AllocationListStub, nowOrZero time.Time, verbose bool) {
	tasks := FindTasksNotRunning(job, allocs, nowOrZero)
	AddLastStderrLines(ctx, c, tasks[:min(len(tasks), maxPrintedTasks)])
	printTasksNotRunning(p, tasks, verbose)
	printFailingChecks(ctx, p, c, job, allocs, verbose)
}
