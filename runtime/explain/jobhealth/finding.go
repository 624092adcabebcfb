package jobhealth

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/runtime/core/restart"
	"github.com/nomad-lite/nomad-lite/runtime/explain/reason"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// condition is one allocation's state. A higher one is worse.
type condition int

const (
	done      condition = iota // all tasks have ended with success
	works                      // all required tasks run
	starting                   // a task is being set up
	unhealthy                  // a task runs, but a check fails, or its driver or device is unhealthy
	ended                      // failed or lost, and not replaced
	looping                    // a task has failed and is restarted, or was restarted a short time ago
)

// finding is one allocation's condition with the cause.
type finding struct {
	condition     condition
	allocID, task string
	jobVersion    uint64
	prefix        string // the cause's prefix, such as `task "web": `
	reason        reason.Reason
	// isDeciding means that the deployment has not yet decided whether the allocation is healthy.
	isDeciding bool
	// waitsForOthers means that the start needs something from the user or another job, such as a variable.
	waitsForOthers bool
	recheckAt      time.Time
}

// health returns a health with the finding as its cause.
func (f finding) health(word Word, prefix string) Health {
	h := Health{Word: word, AllocID: f.allocID, Task: f.task}
	h.setReason(prefix+f.prefix, f.reason)
	return h
}

// worstFinding returns the first finding with the worst condition.
func worstFinding(found []finding) (worst finding) {
	for i, f := range found {
		if i == 0 || f.condition > worst.condition || f.condition == worst.condition && f.waitsForOthers && !worst.waitsForOthers {
			worst = f
		}
	}
	return worst
}

// findFindings returns a finding for each desired allocation of the job, newest first.
func (s Snapshot) findFindings() (found []finding) {
	for _, a := range slices.Backward(s.Allocations) {
		if a.DesiredStatus != api.AllocDesiredStatusRun || a.NextAllocation != "" {
			continue
		}
		f := s.find(a)
		f.allocID, f.jobVersion = cmp.Or(f.allocID, a.ID), pointer.Value(jobVersion(a))
		found = append(found, f)
	}
	return found
}

func (s Snapshot) find(a *api.Allocation) finding {
	switch a.ClientStatus {
	case api.AllocClientStatusComplete:
		return finding{condition: done}
	case api.AllocClientStatusLost:
		return finding{condition: ended, reason: reason.Reason{Cause: cmp.Or(a.ClientDescription, "lost")}}
	case api.AllocClientStatusFailed:
		return s.findFailure(a)
	}
	if f, ok := s.findTaskNotRunning(a); ok {
		return f
	}
	if f, ok := s.findRecentFailure(a); ok {
		return f
	}
	if f, ok := s.findUnhealthy(a); ok {
		return f
	}
	if len(a.TaskStates) == 0 {
		return finding{condition: starting, reason: reason.Reason{Cause: "is being set up"}}
	}
	return finding{condition: works}
}

// findFailure returns the finding for a failed allocation.
func (s Snapshot) findFailure(a *api.Allocation) finding {
	f := finding{condition: ended, reason: reason.Reason{Cause: cmp.Or(a.ClientDescription, "failed")}}
	if task, r, ok := s.failedTask(a); ok {
		f.task, f.prefix, f.reason = task, taskPrefix(task), r
	}
	if i := slices.IndexFunc(s.Evaluations, func(e *api.Evaluation) bool { return e.ID == a.FollowupEvalID && a.FollowupEvalID != "" }); i >= 0 {
		if at := s.Evaluations[i].WaitUntil; s.Evaluations[i].Status == api.EvalStatusPending {
			f.condition = looping
			f.reason.NextStep = "placed again at " + at.Format(time.TimeOnly)
		}
	}
	return f
}

// failedTask returns an allocation's first failed task, in the job's order, and its reason.
func (s Snapshot) failedTask(a *api.Allocation) (task string, r reason.Reason, ok bool) {
	for _, name := range s.taskNames(a) {
		if state := a.TaskStates[name]; state != nil && state.Failed {
			return name, reason.FromTaskState(state, time.Time{}), true
		}
	}
	return "", reason.Reason{}, false
}

