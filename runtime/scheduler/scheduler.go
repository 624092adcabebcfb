package scheduler

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// Config configures a Scheduler.
type Config struct {
	Store  Store
	NodeID string // ID of the stored node that runs the allocations
	Env    Env
	GC     GCConfig
	Logger hclog.Logger
	// OnDesiredAllocsChanged is called after each transaction that may change the result of DesiredAllocs. It
	// may be nil.
	OnDesiredAllocsChanged func()
}

// Scheduler decides what runs on the node, and when.
//
// All changes of jobs, evaluations, allocations and deployments go through its
// methods. Each method call is one change of the store, which includes its
// consequences: allocations, the status of the job, the progress of a deployment.
// Run makes the changes that depend on time. The methods may be called
// concurrently, and before Run.
type Scheduler struct {
	store                  Store
	nodeID                 string
	env                    Env
	gcConfig               GCConfig
	logger                 hclog.Logger
	onDesiredAllocsChanged func()

	evalTimers            *timerQueue[string] // pending evaluations
	deploymentTimers      *timerQueue[string] // deadlines of deployments
	launchTimers          *timerQueue[JobKey] // launches of periodic jobs
	drainTimer            *timerQueue[string] // the drain of the node
	retryBlockedRequested chan struct{}       // receives a value when blocked evaluations must be retried
	wallClock             *wallClock
	clockCheckRequested   chan struct{} // receives a value when the clock may have been set
	preparedIDs           idPool        // ids for the next transactions

	mu sync.Mutex
	// cachedNodeUsage is the usage of cachedNode by the allocations whose table has the index cachedNodeUsageIndex. It is
	// nil while a transaction uses it, and after a transaction has failed.
	cachedNodeUsage      *NodeUsage
	cachedNodeUsageIndex uint64
	cachedNode           *api.Node
	cachedPlacementNode  PlacementNode
	blockedEvalIDs       map[string]bool // set of the IDs of blocked evaluations
}

// New returns a scheduler. It does not read the store.
func New(c Config) *Scheduler {
	return &Scheduler{
		store:                  c.Store,
		nodeID:                 c.NodeID,
		env:                    c.Env,
		gcConfig:               c.GC.withDefaults(),
		logger:                 c.Logger.Named("scheduler"),
		onDesiredAllocsChanged: c.OnDesiredAllocsChanged,
		evalTimers:             newTimerQueue[string](),
		deploymentTimers:       newTimerQueue[string](),
		launchTimers:           newTimerQueue[JobKey](),
		drainTimer:             newTimerQueue[string](),
		retryBlockedRequested:  make(chan struct{}, 1),
		wallClock:              newWallClock(c.Env),
		clockCheckRequested:    make(chan struct{}, 1),
		blockedEvalIDs:         make(map[string]bool),
	}
}

// NodeChanged makes Run retry blocked evaluations. The caller calls it after it has changed the stored node. It does not
// block.
func (s *Scheduler) NodeChanged() { notify(s.retryBlockedRequested) }

// Run sets the timers from the stored objects, and then makes the changes that depend on time, until
// ctx ends. It must be called once.
func (s *Scheduler) Run(ctx context.Context) {
	s.updateWithRetry(ctx, "catch up", nil, (*txn).restoreTimers)
	var loopsWG sync.WaitGroup
	loopsWG.Go(func() { s.runEvaluations(ctx) })
	loopsWG.Go(func() {
		runTimerLoop(ctx, s, s.deploymentTimers, "deployment", func(c *txn, id string) { deploymentUpdater{c}.checkDeploymentAtDeadline(id) })
	})
	loopsWG.Go(func() {
		runTimerLoop(ctx, s, s.launchTimers, "periodic launch", func(c *txn, key JobKey) { childJobLauncher{c}.launchDueJob(key) })
	})
	loopsWG.Go(func() {
		runTimerLoop(ctx, s, s.drainTimer, "drain", func(c *txn, _ string) { nodeDrain{c}.resetExpiredDrainTimer() })
	})
	loopsWG.Go(func() { s.runGarbageCollection(ctx) })
	loopsWG.Go(func() { s.runClockChecks(ctx) })
	loopsWG.Wait()
}

// storeRetryDelay is the delay after which updateWithRetry repeats a failed transaction.
const storeRetryDelay = time.Second

// updateWithRetry makes a change that no request has caused. It retries until the transaction succeeds or ctx ends.
// changeName names the change in the log. expectPlacements calls the expect methods of the preparedEnv; nil means that no
// placements are expected.
func (s *Scheduler) updateWithRetry(ctx context.Context, changeName string, expectPlacements func(*preparedEnv), edit func(*txn)) {
	for ctx.Err() == nil {
		env := s.newPreparedEnv()
		if expectPlacements != nil {
			expectPlacements(env)
		}
		_, err := s.updateWithEnv(ctx, env, func(c *txn) error {
			edit(c)
			return nil
		})
		if err == nil || ctx.Err() != nil {
			return
		}
		s.logger.Error("change not stored", "change", changeName, "error", err)
		select {
		case <-time.After(storeRetryDelay):
		case <-ctx.Done():
		}
	}
}

// restoreTimers sets the timers of all stored objects and reconciles all jobs, after a start or a clock step. It recovers
// jobs whose record is missing although they have allocations.
func (t *txn) restoreTimers() {
	for _, e := range t.tx.Evaluations(nil, "") {
		t.trackPendingAndBlockedEval(e)
	}
	for _, job := range t.tx.Jobs(nil, store.AnyNamespace, "") {
		t.reconcileJobLater(JobKeyOf(job))
		childJobLauncher{t}.setLaunchTimer(job)
	}
	for _, a := range t.tx.Allocations(nil, "") {
		if key := (JobKey{a.Namespace, a.JobID}); t.tx.Job(nil, key.Namespace, key.ID) == nil {
			jobVersions{t}.recoverJobFromVersions(key)
			t.reconcileJobLater(key)
		}
	}
	nodeDrain{t}.setDrainTimer(t.tx.Node(nil, t.scheduler.nodeID))
	t.resourcesFreed = true
}

// runEvaluations processes pending evaluations when they are due, and blocked evaluations when resources may have become
// free, until ctx ends.
func (s *Scheduler) runEvaluations(ctx context.Context) {
	for s.evalTimers.waitUntilDueOrSignal(ctx, s.env.Now, s.retryBlockedRequested) {
		s.updateWithRetry(ctx, "evaluations", (*preparedEnv).expectDueReplacements, func(c *txn) {
			for _, id := range s.evalTimers.dueKeys(c.now) {
				c.processDueEval(id)
			}
			c.retryBlockedEvals()
		})
	}
}

// runTimerLoop calls onDue for the keys of a timer queue that are due, until ctx ends.
func runTimerLoop[K comparable](ctx context.Context, s *Scheduler, timers *timerQueue[K], changeName string, onDue func(*txn, K)) {
	for timers.waitUntilDueOrSignal(ctx, s.env.Now, nil) {
		s.updateWithRetry(ctx, changeName, nil, func(c *txn) {
			for _, key := range timers.dueKeys(c.now) {
				onDue(c, key)
			}
		})
	}
}
