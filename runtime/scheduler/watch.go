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

// DeploymentChanges are changes for the caller to store: to a deployment, its allocations and its timer.
type DeploymentChanges struct {
	// Deployment is the deployment's new version, or nil if it has not changed.
	Deployment *api.Deployment
	// ChangedAllocs are the changed allocations: failed ones that can be rescheduled now, and promoted canaries.
	ChangedAllocs []*api.Allocation
	// NeedsEvaluation: the job must be evaluated.
	NeedsEvaluation bool
	// NextCheckTime is the next progress deadline, at which the deployment must be checked again; zero if there is none.
	NextCheckTime time.Time
}

// watchedDeployment is an active deployment that ComputeDeploymentChanges or PromoteCanaries checks.
type watchedDeployment struct {
	deployment      *api.Deployment // copy of the stored deployment; receives the changes
	deployedVersion *api.Job        // the deployed version
	now             time.Time
	allocsByGroup   map[string][]*api.Allocation // the deployment's allocations, by group
}

// deploymentEndConditions are the conditions for ending a running deployment, each with the deployment's final status and
// status description. The first condition that holds applies.
var deploymentEndConditions = [...]struct {
	holds        func(*watchedDeployment) bool
	status, text string
}{
	{(*watchedDeployment).hasUnreschedulableFailedAlloc, api.DeploymentStatusFailed, model.DeploymentFailedAllocations},
	{(*watchedDeployment).isComplete, api.DeploymentStatusSuccessful, model.DeploymentSuccessful},
	{(*watchedDeployment).isProgressDeadlineExceeded, api.DeploymentStatusFailed, model.DeploymentFailedProgressDeadline},
}

// ComputeDeploymentChanges returns the changes that an active deployment needs. job is the deployed job version, allocs are all
// the job's allocations. ComputeDeploymentChanges does not modify its arguments.
func ComputeDeploymentChanges(d *api.Deployment, job *api.Job, allocs []*api.Allocation, now time.Time) DeploymentChanges {
	w := newWatchedDeployment(d, job, allocs, now)
	var v DeploymentChanges
	progress := w.updateHealthCountsAndDeadlines()
	v.NeedsEvaluation = progress
	if w.deployment.Status == api.DeploymentStatusRunning {
		w.endOrAdvanceDeployment(&v)
	}
	if w.deployment.Status != d.Status || w.deployment.StatusDescription != d.StatusDescription || progress || !haveEqualGroupProgress(d, w.deployment) {
		w.deployment.ModifyTime = now.UnixNano()
		v.Deployment = w.deployment
	}
	return v
}

func newWatchedDeployment(d *api.Deployment, job *api.Job, allocs []*api.Allocation, now time.Time) *watchedDeployment {
	w := &watchedDeployment{deployment: copyDeployment(d), deployedVersion: job, now: now, allocsByGroup: make(map[string][]*api.Allocation)}
	for _, a := range allocs {
		if a.DeploymentID == d.ID {
			w.allocsByGroup[a.TaskGroup] = append(w.allocsByGroup[a.TaskGroup], a)
		}
	}
	return w
}

// endOrAdvanceDeployment ends the running deployment if any deploymentEndConditions entry holds. Otherwise it promotes healthy
// canaries if auto_promote is set, allows failed allocations to be rescheduled, and sets changes.NextCheckTime.
func (w *watchedDeployment) endOrAdvanceDeployment(changes *DeploymentChanges) {
	for _, e := range deploymentEndConditions {
		if e.holds(w) {
			w.deployment.Status, w.deployment.StatusDescription = e.status, e.text
			changes.NeedsEvaluation = true
			return
		}
	}
	if w.canAutoPromote() {
		changes.ChangedAllocs = w.promoteGroupCanaries(nil)
		changes.NeedsEvaluation = true
	}
	for _, a := range w.unreplacedFailedOrUnhealthyAllocs() {
		if released := a.DesiredTransition.Reschedule; a.ClientStatus == api.AllocClientStatusFailed && (released == nil || !*released) {
			c := *a
			c.DesiredTransition.Reschedule = new(true)
			changes.ChangedAllocs = append(changes.ChangedAllocs, &c)
			changes.NeedsEvaluation = true
		}
	}
	for name, state := range w.deployment.TaskGroups {
		if at := state.RequireProgressBy; w.hasActiveProgressDeadline(name) && (changes.NextCheckTime.IsZero() || at.Before(changes.NextCheckTime)) {
			changes.NextCheckTime = at
		}
	}
}

func haveEqualGroupProgress(a, b *api.Deployment) bool {
	for name, x := range a.TaskGroups {
		y := b.TaskGroups[name]
		if x.HealthyAllocs != y.HealthyAllocs || x.UnhealthyAllocs != y.UnhealthyAllocs || x.Promoted != y.Promoted || !x.RequireProgressBy.Equal(y.RequireProgressBy) {
			return false
		}
	}
	return true
}

