package scheduler

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/model"
)

// Verdict is the result of Judge: the changes that a deployment needs.
type Verdict struct {
	// Deployment is the new version of the deployment, or nil if it has not
	// changed.
	Deployment *api.Deployment
	// Allocs are changed allocations: marked for a reschedule, or promoted.
	Allocs []*api.Allocation
	// Evaluate means that the job must be evaluated.
	Evaluate bool
	// Deadline is when the deployment must be judged again, or zero if only a
	// change can matter.
	Deadline time.Time
}

// deploymentState is a deployment with its allocations.
type deploymentState struct {
	d      *api.Deployment // a copy
	job    *api.Job        // the deployed version
	now    time.Time
	allocs map[string][]*api.Allocation // allocations of the deployment by group
}

// outcomes are the ways in which a running deployment ends. The first that holds
// applies.
var outcomes = [...]struct {
	holds        func(*deploymentState) bool
	status, text string
}{
	{(*deploymentState).failed, api.DeploymentStatusFailed, model.DeploymentUnhealthy},
	{(*deploymentState).complete, api.DeploymentStatusSuccessful, model.DeploymentSuccessful},
	{(*deploymentState).deadlineExceeded, api.DeploymentStatusFailed, model.DeploymentDeadline},
}

// Judge returns the Verdict about an active deployment of a version of a job.
// allocs are all allocations of the job.
func Judge(d *api.Deployment, job *api.Job, allocs []*api.Allocation, now time.Time) Verdict {
	w := newWatch(d, job, allocs, now)
	var v Verdict
	progress := w.count()
	v.Evaluate = progress
	if w.d.Status == api.DeploymentStatusRunning {
		w.conclude(&v)
	}
	if w.d.Status != d.Status || w.d.StatusDescription != d.StatusDescription || progress || !sameStates(d, w.d) {
		w.d.ModifyTime = now.UnixNano()
		v.Deployment = w.d
	}
	return v
}

func newWatch(d *api.Deployment, job *api.Job, allocs []*api.Allocation, now time.Time) *deploymentState {
	w := &deploymentState{d: copyDeployment(d), job: job, now: now, allocs: make(map[string][]*api.Allocation)}
	for _, a := range allocs {
		if a.DeploymentID == d.ID {
			w.allocs[a.TaskGroup] = append(w.allocs[a.TaskGroup], a)
		}
	}
	return w
}

// conclude ends the deployment, or sets what it needs to continue.
func (w *deploymentState) conclude(v *Verdict) {
	for _, e := range outcomes {
		if e.holds(w) {
			w.d.Status, w.d.StatusDescription = e.status, e.text
			v.Evaluate = true
			return
		}
	}
	if w.canPromoteItself() {
		v.Allocs = w.promote(nil)
		v.Evaluate = true
	}
	for _, a := range w.failing() {
		if released := a.DesiredTransition.Reschedule; a.ClientStatus == api.AllocClientStatusFailed && (released == nil || !*released) {
			c := *a
			c.DesiredTransition.Reschedule = new(true)
			v.Allocs = append(v.Allocs, &c)
			v.Evaluate = true
		}
	}
	for name, state := range w.d.TaskGroups {
		if at := state.RequireProgressBy; w.mustProgress(name) && (v.Deadline.IsZero() || at.Before(v.Deadline)) {
			v.Deadline = at
		}
	}
}

func sameStates(a, b *api.Deployment) bool {
	for name, x := range a.TaskGroups {
		y := b.TaskGroups[name]
		if x.HealthyAllocs != y.HealthyAllocs || x.UnhealthyAllocs != y.UnhealthyAllocs || x.Promoted != y.Promoted || !x.RequireProgressBy.Equal(y.RequireProgressBy) {
			return false
		}
	}
	return true
}

// count updates the counters of the deployment from the health of the allocations.
// It reports whether the number of healthy allocations has grown.
func (w *deploymentState) count() (progress bool) {
	for name, state := range w.d.TaskGroups {
		healthy, unhealthy := 0, 0
		for _, a := range w.allocs[name] {
			switch s := a.DeploymentStatus; {
			case s == nil || s.Healthy == nil:
			case *s.Healthy:
				healthy++
				if by := s.Timestamp.Add(state.ProgressDeadline); state.ProgressDeadline > 0 && by.After(state.RequireProgressBy) {
					state.RequireProgressBy = by
				}
			default:
				unhealthy++
			}
		}
		progress = progress || healthy > state.HealthyAllocs
		state.HealthyAllocs, state.UnhealthyAllocs = healthy, unhealthy
	}
	return progress
}

// failing returns the allocations that will not become healthy and have no
// replacement.
func (w *deploymentState) failing() []*api.Allocation {
	var failing []*api.Allocation
	for _, allocs := range w.allocs {
		for _, a := range allocs {
			if hasPlace(a) && (a.ClientStatus == api.AllocClientStatusFailed || isUnhealthy(a)) {
				failing = append(failing, a)
			}
		}
	}
	slices.SortFunc(failing, func(a, b *api.Allocation) int { return strings.Compare(a.ID, b.ID) })
	return failing
}

