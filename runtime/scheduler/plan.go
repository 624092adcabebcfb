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

// rescheduleWindow is how far away a reschedule may be to take place now. Follow-up
// evaluations for times that are no further apart are one.
const rescheduleWindow = time.Second

// Input is all that a plan may depend on. Plan changes nothing of it but Room.
type Input struct {
	// Eval is why there is a plan.
	Eval *api.Evaluation
	// Job is the current version, nil when it was purged.
	Job *api.Job
	// Allocs and Evals are all that the store has of the job.
	Allocs []*api.Allocation
	Evals  []*api.Evaluation
	// Deployment is the newest one of the job, nil if there is none.
	Deployment *api.Deployment

	Node Node
	// Room is what all allocations of all jobs leave of the node. What the plan
	// places takes its part of it.
	Room *NodeUsage
	Host Env
	Now  time.Time
}

// Changes is what is to be written at once. Nothing in it is shared with the
// input, but for jobs and what nobody ever changes.
type Changes struct {
	// Eval is the evaluation as the plan leaves it.
	Eval *api.Evaluation
	// Place are new allocations, Update new versions of known ones.
	Place, Update []*api.Allocation
	// Deployments are new ones and new versions of known ones.
	Deployments []*api.Deployment
	// Evals are other evaluations: new ones, and those that are of no use any more.
	Evals []*api.Evaluation
}

// Plan decides what must change for the job to be as it should.
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

// planner is one call of Plan.
type planner struct {
	Input
	deployment *api.Deployment // a copy: the one of this version of the job, nil if none
	cancelled  *api.Deployment // a copy: one that has come to its end here
	isNew      bool            // the deployment was made here

	placed  []*api.Allocation
	updates map[string]*api.Allocation // copies by id
	order   []string                   // of updates
	failed  map[string]*api.AllocationMetric
	reasons []error
	queued  map[string]int
	desired map[string]*api.DesiredUpdates
	later   []*delayed

	places   map[*api.Job]*placement
	destroys map[destroyKey]bool
	perGroup map[string]int // of the allocations that stay or come
}

// delayed is an allocation that is to be replaced at some time.
type delayed struct {
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

// wanted tells whether the job itself shall have allocations.
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

// current tells whether an allocation has the version that the job has now.
func (p *planner) current(a *api.Allocation) bool {
	return a.Job == p.Job || *a.Job.Version == *p.Job.Version && *a.Job.CreateIndex == *p.Job.CreateIndex
}

type destroyKey struct {
	version, createIndex uint64
	group                string
}

// destructive tells whether an allocation must be replaced to get the version
// that the job has now. It is asked for many allocations of few versions.
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

// change returns the copy of an allocation that the plan may edit.
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
	// What it holds stays held until its runner has ended.
	if p.Room.has(a) {
		p.Room.Leave(c)
	}
}

// place makes an allocation of that version of the job, and returns nil if there
// is no room. One that replaces another takes over the place that this one has
// until it ends: the caller stops it.
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
	stays := previous != nil && p.stays(previous)
	if stays {
		// The one that it replaces will not be there beside it.
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
	// It may have what the one before leaves behind, which is stopped only if
	// there is room for it.
	p.Room.Leave(previous)
	alloc, err := at.instance(g, name)
	if err != nil {
		p.Room.Put(cmp.Or(p.updates[previous.ID], previous))
	}
	return alloc, err
}

// stays tells whether an allocation is wanted and not through, as far as the plan
// has come.
func (p *planner) stays(a *api.Allocation) bool {
	if c := p.updates[a.ID]; c != nil {
		a = c
	}
	return !model.Terminal(a)
}

// reject notes why an allocation could not be placed.
func (p *planner) reject(group string, job *api.Job, err error) {
	p.queued[group]++
	if m := p.failed[group]; m != nil {
		m.CoalescedFailures++
		return
	}
	p.failed[group] = metricOf(err, job, p.Node)
	p.reasons = append(p.reasons, &GroupError{group, err})
}

// metricOf puts the reason why a group cannot be placed into the form that
// clients read.
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

// changes collects what has been decided.
func (p *planner) changes() Changes {
	c := Changes{Place: p.placed}
	eval := *p.Eval
	c.Eval = &eval
	c.Evals = p.followUps()
	c.Evals = append(c.Evals, p.block(&eval)...)
	for _, id := range p.order {
		c.Update = append(c.Update, p.updates[id])
	}
	c.Evals = append(c.Evals, p.needless()...)
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

// block completes the evaluation, or leaves it blocked when something could not
// be placed and it is the one that waits for room already.
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

// newEval makes an evaluation that follows this one.
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

// followUps makes one evaluation for all replacements of about the same time.
func (p *planner) followUps() []*api.Evaluation {
	slices.SortStableFunc(p.later, func(a, b *delayed) int { return a.at.Compare(b.at) })
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

// needless cancels what has become of no use: blocked evaluations when this plan
// has placed everything or made another, follow-ups that no allocation waits for.
func (p *planner) needless() []*api.Evaluation {
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
