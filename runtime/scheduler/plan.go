package scheduler

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// rescheduleBatchWindow is how much earlier than planned a failed allocation may be replaced. Later replacements whose times
// differ by less share one follow-up evaluation.
const rescheduleBatchWindow = time.Second

// PlanInput is the input of Plan. Plan modifies only NodeUsage.
type PlanInput struct {
	// Eval is the evaluation for which the plan is made.
	Eval *api.Evaluation
	// Job is the current version, or nil if the job was purged.
	Job *api.Job
	// Allocs and Evals are all stored allocations and evaluations of the job.
	Allocs []*api.Allocation
	Evals  []*api.Evaluation
	// Deployment is the newest deployment of the job, or nil.
	Deployment *api.Deployment

	Node Node
	// NodeUsage is the usage of the node by all jobs. Plan adds its placements.
	NodeUsage *NodeUsage
	Env       Env
	Now       time.Time
	// MemoryOversubscription lets tasks use more memory than the scheduler reserves for them, up to memory_max.
	MemoryOversubscription bool
	// Volumes are the dynamic host volumes and their claims; nil if there are none. Plan adds the claims of its placements.
	Volumes *VolumeState
}

// PlanChanges are the result of Plan, to be written in one transaction. They share
// nothing with the input except jobs and immutable values.
type PlanChanges struct {
	// Eval is the processed evaluation.
	Eval *api.Evaluation
	// Place has the new allocations, Update the changed ones.
	Place, Update []*api.Allocation
	// Deployments has new and changed deployments.
	Deployments []*api.Deployment
	// Evals has other evaluations: new ones, and ones that are cancelled.
	Evals []*api.Evaluation
	// Claims has new claims of volumes.
	Claims []*api.TaskGroupHostVolumeClaim
}

// Plan returns the changes that bring the job to its desired state.
func Plan(in PlanInput) PlanChanges {
	p := &planner{
		PlanInput:        in,
		updatedAllocs:    make(map[string]*api.Allocation),
		failedPlacements: make(map[string]*api.AllocationMetric),
		queuedAllocs:     make(map[string]int),
		desiredUpdates:   make(map[string]*api.DesiredUpdates),
		placersByJob:     make(map[*api.Job]*allocPlacer),
		destructiveCache: make(map[destructiveUpdateKey]bool),
	}
	p.run()
	return p.collectChanges()
}

// planner holds the state of one call of Plan.
type planner struct {
	PlanInput
	deployment          *api.Deployment // a copy of the deployment of the current version, or nil
	cancelledDeployment *api.Deployment // a copy of the deployment that this plan cancels, or nil
	deploymentIsNew     bool            // this plan has created the deployment

	placedAllocs     []*api.Allocation
	updatedAllocs    map[string]*api.Allocation // modified copies by id
	updatedAllocIDs  []string                   // keys of updates, in the order in which they were added
	failedPlacements map[string]*api.AllocationMetric
	placementErrors  []error
	queuedAllocs     map[string]int
	desiredUpdates   map[string]*api.DesiredUpdates
	delayedAllocs    []*delayedAlloc

	placersByJob     map[*api.Job]*allocPlacer
	destructiveCache map[destructiveUpdateKey]bool
	allocsPerGroup   map[string]int // number of allocations by group that continue or are placed
}

// delayedAlloc is a failed allocation with the time at which it must be replaced.
type delayedAlloc struct {
	alloc *api.Allocation
	at    time.Time
}

