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
	NodeID string // id of the stored node that runs the allocations
	Env    Env
	GC     GCConfig
	Logger hclog.Logger
	// OnDesiredChange is called after each change of the allocations that the node must
	// run. Nil means that it is not called.
	OnDesiredChange func()
}

// Scheduler decides what runs on the node, and when.
//
// All changes of jobs, evaluations, allocations and deployments go through its
// methods. Each method call is one change of the store, which includes its
// consequences: allocations, the status of the job, the progress of a deployment.
// Run makes the changes that depend on time. The methods may be called
// concurrently, and before Run.
type Scheduler struct {
	store           Store
	nodeID          string
	env             Env
	gc              GCConfig
	logger          hclog.Logger
	onDesiredChange func()

	evalTimers            *timerQueue[string] // pending evaluations
	deploymentTimers      *timerQueue[string] // deadlines of deployments
	launchTimers          *timerQueue[JobKey] // launches of periodic jobs
	drainTimer            *timerQueue[string] // the drain of the node
	retryBlockedRequested chan struct{}       // receives a value when blocked evaluations must be retried
	wallClock             *wallClock
	clockCheckRequested   chan struct{} // receives a value when the clock may have been set
	ids                   idPool        // ids that are prepared in advance for changes

	mu sync.Mutex
	// nodeUsage caches the usage of usageNode in the state with nodeUsageIndex. It is nil while a change uses it.
	nodeUsage      *NodeUsage
	nodeUsageIndex uint64
	usageNode      *api.Node
	usageNodeFacts Node
	blockedEvals   map[string]bool // ids of blocked evaluations
}

// New returns a scheduler. It does not read the store.
func New(c Config) *Scheduler {
	return &Scheduler{
		store:                 c.Store,
		nodeID:                c.NodeID,
		env:                   c.Env,
		gc:                    c.GC.orDefault(),
		logger:                c.Logger.Named("scheduler"),
		onDesiredChange:       c.OnDesiredChange,
		evalTimers:            newTimerQueue[string](),
		deploymentTimers:      newTimerQueue[string](),
		launchTimers:          newTimerQueue[JobKey](),
		drainTimer:            newTimerQueue[string](),
		retryBlockedRequested: make(chan struct{}, 1),
		wallClock:             newWallClock(c.Env),
		clockCheckRequested:   make(chan struct{}, 1),
		blockedEvals:          make(map[string]bool),
	}
}

// NodeChanged must be called when the stored node has changed. It does not block.
func (s *Scheduler) NodeChanged() { notify(s.retryBlockedRequested) }

// Run restores the timers from the store and then makes the changes that are due,
// until ctx ends. It must be called once.
func (s *Scheduler) Run(ctx context.Context) {
	s.updateWithRetry(ctx, "catch up", nil, (*txn).restoreTimers)
	var loopsWG sync.WaitGroup
	loopsWG.Go(func() { s.runEvaluations(ctx) })
	loopsWG.Go(func() {
		runTimers(ctx, s, s.deploymentTimers, "deployment", func(c *txn, id string) { deploymentUpdater{c}.handleDeploymentDeadline(id) })
	})
	loopsWG.Go(func() {
		runTimers(ctx, s, s.launchTimers, "periodic launch", func(c *txn, key JobKey) { childJobLauncher{c}.launchDueJob(key) })
	})
	loopsWG.Go(func() {
		runTimers(ctx, s, s.drainTimer, "drain", func(c *txn, _ string) { nodeDrain{c}.handleDrainDeadline() })
	})
	loopsWG.Go(func() { s.runGarbageCollection(ctx) })
	loopsWG.Go(func() { s.runClockChecks(ctx) })
	loopsWG.Wait()
}

// storeRetryDelay is the time between two attempts of a change that the store has rejected.
const storeRetryDelay = time.Second

// updateWithRetry makes a change that no request has caused. It retries until the store accepts the change or ctx ends.
// announce calls the expect methods of the change's env; nil means that no placements are expected.
func (s *Scheduler) updateWithRetry(ctx context.Context, what string, announce func(*preparedEnv), edit func(*txn)) {
	for ctx.Err() == nil {
		env := s.newPreparedEnv()
		if announce != nil {
			announce(env)
		}
		_, err := s.updateWithEnv(ctx, env, func(c *txn) error {
			edit(c)
			return nil
		})
		if err == nil || ctx.Err() != nil {
			return
		}
		s.logger.Error("change not stored", "change", what, "error", err)
		select {
		case <-time.After(storeRetryDelay):
		case <-ctx.Done():
		}
	}
}

// restoreTimers sets all timers and reconciles all jobs, after a start or a clock step.
func (c *txn) restoreTimers() {
	for _, e := range c.tx.Evaluations(nil, "") {
		c.trackEval(e)
	}
	for _, job := range c.tx.Jobs(nil, store.AnyNamespace, "") {
		c.markJobDirty(KeyOf(job))
		childJobLauncher{c}.setLaunchTimer(job)
	}
	for _, a := range c.tx.Allocations(nil, "") {
		if key := (JobKey{a.Namespace, a.JobID}); c.tx.Job(nil, key.Namespace, key.ID) == nil {
			jobVersions{c}.recoverJob(key)
			c.markJobDirty(key)
		}
	}
	nodeDrain{c}.setDrainTimer(c.tx.Node(nil, c.s.nodeID))
	c.resourcesFreed = true
}

// runEvaluations processes pending evaluations that are due, and retries blocked ones when resources may have become
// free.
func (s *Scheduler) runEvaluations(ctx context.Context) {
	for s.evalTimers.wait(ctx, s.env.Now, s.retryBlockedRequested) {
		s.updateWithRetry(ctx, "evaluations", (*preparedEnv).expectDueReplacements, func(c *txn) {
			for _, id := range s.evalTimers.due(c.now) {
				c.processDueEval(id)
			}
			c.retryBlockedEvals()
		})
	}
}

// runTimers calls do for the keys of a timer queue that are due, until ctx ends.
func runTimers[K comparable](ctx context.Context, s *Scheduler, a *timerQueue[K], what string, do func(*txn, K)) {
	for a.wait(ctx, s.env.Now, nil) {
		s.updateWithRetry(ctx, what, nil, func(c *txn) {
			for _, key := range a.due(c.now) {
				do(c, key)
			}
		})
	}
}
