package scheduler

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/model"
)

// rescheduleWindow is the time by which a replacement may happen early. Later
// replacements within this time of each other share one follow-up evaluation.
const rescheduleWindow = time.Second

// Input is the input of Plan. Plan modifies only Room.
type Input struct {
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
	// Room is the usage of the node by all jobs. Plan adds its placements.
	Room *NodeUsage
	Host Env
	Now  time.Time
}

// Changes are the result of Plan, to be written in one transaction. They share
// nothing with the input except jobs and immutable values.
type Changes struct {
	// Eval is the processed evaluation.
	Eval *api.Evaluation
	// Place has the new allocations, Update the changed ones.
	Place, Update []*api.Allocation
	// Deployments has new and changed deployments.
	Deployments []*api.Deployment
	// Evals has other evaluations: new ones, and ones that are cancelled.
	Evals []*api.Evaluation
}

// Plan returns the changes that bring the job to its desired state.
func Plan(in Input) Changes {
	p := &planner{
		Input:    in,
		updates:  make(map[string]*api.Allocation),
		failed:   make(map[string]*api.AllocationMetric),
		queued:   make(map[string]int),
		desired:  make(map[string]*api.DesiredUpdates),
		places:   make(map[*api.Job]*placement),
		destroys: make(map[destroyKey]bool),
	}
	p.run()
	return p.changes()
}

// planner is the state of one call of Plan.
type planner struct {
	Input
	deployment *api.Deployment // a copy of the deployment of the current version, or nil
	cancelled  *api.Deployment // a copy of the deployment that this plan cancels, or nil
	isNew      bool            // this plan has created the deployment

	placed  []*api.Allocation
	updates map[string]*api.Allocation // modified copies by id
	order   []string                   // keys of updates, in order of creation
	failed  map[string]*api.AllocationMetric
	reasons []error
	queued  map[string]int
	desired map[string]*api.DesiredUpdates
	later   []*delayedAlloc

	places   map[*api.Job]*placement
	destroys map[destroyKey]bool
	perGroup map[string]int // number of allocations by group that stay or are placed
}

// delayedAlloc is an allocation with the time of its replacement.
type delayedAlloc struct {
	alloc *api.Allocation
	at    time.Time
}

