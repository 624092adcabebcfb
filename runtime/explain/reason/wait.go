package reason

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/core/lifecycle"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// OfTaskBeingSetUp returns which other tasks in its group a pending task waits for. A main task starts after the prestart tasks,
// a poststart task after the main tasks, and a task with lite_after after the tasks named there. mustRun is false for a poststop
// task, which starts when the other tasks have ended. If the group is nil, the reason is only that the task is being set up.
func OfTaskBeingSetUp(group *api.TaskGroup, states map[string]*api.TaskState, taskName string) (reason Reason, mustRun bool) {
	reason = Reason{Cause: setupCause}
	stages := make(map[string]lifecycle.Stage)
	var dependencies []lifecycle.Dependency
	if group != nil {
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
	for _, other := range slices.Sorted(maps.Keys(states)) {
		state := states[other]
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
		if state := states[d.Task]; state == nil || !isLiteAfterConditionMet(d.Condition, state) {
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

// isLiteAfterConditionMet reports whether a task with this state meets a lite_after condition. TaskState does not have the task's
// health, so lifecycle.ConditionHealthy counts as not met.
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
