package scheduler

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// rescheduleBatchWindow is how long before its reschedule time a failed allocation can be replaced. Allocations with reschedule
// times at most this far apart share one follow-up evaluation.
const rescheduleBatchWindow = time.Second

// PlanInput is Plan's input. Plan modifies only NodeUsage and Volumes.
type PlanInput struct {
	// Eval is the evaluation for which the plan is made.
	Eval *api.Evaluation
	// Job is the current version, or nil if the job was purged.
	Job *api.Job
	// JobAllocs and JobEvals are all the job's stored allocations and evaluations.
	JobAllocs []*api.Allocation
	JobEvals  []*api.Evaluation
	// LatestDeployment is the job's newest deployment, or nil.
	LatestDeployment *api.Deployment

	Node PlacementNode
	// NodeUsage is the node usage by the allocations of all jobs. Plan adds its placements.
	NodeUsage *NodeUsage
	Env       Env
	Now       time.Time
	// MemoryOversubscription lets tasks use more memory than the scheduler reserves for them, up to memory_max.
	MemoryOversubscription bool
	// PreemptibleAllocs returns the allocations that a version of the job may preempt; nil if the job may preempt none. A
	// replacement can have an older version, with another priority.
	PreemptibleAllocs func(version *api.Job) []*api.Allocation
	// Volumes are the dynamic host volumes and their claims; nil if there are none. Plan adds the claims of its placements.
	Volumes *HostVolumeState
}

// PlanChanges is Plan's result. The caller stores it in one transaction. It shares only immutable jobs and values with the
// PlanInput.
type PlanChanges struct {
	// ProcessedEval is the processed evaluation.
	ProcessedEval *api.Evaluation
	// PlacedAllocs has the new allocations, UpdatedAllocs the changed ones. PreemptedAllocs are the UpdatedAllocs of other jobs.
	PlacedAllocs, UpdatedAllocs, PreemptedAllocs []*api.Allocation
	// Deployments has new and changed deployments.
	Deployments []*api.Deployment
	// CreatedAndCancelledEvals has the job's other evaluations that the plan creates or cancels.
	CreatedAndCancelledEvals []*api.Evaluation
	// NewVolumeClaims has the volume claims for groups placed with a sticky volume for the first time.
	NewVolumeClaims []*api.TaskGroupHostVolumeClaim
}

// Plan returns the changes for bringing the job to its desired state.
func Plan(in PlanInput) PlanChanges {
	p := &planner{
		PlanInput:                      in,
		updatedAllocsByID:              make(map[string]*api.Allocation),
		failedPlacementsByGroup:        make(map[string]*api.AllocationMetric),
		queuedAllocsByGroup:            make(map[string]int),
		desiredUpdatesByGroup:          make(map[string]*api.DesiredUpdates),
		placersByJob:                   make(map[*api.Job]*allocPlacer),
		isDestructiveByVersionAndGroup: make(map[destructiveUpdateCacheKey]bool),
	}
	p.planAllGroups()
	return p.completeEvalAndCollectChanges()
}

// planner holds the state for one Plan call.
// It is large because the groups of a job are planned together.
type planner struct {
	PlanInput
	currentDeployment   *api.Deployment // copy of the current version's deployment, or nil
	cancelledDeployment *api.Deployment // copy of the deployment that this plan cancels, or nil
	deploymentIsNew     bool            // this plan has created the deployment

	placedAllocs            []*api.Allocation
	preemptedAllocs         []*api.Allocation
	updatedAllocsByID       map[string]*api.Allocation // modified copies by id
	updatedAllocIDs         []string                   // keys in updatedAllocsByID, in insertion order
	failedPlacementsByGroup map[string]*api.AllocationMetric
	placementErrors         []error
	queuedAllocsByGroup     map[string]int
	desiredUpdatesByGroup   map[string]*api.DesiredUpdates
	delayedAllocs           []*delayedAlloc

	placersByJob                   map[*api.Job]*allocPlacer
	isDestructiveByVersionAndGroup map[destructiveUpdateCacheKey]bool
	liveAllocCountByGroup          map[string]int // group name -> number of allocations that are not terminal after the changes so far
}

// delayedAlloc is a failed allocation that a later evaluation must replace, at replaceAt.
type delayedAlloc struct {
	alloc     *api.Allocation
	replaceAt time.Time
}

