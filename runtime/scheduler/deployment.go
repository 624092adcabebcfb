package scheduler

import (
	"maps"
	"reflect"
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// setCurrentOrCancelDeployment sets p.currentDeployment to a copy of the latest deployment if it belongs to the job's current
// version. It cancels an active deployment if it has another version or the job is stopped.
func (p *planner) setCurrentOrCancelDeployment() {
	d := p.LatestDeployment
	if d == nil {
		return
	}
	d = copyDeployment(d)
	end := ""
	switch {
	case p.Job == nil || *p.Job.Stop:
		end = model.DeploymentCancelledJobStopped
	case d.JobVersion != *p.Job.Version || d.JobCreateIndex != *p.Job.CreateIndex:
		end = model.DeploymentCancelledNewerJob
	default:
		p.currentDeployment = d
		return
	}
	if model.DeploymentActive(d) {
		d.Status, d.StatusDescription = api.DeploymentStatusCancelled, end
		d.ModifyTime = p.Now.UnixNano()
		p.cancelledDeployment = d
	}
}

func copyDeployment(d *api.Deployment) *api.Deployment {
	c := *d
	c.TaskGroups = make(map[string]*api.DeploymentState, len(d.TaskGroups))
	for name, state := range d.TaskGroups {
		s := *state
		s.PlacedCanaries = slices.Clone(state.PlacedCanaries)
		c.TaskGroups[name] = &s
	}
	return &c
}

// addGroupToNewDeploymentIfNeeded adds the group to the plan's new deployment if the plan rolls out a new job version. It
// creates the deployment for the first group. Replacements of the same version need no deployment. hasUpdates: an allocation
// must be updated; hasDestructiveUpdates: one must be replaced.
func (g *groupPlan) addGroupToNewDeploymentIfNeeded(hasUpdates, hasDestructiveUpdates bool) {
	if g.rollingUpdate == nil || *g.taskGroup.Count == 0 || g.currentDeployment != nil && !g.deploymentIsNew || g.hadAllocOfCurrentVersion && !hasUpdates {
		return
	}
	d := g.currentDeployment
	if d == nil {
		d = g.newDeployment()
		g.currentDeployment, g.deploymentIsNew = d, true
	}
	state := &api.DeploymentState{
		DesiredTotal:     *g.taskGroup.Count,
		ProgressDeadline: pointer.Value(g.rollingUpdate.ProgressDeadline),
		AutoRevert:       pointer.Value(g.rollingUpdate.AutoRevert),
	}
	// A system job gets no canaries: it has one allocation on each node, and a canary would be a second one.
	if hasDestructiveUpdates && *g.Job.Type == api.JobTypeService {
		state.DesiredCanaries = pointer.Value(g.rollingUpdate.Canary)
	}
	d.TaskGroups[g.groupName] = state
	d.StatusDescription = runningDeploymentDescription(d, g.Job)
}

func (p *planner) newDeployment() *api.Deployment {
	now := p.Now.UnixNano()
	return &api.Deployment{
		ID:                 p.Env.NewID(),
		Namespace:          *p.Job.Namespace,
		JobID:              *p.Job.ID,
		JobVersion:         *p.Job.Version,
		JobModifyIndex:     *p.Job.ModifyIndex,
		JobSpecModifyIndex: *p.Job.JobModifyIndex,
		JobCreateIndex:     *p.Job.CreateIndex,
		TaskGroups:         make(map[string]*api.DeploymentState),
		Status:             api.DeploymentStatusRunning,
		CreateTime:         now,
		ModifyTime:         now,
	}
}

// runningDeploymentDescription returns a running deployment's status description: whether it waits for a promotion.
func runningDeploymentDescription(d *api.Deployment, job *api.Job) string {
	text := model.DeploymentRunning
	for name, state := range d.TaskGroups {
		switch {
		case state.DesiredCanaries == 0 || state.Promoted:
		case !model.AutoPromotes(job, name):
			return model.DeploymentNeedsPromotion
		default:
			text = model.DeploymentAwaitsAutoPromotion
		}
	}
	return text
}

func (p *planner) groupDeploymentState(group string) *api.DeploymentState {
	return p.currentDeployment.TaskGroups[group]
}

// activeDeploymentState returns the group's deployment state, or nil if no deployment is active.
func (g *groupPlan) activeDeploymentState() *api.DeploymentState {
	if g.currentDeployment == nil || !model.DeploymentActive(g.currentDeployment) {
		return nil
	}
	return g.groupDeploymentState(g.groupName)
}

// hasUnpromotedCanaries reports whether the group's active deployment has unpromoted canaries.
func (g *groupPlan) hasUnpromotedCanaries() bool {
	state := g.activeDeploymentState()
	return state != nil && state.DesiredCanaries > 0 && !state.Promoted
}

// isDeploymentPausedOrFailed reports whether the deployment is paused or failed, which prevents new placements.
func (g *groupPlan) isDeploymentPausedOrFailed() bool {
	d := g.currentDeployment
	return d != nil && (d.Status == api.DeploymentStatusPaused || d.Status == api.DeploymentStatusFailed)
}

// setProgressDeadlineIfUnset sets a group's progress deadline, if it has none yet, when its first allocation is placed or
// updated.
func (p *planner) setProgressDeadlineIfUnset(state *api.DeploymentState) {
	if state.ProgressDeadline > 0 && state.RequireProgressBy.IsZero() {
		state.RequireProgressBy = p.Now.Add(state.ProgressDeadline)
	}
}

// setModifyTimeIfDeploymentChanged sets d.ModifyTime if the plan has changed d, its copy of the deployment. It reports whether
// it has.
func (p *planner) setModifyTimeIfDeploymentChanged(d *api.Deployment) (changed bool) {
	if maps.EqualFunc(d.TaskGroups, p.LatestDeployment.TaskGroups, func(a, b *api.DeploymentState) bool { return reflect.DeepEqual(a, b) }) {
		return false
	}
	d.ModifyTime = p.Now.UnixNano()
	return true
}
