package scheduler

import (
	"cmp"
	"context"
	"errors"
	"reflect"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// Triggers of evaluations.
const (
	triggerRegister    = "job-register"
	triggerDeregister  = "job-deregister"
	triggerPeriodic    = "periodic-job"
	triggerAllocStop   = "alloc-stop"
	triggerAllocFailed = "alloc-failure"
	triggerDeployment  = "deployment-watcher"
	triggerScaling     = "job-scaling"
	triggerDrain       = "node-drain"
)

// change is a store transaction in progress, with the changes that follow from the
// request. It plans and stores evaluations, and reconciles the jobs that the transaction
// has changed. The other parts of a change are types that embed it: jobVersions,
// childJobs, rollout, nodeDrain, clockAdjustment, collection.
type change struct {
	tx     *store.Txn
	s      *Scheduler
	supply *supply
	now    time.Time
	node   Node
	room   *NodeUsage
	op     string // the current operation

	wroteAllocs bool
	nodeActs    bool     // the node must act: see Config.OnDesired
	freed       bool     // room may have become free for blocked evaluations
	touched     []JobKey // jobs to reconcile at the end of the change
	after       []func() // functions to call when the change is durable
}

// update makes a change. An error of edit is returned unchanged, and nothing is
// written. edit may be called several times; only its last call has effect.
func (s *Scheduler) update(ctx context.Context, edit func(*change) error) (uint64, error) {
	return s.updateWith(ctx, s.newSupply(), edit)
}

// updateWith is update with a supply to which placements were announced.
func (s *Scheduler) updateWith(ctx context.Context, supply *supply, edit func(*change) error) (uint64, error) {
	for {
		supply.prepare()
		index, err := s.tryUpdate(ctx, supply, edit)
		if !errors.Is(err, errShort) {
			return index, err
		}
	}
}

// tryUpdate makes one attempt of a change. It returns errShort if the supply was too
// small.
func (s *Scheduler) tryUpdate(ctx context.Context, supply *supply, edit func(*change) error) (uint64, error) {
	var c *change
	index, err := s.store.Update(ctx, func(tx *store.Txn) error {
		clock := s.clock.read(s.host)
		c = &change{tx: tx, s: s, supply: supply, now: clock.now}
		c.operation(opEvaluation)
		c.takeRoom()
		if clock.adjust {
			clockAdjustment{c}.apply(clock)
			c.operation(opEvaluation)
		}
		if err := edit(c); err != nil {
			return err
		}
		nodeDrain{c}.proceed()
		c.settleAll()
		if supply.short() {
			return errShort
		}
		c.giveRoom()
		return nil
	})
	if err != nil {
		s.mu.Lock()
		s.room = nil // the cached room may include the change that was not stored
		s.mu.Unlock()
		return 0, err
	}
	if c.nodeActs && s.onDesired != nil {
		s.onDesired()
	}
	for _, f := range c.after {
		f()
	}
	if c.freed {
		tick(s.retry)
	}
	return index, nil
}

// operation sets the operation of the following writes, for followers of events.
func (c *change) operation(name string) {
	c.op = name
	c.tx.Operation(name)
}

// takeRoom takes the cached room, or builds it from the state.
func (c *change) takeRoom() {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	node := c.tx.Node(nil, c.s.nodeID)
	if s.node != node || s.node == nil {
		s.node, s.facts, s.room = node, NodeOf(node), nil
	}
	c.node = s.facts
	if s.room == nil || s.roomIndex != c.tx.TableIndex(nil, store.Allocations) {
		s.room = NodeUsageOf(c.tx.Reader, c.node)
		s.roomIndex = c.tx.TableIndex(nil, store.Allocations)
	}
	c.room, s.room = s.room, nil
}

func (c *change) giveRoom() {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.s.room = c.room
	if c.wroteAllocs {
		c.s.roomIndex = c.tx.Index()
	}
}

// later adds a function that is called when the change is durable.
func (c *change) later(f func()) { c.after = append(c.after, f) }

// markDirty adds a job to the jobs that are reconciled at the end of the change.
func (c *change) markDirty(key JobKey) {
	if !slices.Contains(c.touched, key) {
		c.touched = append(c.touched, key)
	}
}

func (c *change) putAlloc(a *api.Allocation) {
	c.wroteAllocs, c.nodeActs = true, true
	c.tx.PutAllocation(a)
	if !c.tx.AllocationEnded(a.ID) {
		c.room.Put(a)
	}
}

func (c *change) putEval(e *api.Evaluation) {
	c.tx.PutEvaluation(e)
	c.note(e)
}

// note updates the timers and the blocked set for an evaluation.
func (c *change) note(e *api.Evaluation) {
	id, at := e.ID, time.Time{}
	if e.Status == api.EvalStatusPending {
		at = e.WaitUntil
		if at.IsZero() {
			at = c.now
		}
	}
	blocked := e.Status == api.EvalStatusBlocked
	c.later(func() {
		c.s.delayed.set(id, at)
		c.s.mu.Lock()
		defer c.s.mu.Unlock()
		if blocked {
			c.s.blocked[id] = true
		} else {
			delete(c.s.blocked, id)
		}
	})
}

// newEval returns a new evaluation of a job. It is stored when it has been
// processed.
func (c *change) newEval(job *api.Job, trigger string) *api.Evaluation {
	now := c.now.UnixNano()
	return &api.Evaluation{
		ID:             c.supply.newID(),
		Namespace:      *job.Namespace,
		Priority:       *job.Priority,
		Type:           *job.Type,
		TriggeredBy:    trigger,
		JobID:          *job.ID,
		JobModifyIndex: deref(job.JobModifyIndex),
		Status:         api.EvalStatusPending,
		CreateIndex:    c.tx.Index(),
		CreateTime:     now,
		ModifyTime:     now,
	}
}

// evaluate plans for the job of an evaluation and stores the result.
func (c *change) evaluate(eval *api.Evaluation) {
	c.apply(eval, c.plan(eval))
}

// evaluateQuietly is evaluate, but stores nothing if the plan changes nothing.
func (c *change) evaluateQuietly(eval *api.Evaluation) {
	out := c.plan(eval)
	if len(out.Place)+len(out.Update)+len(out.Deployments) > 0 ||
		len(out.Eval.FailedTGAllocs) > 0 && !c.isBlocked(JobKey{eval.Namespace, eval.JobID}) {
		c.apply(eval, out)
	}
}

func (c *change) isBlocked(key JobKey) bool {
	return slices.ContainsFunc(c.tx.EvaluationsByJob(nil, key.Namespace, key.ID), func(e *api.Evaluation) bool { return e.Status == api.EvalStatusBlocked })
}

func (c *change) plan(eval *api.Evaluation) Changes {
	key := JobKey{eval.Namespace, eval.JobID}
	return Plan(Input{
		Eval:       eval,
		Job:        c.tx.Job(nil, key.Namespace, key.ID),
		Allocs:     c.tx.AllocationsByJob(nil, key.Namespace, key.ID),
		Evals:      c.tx.EvaluationsByJob(nil, key.Namespace, key.ID),
		Deployment: c.tx.LatestDeployment(nil, key.Namespace, key.ID),
		Node:       c.node,
		Room:       c.room,
		Host:       c.supply.planEnv(),
		Now:        c.now,
	})
}

// evalOperations are the operations whose own events include a new evaluation.
// Other operations need a separate operation for it.
var evalOperations = map[string]bool{opJobRegistered: true, opJobDeregistered: true, opAllocStop: true}

// apply stores the plan of an evaluation in one change. Nomad needs three changes:
// the evaluation is created, the plan is applied, the evaluation is completed. The
// events are the same as Nomad's.
func (c *change) apply(eval *api.Evaluation, out Changes) {
	pending := *eval
	pending.ModifyIndex = c.tx.Index()
	if c.tx.Evaluation(nil, eval.ID) == nil {
		if !evalOperations[c.op] {
			c.operation(opEvaluation)
		}
		c.tx.AnnounceEvaluation(&pending)
	}
	planned := len(out.Deployments)+len(out.Update)+len(out.Place) > 0
	if planned {
		c.operation(opPlan)
	}
	for _, d := range out.Deployments {
		c.tx.PutDeployment(d)
		rollout{c}.setTimer(d)
	}
	for _, a := range out.Update {
		c.putAlloc(a)
	}
	for _, a := range out.Place {
		c.putAlloc(a)
	}
	if planned {
		c.tx.AnnounceEvaluation(&pending)
	}
	c.operation(opEvaluation)
	for _, e := range out.Evals {
		c.putEval(e)
	}
	if old := c.tx.Evaluation(nil, out.Eval.ID); old == nil || !sameEval(old, out.Eval) {
		out.Eval.SnapshotIndex = c.tx.Index()
		c.putEval(out.Eval)
	}
	if planned {
		c.operation(opPlan) // the status of the job follows from the allocations
	}
	c.markDirty(JobKey{out.Eval.Namespace, out.Eval.JobID})
}

// sameEval reports whether status, queued and failed allocations of two evaluations
// are equal.
func sameEval(a, b *api.Evaluation) bool {
	return a.Status == b.Status && reflect.DeepEqual(a.QueuedAllocations, b.QueuedAllocations) && reflect.DeepEqual(a.FailedTGAllocs, b.FailedTGAllocs)
}

// evaluateDue processes a pending evaluation that is due.
func (c *change) evaluateDue(id string) {
	if e := c.tx.Evaluation(nil, id); e != nil && e.Status == api.EvalStatusPending && !e.WaitUntil.After(c.now) {
		c.resume(e)
	} else {
		c.later(func() { c.s.delayed.set(id, time.Time{}) })
	}
}

// retryBlocked retries all blocked evaluations, by priority and then by age.
func (c *change) retryBlocked() {
	c.s.mu.Lock()
	var evals []*api.Evaluation
	for id := range c.s.blocked {
		if e := c.tx.Evaluation(nil, id); e != nil && e.Status == api.EvalStatusBlocked {
			evals = append(evals, e)
		} else {
			delete(c.s.blocked, id)
		}
	}
	c.s.mu.Unlock()
	slices.SortFunc(evals, func(a, b *api.Evaluation) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.CreateIndex, b.CreateIndex), cmp.Compare(a.ID, b.ID))
	})
	for _, e := range evals {
		if e = c.tx.Evaluation(nil, e.ID); e.Status == api.EvalStatusBlocked {
			c.resume(e)
		}
	}
}

// resume processes an evaluation that was delayed or blocked. If its job is
// missing, for another reason than a purge, which ends its evaluations, the
// evaluation is cancelled.
func (c *change) resume(e *api.Evaluation) {
	if c.tx.Job(nil, e.Namespace, e.JobID) != nil {
		c.evaluate(e)
		return
	}
	ended := *e
	ended.Status, ended.StatusDescription = api.EvalStatusCancelled, "the job is gone"
	ended.ModifyTime = c.now.UnixNano()
	c.putEval(&ended)
}
