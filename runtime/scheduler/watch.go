package scheduler

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// DeploymentChanges is the result of CheckDeployment: the changes that a
// deployment needs.
type DeploymentChanges struct {
	// Deployment is the new version of the deployment, or nil if it has not
	// changed.
	Deployment *api.Deployment
	// Allocs are the changed allocations: those that are marked for a reschedule, and those that are promoted.
	Allocs []*api.Allocation
	// NeedsEvaluation means that the job must be evaluated.
	NeedsEvaluation bool
	// NextCheck is when the deployment must be checked again; zero if only a change of the state requires a check.
	NextCheck time.Time
}

// watchedDeployment is a deployment that is checked, with its allocations.
type watchedDeployment struct {
	d      *api.Deployment // a copy
	job    *api.Job        // the deployed version
	now    time.Time
	allocs map[string][]*api.Allocation // allocations of the deployment, by group
}

// deploymentEndConditions has the conditions that end a running deployment, and its final status. The first condition that
// holds applies.
var deploymentEndConditions = [...]struct {
	holds        func(*watchedDeployment) bool
	status, text string
}{
	{(*watchedDeployment).hasFailed, api.DeploymentStatusFailed, model.DeploymentFailedAllocations},
	{(*watchedDeployment).isComplete, api.DeploymentStatusSuccessful, model.DeploymentSuccessful},
	{(*watchedDeployment).deadlineExceeded, api.DeploymentStatusFailed, model.DeploymentFailedProgressDeadline},
}

// CheckDeployment returns the changes that an active deployment of a version of a
// job needs.
// allocs are all allocations of the job.
func CheckDeployment(d *api.Deployment, job *api.Job, allocs []*api.Allocation, now time.Time) DeploymentChanges {
	w := newWatchedDeployment(d, job, allocs, now)
	var v DeploymentChanges
	progress := w.countHealth()
	v.NeedsEvaluation = progress
	if w.d.Status == api.DeploymentStatusRunning {
		w.updateStatus(&v)
	}
	if w.d.Status != d.Status || w.d.StatusDescription != d.StatusDescription || progress || !equalGroupStates(d, w.d) {
		w.d.ModifyTime = now.UnixNano()
		v.Deployment = w.d
	}
	return v
}

func newWatchedDeployment(d *api.Deployment, job *api.Job, allocs []*api.Allocation, now time.Time) *watchedDeployment {
	w := &watchedDeployment{d: copyDeployment(d), job: job, now: now, allocs: make(map[string][]*api.Allocation)}
	for _, a := range allocs {
		if a.DeploymentID == d.ID {
			w.allocs[a.TaskGroup] = append(w.allocs[a.TaskGroup], a)
		}
	}
	return w
}

// updateStatus ends the deployment, or makes the changes that it needs to continue.
func (w *watchedDeployment) updateStatus(v *DeploymentChanges) {
	for _, e := range deploymentEndConditions {
		if e.holds(w) {
			w.d.Status, w.d.StatusDescription = e.status, e.text
			v.NeedsEvaluation = true
			return
		}
	}
	if w.canAutoPromote() {
		v.Allocs = w.promote(nil)
		v.NeedsEvaluation = true
	}
	for _, a := range w.failingAllocs() {
		if released := a.DesiredTransition.Reschedule; a.ClientStatus == api.AllocClientStatusFailed && (released == nil || !*released) {
			c := *a
			c.DesiredTransition.Reschedule = new(true)
			v.Allocs = append(v.Allocs, &c)
			v.NeedsEvaluation = true
		}
	}
	for name, state := range w.d.TaskGroups {
		if at := state.RequireProgressBy; w.hasActiveProgressDeadline(name) && (v.NextCheck.IsZero() || at.Before(v.NextCheck)) {
			v.NextCheck = at
		}
	}
}

func equalGroupStates(a, b *api.Deployment) bool {
	for name, x := range a.TaskGroups {
		y := b.TaskGroups[name]
		if x.HealthyAllocs != y.HealthyAllocs || x.UnhealthyAllocs != y.UnhealthyAllocs || x.Promoted != y.Promoted || !x.RequireProgressBy.Equal(y.RequireProgressBy) {
			return false
		}
	}
	return true
}