func (p *planner) run() {
	p.findDeployment()
	p.allocsPerGroup = make(map[string]int)
	groups := make(map[string][]*api.Allocation)
	for _, a := range p.Allocs {
		groups[a.TaskGroup] = append(groups[a.TaskGroup], a)
		if !model.AllocTerminal(a) {
			p.allocsPerGroup[a.TaskGroup]++
		}
	}
	if p.jobWantsAllocs() {
		for _, g := range p.Job.TaskGroups {
			p.planGroup(g, groups[*g.Name])
			delete(groups, *g.Name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		p.stopAllocs(name, groups[name])
	}
}

// jobWantsAllocs reports whether the job must have allocations of its own.
func (p *planner) jobWantsAllocs() bool {
	return p.Job != nil && !*p.Job.Stop && !model.HasChildren(p.Job)
}

func (p *planner) stopAllocs(group string, allocs []*api.Allocation) {
	for _, a := range allocs {
		if !model.AllocTerminal(a) {
			p.stopAlloc(a, model.AllocNotNeeded)
			p.desiredUpdatesOf(group).Stop++
		}
	}
}

// hasCurrentVersion reports whether an allocation has the current version of the job.
func (p *planner) hasCurrentVersion(a *api.Allocation) bool {
	return a.Job == p.Job || *a.Job.Version == *p.Job.Version && *a.Job.CreateIndex == *p.Job.CreateIndex
}

type destructiveUpdateKey struct {
	version, createIndex uint64
	group                string
}

// needsDestructiveUpdate reports whether an allocation must be replaced to get the current
// version. The result is cached by version and group.
func (p *planner) needsDestructiveUpdate(a *api.Allocation) bool {
	key := destructiveUpdateKey{*a.Job.Version, *a.Job.CreateIndex, a.TaskGroup}
	answer, known := p.destructiveCache[key]
	if !known {
		answer = model.UpdateIsDestructive(a.Job, p.Job, a.TaskGroup) ||
			p.Node.CheckDatacenter(p.Job) != nil ||
			checkFeasible(p.Job, model.FindGroup(p.Job, a.TaskGroup), p.Node, 1, 1) != nil
		p.destructiveCache[key] = answer
	}
	return answer
}

func (p *planner) desiredUpdatesOf(group string) *api.DesiredUpdates {
	u := p.desiredUpdates[group]
	if u == nil {
		u = &api.DesiredUpdates{}
		p.desiredUpdates[group] = u
	}
	return u
}

// editableCopy returns the plan's copy of an allocation, which the plan may modify.
func (p *planner) editableCopy(a *api.Allocation) *api.Allocation {
	c := p.updatedAllocs[a.ID]
	if c == nil {
		copied := *a
		c = &copied
		c.ModifyTime = p.Now.UnixNano()
		p.updatedAllocs[a.ID] = c
		p.updatedAllocIDs = append(p.updatedAllocIDs, a.ID)
	}
	return c
}

func (p *planner) stopAlloc(a *api.Allocation, description string) {
	c := p.editableCopy(a)
	c.DesiredStatus = api.AllocDesiredStatusStop
	c.DesiredDescription = description
	if !model.AllocTerminal(a) {
		p.allocsPerGroup[a.TaskGroup]--
	}
	// A stopped allocation holds its resources until its runner has ended.
	if p.NodeUsage.hasReservation(a) {
		p.NodeUsage.PutStoppingAlloc(c)
	}
}

// placeAlloc creates an allocation of a job version. It returns nil if the allocation does not fit. A replacement can
// reuse the resources of the previous allocation, which the caller must stop.
func (p *planner) placeAlloc(job *api.Job, name string, previous *api.Allocation, group string) *api.Allocation {
	g := model.FindGroup(job, group)
	alloc, err := p.tryPlaceAlloc(job, g, name, previous)
	if err != nil {
		p.recordPlacementFailure(group, job, err)
		return nil
	}
	alloc.EvalID = p.Eval.ID
	if previous != nil {
		alloc.PreviousAllocation = previous.ID
		p.editableCopy(previous).NextAllocation = alloc.ID
	}
	if d := p.deployment; d != nil && model.DeploymentActive(d) && d.TaskGroups[group] != nil && p.hasCurrentVersion(alloc) {
		alloc.DeploymentID = d.ID
		state := p.groupDeploymentState(group)
		state.PlacedAllocs++
		p.setProgressDeadline(state)
	}
	p.allocsPerGroup[group]++
	p.placedAllocs = append(p.placedAllocs, alloc)
	return alloc
}

func (p *planner) tryPlaceAlloc(job *api.Job, g *api.TaskGroup, name string, previous *api.Allocation) (*api.Allocation, error) {
	if p.Node.Ineligible {
		return nil, &filteredError{"node ineligible", errors.New("this node is not eligible for new allocations")}
	}
	if model.IsAdoptedJob(job) {
		return nil, &filteredError{"config of adopted tasks", errors.New("the config of the tasks was lost with the state of the agent: register the job again")}
	}
	if err := p.Node.CheckDatacenter(job); err != nil {
		return nil, err
	}
	inGroup, inJob := p.allocsPerGroup[*g.Name]+1, 1
	for _, n := range p.allocsPerGroup {
		inJob += n
	}
	stays := previous != nil && p.keepsAlloc(previous)
	if stays {
		// The previous allocation is not counted, because it will not run beside the new one.
		inGroup, inJob = inGroup-1, inJob-1
	}
	if err := checkFeasible(job, g, p.Node, inJob, inGroup); err != nil {
		return nil, err
	}
	at := p.placersByJob[job]
	if at == nil {
		at = newAllocPlacer(job, p.Node, p.Env, p.NodeUsage)
		at.evalID, at.now, at.memoryOversubscription = p.Eval.ID, p.Now, p.MemoryOversubscription
		at.volumes = cmp.Or(p.Volumes, at.volumes)
		p.placersByJob[job] = at
	}
	if previous == nil || !p.NodeUsage.hasReservation(previous) {
		return at.placeAlloc(g, name)
	}
	// The new allocation may reuse the resources of the previous one, which is
	// stopped only if the new one fits.
	p.NodeUsage.PutStoppingAlloc(previous)
	alloc, err := at.placeAlloc(g, name)
	if err != nil {
		p.NodeUsage.Put(cmp.Or(p.updatedAllocs[previous.ID], previous))
	}
	return alloc, err
}

// keepsAlloc reports whether an allocation is not terminal after the changes that the plan has made so far.
func (p *planner) keepsAlloc(a *api.Allocation) bool {
	if c := p.updatedAllocs[a.ID]; c != nil {
		a = c
	}
	return !model.AllocTerminal(a)
}

// recordPlacementFailure records why an allocation could not be placed.
func (p *planner) recordPlacementFailure(group string, job *api.Job, err error) {
	p.queuedAllocs[group]++
	if m := p.failedPlacements[group]; m != nil {
		m.CoalescedFailures++
		return
	}
	p.failedPlacements[group] = placementMetric(err, job, p.Node)
	p.placementErrors = append(p.placementErrors, &GroupPlacementError{group, err})
}

// placementMetric converts the error of a placement into the metrics that clients read.
func placementMetric(err error, job *api.Job, node Node) *api.AllocationMetric {
	m := &api.AllocationMetric{
		NodesEvaluated: 1,
		NodesInPool:    1,
		NodePool:       *job.NodePool,
		NodesAvailable: map[string]int{node.Datacenter: 1},
	}
	var filteredErr *filteredError
	var exhaustedErr *exhaustedError
	switch {
	case errors.As(err, &filteredErr):
		m.NodesFiltered = 1
		m.ConstraintFiltered = map[string]int{filteredErr.constraint: 1}
	case errors.As(err, &exhaustedErr):
		m.NodesExhausted = 1
		m.DimensionExhausted = map[string]int{exhaustedErr.resourceName: 1}
	case node.CheckDatacenter(job) != nil:
		m.NodesEvaluated, m.NodesInPool = 0, 0
		if *job.NodePool == api.NodePoolAll || *job.NodePool == node.Pool {
			m.NodesInPool = 1
		}
		m.NodesAvailable = make(map[string]int)
		for _, dc := range job.Datacenters {
			m.NodesAvailable[dc] = 0
		}
	default:
		m.NodesFiltered = 1
		m.ConstraintFiltered = map[string]int{err.Error(): 1}
	}
	return m
}

// collectChanges returns the changes that the plan makes: allocations, evaluations and deployments.
func (p *planner) collectChanges() PlanChanges {
	c := PlanChanges{Place: p.placedAllocs}
	eval := *p.Eval
	c.Eval = &eval
	c.Evals = p.newFollowUpEvals()
	c.Evals = append(c.Evals, p.completeEval(&eval)...)
	for _, id := range p.updatedAllocIDs {
		c.Update = append(c.Update, p.updatedAllocs[id])
	}
	c.Evals = append(c.Evals, p.cancelSurplusEvals()...)
	if p.cancelledDeployment != nil {
		c.Deployments = append(c.Deployments, p.cancelledDeployment)
	}
	if d := p.deployment; d != nil {
		eval.DeploymentID = d.ID
		if p.deploymentIsNew || p.modifiesDeployment(d) {
			c.Deployments = append(c.Deployments, d)
		}
	} else if p.Deployment != nil && p.Job != nil {
		eval.DeploymentID = p.Deployment.ID
	}
	if p.Volumes != nil {
		c.Claims = p.Volumes.newClaims
	}
	return c
}

// completeEval completes the evaluation. If some allocations could not be placed, it
// creates a blocked evaluation, or leaves this one blocked if it was blocked before.
func (p *planner) completeEval(eval *api.Evaluation) []*api.Evaluation {
	eval.QueuedAllocations = make(map[string]int)
	if p.jobWantsAllocs() {
		for _, g := range p.Job.TaskGroups {
			eval.QueuedAllocations[*g.Name] = p.queuedAllocs[*g.Name]
		}
	}
	eval.FailedTGAllocs = nil
	if eval.Status == api.EvalStatusBlocked && len(p.failedPlacements) > 0 {
		eval.FailedTGAllocs = p.failedPlacements
		return nil
	}
	eval.Status = api.EvalStatusComplete
	eval.StatusDescription = ""
	eval.ModifyTime = p.Now.UnixNano()
	eval.PlanAnnotations = &api.PlanAnnotations{DesiredTGUpdates: p.desiredUpdates}
	if len(p.failedPlacements) == 0 {
		return nil
	}
	eval.FailedTGAllocs = p.failedPlacements
	eval.StatusDescription = strings.ReplaceAll(errors.Join(p.placementErrors...).Error(), "\n", "; ")
	blocked := p.newEval(api.EvalStatusBlocked, "queued-allocs", "created to place remaining allocations")
	blocked.FailedTGAllocs = p.failedPlacements
	blocked.QueuedAllocations = eval.QueuedAllocations
	eval.BlockedEval = blocked.ID
	return []*api.Evaluation{blocked}
}

// newEval returns a new evaluation of the same job whose PreviousEval is the current evaluation.
func (p *planner) newEval(status, trigger, description string) *api.Evaluation {
	now := p.Now.UnixNano()
	return &api.Evaluation{
		ID:                p.Env.NewID(),
		Namespace:         p.Eval.Namespace,
		Priority:          p.Eval.Priority,
		Type:              p.Eval.Type,
		TriggeredBy:       trigger,
		JobID:             p.Eval.JobID,
		JobModifyIndex:    p.Eval.JobModifyIndex,
		Status:            status,
		StatusDescription: description,
		PreviousEval:      p.Eval.ID,
		CreateTime:        now,
		ModifyTime:        now,
	}
}

// newFollowUpEvals returns the follow-up evaluations of failed allocations. Replacements at about the same time share
// one.
func (p *planner) newFollowUpEvals() []*api.Evaluation {
	slices.SortStableFunc(p.delayedAllocs, func(a, b *delayedAlloc) int { return a.at.Compare(b.at) })
	var evals []*api.Evaluation
	for _, l := range p.delayedAllocs {
		if n := len(evals); n == 0 || l.at.Sub(evals[n-1].WaitUntil) > rescheduleBatchWindow {
			e := p.newEval(api.EvalStatusPending, "alloc-reschedule", "created for delayed rescheduling")
			e.WaitUntil = l.at
			evals = append(evals, e)
		}
		p.editableCopy(l.alloc).FollowupEvalID = evals[len(evals)-1].ID
	}
	return evals
}

// cancelSurplusEvals cancels evaluations that are no longer needed: blocked evaluations, if this plan has placed all
// allocations or created a new blocked evaluation, and follow-up evaluations that no allocation refers to.
func (p *planner) cancelSurplusEvals() []*api.Evaluation {
	waiting := make(map[string]bool)
	for _, a := range p.Allocs {
		if c := p.updatedAllocs[a.ID]; c != nil {
			a = c
		}
		if p.jobWantsAllocs() && isUnreplaced(a) {
			waiting[a.FollowupEvalID] = true
		}
	}
	var evals []*api.Evaluation
	for _, e := range p.Evals {
		unneeded := e.Status == api.EvalStatusBlocked || e.TriggeredBy == "alloc-reschedule" && !waiting[e.ID]
		if e.ID == p.Eval.ID || !model.EvalPending(e) || !unneeded {
			continue
		}
		c := *e
		c.Status = api.EvalStatusCancelled
		c.StatusDescription = "cancelled after more recent eval was processed"
		c.ModifyTime = p.Now.UnixNano()
		evals = append(evals, &c)
	}
	return evals
}
