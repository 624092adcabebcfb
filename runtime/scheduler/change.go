package scheduler

import (
	"cmp"
	"context"
	"errors"
	"reflect"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
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

// txn is a store transaction in progress. It collects the changes that follow from the request: it plans and stores
// evaluations, and reconciles the jobs that the transaction has changed. Types that embed txn make the other parts of a
// change: jobVersions, childJobLauncher, rollout, nodeDrain, clockAdjustment, collection.
type txn struct {
	tx            *store.Txn
	s             *Scheduler
	env           *preparedEnv
	now           time.Time
	node          Node
	nodeUsage     *NodeUsage
	operationName string // the current operation

	wroteAllocs          bool
	desiredAllocsChanged bool     // the allocations that the node must run have changed: see Config.OnDesiredChange
	resourcesFreed       bool     // resources may have become free for blocked evaluations
	jobsToReconcile      []JobKey // jobs to reconcile at the end of the change
	undoClockAdjustment  func()   // makes a later change adjust the stored times, if this one is not stored; may be called twice
}

// update makes a change of the store: edit writes it to a transaction. An error of edit is returned unchanged, and
// nothing is written. edit may be called several times; only its last call has effect.
func (s *Scheduler) update(ctx context.Context, edit func(*txn) error) (uint64, error) {
	return s.updateWithEnv(ctx, s.newPreparedEnv(), edit)
}

// updateWithEnv is like update. The expected placements of the change were announced to env.
func (s *Scheduler) updateWithEnv(ctx context.Context, env *preparedEnv, edit func(*txn) error) (uint64, error) {
	for {
		env.prepare()
		index, err := s.tryUpdate(ctx, env, edit)
		if !errors.Is(err, errPreparedEnvTooSmall) {
			return index, err
		}
	}
}

// tryUpdate makes one attempt of a change. It returns errPreparedEnvTooSmall if env had too few prepared ids or ports.
func (s *Scheduler) tryUpdate(ctx context.Context, env *preparedEnv, edit func(*txn) error) (uint64, error) {
	var c *txn
	index, err := s.store.Update(ctx, func(tx *store.Txn) (err error) {
		clock := s.wallClock.read(s.env)
		c = &txn{tx: tx, s: s, env: env, now: clock.now, undoClockAdjustment: func() {}}
		defer func() {
			if err != nil {
				c.undoClockAdjustment() // here, because the next change begins before Update returns
			}
		}()
		c.setOperation(opEvaluation)
		c.loadNodeUsage()
		if clock.needsAdjustment {
			clockAdjustment{c}.adjustState(clock)
			c.setOperation(opEvaluation)
		}
		if err := edit(c); err != nil {
			return err
		}
		nodeDrain{c}.continueDrain()
		c.reconcileDirtyJobs()
		if env.isIncomplete() {
			return errPreparedEnvTooSmall
		}
		c.saveNodeUsage()
		return nil
	})
	if err != nil {
		if c != nil {
			c.undoClockAdjustment()
		}
		s.mu.Lock()
		s.nodeUsage = nil // the cached usage may include the change, which was not stored
		s.mu.Unlock()
		return 0, err
	}
	if c.desiredAllocsChanged && s.onDesiredChange != nil {
		s.onDesiredChange()
	}
	if c.resourcesFreed {
		notify(s.retryBlockedRequested)
	}
	return index, nil
}

// setOperation sets the operation that the event stream shows for the following writes.
func (c *txn) setOperation(name string) {
	c.operationName = name
	c.tx.SetOperation(name)
}

// loadNodeUsage takes the cached usage of the node, or builds it from the state.
func (c *txn) loadNodeUsage() {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	node := c.tx.Node(nil, c.s.nodeID)
	if s.usageNode != node || s.usageNode == nil {
		s.usageNode, s.usageNodeFacts, s.nodeUsage = node, NodeOf(node), nil
	}
	c.node = s.usageNodeFacts
	if s.nodeUsage == nil || s.nodeUsageIndex != c.tx.TableIndex(nil, store.Allocations) {
		s.nodeUsage = NodeUsageOf(c.tx.Reader, c.node)
		s.nodeUsageIndex = c.tx.TableIndex(nil, store.Allocations)
	}
	c.nodeUsage, s.nodeUsage = s.nodeUsage, nil
}

func (c *txn) saveNodeUsage() {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.s.nodeUsage = c.nodeUsage
	if c.wroteAllocs {
		c.s.nodeUsageIndex = c.tx.Index()
	}
}

// markJobDirty adds a job to the jobs that are reconciled at the end of the change.
func (c *txn) markJobDirty(key JobKey) {
	if !slices.Contains(c.jobsToReconcile, key) {
		c.jobsToReconcile = append(c.jobsToReconcile, key)
	}
}

func (c *txn) putAlloc(a *api.Allocation) {
	c.wroteAllocs, c.desiredAllocsChanged = true, true
	c.tx.PutAllocation(a)
	if !c.tx.AllocationEnded(a.ID) {
		c.nodeUsage.Put(a)
	}
}

func (c *txn) putEval(e *api.Evaluation) {
	c.tx.PutEvaluation(e)
	c.trackEval(e)
}

// trackEval updates the timers and the blocked evaluations for a stored evaluation.
func (c *txn) trackEval(e *api.Evaluation) {
	id, at := e.ID, time.Time{}
	if e.Status == api.EvalStatusPending {
		at = e.WaitUntil
		if at.IsZero() {
			at = c.now
		}
	}
	blocked := e.Status == api.EvalStatusBlocked
	c.tx.OnCommit(func() {
		c.s.evalTimers.set(id, at)
		c.s.mu.Lock()
		defer c.s.mu.Unlock()
		if blocked {
			c.s.blockedEvals[id] = true
		} else {
			delete(c.s.blockedEvals, id)
		}
	})
}

// newEval returns a new evaluation of a job. It is stored when it has been
// processed.
func (c *txn) newEval(job *api.Job, trigger string) *api.Evaluation {
	now := c.now.UnixNano()
	return &api.Evaluation{
		ID:             c.env.newID(),
		Namespace:      *job.Namespace,
		Priority:       *job.Priority,
		Type:           *job.Type,
		TriggeredBy:    trigger,
		JobID:          *job.ID,
		JobModifyIndex: pointer.Value(job.JobModifyIndex),
		Status:         api.EvalStatusPending,
		CreateIndex:    c.tx.Index(),
		CreateTime:     now,
		ModifyTime:     now,
	}
}

// processEval makes the plan for the job of an evaluation and stores its changes.
func (c *txn) processEval(eval *api.Evaluation) {
	c.applyPlan(eval, c.planEval(eval))
}

// processEvalIfChanged is like processEval, but stores nothing if the plan changes nothing.
func (c *txn) processEvalIfChanged(eval *api.Evaluation) {
	out := c.planEval(eval)
	if len(out.Place)+len(out.Update)+len(out.Deployments) > 0 ||
		len(out.Eval.FailedTGAllocs) > 0 && !c.hasBlockedEval(JobKey{eval.Namespace, eval.JobID}) {
		c.applyPlan(eval, out)
	}
}

func (c *txn) hasBlockedEval(key JobKey) bool {
	return slices.ContainsFunc(c.tx.EvaluationsByJob(nil, key.Namespace, key.ID), func(e *api.Evaluation) bool { return e.Status == api.EvalStatusBlocked })
}

func (c *txn) planEval(eval *api.Evaluation) PlanChanges {
	key := JobKey{eval.Namespace, eval.JobID}
	return Plan(PlanInput{
		Eval:       eval,
		Job:        c.tx.Job(nil, key.Namespace, key.ID),
		Allocs:     c.tx.AllocationsByJob(nil, key.Namespace, key.ID),
		Evals:      c.tx.EvaluationsByJob(nil, key.Namespace, key.ID),
		Deployment: c.tx.LatestDeployment(nil, key.Namespace, key.ID),
		Node:       c.node,
		NodeUsage:  c.nodeUsage,
		Env:        c.env.planEnv(),
		Now:        c.now,

		MemoryOversubscription: c.tx.SchedulerConfig(nil).MemoryOversubscriptionEnabled,
		Volumes:                volumeStateOf(c.tx.Reader),
	})
}

// operationsWithEvalEvent are the operations whose events include new evaluations. For other operations the event of a new
// evaluation has a separate operation.
var operationsWithEvalEvent = map[string]bool{opJobRegistered: true, opJobDeregistered: true, opAllocStop: true}

// applyPlan stores the plan of an evaluation in one change. Nomad needs three changes:
// the evaluation is created, the plan is applied, the evaluation is completed. The
// events are the same as Nomad's.
func (c *txn) applyPlan(eval *api.Evaluation, out PlanChanges) {
	pending := *eval
	pending.ModifyIndex = c.tx.Index()
	if c.tx.Evaluation(nil, eval.ID) == nil {
		if !operationsWithEvalEvent[c.operationName] {
			c.setOperation(opEvaluation)
		}
		c.tx.AddEvaluationEvent(&pending)
	}
	planned := len(out.Deployments)+len(out.Update)+len(out.Place) > 0
	if planned {
		c.setOperation(opPlan)
	}
	for _, d := range out.Deployments {
		c.tx.PutDeployment(d)
		deploymentUpdater{c}.setDeploymentTimer(d)
	}
	for _, a := range out.Update {
		c.putAlloc(a)
	}
	for _, a := range out.Place {
		c.putAlloc(a)
	}
	for _, claim := range out.Claims {
		c.tx.PutVolumeClaim(claim)
	}
	if planned {
		c.tx.AddEvaluationEvent(&pending)
	}
	c.setOperation(opEvaluation)
	for _, e := range out.Evals {
		c.putEval(e)
	}
	if old := c.tx.Evaluation(nil, out.Eval.ID); old == nil || !sameEval(old, out.Eval) {
		out.Eval.SnapshotIndex = c.tx.Index()
		c.putEval(out.Eval)
	}
	if planned {
		c.setOperation(opPlan) // the status of the job follows from the allocations, so its change is part of this operation
	}
	c.markJobDirty(JobKey{out.Eval.Namespace, out.Eval.JobID})
}

// sameEval reports whether two evaluations have the same status, queued allocations and failed allocations.
func sameEval(a, b *api.Evaluation) bool {
	return a.Status == b.Status && reflect.DeepEqual(a.QueuedAllocations, b.QueuedAllocations) && reflect.DeepEqual(a.FailedTGAllocs, b.FailedTGAllocs)
}

// processDueEval processes a pending evaluation whose timer has expired. If the evaluation is due later, because this
// change has moved it by a step of the clock, processDueEval sets the timer again.
func (c *txn) processDueEval(id string) {
	switch e := c.tx.Evaluation(nil, id); {
	case e == nil:
		c.tx.OnCommit(func() { c.s.evalTimers.set(id, time.Time{}) })
	case e.Status != api.EvalStatusPending || e.WaitUntil.After(c.now):
		c.trackEval(e)
	default:
		c.processStoredEval(e)
	}
}

// retryBlockedEvals retries all blocked evaluations, by priority and then by age.
func (c *txn) retryBlockedEvals() {
	c.s.mu.Lock()
	var evals []*api.Evaluation
	for id := range c.s.blockedEvals {
		if e := c.tx.Evaluation(nil, id); e != nil && e.Status == api.EvalStatusBlocked {
			evals = append(evals, e)
		} else {
			delete(c.s.blockedEvals, id)
		}
	}
	c.s.mu.Unlock()
	slices.SortFunc(evals, func(a, b *api.Evaluation) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.CreateIndex, b.CreateIndex), cmp.Compare(a.ID, b.ID))
	})
	for _, e := range evals {
		if e = c.tx.Evaluation(nil, e.ID); e.Status == api.EvalStatusBlocked {
			c.processStoredEval(e)
		}
	}
}

// processStoredEval processes an evaluation that was delayed or blocked. If its job does not exist, it cancels the
// evaluation. (The purge of a job ends the evaluations of the job, so the job is missing for another reason.)
func (c *txn) processStoredEval(e *api.Evaluation) {
	if c.tx.Job(nil, e.Namespace, e.JobID) != nil {
		c.processEval(e)
		return
	}
	ended := *e
	ended.Status, ended.StatusDescription = api.EvalStatusCancelled, "the job is gone"
	ended.ModifyTime = c.now.UnixNano()
	c.putEval(&ended)
}
