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
	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// Values for api.Evaluation.TriggeredBy.
const (
	triggerRegister    = "job-register"
	triggerDeregister  = "job-deregister"
	triggerPeriodic    = "periodic-job"
	triggerAllocStop   = "alloc-stop"
	triggerAllocFailed = "alloc-failure"
	triggerDeployment  = "deployment-watcher"
	triggerScaling     = "job-scaling"
	triggerDrain       = "node-drain"
	triggerNodeUpdate  = "node-update"
)

// schedulerTxn is a store transaction in progress. It adds the request's consequences: it plans and stores evaluations, and
// reconciles the jobs that the transaction has changed. The types that embed schedulerTxn make other changes in the same
// transaction: jobVersions, childJobLauncher, deploymentUpdater, nodeDrain, clockAdjustment, garbageCollection.
type schedulerTxn struct {
	tx             *store.Txn
	scheduler      *Scheduler
	env            *preparedEnv
	now            time.Time
	author         state.Author // of new job versions; zero if they have none
	node           PlacementNode
	nodeUsage      *NodeUsage
	eventOperation string // event stream operation for the current writes, see setEventOperation

	wroteAllocs          bool
	desiredAllocsChanged bool     // DesiredAllocs may return another result: Config.OnDesiredAllocsChanged must be called
	mayUnblockEvals      bool     // blocked evaluations may fit now, because resources may have become free or the configuration has changed
	jobsToReconcile      []JobKey // jobs to reconcile when the change ends
	plansIncompleteJobs  bool     // see reconcileJob
	undoClockAdjustment  func()   // undoes wallClock.recordAdjustment if the transaction fails; may be called twice
}

// updateAndReconcile commits a transaction that edit fills, and returns the index of the store. If edit returns an
// error, updateAndReconcile returns the same error and stores nothing. updateAndReconcile may call edit several times;
// only the last call has an effect.
func (s *Scheduler) updateAndReconcile(ctx context.Context, edit func(*schedulerTxn) error) (index uint64, err error) {
	return s.updateAndReconcileWithEnv(ctx, s.newPreparedEnv(), edit)
}

// updateAndReconcileWithEnv is like updateAndReconcile, with an env in which the caller has announced the expected placements.
func (s *Scheduler) updateAndReconcileWithEnv(ctx context.Context, env *preparedEnv, edit func(*schedulerTxn) error) (index uint64, err error) {
	for {
		env.prepareNextAttempt()
		index, err = s.tryUpdateAndReconcile(ctx, env, edit)
		switch {
		case errors.Is(err, errPluginsStarting):
			if err := s.waitForFirstPluginReports(ctx); err != nil {
				return 0, err
			}
		case !errors.Is(err, errPreparedEnvTooSmall):
			return index, err
		}
	}
}

// tryUpdateAndReconcile attempts a transaction once. It returns errPreparedEnvTooSmall if env had too few ids or ports, and
// errPluginsStarting if a plan needs a node property that plugins may add soon.
func (s *Scheduler) tryUpdateAndReconcile(ctx context.Context, env *preparedEnv, edit func(*schedulerTxn) error) (index uint64, err error) {
	var c *schedulerTxn
	index, err = s.store.Update(ctx, func(tx *store.Txn) (err error) {
		clock := s.wallClock.readAndDetectStep(s.hostEnv)
		tx.Reader = tx.WithoutEndedEvents() // plans read all a job's allocations, and none of their events
		c = &schedulerTxn{tx: tx, scheduler: s, env: env, now: clock.now, undoClockAdjustment: func() {}}
		c.author, _ = ctx.Value(authorContextKey{}).(state.Author)
		defer func() {
			if err != nil {
				c.undoClockAdjustment() // here, because the next transaction can start before Update returns
			}
		}()
		c.setEventOperation(opEvaluation)
		c.takeOrComputeNodeUsage()
		if clock.storedTimesNeedAdjustment {
			clockAdjustment{c}.adjustStoredTimes(clock)
			c.setEventOperation(opEvaluation)
		}
		if err := edit(c); err != nil {
			return err
		}
		nodeDrain{c}.continueOrCompleteDrain()
		c.reconcileQueuedJobs()
		if env.lackedStartingPlugins {
			return errPluginsStarting
		}
		if env.lackedIDsOrPorts() {
			return errPreparedEnvTooSmall
		}
		c.cacheNodeUsage()
		return nil
	})
	if err != nil {
		if c != nil {
			c.undoClockAdjustment()
		}
		s.cacheMu.Lock()
		s.cachedNodeUsage = nil // the usage may include unstored placements
		s.cacheMu.Unlock()
		return 0, err
	}
	if c.desiredAllocsChanged && s.onDesiredAllocsChanged != nil {
		s.onDesiredAllocsChanged()
	}
	if c.mayUnblockEvals && s.hasBlockedEvals() {
		wait.Notify(s.retryBlockedEvalsRequested)
	}
	return index, nil
}

