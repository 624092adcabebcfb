package scheduler

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// Config configures a Scheduler.
type Config struct {
	Store   Store
	NodeID  string // ID of the stored node running the allocations
	HostEnv Env
	GC      GCConfig
	Jobs    model.JobLimits
	Logger  hclog.Logger
	// OnDesiredAllocsChanged is called after each transaction that may change the result of DesiredAllocs. A node report may
	// change a returned allocation without a call. It may be nil.
	OnDesiredAllocsChanged func()
}

// limits are what the configuration says about jobs and their records, with defaults.
type limits struct {
	gc   GCConfig
	jobs model.JobLimits
}

// Scheduler decides what runs on the node, and when.
//
// All job, evaluation, allocation and deployment changes go through its methods. Each method call is one store change, which
// includes its consequences: allocations, the job's status, the deployment's progress. Run makes the time-dependent changes.
// The methods may be called concurrently, and before Run. It is large because each kind of request is a method.
type Scheduler struct {
	store                  Store
	nodeID                 string
	hostEnv                Env
	limits                 limits
	logger                 hclog.Logger
	onDesiredAllocsChanged func()

	evalTimers                 *timerQueue[string] // pending evaluations
	progressDeadlineTimers     *timerQueue[string] // deployment deadlines
	periodicLaunchTimers       *timerQueue[JobKey] // periodic launches
	drainTimer                 *timerQueue[string] // the node's drain
	retryBlockedEvalsRequested chan struct{}       // receives a value when blocked evaluations must be retried
	wallClock                  *wallClockStepDetector
	clockCheckRequested        chan struct{} // receives a value when the clock may have been set
	preparedIDs                idPool        // ids for the next transactions

	cacheMu sync.Mutex
	// cachedNodeUsage is cachedNode's usage by the allocations at table index cachedNodeUsageAllocsIndex. It is nil while a
	// transaction uses it, and after a transaction has failed.
	cachedNodeUsage            *NodeUsage
	cachedNodeUsageAllocsIndex uint64
	cachedNode                 *api.Node
	cachedPlacementNode        PlacementNode
	blockedEvalIDs             map[string]bool // IDs of blocked evaluations (a set)
}

// New returns a scheduler. It does not read the store.
func New(c Config) *Scheduler {
	return &Scheduler{
		store:                      c.Store,
		nodeID:                     c.NodeID,
		hostEnv:                    c.HostEnv,
		limits:                     limits{c.GC.withDefaults(), c.Jobs.WithDefaults()},
		logger:                     c.Logger.Named("scheduler"),
		onDesiredAllocsChanged:     c.OnDesiredAllocsChanged,
		evalTimers:                 newTimerQueue[string](),
		progressDeadlineTimers:     newTimerQueue[string](),
		periodicLaunchTimers:       newTimerQueue[JobKey](),
		drainTimer:                 newTimerQueue[string](),
		retryBlockedEvalsRequested: make(chan struct{}, 1),
		wallClock:                  newWallClock(c.HostEnv),
		clockCheckRequested:        make(chan struct{}, 1),
		blockedEvalIDs:             make(map[string]bool),
	}
}

// RetryBlockedEvals makes Run retry blocked evaluations. The caller calls it after it has changed the
// stored node, or after Env.FindUnknownInstance has an instance less. It does not block.
func (s *Scheduler) RetryBlockedEvals() {
	wait.Notify(s.retryBlockedEvalsRequested)
}