// updateHealthCountsAndDeadlines sets each group's healthy and unhealthy allocation counts in the deployment, and moves the
// progress deadline after each healthy allocation. It reports whether a group's healthy count has grown.
func (w *watchedDeployment) updateHealthCountsAndDeadlines() (healthyCountGrew bool) {
	for name, state := range w.deployment.TaskGroups {
		healthy, unhealthy := 0, 0
		for _, a := range w.allocsByGroup[name] {
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
		healthyCountGrew = healthyCountGrew || healthy > state.HealthyAllocs
		state.HealthyAllocs, state.UnhealthyAllocs = healthy, unhealthy
	}
	return healthyCountGrew
}

// unreplacedFailedOrUnhealthyAllocs returns the deployment's failed or unhealthy allocations without a replacement, sorted by
// id.
func (w *watchedDeployment) unreplacedFailedOrUnhealthyAllocs() []*api.Allocation {
	var allFailing []*api.Allocation
	for _, allocs := range w.allocsByGroup {
		for _, a := range allocs {
			if isDesiredRunAndUnreplaced(a) && (a.ClientStatus == api.AllocClientStatusFailed || isUnhealthy(a)) {
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

// hasUnreschedulableFailedAlloc reports whether an allocation is failed or unhealthy and cannot be rescheduled, or its
// group has no progress deadline.
func (w *watchedDeployment) hasUnreschedulableFailedAlloc() bool {
	return slices.ContainsFunc(w.unreplacedFailedOrUnhealthyAllocs(), func(a *api.Allocation) bool {
		if w.deployment.TaskGroups[a.TaskGroup] == nil || w.deployment.TaskGroups[a.TaskGroup].ProgressDeadline == 0 {
			return true
		}
		_, again := model.NextReschedule(reschedulePolicyOf(a), a.RescheduleTracker, lastTaskFinishTime(a))
		return !again
	})
}

func (w *watchedDeployment) isComplete() bool {
	for name := range w.deployment.TaskGroups {
		if !w.isGroupComplete(name) {
			return false
		}
	}
	return true
}

func (w *watchedDeployment) isGroupComplete(group string) bool {
	state := w.deployment.TaskGroups[group]
	return w.countHealthyNonTerminal(group, func(*api.Allocation) bool { return true }) >= state.DesiredTotal &&
		(state.DesiredCanaries == 0 || state.Promoted)
}

// countHealthyNonTerminal returns how many of the group's allocations are healthy, not terminal, and accepted by filter.
func (w *watchedDeployment) countHealthyNonTerminal(group string, filter func(*api.Allocation) bool) int {
	n := 0
	for _, a := range w.allocsByGroup[group] {
		if !model.AllocTerminal(a) && isHealthy(a) && filter(a) {
			n++
		}
	}
	return n
}

// hasActiveProgressDeadline reports whether a group's progress deadline applies. It does not apply while the healthy canaries
// wait for a promotion, and after the group is complete.
func (w *watchedDeployment) hasActiveProgressDeadline(group string) bool {
	state := w.deployment.TaskGroups[group]
	waitsForPromotion := state.DesiredCanaries > 0 && !state.Promoted && w.countHealthyNonTerminal(group, isCanary) >= state.DesiredCanaries
	return !state.RequireProgressBy.IsZero() && !waitsForPromotion && !w.isGroupComplete(group)
}

func (w *watchedDeployment) isProgressDeadlineExceeded() bool {
	for name, state := range w.deployment.TaskGroups {
		if w.hasActiveProgressDeadline(name) && !w.now.Before(state.RequireProgressBy) {
			return true
		}
	}
	return false
}

// canAutoPromote reports whether the deployment has unpromoted canaries, all healthy, and all their groups have auto_promote.
func (w *watchedDeployment) canAutoPromote() bool {
	some := false
	for name, state := range w.deployment.TaskGroups {
		if state.DesiredCanaries == 0 || state.Promoted {
			continue
		}
		if !model.AutoPromotes(w.deployedVersion, name) || w.countHealthyNonTerminal(name, isCanary) < state.DesiredCanaries {
			return false
		}
		some = true
	}
	return some
}

// promoteGroupCanaries promotes the canaries of the groups (nil means all), and returns the changed allocations.
func (w *watchedDeployment) promoteGroupCanaries(groups []string) []*api.Allocation {
	var promotedAllocs []*api.Allocation
	for name, state := range w.deployment.TaskGroups {
		if state.DesiredCanaries == 0 || state.Promoted || groups != nil && !slices.Contains(groups, name) {
			continue
		}
		state.Promoted = true
		if by := w.now.Add(state.ProgressDeadline); state.ProgressDeadline > 0 {
			state.RequireProgressBy = by
		}
		for _, a := range w.allocsByGroup[name] {
			if isCanary(a) {
				c, status := *a, *a.DeploymentStatus
				status.Canary = false
				c.DeploymentStatus = &status
				promotedAllocs = append(promotedAllocs, &c)
			}
		}
	}
	slices.SortFunc(promotedAllocs, func(a, b *api.Allocation) int { return strings.Compare(a.ID, b.ID) })
	w.deployment.StatusDescription = runningDeploymentDescription(w.deployment, w.deployedVersion)
	if w.deployment.Status == api.DeploymentStatusPaused {
		w.deployment.StatusDescription = model.DeploymentPaused
	}
	return promotedAllocs
}

// PromoteCanaries returns the changes for promoting the canaries in a deployment's groups (nil means all groups). It returns an
// error if a group has too few healthy canaries, or no group has canaries.
func PromoteCanaries(d *api.Deployment, job *api.Job, allocs []*api.Allocation, groups []string, now time.Time) (DeploymentChanges, error) {
	w := newWatchedDeployment(d, job, allocs, now)
	w.updateHealthCountsAndDeadlines()
	var errorLines []string
	canaries := 0
	for name, state := range w.deployment.TaskGroups {
		if groups != nil && !slices.Contains(groups, name) || state.DesiredCanaries == 0 {
			continue
		}
		canaries++
		if n := w.countHealthyNonTerminal(name, isCanary); !state.Promoted && n < state.DesiredCanaries {
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
	v := DeploymentChanges{ChangedAllocs: w.promoteGroupCanaries(groups), Deployment: w.deployment, NeedsEvaluation: true}
	w.deployment.ModifyTime = now.UnixNano()
	return v, nil
}
