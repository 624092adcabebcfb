package scheduler

import (
	"context"
	"iter"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/model"
)

// DrainRequest asks for the node to be emptied.
type DrainRequest struct {
	// Spec says how. Nil ends the drain that is going on.
	Spec *api.DrainSpec
	// MarkEligible lets the node have allocations again when a drain is ended.
	MarkEligible bool
	Meta         map[string]string
}

// NodeOutcome is what a change of the node has led to.
type NodeOutcome struct {
	EvalIDs                                 []string
	EvalCreateIndex, NodeModifyIndex, Index uint64
}

// drainKey is what the end of the drain of this node is noted under.
const drainKey = "drain"

// SetEligibility says whether the node may have new allocations: "eligible" or
// "ineligible".
func (s *Scheduler) SetEligibility(ctx context.Context, eligibility string) (NodeOutcome, error) {
	return s.updateNode(ctx, opNodeEligibility, func(c *change, n *api.Node) error {
		message := "Node marked as eligible for scheduling"
		switch eligibility {
		case api.NodeSchedulingEligible:
			if n.DrainStrategy != nil {
				return refuse(Refused, "can not set node's scheduling eligibility to eligible while it is draining")
			}
		case api.NodeSchedulingIneligible:
			message = "Node marked as ineligible for scheduling"
		default:
			return refuse(Refused, "invalid scheduling eligibility %q", eligibility)
		}
		if n.SchedulingEligibility != eligibility {
			n.SchedulingEligibility = eligibility
			model.AppendNodeEvent(n, "Cluster", message, nil, c.now)
		}
		return nil
	})
}

// Drain empties the node, or ends that. Allocations are stopped as the migrate
// blocks of their groups say, those of batch jobs when they have had the time
// until the deadline, those of system jobs last. Their jobs wait for the node to
// be eligible again, which it is not by itself after the drain.
func (s *Scheduler) Drain(ctx context.Context, r DrainRequest) (NodeOutcome, error) {
	return s.updateNode(ctx, opNodeDrain, func(c *change, n *api.Node) error {
		before := n.DrainStrategy
		switch {
		case r.Spec != nil:
			started := c.now
			if before != nil {
				started = before.StartedAt
			}
			n.DrainStrategy = &api.DrainStrategy{DrainSpec: *r.Spec, StartedAt: started}
			if r.Spec.Deadline > 0 {
				n.DrainStrategy.ForceDeadline = started.Add(r.Spec.Deadline)
			}
			n.Drain, n.SchedulingEligibility = true, api.NodeSchedulingIneligible
			n.LastDrain = &api.DrainMetadata{StartedAt: started, Status: api.DrainStatusDraining, Meta: r.Meta}
			model.AppendNodeEvent(n, "Drain", "Node drain strategy set", nil, c.now)
		case before != nil:
			c.endDrain(n, api.DrainStatusCanceled, "Node drain disabled")
			if r.Meta != nil {
				n.LastDrain.Meta = r.Meta
			}
		}
		if r.Spec == nil && r.MarkEligible {
			n.SchedulingEligibility = api.NodeSchedulingEligible
		}
		if n.LastDrain != nil {
			n.LastDrain.UpdatedAt = c.now
		}
		return nil
	})
}

// endDrain edits a node that is not drained any more.
func (c *change) endDrain(n *api.Node, status api.DrainStatus, message string) {
	last := api.DrainMetadata{StartedAt: n.DrainStrategy.StartedAt}
	if n.LastDrain != nil {
		last = *n.LastDrain
	}
	last.Status, last.UpdatedAt = status, c.now
	n.Drain, n.DrainStrategy, n.LastDrain = false, nil, &last
	model.AppendNodeEvent(n, "Drain", message, nil, c.now)
}

// updateNode changes a copy of the node, and does what follows from it.
func (s *Scheduler) updateNode(ctx context.Context, operation string, edit func(*change, *api.Node) error) (out NodeOutcome, err error) {
	out.Index, err = s.update(ctx, func(c *change) error {
		old := c.Node()
		if old == nil {
			return refuse(NotFound, "node not found")
		}
		n := *old
		if err := edit(c, &n); err != nil {
			return err
		}
		c.Operation(operation)
		c.putNode(&n)
		c.freed = true
		out.EvalIDs = c.drain()
		out.NodeModifyIndex = c.Index()
		if len(out.EvalIDs) > 0 {
			out.EvalCreateIndex = c.Index()
		}
		return nil
	})
	return out, err
}