// Run sets the timers from the stored objects, and then makes the time-dependent changes, until ctx ends. It must be called
// once.
func (s *Scheduler) Run(ctx context.Context) {
	s.updateWithRetry(ctx, "catch up", nil, (*schedulerTxn).restoreTimersAndReconcileJobs)
	var loopsWG sync.WaitGroup
	loopsWG.Go(func() { s.runDueAndBlockedEvals(ctx) })
	loopsWG.Go(func() {
		runTimerLoop(ctx, s, s.progressDeadlineTimers, "deployment", func(c *schedulerTxn, id string) { deploymentUpdater{c}.reconcileDeploymentAfterDeadline(id) })
	})
	loopsWG.Go(func() {
		runTimerLoop(ctx, s, s.periodicLaunchTimers, "periodic launch", func(c *schedulerTxn, key JobKey) { childJobLauncher{c}.launchDuePeriodicJob(key) })
	})
	loopsWG.Go(func() {
		runTimerLoop(ctx, s, s.drainTimer, "drain", func(c *schedulerTxn, _ string) { nodeDrain{c}.resetExpiredDrainTimer() })
	})
	loopsWG.Go(func() { s.runGarbageCollection(ctx) })
	loopsWG.Go(func() { s.runClockChecks(ctx) })
	loopsWG.Wait()
}

// storeRetryDelay is the delay after which updateWithRetry repeats a failed transaction.
const storeRetryDelay = time.Second

// updateWithRetry makes a change that no request has caused. It retries until the transaction succeeds or ctx ends. changeName
// names the change in the log. prepareEnv calls preparedEnv's expect methods; nil means no placements are expected.
func (s *Scheduler) updateWithRetry(ctx context.Context, changeName string, prepareEnv func(*preparedEnv), edit func(*schedulerTxn)) {
	for ctx.Err() == nil {
		env := s.newPreparedEnv()
		env.plansWithoutStartingPlugins = true // a node change retries such a plan's blocked evaluation
		if prepareEnv != nil {
			prepareEnv(env)
		}
		_, err := s.updateAndReconcileWithEnv(ctx, env, func(c *schedulerTxn) error {
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

// restoreTimersAndReconcileJobs sets the timers of all stored objects and reconciles all jobs, after a start or a clock step.
// It recovers jobs with allocations but no record, and plans jobs with missing allocations.
func (t *schedulerTxn) restoreTimersAndReconcileJobs() {
	t.plansIncompleteJobs = true
	for _, e := range t.tx.Evaluations(nil, "") {
		t.trackPendingAndBlockedEval(e)
	}
	for _, job := range t.tx.Jobs(nil, store.AnyNamespace, "") {
		t.reconcileJobAtTxnEnd(JobKeyOf(job))
		childJobLauncher{t}.setLaunchTimer(job)
	}
	for _, a := range t.tx.Allocations(nil, "") {
		if key := (JobKey{a.Namespace, a.JobID}); t.tx.Job(nil, key.Namespace, key.ID) == nil {
			jobVersions{t}.recoverLostJob(key)
			t.reconcileJobAtTxnEnd(key)
		}
	}
	nodeDrain{t}.setDrainTimer(t.tx.Node(nil, t.scheduler.nodeID))
	t.mayUnblockEvals = true
}

// runDueAndBlockedEvals processes pending evaluations when they are due, and blocked evaluations when resources may
// have become free, until ctx ends.
func (s *Scheduler) runDueAndBlockedEvals(ctx context.Context) {
	for s.evalTimers.waitUntilDueOrSignal(ctx, s.hostEnv.Now, s.retryBlockedEvalsRequested) {
		s.updateWithRetry(ctx, "evaluations", (*preparedEnv).expectDueReplacements, func(c *schedulerTxn) {
			for _, id := range s.evalTimers.dueKeys(c.now) {
				c.processDueEval(id)
			}
			c.retryBlockedEvals()
		})
	}
}

// runTimerLoop calls onDue for a timer queue's due keys, until ctx ends.
func runTimerLoop[K comparable](ctx context.Context, s *Scheduler, timers *timerQueue[K], changeName string, onDue func(*schedulerTxn, K)) {
	for timers.waitUntilDueOrSignal(ctx, s.hostEnv.Now, nil) {
		s.updateWithRetry(ctx, changeName, nil, func(c *schedulerTxn) {
			for _, key := range timers.dueKeys(c.now) {
				onDue(c, key)
			}
		})
	}
}