// hasBlockedEvals reports whether an evaluation may be blocked. If a later transaction blocks an evaluation, it was processed
// with the resources freed by earlier transactions.
func (s *Scheduler) hasBlockedEvals() bool {
	s.cacheMu.Lock()
	defer s.cacheMu.Unlock()
	return len(s.blockedEvalIDs) > 0
}

// setEventOperation sets the event stream operation for the transaction's next writes.
func (t *schedulerTxn) setEventOperation(operation string) {
	t.eventOperation = operation
	t.tx.SetEventOperation(operation)
}

// takeOrComputeNodeUsage moves the node's usage from the scheduler's cache into the transaction. If the cache is outdated, it
// computes the usage from the stored allocations.
func (t *schedulerTxn) takeOrComputeNodeUsage() {
	s := t.scheduler
	s.cacheMu.Lock()
	defer s.cacheMu.Unlock()
	node := t.tx.Node(nil, t.scheduler.nodeID)
	if s.cachedNode != node || s.cachedNode == nil {
		s.cachedNode, s.cachedPlacementNode, s.cachedNodeUsage = node, PlacementNodeOf(node), nil
	}
	t.node = s.cachedPlacementNode
	if s.cachedNodeUsage == nil || s.cachedNodeUsageAllocsIndex != t.tx.LatestTableIndex(nil, store.Allocations) {
		s.cachedNodeUsage = NodeUsageOf(t.tx.Reader, t.node)
		s.cachedNodeUsageAllocsIndex = t.tx.LatestTableIndex(nil, store.Allocations)
	}
	t.nodeUsage, s.cachedNodeUsage = s.cachedNodeUsage, nil
}

// cacheNodeUsage moves the node's usage, with this transaction's changes, back to the cache.
func (t *schedulerTxn) cacheNodeUsage() {
	t.scheduler.cacheMu.Lock()
	defer t.scheduler.cacheMu.Unlock()
	t.scheduler.cachedNodeUsage = t.nodeUsage
	if t.wroteAllocs {
		t.scheduler.cachedNodeUsageAllocsIndex = t.tx.Index()
	}
}

// reconcileJobAtTxnEnd makes reconcileQueuedJobs reconcile a job when the transaction ends.
func (t *schedulerTxn) reconcileJobAtTxnEnd(key JobKey) {
	if !slices.Contains(t.jobsToReconcile, key) {
		t.jobsToReconcile = append(t.jobsToReconcile, key)
	}
}

func (t *schedulerTxn) putAllocAndUpdateNodeUsage(a *api.Allocation) {
	t.wroteAllocs, t.desiredAllocsChanged = true, true
	t.tx.PutScheduledAllocation(a)
	if !t.tx.AllocationEnded(a.ID) {
		t.nodeUsage.PutAlloc(a)
	}
}

func (t *schedulerTxn) putAndTrackEval(e *api.Evaluation) {
	t.tx.PutEvaluation(e)
	t.trackPendingAndBlockedEval(e)
}

// trackPendingAndBlockedEval sets a pending evaluation's timer and remembers a blocked one for retryBlockedEvals. An evaluation
// with another status loses both. While evaluations are paused, none has a timer.
func (t *schedulerTxn) trackPendingAndBlockedEval(e *api.Evaluation) {
	id, at := e.ID, time.Time{}
	if e.Status == api.EvalStatusPending && !isPaused(t) {
		at = e.WaitUntil
		if at.IsZero() {
			at = t.now
		}
	}
	blocked := e.Status == api.EvalStatusBlocked
	t.tx.OnCommit(func() {
		t.scheduler.evalTimers.setOrClearDueTime(id, at)
		t.scheduler.cacheMu.Lock()
		defer t.scheduler.cacheMu.Unlock()
		if blocked {
			t.scheduler.blockedEvalIDs[id] = true
		} else {
			delete(t.scheduler.blockedEvalIDs, id)
		}
	})
}

