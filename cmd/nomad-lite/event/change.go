package event

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/tables"
	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/runtime/explain/reason"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// eventObject is the payload of an event: the object after the change, in the field for the event's topic.
type eventObject struct {
	Job        *api.Job
	Evaluation *api.Evaluation
	Allocation *api.Allocation
	Deployment *api.Deployment
	Node       *api.Node
	Service    *api.ServiceRegistration
	Variable   *api.VariableMetadata `json:"Metadata"`
	Deleted    bool

	eventType string
}

// decodeEventObjectOrEmpty returns the object of an event, or an empty eventObject if the JSON has an unexpected form.
func decodeEventObjectOrEmpty(event json.RawMessage) *eventObject {
	var e struct {
		Type    string
		Payload eventObject
	}
	if json.Unmarshal(event, &e) != nil {
		return &eventObject{}
	}
	e.Payload.eventType = e.Type
	return &e.Payload
}

// modifyTime returns the time of the change, or the zero time if the object has none.
func (o *eventObject) modifyTime() time.Time {
	nanoseconds := int64(0)
	switch {
	case o.Evaluation != nil:
		nanoseconds = o.Evaluation.ModifyTime
	case o.Allocation != nil:
		nanoseconds = o.Allocation.ModifyTime
	case o.Deployment != nil:
		nanoseconds = o.Deployment.ModifyTime
	case o.Variable != nil && !o.Deleted:
		nanoseconds = o.Variable.ModifyTime
	}
	if nanoseconds == 0 {
		return time.Time{}
	}
	return time.Unix(0, nanoseconds)
}

// describeChange describes what has changed since the previous version of the object. previous is nil if that
// version is unknown.
func (o *eventObject) describeChange(previous *eventObject) []string {
	if previous == nil {
		previous = &eventObject{}
	}
	switch {
	case o.Job != nil:
		return o.describeJobChange(previous.Job)
	case o.Evaluation != nil:
		return describeEvaluationChange(o.Evaluation, previous.Evaluation)
	case o.Allocation != nil:
		return describeAllocationChange(o.Allocation, previous.Allocation)
	case o.Deployment != nil:
		return describeDeploymentChange(o.Deployment, previous.Deployment)
	case o.Node != nil:
		return describeNodeChange(o.Node, previous.Node)
	case o.Service != nil:
		return []string{describeServiceChange(o)}
	case o.Variable != nil:
		return []string{describeVariableChange(o)}
	}
	return nil
}

// changesOnlyTaskEventProgress reports whether the object is an allocation in which only the progress of operations,
// such as downloads, has changed since the previous version.
func (o *eventObject) changesOnlyTaskEventProgress(previous *eventObject) bool {
	if o.Allocation == nil || previous == nil || previous.Allocation == nil {
		return false
	}
	after, before := o.Allocation, previous.Allocation
	found := false
	for name, state := range after.TaskStates {
		old := before.TaskStates[name]
		newest := newestTaskEvent(state)
		switch {
		case newest == nil || old == nil || old.State != state.State:
			return false
		case model.IsEventOfOngoingOperation(newest):
			found = true
		case !isSameTaskEvent(newestTaskEvent(old), newest):
			return false
		}
	}
	return found && after.ClientStatus == before.ClientStatus && after.DesiredStatus == before.DesiredStatus
}

// formatTransition returns "before -> after", or after alone if the value has not changed or before is "", which
// means unknown.
func formatTransition(before, after string) string {
	if before == "" || before == after {
		return after
	}
	return before + " -> " + after
}

func (o *eventObject) describeJobChange(before *api.Job) []string {
	job := o.Job
	version := fmt.Sprintf("version %d", pointer.Value(job.Version))
	if o.Deleted {
		return []string{"deleted"}
	}
	if before == nil {
		changes := []string{version + " " + pointer.Value(job.Status)}
		if pointer.Value(job.Stop) {
			changes = append(changes, "stopped")
		}
		return changes
	}
	changes := []string{fmt.Sprintf("version %s %s",
		formatTransition(fmt.Sprint(pointer.Value(before.Version)), fmt.Sprint(pointer.Value(job.Version))),
		formatTransition(pointer.Value(before.Status), pointer.Value(job.Status)))}
	switch stopped := pointer.Value(job.Stop); {
	case stopped && !pointer.Value(before.Stop):
		changes = append(changes, "stopped")
	case !stopped && pointer.Value(before.Stop):
		changes = append(changes, "started again")
	}
	if pointer.Value(job.Stable) && !pointer.Value(before.Stable) {
		changes = append(changes, "stable")
	}
	return changes
}

