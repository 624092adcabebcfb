package scheduler

import (
	"context"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// DrainRequest is StartOrEndDrain's argument: it starts or ends a node drain.
type DrainRequest struct {
	// Spec has a new drain's options. Nil ends the current drain.
	Spec *api.DrainSpec
	// MarkEligible makes the node eligible again when a drain is ended.
	MarkEligible bool
	Meta         map[string]string
}

// NodeRequestOutcome is the result from SetNodeEligibility and StartOrEndDrain.
type NodeRequestOutcome struct {
	EvalIDs                                 []string
	EvalCreateIndex, NodeModifyIndex, Index uint64
}

// drainTimerKey is this node's drain key in the timer queue.
const drainTimerKey = "drain"

// SetNodeEligibility sets whether new allocations can be placed on the node: "eligible"
// or "ineligible".
func (s *Scheduler) SetNodeEligibility(ctx context.Context, eligibility string) (NodeRequestOutcome, error) {
	return s.updateNodeAndContinueDrain(ctx, opNodeEligibility, func(c *schedulerTxn, n *api.Node) error {
		message := "Node marked as eligible for scheduling"
		switch eligibility {
		case api.NodeSchedulingEligible:
			if n.DrainStrategy != nil {
				return requestErrorf(RequestRefused, "can not set node's scheduling eligibility to eligible while it is draining")
			}
		case api.NodeSchedulingIneligible:
			message = "Node marked as ineligible for scheduling"
		default:
			return requestErrorf(RequestRefused, "invalid scheduling eligibility %q", eligibility)
		}
		if n.SchedulingEligibility != eligibility {
			n.SchedulingEligibility = eligibility
			model.AppendNodeEvent(n, "Cluster", message, nil, c.now)
		}
		return nil
	})
}

// StartOrEndDrain starts or ends the node's drain. A drain stops service allocations as their groups' migrate blocks specify.
// Batch allocations can run until the deadline, and system jobs stop last. Evaluations for all these jobs are blocked until the
// node is eligible again. The node stays ineligible when the drain is complete.
func (s *Scheduler) StartOrEndDrain(ctx context.Context, r DrainRequest) (NodeRequestOutcome, error) {
	return s.updateNodeAndContinueDrain(ctx, opNodeDrain, func(c *schedulerTxn, n *api.Node) error {
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
			nodeDrain{c}.setDrainEnded(n, api.DrainStatusCanceled, "Node drain disabled")
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

// nodeDrain is a schedulerTxn for continuing or ending the node's drain.
type nodeDrain struct{ *schedulerTxn }

// setDrainEnded ends the drain in n, which the caller then stores.
func (d nodeDrain) setDrainEnded(n *api.Node, status api.DrainStatus, message string) {
	last := api.DrainMetadata{StartedAt: n.DrainStrategy.StartedAt}
	if n.LastDrain != nil {
		last = *n.LastDrain
	}
	last.Status, last.UpdatedAt = status, d.now
	n.Drain, n.DrainStrategy, n.LastDrain = false, nil, &last
	model.AppendNodeEvent(n, "Drain", message, nil, d.now)
}

// updateNodeAndContinueDrain calls edit with a copy of the stored node, stores the copy and continues its drain. operation is
// the event's operation.
func (s *Scheduler) updateNodeAndContinueDrain(ctx context.Context, operation string, edit func(*schedulerTxn, *api.Node) error) (out NodeRequestOutcome, err error) {
	out.Index, err = s.updateAndReconcile(ctx, func(c *schedulerTxn) error {
		out = NodeRequestOutcome{}
		old := c.tx.Node(nil, c.scheduler.nodeID)
		if old == nil {
			return requestErrorf(RequestNotFound, "node not found")
		}
		n := *old
		if err := edit(c, &n); err != nil {
			return err
		}
		c.setEventOperation(operation)
		nodeDrain{c}.putNodeAndSetDrainTimer(&n)
		c.mayUnblockEvals = true
		out.EvalIDs = nodeDrain{c}.continueOrCompleteDrain()
		out.NodeModifyIndex = c.tx.Index()
		if len(out.EvalIDs) > 0 {
			out.EvalCreateIndex = c.tx.Index()
		}
		return nil
	})
	return out, err
}

func (d nodeDrain) putNodeAndSetDrainTimer(n *api.Node) {
	d.tx.PutNodeWithStorageEvents(n)
	d.node = PlacementNodeOf(n)
	d.setDrainTimer(n)
}

// drainStartDelay is the delay between a drain request and the first stop. A client watching the drain lists the allocations
// after the response to its request and reports only later changes: without the delay it would not report allocations that stop
// quickly. Nomad batches a drain's changes for a second.
const drainStartDelay = 200 * time.Millisecond

// setDrainTimer sets the drain timer to the next time a drain has something to do: when drainStartDelay ends, then at the
// deadline. Without a drain it removes the timer.
func (d nodeDrain) setDrainTimer(n *api.Node) {
	var at time.Time
	if n != nil && n.DrainStrategy != nil {
		for _, next := range []time.Time{n.DrainStrategy.StartedAt.Add(drainStartDelay), n.DrainStrategy.ForceDeadline} {
			if next.After(d.now) {
				at = next
				break
			}
		}
	}
	d.tx.OnCommit(func() { d.scheduler.drainTimer.setOrClearDueTime(drainTimerKey, at) })
}

// continueOrCompleteDrain stops the allocations that a node drain can stop now, or completes the drain. It returns the ids of
// the new evaluations. It does nothing if the node is not draining.
func (d nodeDrain) continueOrCompleteDrain() (evalIDs []string) {
	if !d.node.IsDraining {
		return nil
	}
	n := d.tx.Node(nil, d.scheduler.nodeID)
	if d.now.Before(n.DrainStrategy.StartedAt.Add(drainStartDelay)) {
		d.setDrainTimer(n)
		return nil
	}
	next, done := allocsToDrainNext(n.DrainStrategy, d.tx.Allocations(nil, ""), d.tx.AllocationEnded, d.now)
	if done {
		ended := *n
		d.setDrainEnded(&ended, api.DrainStatusComplete, "Node drain complete")
		d.setEventOperation(opNodeDrain)
		d.putNodeAndSetDrainTimer(&ended)
		return nil
	}
	var jobs []*api.Job
	for _, a := range next {
		moved := *a
		moved.DesiredTransition.Migrate = new(true)
		moved.ModifyTime = d.now.UnixNano()
		d.setEventOperation(opAllocStop)
		d.putAllocAndUpdateNodeUsage(&moved)
		job := d.tx.Job(nil, a.Namespace, a.JobID)
		if job != nil && !slices.Contains(jobs, job) {
			jobs = append(jobs, job)
		}
	}
	for _, job := range jobs {
		eval := d.newPendingEval(job, triggerDrain)
		eval.NodeID, eval.NodeModifyIndex = n.ID, n.ModifyIndex
		d.processEval(eval)
		evalIDs = append(evalIDs, eval.ID)
	}
	return evalIDs
}

// allocsToDrainNext returns the allocations that the drain stops now, and whether the drain is complete: all allocations have
// ended. A group's allocations are sorted by their index.
func allocsToDrainNext(d *api.DrainStrategy, allocs []*api.Allocation, ended func(id string) bool, now time.Time) (next []*api.Allocation, done bool) {
	due := d.Deadline < 0 || !d.ForceDeadline.IsZero() && !now.Before(d.ForceDeadline)
	type groupKey struct {
		job  JobKey
		name string
	}
	stopping := make(map[groupKey]int)
	groups := make(map[groupKey][]*api.Allocation)
	var groupOrder []groupKey
	unended, unendedNonSystem := 0, 0 // allocations that have not ended: all, and those outside system jobs
	for _, a := range allocs {
		kind := *a.Job.Type
		if ended(a.ID) || kind == api.JobTypeSystem && d.IgnoreSystemJobs {
			continue
		}
		unended++
		if kind != api.JobTypeSystem {
			unendedNonSystem++
		}
		g := groupKey{JobKey{a.Namespace, a.JobID}, a.TaskGroup}
		if model.AllocTerminal(a) || a.DesiredTransition.ShouldMigrate() {
			stopping[g]++
			continue
		}
		if groups[g] == nil {
			groupOrder = append(groupOrder, g)
		}
		groups[g] = append(groups[g], a)
	}
	for _, g := range groupOrder {
		members := groups[g]
		n := len(members)
		switch *members[0].Job.Type {
		case api.JobTypeService:
			n = migrateMaxParallel(members[0]) - stopping[g]
		case api.JobTypeSystem:
			if unendedNonSystem > 0 {
				n = 0
			}
		default:
			n = 0 // batch jobs may run until the drain's deadline
		}
		if due {
			n = len(members)
		}
		sortByAllocIndex(members)
		next = append(next, members[:min(max(n, 0), len(members))]...)
	}
	return next, unended == 0
}

// migrateMaxParallel returns how many allocations in a's group the drain may stop at one time: the migrate block's
// max_parallel.
func migrateMaxParallel(a *api.Allocation) int {
	if g := model.FindGroup(a.Job, a.TaskGroup); g != nil && g.Migrate != nil && g.Migrate.MaxParallel != nil {
		return max(*g.Migrate.MaxParallel, 1)
	}
	return 1
}

// resetExpiredDrainTimer is called when the drain timer has expired, and sets it to its next time. It need not stop
// allocations itself: each transaction calls continueOrCompleteDrain.
func (d nodeDrain) resetExpiredDrainTimer() { d.setDrainTimer(d.tx.Node(nil, d.scheduler.nodeID)) }
