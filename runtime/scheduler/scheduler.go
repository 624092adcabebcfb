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
	Host   Env
	GC     GCConfig
	Logger hclog.Logger
	// OnDesired is called after each change of the allocations that the node must
	// run. Nil means that it is not called.
	OnDesired func()
}

// Scheduler decides what runs on the node, and when.
//
// All changes of jobs, evaluations, allocations and deployments go through its
// methods. Each method call is one change of the store, which includes its
// consequences: allocations, the status of the job, the progress of a deployment.
// Run makes the changes that depend on time. The methods may be called
// concurrently, and before Run.
type Scheduler struct {
	store     Store
	nodeID    string
	host      Env
	gc        GCConfig
	logger    hclog.Logger
	onDesired func()

	delayed   *timerQueue[string] // pending evaluations
	deadlines *timerQueue[string] // deadlines of deployments
	launches  *timerQueue[JobKey] // launches of periodic jobs
	drains    *timerQueue[string] // the drain of the node
	retry     chan struct{}       // holds a tick when blocked evaluations must be retried
	clock     *wallClock
	clockTick chan struct{} // holds a tick when the clock may have been stepped
	ids       idPool        // ids for changes

	mu sync.Mutex
	// room is the usage of the state with roomIndex and node; nil while a change
	// uses it.
	room      *NodeUsage
	roomIndex uint64
	node      *api.Node
	facts     Node
	blocked   map[string]bool // ids of blocked evaluations
}

// New returns a scheduler. It does not read the store.
func New(c Config) *Scheduler {
	return &Scheduler{
		store:     c.Store,
		nodeID:    c.NodeID,
		host:      c.Host,
		gc:        c.GC.orDefault(),
		logger:    c.Logger.Named("scheduler"),
		onDesired: c.OnDesired,
		delayed:   newTimerQueue[string](),
		deadlines: newTimerQueue[string](),
		launches:  newTimerQueue[JobKey](),
		drains:    newTimerQueue[string](),
		retry:     make(chan struct{}, 1),
		clock:     newWallClock(c.Host),
		clockTick: make(chan struct{}, 1),
		blocked:   make(map[string]bool),
	}
}

// NodeChanged must be called when the stored node has changed. It does not block.
func (s *Scheduler) NodeChanged() { tick(s.retry) }

// Run restores the timers from the store and then makes the changes that are due,
// until ctx ends. It must be called once.
func (s *Scheduler) Run(ctx context.Context) {
	s.updateWithRetry(ctx, "catch up", nil, (*change).restore)
	var loops sync.WaitGroup
	loops.Go(func() { s.runEvaluations(ctx) })
	loops.Go(func() {
		follow(ctx, s, s.deadlines, "deployment", func(c *change, id string) { rollout{c}.deadlineDue(id) })
	})
	loops.Go(func() {
		follow(ctx, s, s.launches, "periodic launch", func(c *change, key JobKey) { childJobs{c}.due(key) })
	})
	loops.Go(func() { follow(ctx, s, s.drains, "drain", func(c *change, _ string) { nodeDrain{c}.due() }) })
	loops.Go(func() { s.runCollection(ctx) })
	loops.Go(func() { s.runClock(ctx) })
	loops.Wait()
}

// pause is the time between two attempts of a change that the store refused.
const pause = time.Second

// updateWithRetry makes a change of the scheduler itself. It retries until the
// store accepts the change or ctx ends. announce announces the placements of the
// change to its supply; nil means that none are expected.
func (s *Scheduler) updateWithRetry(ctx context.Context, what string, announce func(*supply), edit func(*change)) {
	for ctx.Err() == nil {
		supply := s.newSupply()
		if announce != nil {
			announce(supply)
		}
		_, err := s.updateWith(ctx, supply, func(c *change) error {
			edit(c)
			return nil
		})
		if err == nil || ctx.Err() != nil {
			return
		}
		s.logger.Error("change not stored", "change", what, "error", err)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// restore sets all timers and reconciles all jobs, after a start or a clock step.
func (c *change) restore() {
	for _, e := range c.tx.Evaluations(nil, "") {
		c.note(e)
	}
	for _, job := range c.tx.Jobs(nil, store.AnyNamespace, "") {
		c.markDirty(KeyOf(job))
		childJobs{c}.setTimer(job)
	}
	for _, a := range c.tx.Allocations(nil, "") {
		if key := (JobKey{a.Namespace, a.JobID}); c.tx.Job(nil, key.Namespace, key.ID) == nil {
			jobVersions{c}.recover(key)
			c.markDirty(key)
		}
	}
	nodeDrain{c}.setTimer(c.tx.Node(nil, c.s.nodeID))
	c.freed = true
}

// runEvaluations processes pending evaluations that are due, and retries blocked
// ones when they may fit.
func (s *Scheduler) runEvaluations(ctx context.Context) {
	for s.delayed.wait(ctx, s.host.Now, s.retry) {
		s.updateWithRetry(ctx, "evaluations", (*supply).expectDue, func(c *change) {
			for _, id := range s.delayed.due(c.now) {
				c.evaluateDue(id)
			}
			c.retryBlocked()
		})
	}
}

// follow calls do for the keys of a timer queue that are due, until ctx ends.
func follow[K comparable](ctx context.Context, s *Scheduler, a *timerQueue[K], what string, do func(*change, K)) {
	for a.wait(ctx, s.host.Now, nil) {
		s.updateWithRetry(ctx, what, nil, func(c *change) {
			for _, key := range a.due(c.now) {
				do(c, key)
			}
		})
	}
}