func describeEvaluationChange(eval, before *api.Evaluation) []string {
	changes := []string{fmt.Sprintf("%s of job %s %s", eval.TriggeredBy, eval.JobID, formatTransition(pointer.Value(before).Status, eval.Status))}
	for _, group := range slices.Sorted(maps.Keys(eval.FailedTGAllocs)) {
		text := fmt.Sprintf("group %s not placed", group)
		if metric := eval.FailedTGAllocs[group]; metric != nil {
			text += ": " + strings.Join(reason.PlacementFailureLines(metric), ", ")
		}
		changes = append(changes, text)
	}
	if (eval.Status == api.EvalStatusFailed || len(eval.FailedTGAllocs) > 0) && eval.StatusDescription != "" {
		changes = append(changes, eval.StatusDescription)
	}
	return changes
}

func describeAllocationChange(alloc, before *api.Allocation) []string {
	previous := pointer.Value(before)
	changes := []string{fmt.Sprintf("%s %s, wanted %s", alloc.Name,
		formatTransition(previous.ClientStatus, alloc.ClientStatus), formatTransition(previous.DesiredStatus, alloc.DesiredStatus))}
	if healthy := pointer.Value(alloc.DeploymentStatus).Healthy; healthy != nil && pointer.Value(previous.DeploymentStatus).Healthy == nil {
		changes = append(changes, formatHealth(*healthy))
	}
	for _, name := range slices.Sorted(maps.Keys(alloc.TaskStates)) {
		if text := describeTaskReasonOrNewEvent(alloc.TaskStates[name], previous.TaskStates[name], before != nil); text != "" {
			changes = append(changes, fmt.Sprintf("task %s: %s", name, text))
		}
	}
	return changes
}

// describeTaskReasonOrNewEvent returns why a task does not run or, if it is being set up or runs, the type of its
// newest event if that event is new. It returns "" if there is neither. allocWasKnown is false if the previous version
// of the allocation is unknown.
func describeTaskReasonOrNewEvent(state, before *api.TaskState, allocWasKnown bool) string {
	if why := reason.FromTaskState(state, time.Time{}); !why.IsBeingSetUp() && why.Cause != "" {
		why.ProgressText = "" // events that change only the progress are not printed, so no line shows it
		return why.String()
	}
	newest := newestTaskEvent(state)
	if !allocWasKnown || newest == nil {
		return ""
	}
	if isSameTaskEvent(newestTaskEvent(before), newest) {
		return ""
	}
	if newest.Type == api.TaskTerminated {
		return newest.Type + ": " + newest.DisplayMessage
	}
	return newest.Type
}

// isSameTaskEvent reports whether two events of a task, which can be nil, are the same.
func isSameTaskEvent(a, b *api.TaskEvent) bool {
	return a != nil && b != nil && a.Time == b.Time && a.Type == b.Type && a.DisplayMessage == b.DisplayMessage
}

// newestTaskEvent returns the last event of a task, or nil.
func newestTaskEvent(state *api.TaskState) *api.TaskEvent {
	if state == nil || len(state.Events) == 0 {
		return nil
	}
	return state.Events[len(state.Events)-1]
}

func describeDeploymentChange(d, before *api.Deployment) []string {
	changes := []string{fmt.Sprintf("of job %s %s: %s", d.JobID, formatTransition(pointer.Value(before).Status, d.Status), d.StatusDescription)}
	for _, name := range slices.Sorted(maps.Keys(d.TaskGroups)) {
		if group := d.TaskGroups[name]; group != nil {
			changes = append(changes, fmt.Sprintf("group %s: %d placed, %d healthy, %d unhealthy of %d", name, group.PlacedAllocs, group.HealthyAllocs, group.UnhealthyAllocs, group.DesiredTotal))
		}
	}
	return changes
}

func describeNodeChange(node, before *api.Node) []string {
	previous := pointer.Value(before)
	changes := []string{fmt.Sprintf("%s %s, %s", node.Name,
		formatTransition(previous.Status, node.Status), formatTransition(previous.SchedulingEligibility, node.SchedulingEligibility))}
	if node.DrainStrategy != nil && (before == nil || previous.DrainStrategy == nil) {
		changes = append(changes, "drains")
	}
	for _, name := range slices.Sorted(maps.Keys(node.Drivers)) {
		driver, old := node.Drivers[name], previous.Drivers[name]
		if driver != nil && old != nil && driver.Healthy != old.Healthy {
			changes = append(changes, fmt.Sprintf("driver %s %s: %s", name, formatHealth(driver.Healthy), driver.HealthDescription))
		}
	}
	return changes
}

func formatHealth(healthy bool) string {
	if healthy {
		return "healthy"
	}
	return "unhealthy"
}

func describeServiceChange(o *eventObject) string {
	text := strings.TrimSpace(fmt.Sprintf("%s %s", o.Service.ServiceName, tables.ServiceAddress(o.Service)))
	if o.eventType == "ServiceDeregistration" {
		return text + " removed"
	}
	return text
}

func describeVariableChange(o *eventObject) string {
	switch {
	case o.Deleted:
		return "deleted"
	case o.Variable.CreateIndex == o.Variable.ModifyIndex:
		return "created"
	case o.Variable.Lock != nil:
		return "locked"
	}
	return "changed"
}