func isHealthy(a *api.Allocation) bool {
	return a.DeploymentStatus != nil && a.DeploymentStatus.Healthy != nil && *a.DeploymentStatus.Healthy
}

func isUnhealthy(a *api.Allocation) bool {
	return a.DeploymentStatus != nil && a.DeploymentStatus.Healthy != nil && !*a.DeploymentStatus.Healthy
}

// failed reports whether an allocation failed that will not be rescheduled.
func (w *deploymentState) failed() bool {
	return slices.ContainsFunc(w.failing(), func(a *api.Allocation) bool {
		if w.d.TaskGroups[a.TaskGroup] == nil || w.d.TaskGroups[a.TaskGroup].ProgressDeadline == 0 {
			return true
		}
		_, again := model.NextReschedule(policyOf(a), a.RescheduleTracker, failedAt(a))
		return !again
	})
}

func (w *deploymentState) complete() bool {
	for name := range w.d.TaskGroups {
		if !w.groupComplete(name) {
			return false
		}
	}
	return true
}

func (w *deploymentState) groupComplete(name string) bool {
	state := w.d.TaskGroups[name]
	return w.healthy(name, func(*api.Allocation) bool { return true }) >= state.DesiredTotal &&
		(state.DesiredCanaries == 0 || state.Promoted)
}

// healthy returns the number of healthy allocations of the group that are desired
// to run and that which selects.
func (w *deploymentState) healthy(group string, which func(*api.Allocation) bool) int {
	n := 0
	for _, a := range w.allocs[group] {
		if !model.Terminal(a) && isHealthy(a) && which(a) {
			n++
		}
	}
	return n
}

// mustProgress reports whether the progress deadline of a group counts. It does not
// count while all allocations wait for a manual promotion of the canaries.
func (w *deploymentState) mustProgress(name string) bool {
	state := w.d.TaskGroups[name]
	waits := state.DesiredCanaries > 0 && !state.Promoted && w.healthy(name, isCanary) >= state.DesiredCanaries
	return !state.RequireProgressBy.IsZero() && !waits && !w.groupComplete(name)
}

func (w *deploymentState) deadlineExceeded() bool {
	for name, state := range w.d.TaskGroups {
		if w.mustProgress(name) && !w.now.Before(state.RequireProgressBy) {
			return true
		}
	}
	return false
}

// canPromoteItself reports whether all canaries are healthy and no group with
// canaries needs a manual promotion.
func (w *deploymentState) canPromoteItself() bool {
	some := false
	for name, state := range w.d.TaskGroups {
		if state.DesiredCanaries == 0 || state.Promoted {
			continue
		}
		if !model.AutoPromotes(w.job, name) || w.healthy(name, isCanary) < state.DesiredCanaries {
			return false
		}
		some = true
	}
	return some
}

// promote makes the canaries of the groups (nil means all) ordinary allocations.
func (w *deploymentState) promote(groups []string) []*api.Allocation {
	var promoted []*api.Allocation
	for name, state := range w.d.TaskGroups {
		if state.DesiredCanaries == 0 || state.Promoted || groups != nil && !slices.Contains(groups, name) {
			continue
		}
		state.Promoted = true
		if by := w.now.Add(state.ProgressDeadline); state.ProgressDeadline > 0 {
			state.RequireProgressBy = by
		}
		for _, a := range w.allocs[name] {
			if isCanary(a) {
				c, status := *a, *a.DeploymentStatus
				status.Canary = false
				c.DeploymentStatus = &status
				promoted = append(promoted, &c)
			}
		}
	}
	slices.SortFunc(promoted, func(a, b *api.Allocation) int { return strings.Compare(a.ID, b.ID) })
	w.d.StatusDescription = runningText(w.d, w.job)
	if w.d.Status == api.DeploymentStatusPaused {
		w.d.StatusDescription = model.DeploymentPaused
	}
	return promoted
}

// Promote promotes the canaries of the groups of a deployment (nil means all
// groups). It returns an error that names the unhealthy canaries.
func Promote(d *api.Deployment, job *api.Job, allocs []*api.Allocation, groups []string, now time.Time) (Verdict, error) {
	w := newWatch(d, job, allocs, now)
	w.count()
	var lines []string
	canaries := 0
	for name, state := range w.d.TaskGroups {
		if groups != nil && !slices.Contains(groups, name) || state.DesiredCanaries == 0 {
			continue
		}
		canaries++
		if n := w.healthy(name, isCanary); !state.Promoted && n < state.DesiredCanaries {
			lines = append(lines, fmt.Sprintf("Task group %q has %d/%d healthy allocations", name, n, state.DesiredCanaries))
		}
	}
	if canaries == 0 {
		return Verdict{}, errors.New("no canaries to promote")
	}
	if len(lines) > 0 {
		slices.Sort(lines)
		return Verdict{}, errors.New(model.ListText(lines))
	}
	v := Verdict{Allocs: w.promote(groups), Deployment: w.d, Evaluate: true}
	w.d.ModifyTime = now.UnixNano()
	return v, nil
}