func (c *change) putNode(n *api.Node) {
	c.PutNode(n)
	c.node = NodeOf(n)
	c.noteDrain(n)
}

// drainNotice is the time between the request for a drain and the first stop. A client
// that watches the drain lists the allocations after the answer to its request, and
// reports only what changes from then on: without the notice it would report nothing of
// allocations that stop quickly. Nomad collects the changes of a drain for a second.
const drainNotice = 200 * time.Millisecond

// noteDrain makes Run look at a drain when it begins to stop allocations, and when its
// deadline has come.
func (c *change) noteDrain(n *api.Node) {
	var at time.Time
	if n != nil && n.DrainStrategy != nil {
		for _, next := range []time.Time{n.DrainStrategy.StartedAt.Add(drainNotice), n.DrainStrategy.ForceDeadline} {
			if next.After(c.now) {
				at = next
				break
			}
		}
	}
	c.later(func() { c.s.drains.set(drainKey, at) })
}

// drain goes on with the drain of the node, if there is one, and returns the
// evaluations that this took.
func (c *change) drain() (evalIDs []string) {
	if !c.node.Draining {
		return nil
	}
	n := c.Node()
	if c.now.Before(n.DrainStrategy.StartedAt.Add(drainNotice)) {
		c.noteDrain(n)
		return nil
	}
	next, done := nextToMove(n.DrainStrategy, c.Allocs(), c.Ended, c.now)
	if done {
		ended := *n
		c.endDrain(&ended, api.DrainStatusComplete, "Node drain complete")
		c.Operation(opNodeDrain)
		c.putNode(&ended)
		return nil
	}
	var jobs []*api.Job
	for _, a := range next {
		moved := *a
		moved.DesiredTransition.Migrate = new(true)
		moved.ModifyTime = c.now.UnixNano()
		c.Operation(opAllocStop)
		c.putAlloc(&moved)
		job := c.Job(JobKey{a.Namespace, a.JobID})
		if job != nil && !slices.Contains(jobs, job) {
			jobs = append(jobs, job)
		}
	}
	for _, job := range jobs {
		eval := c.newEval(job, triggerDrain)
		eval.NodeID, eval.NodeModifyIndex = n.ID, n.ModifyIndex
		c.evaluate(eval)
		evalIDs = append(evalIDs, eval.ID)
	}
	return evalIDs
}

// nextToMove returns the allocations that a drain stops next, in the order of
// their names, and whether it has come to its end.
func nextToMove(d *api.DrainStrategy, allocs iter.Seq[*api.Allocation], ended func(id string) bool, now time.Time) (next []*api.Allocation, done bool) {
	due := d.Deadline < 0 || !d.ForceDeadline.IsZero() && !now.Before(d.ForceDeadline)
	type group struct {
		job  JobKey
		name string
	}
	leaving := make(map[group]int)
	groups := make(map[group][]*api.Allocation)
	var order []group
	left, others := 0, 0 // what is to end, and that without system jobs
	for a := range allocs {
		kind := *a.Job.Type
		if ended(a.ID) || kind == api.JobTypeSystem && d.IgnoreSystemJobs {
			continue
		}
		left++
		if kind != api.JobTypeSystem {
			others++
		}
		g := group{JobKey{a.Namespace, a.JobID}, a.TaskGroup}
		if model.Terminal(a) || a.DesiredTransition.ShouldMigrate() {
			leaving[g]++
			continue
		}
		if groups[g] == nil {
			order = append(order, g)
		}
		groups[g] = append(groups[g], a)
	}
	for _, g := range order {
		members := groups[g]
		n := len(members)
		switch *members[0].Job.Type {
		case api.JobTypeService:
			n = inParallel(members[0]) - leaving[g]
		case api.JobTypeSystem:
			if others > 0 {
				n = 0
			}
		default:
			n = 0 // it has until the deadline to do its work
		}
		if due {
			n = len(members)
		}
		byName(members)
		next = append(next, members[:min(max(n, 0), len(members))]...)
	}
	return next, left == 0
}

// inParallel is how many allocations of a group may be on their way out at once.
func inParallel(a *api.Allocation) int {
	if g := model.Group(a.Job, a.TaskGroup); g != nil && g.Migrate != nil && g.Migrate.MaxParallel != nil {
		return max(*g.Migrate.MaxParallel, 1)
	}
	return 1
}

// drainDue notes the next time: drain does with each change what is due.
func (c *change) drainDue(string) { c.noteDrain(c.Node()) }