func (p *planner) run() {
	p.findDeployment()
	p.perGroup = make(map[string]int)
	groups := make(map[string][]*api.Allocation)
	for _, a := range p.Allocs {
		groups[a.TaskGroup] = append(groups[a.TaskGroup], a)
		if !model.Terminal(a) {
			p.perGroup[a.TaskGroup]++
		}
	}
	if p.wanted() {
		for _, g := range p.Job.TaskGroups {
			p.group(g, groups[*g.Name])
			delete(groups, *g.Name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		p.stopAll(name, groups[name])
	}
}

// wanted reports whether the job must have allocations of its own.
func (p *planner) wanted() bool {
	return p.Job != nil && !*p.Job.Stop && !model.HasChildren(p.Job)
}

func (p *planner) stopAll(group string, allocs []*api.Allocation) {
	for _, a := range allocs {
		if !model.Terminal(a) {
			p.stop(a, model.AllocNotNeeded)
			p.updatesOf(group).Stop++
		}
	}
}

// current reports whether an allocation has the current version of the job.
func (p *planner) current(a *api.Allocation) bool {
	return a.Job == p.Job || *a.Job.Version == *p.Job.Version && *a.Job.CreateIndex == *p.Job.CreateIndex
}

type destroyKey struct {
	version, createIndex uint64
	group                string
}

// destructive reports whether an allocation must be replaced to get the current
// version. The result is cached by version and group.
func (p *planner) destructive(a *api.Allocation) bool {
	key := destroyKey{*a.Job.Version, *a.Job.CreateIndex, a.TaskGroup}
	answer, known := p.destroys[key]
	if !known {
		answer = model.Destructive(a.Job, p.Job, a.TaskGroup) ||
			eligible(p.Job, p.Node) != nil ||
			feasible(p.Job, model.Group(p.Job, a.TaskGroup), p.Node, 1, 1) != nil
		p.destroys[key] = answer
	}
	return answer
}

func (p *planner) updatesOf(group string) *api.DesiredUpdates {
	u := p.desired[group]
	if u == nil {
		u = &api.DesiredUpdates{}
		p.desired[group] = u
	}
	return u
}

// change returns the copy of an allocation that the plan may modify.
func (p *planner) change(a *api.Allocation) *api.Allocation {
	c := p.updates[a.ID]
	if c == nil {
		copied := *a
		c = &copied
		c.ModifyTime = p.Now.UnixNano()
		p.updates[a.ID] = c
		p.order = append(p.order, a.ID)
	}
	return c
}

func (p *planner) stop(a *api.Allocation, description string) {
	c := p.change(a)
	c.DesiredStatus = api.AllocDesiredStatusStop
	c.DesiredDescription = description
	if !model.Terminal(a) {
		p.perGroup[a.TaskGroup]--
	}
	// A stopped allocation holds its resources until its runner has ended.
	if p.Room.has(a) {
		p.Room.Leave(c)
	}
}

// place creates an allocation of a job version, and returns nil if it does not fit.
// A replacement can reuse the resources of the previous allocation, which the
// caller must stop.
func (p *planner) place(job *api.Job, name string, previous *api.Allocation, group string) *api.Allocation {
	g := model.Group(job, group)
	alloc, err := p.tryPlace(job, g, name, previous)
	if err != nil {
		p.reject(group, job, err)
		return nil
	}
	alloc.EvalID = p.Eval.ID
	if previous != nil {
		alloc.PreviousAllocation = previous.ID
		p.change(previous).NextAllocation = alloc.ID
	}
	if d := p.deployment; d != nil && model.DeploymentActive(d) && d.TaskGroups[group] != nil && p.current(alloc) {
		alloc.DeploymentID = d.ID
		state := p.stateOf(group)
		state.PlacedAllocs++
		p.armDeadline(state)
	}
	p.perGroup[group]++
	p.placed = append(p.placed, alloc)
	return alloc
}

func (p *planner) tryPlace(job *api.Job, g *api.TaskGroup, name string, previous *api.Allocation) (*api.Allocation, error) {
	if p.Node.Ineligible {
		return nil, &filteredError{"node ineligible", errors.New("this node is not eligible for new allocations")}
	}
	if err := eligible(job, p.Node); err != nil {
		return nil, err
	}
	inGroup, inJob := p.perGroup[*g.Name]+1, 1
	for _, n := range p.perGroup {
		inJob += n
	}
	stays := previous != nil && p.keepsAlloc(previous)
	if stays {
		// The previous allocation will not run beside the new one.
		inGroup, inJob = inGroup-1, inJob-1
	}
	if err := feasible(job, g, p.Node, inJob, inGroup); err != nil {
		return nil, err
	}
	at := p.places[job]
	if at == nil {
		at = newPlacement(job, p.Node, p.Host, p.Room)
		at.evalID, at.now = p.Eval.ID, p.Now
		p.places[job] = at
	}
	if previous == nil || !p.Room.has(previous) {
		return at.instance(g, name)
	}
	// The new allocation may reuse the resources of the previous one, which is
	// stopped only if the new one fits.
	p.Room.Leave(previous)
	alloc, err := at.instance(g, name)
	if err != nil {
		p.Room.Put(cmp.Or(p.updates[previous.ID], previous))
	}
	return alloc, err
}

// keepsAlloc reports whether an allocation, as modified by the plan so far, is not
// terminal.
func (p *planner) keepsAlloc(a *api.Allocation) bool {
	if c := p.updates[a.ID]; c != nil {
		a = c
	}
	return !model.Terminal(a)
}

// reject records why an allocation could not be placed.
func (p *planner) reject(group string, job *api.Job, err error) {
	p.queued[group]++
	if m := p.failed[group]; m != nil {
		m.CoalescedFailures++
		return
	}
	p.failed[group] = metricOf(err, job, p.Node)
	p.reasons = append(p.reasons, &GroupError{group, err})
}

// metricOf converts the error of a placement into the form that clients read.
func metricOf(err error, job *api.Job, node Node) *api.AllocationMetric {
	m := &api.AllocationMetric{
		NodesEvaluated: 1,
		NodesInPool:    1,
		NodePool:       *job.NodePool,
		NodesAvailable: map[string]int{node.Datacenter: 1},
	}
	var filtered *filteredError
	var exhausted *exhaustedError
	switch {
	case errors.As(err, &filtered):
		m.NodesFiltered = 1
		m.ConstraintFiltered = map[string]int{filtered.constraint: 1}
	case errors.As(err, &exhausted):
		m.NodesExhausted = 1
		m.DimensionExhausted = map[string]int{exhausted.dimension: 1}
	case eligible(job, node) != nil:
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

// changes collects the changes that the plan makes: allocations, evaluations and deployments.
func (p *planner) changes() Changes {
	c := Changes{Place: p.placed}
	eval := *p.Eval
	c.Eval = &eval
	c.Evals = p.followUps()
	c.Evals = append(c.Evals, p.block(&eval)...)
	for _, id := range p.order {
		c.Update = append(c.Update, p.updates[id])
	}
	c.Evals = append(c.Evals, p.cancelSurplusEvals()...)
	if p.cancelled != nil {
		c.Deployments = append(c.Deployments, p.cancelled)
	}
	if d := p.deployment; d != nil {
		eval.DeploymentID = d.ID
		if p.isNew || p.touched(d) {
			c.Deployments = append(c.Deployments, d)
		}
	} else if p.Deployment != nil && p.Job != nil {
		eval.DeploymentID = p.Deployment.ID
	}
	return c
}

// block completes the evaluation. If some allocations could not be placed, it
// creates a blocked evaluation, or leaves this one blocked if it was blocked before.
func (p *planner) block(eval *api.Evaluation) []*api.Evaluation {
	eval.QueuedAllocations = make(map[string]int)
	if p.wanted() {
		for _, g := range p.Job.TaskGroups {
			eval.QueuedAllocations[*g.Name] = p.queued[*g.Name]
		}
	}
	eval.FailedTGAllocs = nil
	if eval.Status == api.EvalStatusBlocked && len(p.failed) > 0 {
		eval.FailedTGAllocs = p.failed
		return nil
	}
	eval.Status = api.EvalStatusComplete
	eval.StatusDescription = ""
	eval.ModifyTime = p.Now.UnixNano()
	eval.PlanAnnotations = &api.PlanAnnotations{DesiredTGUpdates: p.desired}
	if len(p.failed) == 0 {
		return nil
	}
	eval.FailedTGAllocs = p.failed
	eval.StatusDescription = strings.ReplaceAll(errors.Join(p.reasons...).Error(), "\n", "; ")
	blocked := p.newEval(api.EvalStatusBlocked, "queued-allocs", "created to place remaining allocations")
	blocked.FailedTGAllocs = p.failed
	blocked.QueuedAllocations = eval.QueuedAllocations
	eval.BlockedEval = blocked.ID
	return []*api.Evaluation{blocked}
}

// newEval returns a new evaluation that follows the current one.
func (p *planner) newEval(status, trigger, description string) *api.Evaluation {
	now := p.Now.UnixNano()
	return &api.Evaluation{
		ID:                p.Host.NewID(),
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

// followUps returns an evaluation for each group of replacements at about the same
// time.
func (p *planner) followUps() []*api.Evaluation {
	slices.SortStableFunc(p.later, func(a, b *delayedAlloc) int { return a.at.Compare(b.at) })
	var evals []*api.Evaluation
	for _, l := range p.later {
		if n := len(evals); n == 0 || l.at.Sub(evals[n-1].WaitUntil) > rescheduleWindow {
			e := p.newEval(api.EvalStatusPending, "alloc-reschedule", "created for delayed rescheduling")
			e.WaitUntil = l.at
			evals = append(evals, e)
		}
		p.change(l.alloc).FollowupEvalID = evals[len(evals)-1].ID
	}
	return evals
}

// cancelSurplusEvals cancels evaluations that are no longer needed: blocked evaluations,
// because this plan has placed all allocations or created a new blocked evaluation,
// and follow-ups for which no allocation waits.
func (p *planner) cancelSurplusEvals() []*api.Evaluation {
	waiting := make(map[string]bool)
	for _, a := range p.Allocs {
		if c := p.updates[a.ID]; c != nil {
			a = c
		}
		if p.wanted() && hasPlace(a) {
			waiting[a.FollowupEvalID] = true
		}
	}
	var evals []*api.Evaluation
	for _, e := range p.Evals {
		useless := e.Status == api.EvalStatusBlocked || e.TriggeredBy == "alloc-reschedule" && !waiting[e.ID]
		if e.ID == p.Eval.ID || !model.EvalActive(e) || !useless {
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
