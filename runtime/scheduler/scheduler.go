package scheduler

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
)

// Config is what a Scheduler is made of.
type Config struct {
	Store  Store
	Host   Env
	GC     GCConfig
	Logger hclog.Logger
}

// Scheduler decides what runs on the node, and when.
//
// All changes of jobs, evaluations, allocations and deployments go through its
// methods. Each is one change of the store: what follows from it (allocations,
// the status of the job, the progress of a deployment) is in the same one. What
// follows from the passing of time is done by Run. The methods may be called
// concurrently, and before Run.
type Scheduler struct {
	store  Store
	host   Env
	gc     GCConfig
	logger hclog.Logger

	delayed   *timerQueue[string] // evaluations
	deadlines *timerQueue[string] // deployments
	launches  *timerQueue[JobKey] // periodic jobs
	drains    *timerQueue[string] // of the node
	retry     chan struct{}       // holds a tick when blocked evaluations are worth a try
	clock     *wallClock
	clockTick chan struct{} // holds a tick when the clock may have been stepped

	mu sync.Mutex
	// room is that of the state with roomIndex and node; nil while a change has it.
	room      *NodeUsage
	roomIndex uint64
	node      *api.Node
	facts     Node
	blocked   map[string]bool // evaluations
}

// New returns a scheduler that has not looked at the store yet.
func New(c Config) *Scheduler {
	return &Scheduler{
		store:     c.Store,
		host:      c.Host,
		gc:        c.GC.orDefault(),
		logger:    c.Logger.Named("scheduler"),
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

// NodeChanged says that the node in the store is another one now. It does not
// wait.
func (s *Scheduler) NodeChanged() { tick(s.retry) }

// Run brings everything up to date with the store, and then does what is due
// until ctx ends. It is called once.
func (s *Scheduler) Run(ctx context.Context) {
	s.updateWithRetry(ctx, "catch up", (*change).restore)
	var loops sync.WaitGroup
	loops.Go(func() { s.runEvaluations(ctx) })
	loops.Go(func() { follow(ctx, s, s.deadlines, "deployment", (*change).deadlineDue) })
	loops.Go(func() { follow(ctx, s, s.launches, "periodic launch", (*change).launchDue) })
	loops.Go(func() { follow(ctx, s, s.drains, "drain", (*change).drainDue) })
	loops.Go(func() { s.runCollection(ctx) })
	loops.Go(func() { s.runClock(ctx) })
	loops.Wait()
}

// pause between two tries of a change that the store has refused.
const pause = time.Second

// updateWithRetry makes a change of its own accord, again and again until the store takes
// it. What cannot be written now is still to be done.
func (s *Scheduler) updateWithRetry(ctx context.Context, what string, edit func(*change)) {
	for ctx.Err() == nil {
		_, err := s.update(ctx, func(c *change) error {
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

// restore makes good for the time when nobody looked.
func (c *change) restore() {
	for e := range c.Evals() {
		c.note(e)
	}
	for job := range c.Jobs() {
		c.markDirty(KeyOf(job))
		c.noteLaunch(job)
	}
	for a := range c.Allocs() {
		if key := (JobKey{a.Namespace, a.JobID}); c.Job(key) == nil {
			c.recoverJob(key)
			c.markDirty(key)
		}
	}
	c.noteDrain(c.Node())
	c.freed = true
}

// recoverJob makes good for a job whose record did not read. One that was purged
// has no versions either; without its versions a job that is gone for another
// reason cannot be told from it, and what runs of it is left alone until somebody
// says more.
func (c *change) recoverJob(key JobKey) {
	if versions := c.JobVersions(key); len(versions) > 0 {
		c.s.logger.Warn("job recovered from its versions", "job_id", key.ID, "version", *versions[0].Version)
		copied := *versions[0]
		c.PutJob(&copied)
		c.noteLaunch(&copied)
	}
}

// runEvaluations processes evaluations whose time has come, and tries the blocked
// ones when there may be room for them.
func (s *Scheduler) runEvaluations(ctx context.Context) {
	for s.delayed.wait(ctx, s.host.Now, s.retry) {
		s.updateWithRetry(ctx, "evaluations", func(c *change) {
			for _, id := range s.delayed.due(c.now) {
				c.evaluateDue(id)
			}
			c.retryBlocked()
		})
	}
}

// follow does what an agenda says when it says so, until ctx ends.
func follow[K comparable](ctx context.Context, s *Scheduler, a *timerQueue[K], what string, do func(*change, K)) {
	for a.wait(ctx, s.host.Now, nil) {
		s.updateWithRetry(ctx, what, func(c *change) {
			for _, key := range a.due(c.now) {
				do(c, key)
			}
		})
	}
}