// planAllGroups plans the current job version's groups, and stops the allocations in all other groups.
func (p *planner) planAllGroups() {
	p.setCurrentOrCancelDeployment()
	p.liveAllocCountByGroup = make(map[string]int)
	groups := make(map[string][]*api.Allocation)
	for _, a := range p.JobAllocs {
		groups[a.TaskGroup] = append(groups[a.TaskGroup], a)
		if !model.AllocTerminal(a) {
			p.liveAllocCountByGroup[a.TaskGroup]++
		}
	}
	if p.jobMustHaveAllocs() {
		for _, g := range p.Job.TaskGroups {
			p.planGroup(g, groups[*g.Name])
			delete(groups, *g.Name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		p.stopLiveAllocs(name, groups[name])
	}
}

// jobMustHaveAllocs reports whether the job must have allocations: it is neither stopped nor the parent of periodic or
// dispatched jobs.
func (p *planner) jobMustHaveAllocs() bool {
	return p.Job != nil && !*p.Job.Stop && !model.CanHaveChildren(p.Job)
}

func (p *planner) stopLiveAllocs(group string, allocs []*api.Allocation) {
	for _, a := range allocs {
		if !model.AllocTerminal(a) {
			p.stopAlloc(a, model.AllocNotNeeded)
			p.desiredUpdatesOf(group).Stop++
		}
	}
}

// hasCurrentJobVersion reports whether an allocation has the job's current version.
func (p *planner) hasCurrentJobVersion(a *api.Allocation) bool {
	return a.Job == p.Job || *a.Job.Version == *p.Job.Version && *a.Job.CreateIndex == *p.Job.CreateIndex
}

type destructiveUpdateCacheKey struct {
	jobVersion, jobCreateIndex uint64
	group                      string
}

// needsDestructiveUpdate reports whether an allocation must be replaced, and cannot be updated in place, to get the
// current job version. The result is cached by job version and group.
func (p *planner) needsDestructiveUpdate(a *api.Allocation) bool {
	key := destructiveUpdateCacheKey{*a.Job.Version, *a.Job.CreateIndex, a.TaskGroup}
	answer, known := p.isDestructiveByVersionAndGroup[key]
	if !known {
		answer = model.UpdateIsDestructive(a.Job, p.Job, a.TaskGroup) ||
			p.Node.CheckDatacenterAndPool(p.Job) != nil ||
			checkFeasible(p.Job, model.FindGroup(p.Job, a.TaskGroup), p.Node, 1, 1) != nil
		p.isDestructiveByVersionAndGroup[key] = answer
	}
	return answer
}

func (p *planner) desiredUpdatesOf(group string) *api.DesiredUpdates {
	u := p.desiredUpdatesByGroup[group]
	if u == nil {
		u = &api.DesiredUpdates{}
		p.desiredUpdatesByGroup[group] = u
	}
	return u
}

// editableCopyOfAlloc returns the plan's copy of a stored allocation for modification. The copy becomes one of the
// UpdatedAllocs.
func (p *planner) editableCopyOfAlloc(a *api.Allocation) *api.Allocation {
	c := p.updatedAllocsByID[a.ID]
	if c == nil {
		copied := *a
		c = &copied
		c.ModifyTime = p.Now.UnixNano()
		p.updatedAllocsByID[a.ID] = c
		p.updatedAllocIDs = append(p.updatedAllocIDs, a.ID)
	}
	return c
}

func (p *planner) stopAlloc(a *api.Allocation, description string) {
	c := p.editableCopyOfAlloc(a)
	c.DesiredStatus = api.AllocDesiredStatusStop
	c.DesiredDescription = description
	if !model.AllocTerminal(a) {
		p.liveAllocCountByGroup[a.TaskGroup]--
	}
	// A stopped allocation holds its resources until its runner has ended.
	if p.NodeUsage.hasReservation(a) {
		p.NodeUsage.PutStoppingAlloc(c)
	}
}

// placeAllocOrRecordFailure creates an allocation with a job version. It returns nil and records the failure if the allocation
// cannot be placed. A replacement can reuse the previous allocation's resources; the caller must stop that one.
func (p *planner) placeAllocOrRecordFailure(job *api.Job, allocName string, previous *api.Allocation, groupName string) *api.Allocation {
	g := model.FindGroup(job, groupName)
	needsPreemptedRoom := len(p.preemptedAllocs) > 0 && !p.fitsBesidePreemptedAllocs(job, g, allocName, previous)
	alloc, err := p.tryPlaceAlloc(job, g, allocName, previous)
	if err != nil {
		alloc, err = p.placeByPreemption(job, g, allocName, previous, err)
	}
	if err != nil {
		p.recordPlacementFailure(groupName, job, err)
		return nil
	}
	if needsPreemptedRoom {
		p.awaitPreemptedAllocs(alloc)
	}
	alloc.EvalID = p.Eval.ID
	if previous != nil {
		alloc.PreviousAllocation = previous.ID
		p.editableCopyOfAlloc(previous).NextAllocation = alloc.ID
	}
	if d := p.currentDeployment; d != nil && model.DeploymentActive(d) && d.TaskGroups[groupName] != nil && p.hasCurrentJobVersion(alloc) {
		alloc.DeploymentID = d.ID
		state := p.groupDeploymentState(groupName)
		state.PlacedAllocs++
		p.setProgressDeadlineIfUnset(state)
	}
	p.liveAllocCountByGroup[groupName]++
	p.placedAllocs = append(p.placedAllocs, alloc)
	return alloc
}

func (p *planner) tryPlaceAlloc(job *api.Job, g *api.TaskGroup, allocName string, previous *api.Allocation) (*api.Allocation, error) {
	if p.Node.IsIneligible {
		return nil, &nodeFilteredError{"node ineligible", errors.New("this node is not eligible for new allocations")}
	}
	if err := p.Node.CheckDatacenterAndPool(job); err != nil {
		return nil, err
	}
	if find := p.Env.FindUnknownInstance; find != nil {
		if id := find(job, allocName); id != "" {
			return nil, fmt.Errorf("allocation %s runs as %s although its record is lost, and its driver cannot adopt it: end its processes, or start the agent once with -end-unknown", id, allocName)
		}
	}
	inGroup, inJob := p.liveAllocCountByGroup[*g.Name]+1, 1
	for _, n := range p.liveAllocCountByGroup {
		inJob += n
	}
	previousIsCounted := previous != nil && p.isLiveAfterPlannedChanges(previous)
	if previousIsCounted {
		// The previous allocation is not counted, because it does not run at the same time as the new one.
		inGroup, inJob = inGroup-1, inJob-1
	}
	if err := checkFeasible(job, g, p.Node, inJob, inGroup); err != nil {
		return nil, err
	}
	placer := p.placersByJob[job]
	if placer == nil {
		placer = newAllocPlacer(job, p.Node, p.Env, p.NodeUsage)
		placer.evalID, placer.now, placer.memoryOversubscription = p.Eval.ID, p.Now, p.MemoryOversubscription
		placer.volumes = cmp.Or(p.Volumes, placer.volumes)
		p.placersByJob[job] = placer
	}
	if previous == nil || !p.NodeUsage.hasReservation(previous) {
		return placer.createAndReserveAlloc(g, allocName)
	}
	// The new allocation can reuse the previous one's resources, so the previous one counts as stopping during the attempt. It
	// is not stopped if the new one does not fit.
	p.NodeUsage.PutStoppingAlloc(previous)
	alloc, err := placer.createAndReserveAlloc(g, allocName)
	if err != nil {
		p.NodeUsage.PutAlloc(cmp.Or(p.updatedAllocsByID[previous.ID], previous))
	}
	return alloc, err
}

// isLiveAfterPlannedChanges reports whether an allocation is not terminal after the plan's changes so far.
func (p *planner) isLiveAfterPlannedChanges(a *api.Allocation) bool {
	if c := p.updatedAllocsByID[a.ID]; c != nil {
		a = c
	}
	return !model.AllocTerminal(a)
}

// recordPlacementFailure counts a group's allocation as queued. It records the reason for each group's first failure.
func (p *planner) recordPlacementFailure(group string, job *api.Job, err error) {
	p.queuedAllocsByGroup[group]++
	if m := p.failedPlacementsByGroup[group]; m != nil {
		m.CoalescedFailures++
		return
	}
	p.failedPlacementsByGroup[group] = placementMetric(err, job, p.Node)
	p.placementErrors = append(p.placementErrors, &GroupPlacementError{group, err})
}

// placementMetric converts a placement error into the metrics in evaluations for clients.
func placementMetric(err error, job *api.Job, node PlacementNode) *api.AllocationMetric {
	m := &api.AllocationMetric{
		NodesEvaluated: 1,
		NodesInPool:    1,
		NodePool:       *job.NodePool,
		NodesAvailable: map[string]int{node.Datacenter: 1},
	}
	var filteredErr *nodeFilteredError
	var exhaustedErr *nodeExhaustedError
	switch {
	case errors.As(err, &filteredErr):
		m.NodesFiltered = 1
		m.ConstraintFiltered = map[string]int{filteredErr.constraintName: 1}
	case errors.As(err, &exhaustedErr):
		m.NodesExhausted = 1
		m.DimensionExhausted = map[string]int{exhaustedErr.resourceName: 1}
	case node.CheckDatacenterAndPool(job) != nil:
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

// completeEvalAndCollectChanges completes the evaluation and returns all the plan's changes.
func (p *planner) completeEvalAndCollectChanges() PlanChanges {
	c := PlanChanges{PlacedAllocs: p.placedAllocs, PreemptedAllocs: p.preemptedAllocs}
	eval := *p.Eval
	c.ProcessedEval = &eval
	c.CreatedAndCancelledEvals = p.newFollowUpEvals()
	c.CreatedAndCancelledEvals = append(c.CreatedAndCancelledEvals, p.completeEvalAndNewBlockedEval(&eval)...)
	for _, id := range p.updatedAllocIDs {
		c.UpdatedAllocs = append(c.UpdatedAllocs, p.updatedAllocsByID[id])
	}
	c.CreatedAndCancelledEvals = append(c.CreatedAndCancelledEvals, p.cancelSurplusEvals()...)
	if p.cancelledDeployment != nil {
		c.Deployments = append(c.Deployments, p.cancelledDeployment)
	}
	if d := p.currentDeployment; d != nil {
		eval.DeploymentID = d.ID
		if p.deploymentIsNew || p.setModifyTimeIfDeploymentChanged(d) {
			c.Deployments = append(c.Deployments, d)
		}
	} else if p.LatestDeployment != nil && p.Job != nil {
		eval.DeploymentID = p.LatestDeployment.ID
	}
	if p.Volumes != nil {
		c.NewVolumeClaims = p.Volumes.newClaims
	}
	return c
}

// completeEvalAndNewBlockedEval completes the evaluation. If an allocation could not be placed, it returns a new
// blocked evaluation, or leaves the evaluation blocked if it was blocked before.
func (p *planner) completeEvalAndNewBlockedEval(eval *api.Evaluation) []*api.Evaluation {
	eval.QueuedAllocations = make(map[string]int)
	if p.jobMustHaveAllocs() {
		for _, g := range p.Job.TaskGroups {
			eval.QueuedAllocations[*g.Name] = p.queuedAllocsByGroup[*g.Name]
		}
	}
	eval.FailedTGAllocs = nil
	if eval.Status == api.EvalStatusBlocked && len(p.failedPlacementsByGroup) > 0 {
		eval.FailedTGAllocs = p.failedPlacementsByGroup
		return nil
	}
	eval.Status = api.EvalStatusComplete
	eval.StatusDescription = ""
	eval.ModifyTime = p.Now.UnixNano()
	eval.PlanAnnotations = &api.PlanAnnotations{DesiredTGUpdates: p.desiredUpdatesByGroup}
	for _, a := range p.preemptedAllocs {
		eval.PlanAnnotations.PreemptedAllocs = append(eval.PlanAnnotations.PreemptedAllocs, a.Stub())
	}
	if len(p.failedPlacementsByGroup) == 0 {
		return nil
	}
	eval.FailedTGAllocs = p.failedPlacementsByGroup
	eval.StatusDescription = strings.ReplaceAll(errors.Join(p.placementErrors...).Error(), "\n", "; ")
	blocked := p.newEval(api.EvalStatusBlocked, "queued-allocs", "created to place remaining allocations")
	blocked.FailedTGAllocs = p.failedPlacementsByGroup
	blocked.QueuedAllocations = eval.QueuedAllocations
	eval.BlockedEval = blocked.ID
	return []*api.Evaluation{blocked}
}

// newEval returns a new evaluation for the same job; its PreviousEval is the current evaluation.
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

// newFollowUpEvals returns the follow-up evaluations that replace the delayedAllocs. Allocations with replacement times within
// rescheduleBatchWindow share one evaluation.
func (p *planner) newFollowUpEvals() []*api.Evaluation {
	slices.SortStableFunc(p.delayedAllocs, func(a, b *delayedAlloc) int { return a.replaceAt.Compare(b.replaceAt) })
	var evals []*api.Evaluation
	for _, l := range p.delayedAllocs {
		if n := len(evals); n == 0 || l.replaceAt.Sub(evals[n-1].WaitUntil) > rescheduleBatchWindow {
			e := p.newEval(api.EvalStatusPending, "alloc-reschedule", "created for delayed rescheduling")
			e.WaitUntil = l.replaceAt
			evals = append(evals, e)
		}
		p.editableCopyOfAlloc(l.alloc).FollowupEvalID = evals[len(evals)-1].ID
	}
	return evals
}

// cancelSurplusEvals cancels unneeded evaluations: blocked evaluations, if this plan has placed all allocations or created a
// new blocked evaluation, and follow-up evaluations without an allocation that refers to them.
func (p *planner) cancelSurplusEvals() []*api.Evaluation {
	awaitedEvals := make(map[string]bool)
	for _, a := range p.JobAllocs {
		if c := p.updatedAllocsByID[a.ID]; c != nil {
			a = c
		}
		if p.jobMustHaveAllocs() && isDesiredRunAndUnreplaced(a) {
			awaitedEvals[a.FollowupEvalID] = true
		}
	}
	var evals []*api.Evaluation
	for _, e := range p.JobEvals {
		unneeded := e.Status == api.EvalStatusBlocked || e.TriggeredBy == "alloc-reschedule" && !awaitedEvals[e.ID]
		if e.ID == p.Eval.ID || !model.IsEvalPendingOrBlocked(e) || !unneeded {
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