// newPendingEval returns a new pending evaluation for a job. processEval stores the evaluation.
func (t *schedulerTxn) newPendingEval(job *api.Job, trigger string) *api.Evaluation {
	now := t.now.UnixNano()
	return &api.Evaluation{
		ID:             t.env.takeIDOrPlaceholder(),
		Namespace:      *job.Namespace,
		Priority:       *job.Priority,
		Type:           *job.Type,
		TriggeredBy:    trigger,
		JobID:          *job.ID,
		JobModifyIndex: pointer.Value(job.JobModifyIndex),
		Status:         api.EvalStatusPending,
		CreateIndex:    t.tx.Index(),
		CreateTime:     now,
		ModifyTime:     now,
	}
}

// processEval plans an evaluation's job and stores the plan's changes. While evaluations are paused, it only stores the evaluation.
func (t *schedulerTxn) processEval(eval *api.Evaluation) {
	if isPaused(t) {
		queueEval(t, eval)
		return
	}
	t.applyPlan(eval, t.planEval(eval))
}

// processEvalIfPlanHasChanges is like processEval, but stores neither the evaluation nor the plan if the plan has no
// changes, and its failed placements already have a blocked evaluation.
func (t *schedulerTxn) processEvalIfPlanHasChanges(eval *api.Evaluation) {
	if key := (JobKey{eval.Namespace, eval.JobID}); isPaused(t) {
		if !hasDueEval(t, key) {
			queueEval(t, eval)
		}
		return
	}
	out := t.planEval(eval)
	if len(out.PlacedAllocs)+len(out.UpdatedAllocs)+len(out.Deployments) > 0 ||
		len(out.ProcessedEval.FailedTGAllocs) > 0 && !t.hasBlockedEval(JobKey{eval.Namespace, eval.JobID}) {
		t.applyPlan(eval, out)
	}
}

func (t *schedulerTxn) hasBlockedEval(key JobKey) bool {
	return slices.ContainsFunc(t.tx.EvaluationsByJob(nil, key.Namespace, key.ID), func(e *api.Evaluation) bool { return e.Status == api.EvalStatusBlocked })
}

func (t *schedulerTxn) planEval(eval *api.Evaluation) PlanChanges {
	key := JobKey{eval.Namespace, eval.JobID}
	job := t.tx.Job(nil, key.Namespace, key.ID)
	changes := Plan(PlanInput{
		Eval:             eval,
		Job:              job,
		JobAllocs:        t.tx.AllocationsByJob(nil, key.Namespace, key.ID),
		JobEvals:         t.tx.EvaluationsByJob(nil, key.Namespace, key.ID),
		LatestDeployment: t.tx.LatestDeployment(nil, key.Namespace, key.ID),
		Node:             t.node,
		NodeUsage:        t.nodeUsage,
		Env:              t.env.envForPlans(),
		Now:              t.now,

		MemoryOversubscription: t.tx.SchedulerConfig(nil).MemoryOversubscriptionEnabled,
		PreemptibleAllocs:      preemptibleAllocsFunc(t.tx.Reader, job),
		Volumes:                hostVolumeStateOf(t.tx.Reader),
	})
	if !t.env.plansWithoutStartingPlugins && couldStartingPluginsHelp(changes, t.node) && t.scheduler.arePluginsStarting() {
		t.env.lackedStartingPlugins = true
	}
	return changes
}

// operationsWithEvalEvent are the operations that include a new evaluation's event. In other operations, this event has the
// operation opEvaluation.
var operationsWithEvalEvent = map[string]bool{opJobRegistered: true, opJobDeregistered: true, opAllocStop: true}