func taskPrefix(task string) string { return fmt.Sprintf("task %q: ", task) }

// taskNames returns an allocation's task names, in its job's order, or sorted if the job no longer has its group.
func (s Snapshot) taskNames(a *api.Allocation) []string {
	group := s.groupOf(a)
	if group == nil {
		return slices.Sorted(maps.Keys(a.TaskStates))
	}
	var names []string
	for _, t := range group.Tasks {
		names = append(names, t.Name)
	}
	return names
}

// groupOf returns an allocation's group in its job version, or nil.
func (s Snapshot) groupOf(a *api.Allocation) *api.TaskGroup {
	if a.Job != nil {
		return model.FindGroup(a.Job, a.TaskGroup)
	}
	return model.FindGroup(s.Job, a.TaskGroup)
}

// findTaskNotRunning returns the worst finding about an active allocation's tasks that do not run.
func (s Snapshot) findTaskNotRunning(a *api.Allocation) (worst finding, ok bool) {
	group := s.groupOf(a)
	for _, name := range s.taskNames(a) {
		state := a.TaskStates[name]
		r := reason.FromTaskState(state, time.Time{})
		if r == (reason.Reason{}) {
			continue
		}
		f := finding{task: name, prefix: taskPrefix(name), condition: starting, isDeciding: isDeciding(a)}
		switch end := s.LastEnd(a.ID, name); {
		case state.Failed:
			f.condition = looping
		case end.IsFailure():
			f.condition = looping
			// An event about the next start is the reason only if it comes with advice. A failed start's event has the next step, so its
			// text is better than that of the end.
			if r.Remedy == "" && !(end.StartFailed && r.NextStep != "") {
				r = reason.OfEnd(end)
			}
		case r.IsBeingSetUp():
			var mustRun bool
			if r, mustRun = reason.OfTaskBeingSetUp(group, a.TaskStates, name); !mustRun {
				continue
			}
			if previous, failed := s.previousFailure(a); failed {
				return previous, true
			}
		default:
			f.waitsForOthers = true
		}
		r.ProgressText = "" // it changes each second
		f.reason = r
		if !ok || f.condition > worst.condition || f.condition == worst.condition && f.waitsForOthers && !worst.waitsForOthers {
			worst, ok = f, true
		}
	}
	return worst, ok
}

// isDeciding reports whether an allocation's deployment has not yet decided whether the allocation is healthy.
func isDeciding(a *api.Allocation) bool {
	return a.DeploymentID != "" && (a.DeploymentStatus == nil || a.DeploymentStatus.Healthy == nil)
}

// findRecentFailure returns a finding about a task started less than restart.RecoveredAfter ago, if it failed before or its
// allocation replaces a failed one.
func (s Snapshot) findRecentFailure(a *api.Allocation) (finding, bool) {
	for _, name := range s.taskNames(a) {
		state := a.TaskStates[name]
		if state == nil || state.State != model.TaskRunning || s.Now.Sub(state.StartedAt) >= restart.RecoveredAfter {
			continue
		}
		end := s.LastEnd(a.ID, name)
		if !end.IsFailure() {
			continue
		}
		r := reason.OfEnd(end)
		r.NextStep = "started again at " + state.StartedAt.Local().Format(time.TimeOnly)
		return finding{condition: looping, task: name, prefix: taskPrefix(name), reason: r, recheckAt: state.StartedAt.Add(restart.RecoveredAfter)}, true
	}
	if start := lastTaskStart(a); s.Now.Sub(start) < restart.RecoveredAfter {
		if f, failed := s.previousFailure(a); failed {
			f.recheckAt = start.Add(restart.RecoveredAfter)
			return f, true
		}
	}
	return finding{}, false
}

// lastTaskStart returns the latest start among an allocation's tasks.
func lastTaskStart(a *api.Allocation) (latest time.Time) {
	for _, state := range a.TaskStates {
		if state != nil && state.StartedAt.After(latest) {
			latest = state.StartedAt
		}
	}
	return latest
}

