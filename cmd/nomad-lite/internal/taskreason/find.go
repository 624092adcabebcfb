package taskreason

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/streaming"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/tables"
	"github.com/nomad-lite/nomad-lite/runtime/job/lifecycle"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// TaskWithReason is a task that does not run or has failed, and the reason.
type TaskWithReason struct {
	Alloc  *api.AllocationListStub
	Name   string // empty if the reason concerns the whole allocation
	Reason Reason
}

// FindTasksNotRunning returns the tasks of a job that do not run although the job desires it, those of the newest
// allocation first. nowOrZero has the same meaning as for [FromTaskState]; if nowOrZero is zero, the reasons have no
// progress. If the job is nil, the reasons do not say which tasks wait for other tasks.
func FindTasksNotRunning(job *api.Job, allocs []*api.AllocationListStub, nowOrZero time.Time) []TaskWithReason {
	var found []TaskWithReason
	for _, a := range tables.SortAllocationsNewestFirst(allocs) {
		if a.DesiredStatus != api.AllocDesiredStatusRun || a.NextAllocation != "" {
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(a.TaskStates)) {
			reason := FromTaskState(a.TaskStates[name], nowOrZero)
			if nowOrZero.IsZero() {
				reason.ProgressText = ""
			}
			if reason.IsBeingSetUp() {
				var mustRun bool
				if reason, mustRun = lifecycleWaitReason(job, a, name); !mustRun {
					continue
				}
			}
			if reason != (Reason{}) {
				found = append(found, TaskWithReason{a, name, reason})
			}
		}
	}
	return found
}

// lifecycleWaitReason returns which other tasks a pending task waits for: a main task starts after the prestart tasks,
// a poststart task after the main tasks, and a task with lite_after after the tasks that lite_after names. mustRun is
// false for a poststop task, which starts when the other tasks have ended.
func lifecycleWaitReason(job *api.Job, a *api.AllocationListStub, taskName string) (reason Reason, mustRun bool) {
	reason = Reason{Cause: setupCause}
	stages := make(map[string]lifecycle.Stage)
	var dependencies []lifecycle.Dependency
	if group := apiclient.FindTaskGroup(job, a.TaskGroup); group != nil {
		for _, t := range group.Tasks {
			if t != nil {
				stages[t.Name] = model.StageOfTask(t)
			}
			if t != nil && t.Name == taskName {
				dependencies, _ = model.TaskDependencies(t) // a registered job has passed validation
			}
		}
	}
	var awaitedStages lifecycle.Stage
	switch stages[taskName] {
	case lifecycle.PoststopTask:
		return Reason{}, false
	case lifecycle.MainTask:
		awaitedStages = lifecycle.PrestartEphemeral | lifecycle.PrestartSidecar
	case lifecycle.PoststartEphemeral, lifecycle.PoststartSidecar:
		awaitedStages = lifecycle.MainTask
	}
	var awaitedTasks []string
	for _, other := range slices.Sorted(maps.Keys(a.TaskStates)) {
		state := a.TaskStates[other]
		switch {
		case state == nil || stages[other]&awaitedStages == 0:
		case slices.ContainsFunc(dependencies, func(d lifecycle.Dependency) bool { return d.Task == other }): // the loop over dependencies below adds it
		case stages[other] == lifecycle.PrestartEphemeral && state.State != model.TaskDead:
			awaitedTasks = append(awaitedTasks, fmt.Sprintf("task %q to end", other))
		case stages[other] != lifecycle.PrestartEphemeral && state.State == model.TaskPending:
			awaitedTasks = append(awaitedTasks, fmt.Sprintf("task %q to start", other))
		}
	}
	for _, d := range dependencies {
		if state := a.TaskStates[d.Task]; state == nil || !isLiteAfterConditionMet(d.Condition, state) {
			awaitedTasks = append(awaitedTasks, fmt.Sprintf("task %q %s", d.Task, conditionPhrases[d.Condition]))
		}
	}
	if len(awaitedTasks) > 0 {
		reason.Cause = "waits for " + strings.Join(awaitedTasks, ", ")
	}
	return reason, true
}

// conditionPhrases complete a sentence like `waits for task "db" to be healthy`.
var conditionPhrases = map[lifecycle.DependencyCondition]string{
	lifecycle.ConditionStarted: "to start",
	lifecycle.ConditionHealthy: "to be healthy",
	lifecycle.ConditionSuccess: "to succeed",
	lifecycle.ConditionExited:  "to end",
}

// isLiteAfterConditionMet reports whether a task with this state meets a condition of lite_after. TaskState does not
// have the task's health, so lifecycle.ConditionHealthy counts as not met.
func isLiteAfterConditionMet(c lifecycle.DependencyCondition, state *api.TaskState) bool {
	switch c {
	case lifecycle.ConditionStarted:
		return !state.StartedAt.IsZero()
	case lifecycle.ConditionSuccess:
		return state.State == model.TaskDead && !state.Failed
	case lifecycle.ConditionExited:
		return state.State == model.TaskDead
	}
	return false
}

// AddLastStderrLines reads the last line of standard error of each task whose process has ended with an error, and adds
// it to the task's reason, with a remedy for a known message. A task whose output cannot be read keeps its reason.
func AddLastStderrLines(ctx context.Context, c *api.Client, tasks []TaskWithReason) {
	for i, t := range tasks {
		if !t.Reason.canOutputExplain {
			continue
		}
		request := streaming.LogRequest{
			Alloc: &api.Allocation{ID: t.Alloc.ID, NodeID: t.Alloc.NodeID, Namespace: t.Alloc.Namespace},
			Task:  t.Name, Stream: api.FSLogNameStderr, TailLines: 1, TailBytes: -1,
		}
		if !t.Reason.lastProcessOutputStart.IsZero() {
			if written, err := request.LastWriteTime(ctx, c); err != nil || written.Before(t.Reason.lastProcessOutputStart) {
				continue // the last line was written by an earlier process of the task
			}
		}
		var lastOutput []byte
		err := request.StreamLog(ctx, c, func(data []byte) error {
			lastOutput = append(lastOutput, data...)
			return nil
		})
		if err == nil {
			reason := &tasks[i].Reason
			reason.LastStderrLine = strings.TrimSpace(string(lastOutput))
			reason.Remedy = cmp.Or(reason.Remedy, findRemedyForCause(reason.LastStderrLine))
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
// that fail. It leaves out an empty section. The job can be nil. nowOrZero has the same meaning as for [FromTaskState].
func PrintTasksNotRunningAndChecks(ctx context.Context, p *output.Page, c *api.Client, job *api.Job, allocs []*api.AllocationListStub, nowOrZero time.Time, verbose bool) {
	tasks := FindTasksNotRunning(job, allocs, nowOrZero)
	AddLastStderrLines(ctx, c, tasks[:min(len(tasks), maxPrintedTasks)])
	printTasksNotRunning(p, tasks, verbose)
	printFailingChecks(ctx, p, c, job, allocs, verbose)
}