// countHealth counts the healthy and unhealthy allocations in the deployment's state. It reports whether the number of
// healthy allocations has grown.
func (w *watchedDeployment) countHealth() (progress bool) {
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

// failingAllocs returns the allocations that will not become healthy and have no
// replacement.
func (w *watchedDeployment) failingAllocs() []*api.Allocation {
	var allFailing []*api.Allocation
	for _, allocs := range w.allocs {
		for _, a := range allocs {
			if isUnreplaced(a) && (a.ClientStatus == api.AllocClientStatusFailed || isUnhealthy(a)) {
				allFailing = append(allFailing, a)
			}
		}
	}
	slices.SortFunc(allFailing, func(a, b *api.Allocation) int { return strings.Compare(a.ID, b.ID) })
	return allFailing
}

func isHealthy(a *api.Allocation) bool {
	return a.DeploymentStatus != nil && a.DeploymentStatus.Healthy != nil && *a.DeploymentStatus.Healthy
}

func isUnhealthy(a *api.Allocation) bool {
	return a.DeploymentStatus != nil && a.DeploymentStatus.Healthy != nil && !*a.DeploymentStatus.Healthy
}

// hasFailed reports whether an allocation has failed and will not be rescheduled.
func (w *watchedDeployment) hasFailed() bool {
	return slices.ContainsFunc(w.failingAllocs(), func(a *api.Allocation) bool {
		if w.d.TaskGroups[a.TaskGroup] == nil || w.d.TaskGroups[a.TaskGroup].ProgressDeadline == 0 {
			return true
		}
		_, again := model.NextReschedule(reschedulePolicyOf(a), a.RescheduleTracker, failureTime(a))
		return !again
	})
}

func (w *watchedDeployment) isComplete() bool {
	for name := range w.d.TaskGroups {
		if !w.isGroupComplete(name) {
			return false
		}
	}
	return true
}

func (w *watchedDeployment) isGroupComplete(name string) bool {
	state := w.d.TaskGroups[name]
	return w.countHealthy(name, func(*api.Allocation) bool { return true }) >= state.DesiredTotal &&
		(state.DesiredCanaries == 0 || state.Promoted)
}

// countHealthy returns the number of healthy allocations of the group that are not terminal and for
// which the function which returns true.
func (w *watchedDeployment) countHealthy(group string, which func(*api.Allocation) bool) int {
	n := 0
	for _, a := range w.allocs[group] {
		if !model.AllocTerminal(a) && isHealthy(a) && which(a) {
			n++
		}
	}
	return n
}

// hasActiveProgressDeadline reports whether the progress deadline of a group applies. It does not apply while all allocations wait
// for a manual promotion of the canaries.
func (w *watchedDeployment) hasActiveProgressDeadline(name string) bool {
	state := w.d.TaskGroups[name]
	waits := state.DesiredCanaries > 0 && !state.Promoted && w.countHealthy(name, isCanary) >= state.DesiredCanaries
	return !state.RequireProgressBy.IsZero() && !waits && !w.isGroupComplete(name)
}

func (w *watchedDeployment) deadlineExceeded() bool {
	for name, state := range w.d.TaskGroups {
		if w.hasActiveProgressDeadline(name) && !w.now.Before(state.RequireProgressBy) {
			return true
		}
	}
	return false
}

// canAutoPromote reports whether all canaries are healthy and no group with
// canaries needs a manual promotion.
func (w *watchedDeployment) canAutoPromote() bool {
	some := false
	for name, state := range w.d.TaskGroups {
		if state.DesiredCanaries == 0 || state.Promoted {
			continue
		}
		if !model.AutoPromotes(w.job, name) || w.countHealthy(name, isCanary) < state.DesiredCanaries {
			return false
		}
		some = true
	}
	return some
}

// promote makes the canaries of the groups (nil means all) ordinary allocations.
func (w *watchedDeployment) promote(groups []string) []*api.Allocation {
	var promotedAllocs []*api.Allocation
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
				promotedAllocs = append(promotedAllocs, &c)
			}
		}
	}
	slices.SortFunc(promotedAllocs, func(a, b *api.Allocation) int { return strings.Compare(a.ID, b.ID) })
	w.d.StatusDescription = runningDescription(w.d, w.job)
	if w.d.Status == api.DeploymentStatusPaused {
		w.d.StatusDescription = model.DeploymentPaused
	}
	return promotedAllocs
}

// PromoteCanaries promotes the canaries of the groups of a deployment (nil means all
// groups). It returns an error that names the unhealthy canaries.
func PromoteCanaries(d *api.Deployment, job *api.Job, allocs []*api.Allocation, groups []string, now time.Time) (DeploymentChanges, error) {
	w := newWatchedDeployment(d, job, allocs, now)
	w.countHealth()
	var errorLines []string
	canaries := 0
	for name, state := range w.d.TaskGroups {
		if groups != nil && !slices.Contains(groups, name) || state.DesiredCanaries == 0 {
			continue
		}
		canaries++
		if n := w.countHealthy(name, isCanary); !state.Promoted && n < state.DesiredCanaries {
			errorLines = append(errorLines, fmt.Sprintf("Task group %q has %d/%d healthy allocations", name, n, state.DesiredCanaries))
		}
	}
	if canaries == 0 {
		return DeploymentChanges{}, errors.New("no canaries to promote")
	}
	if len(errorLines) > 0 {
		slices.Sort(errorLines)
		return DeploymentChanges{}, errors.New(model.FormatErrorList(errorLines))
	}
	v := DeploymentChanges{Allocs: w.promote(groups), Deployment: w.d, NeedsEvaluation: true}
	w.d.ModifyTime = now.UnixNano()
	return v, nil
}