// previousFailure returns a finding about the failed allocation replaced by this one.
func (s Snapshot) previousFailure(a *api.Allocation) (finding, bool) {
	if a.PreviousAllocation == "" {
		return finding{}, false
	}
	i := slices.IndexFunc(s.Allocations, func(other *api.Allocation) bool { return other.ID == a.PreviousAllocation })
	if i < 0 || s.Allocations[i].ClientStatus != api.AllocClientStatusFailed || pointer.Value(jobVersion(s.Allocations[i])) != pointer.Value(jobVersion(a)) {
		return finding{}, false
	}
	task, r, ok := s.failedTask(s.Allocations[i])
	if !ok {
		return finding{}, false
	}
	r.NextStep = "placed again"
	return finding{condition: looping, allocID: a.PreviousAllocation, task: task, prefix: taskPrefix(task), reason: r}, true
}

func jobVersion(a *api.Allocation) *uint64 {
	if a.Job == nil {
		return nil
	}
	return a.Job.Version
}

// findUnhealthy returns a finding about an allocation with running tasks that do not do their work.
func (s Snapshot) findUnhealthy(a *api.Allocation) (finding, bool) {
	checks := slices.Clone(s.ChecksByAllocID[a.ID])
	slices.SortFunc(checks, func(x, y api.AllocCheckStatus) int {
		return cmp.Or(cmp.Compare(x.Service, y.Service), cmp.Compare(x.Check, y.Check))
	})
	for i := range checks {
		if checks[i].Status == model.CheckFailure {
			return finding{condition: unhealthy, task: checks[i].Task, isDeciding: isDeciding(a), reason: reason.Reason{
				Cause: checkName(&checks[i]) + " fails: " + reason.OfFailingCheck(&checks[i]),
			}}, true
		}
	}
	if s.Node == nil {
		return finding{}, false
	}
	group := s.groupOf(a)
	if group == nil {
		return finding{}, false
	}
	for _, t := range group.Tasks {
		if state := a.TaskStates[t.Name]; state == nil || state.State != model.TaskRunning {
			continue
		}
		if text := unhealthyDevice(s.Node, a, t.Name); text != "" {
			return finding{condition: unhealthy, task: t.Name, prefix: taskPrefix(t.Name), reason: reason.Reason{Cause: text, Remedy: "nomad-lite node status -verbose shows the devices"}}, true
		}
		if d := s.Node.Drivers[t.Driver]; d != nil && !d.Healthy {
			return finding{condition: unhealthy, task: t.Name, prefix: taskPrefix(t.Name), reason: reason.Reason{
				Cause: fmt.Sprintf("runs, but driver %q is not healthy: %s", t.Driver, d.HealthDescription), Remedy: "nomad-lite plugin list shows its plugin",
			}}, true
		}
	}
	return finding{}, false
}

// checkName returns a check's name for a sentence. It leaves out a default name, which has only the service's name.
func checkName(c *api.AllocCheckStatus) string {
	if c.Check == "" || c.Check == fmt.Sprintf("service: %q check", c.Service) {
		return fmt.Sprintf("check of service %q", c.Service)
	}
	return fmt.Sprintf("check %q of service %q", c.Check, c.Service)
}

// unhealthyDevice returns which of a task's devices is missing on the node or unhealthy, or "" if none is.
func unhealthyDevice(node *api.Node, a *api.Allocation, task string) string {
	if a.AllocatedResources == nil || a.AllocatedResources.Tasks[task] == nil || node.NodeResources == nil {
		return ""
	}
	for _, d := range a.AllocatedResources.Tasks[task].Devices {
		name := d.Vendor + "/" + d.Type + "/" + d.Name
		for _, id := range d.DeviceIDs {
			instance := findDevice(node, name, id)
			switch {
			case instance == nil:
				return fmt.Sprintf("runs, but the node no longer has its device %s[%s]", name, id)
			case !instance.Healthy:
				return fmt.Sprintf("runs, but its device %s[%s] is not healthy: %s", name, id, cmp.Or(instance.HealthDescription, "its plugin gives no reason"))
			}
		}
	}
	return ""
}

func findDevice(node *api.Node, name, id string) *api.NodeDevice {
	for _, group := range node.NodeResources.Devices {
		if group.ID() != name {
			continue
		}
		for _, instance := range group.Instances {
			if instance.ID == id {
				return instance
			}
		}
	}
	return nil
}