// applyPlan stores an evaluation and its plan in one transaction. Nomad uses three transactions:
// to create the evaluation, to apply the plan, and to complete the evaluation. applyPlan adds the events of
// all three, so that clients see the same events as from Nomad.
func (t *schedulerTxn) applyPlan(eval *api.Evaluation, changes PlanChanges) {
	pending := *eval
	pending.ModifyIndex = t.tx.Index()
	if t.tx.Evaluation(nil, eval.ID) == nil {
		if !operationsWithEvalEvent[t.eventOperation] {
			t.setEventOperation(opEvaluation)
		}
		t.tx.AddEvaluationEvent(&pending)
	}
	planned := len(changes.Deployments)+len(changes.UpdatedAllocs)+len(changes.PlacedAllocs) > 0
	if planned {
		t.setEventOperation(opPlan)
	}
	for _, d := range changes.Deployments {
		t.tx.PutDeployment(d)
		deploymentUpdater{t}.setProgressDeadlineTimer(d)
	}
	for _, a := range changes.UpdatedAllocs {
		t.putAllocAndUpdateNodeUsage(a)
	}
	for _, a := range changes.PlacedAllocs {
		t.putAllocAndUpdateNodeUsage(a)
	}
	for _, claim := range changes.NewVolumeClaims {
		t.tx.PutVolumeClaim(claim)
	}
	if planned {
		t.tx.AddEvaluationEvent(&pending)
	}
	t.setEventOperation(opEvaluation)
	for _, e := range changes.CreatedAndCancelledEvals {
		t.putAndTrackEval(e)
	}
	if old := t.tx.Evaluation(nil, changes.ProcessedEval.ID); old == nil || !sameEvalResult(old, changes.ProcessedEval) {
		changes.ProcessedEval.SnapshotIndex = t.tx.Index()
		t.putAndTrackEval(changes.ProcessedEval)
	}
	evaluateJobsOfPreemptedAllocs(t, changes.PreemptedAllocs)
	if planned {
		t.setEventOperation(opPlan) // reconcileJob then writes the job status, which follows from the plan
	}
	t.reconcileJobAtTxnEnd(JobKey{changes.ProcessedEval.Namespace, changes.ProcessedEval.JobID})
}

// sameEvalResult reports whether two evaluations have the same status, queued allocations and failed placements.
func sameEvalResult(a, b *api.Evaluation) bool {
	return a.Status == b.Status && reflect.DeepEqual(a.QueuedAllocations, b.QueuedAllocations) && reflect.DeepEqual(a.FailedTGAllocs, b.FailedTGAllocs)
}

// processDueEval processes a pending evaluation after its timer has expired. If a clock step in this transaction has moved the
// evaluation to a later time, processDueEval only sets the timer again.
func (t *schedulerTxn) processDueEval(id string) {
	switch e := t.tx.Evaluation(nil, id); {
	case e == nil:
		t.tx.OnCommit(func() { t.scheduler.evalTimers.setOrClearDueTime(id, time.Time{}) })
	case e.Status != api.EvalStatusPending || e.WaitUntil.After(t.now) || isPaused(t):
		t.trackPendingAndBlockedEval(e)
	default:
		t.processOrCancelStoredEval(e)
	}
}

// retryBlockedEvals processes all blocked evaluations again: the highest priority first, and then the oldest first.
func (t *schedulerTxn) retryBlockedEvals() {
	t.scheduler.cacheMu.Lock()
	var evals []*api.Evaluation
	for id := range t.scheduler.blockedEvalIDs {
		if e := t.tx.Evaluation(nil, id); e != nil && e.Status == api.EvalStatusBlocked {
			evals = append(evals, e)
		} else {
			delete(t.scheduler.blockedEvalIDs, id)
		}
	}
	t.scheduler.cacheMu.Unlock()
	slices.SortFunc(evals, func(a, b *api.Evaluation) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.CreateIndex, b.CreateIndex), cmp.Compare(a.ID, b.ID))
	})
	for _, e := range evals {
		if e = t.tx.Evaluation(nil, e.ID); e.Status == api.EvalStatusBlocked {
			t.processOrCancelStoredEval(e)
		}
	}
}

// processOrCancelStoredEval processes a stored evaluation that was delayed or blocked. It cancels an evaluation without a
// stored job. (A job purge is not the reason: it cancels the job's evaluations.)
func (t *schedulerTxn) processOrCancelStoredEval(e *api.Evaluation) {
	if t.tx.Job(nil, e.Namespace, e.JobID) != nil {
		t.processEval(e)
		return
	}
	ended := *e
	ended.Status, ended.StatusDescription = api.EvalStatusCancelled, "the job is gone"
	ended.ModifyTime = t.now.UnixNano()
	t.putAndTrackEval(&ended)
}
