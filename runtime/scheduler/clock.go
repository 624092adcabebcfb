package scheduler

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// clockStepTolerance is the smallest wall clock change against the monotonic clock that counts as a step. With a smaller
// tolerance, a correction under one second could repeat a periodic launch.
const clockStepTolerance = time.Second

// wallClockStepDetector detects wall clock steps. Machine suspend counts as a step too, because the monotonic clock stops
// during it.
type wallClockStepDetector struct {
	mu                     sync.Mutex
	offsetAtLastAdjustment time.Duration // wall clock minus monotonic clock, when the stored times were adjusted last
	hasAdjustedStoredTimes bool          // this scheduler has adjusted the stored times at least once
}

// clockReading is the current time, and the wall clock step since the stored times were last adjusted.
type clockReading struct {
	now                       time.Time
	offsetFromMonotonic       time.Duration // wall clock minus monotonic clock
	stepSinceAdjustment       time.Duration // step since the stored times were adjusted last; zero if it is below clockStepTolerance
	storedTimesNeedAdjustment bool          // the next transaction must adjust the stored times
}

func newWallClock(env Env) *wallClockStepDetector {
	w := new(wallClockStepDetector)
	if env.MonotonicUptime != nil {
		w.offsetAtLastAdjustment = env.offsetFromMonotonicClock(env.Now())
	}
	return w
}

// offsetFromMonotonicClock returns the wall clock minus the monotonic clock, or 0 without a monotonic clock.
func (e Env) offsetFromMonotonicClock(now time.Time) time.Duration {
	if e.MonotonicUptime == nil {
		return 0
	}
	return time.Duration(now.UnixNano()) - e.MonotonicUptime()
}

func (w *wallClockStepDetector) readAndDetectStep(env Env) clockReading {
	now := env.Now().Round(0) // Round removes the monotonic part, which stored times lack
	r := clockReading{now: now, offsetFromMonotonic: env.offsetFromMonotonicClock(now)}
	w.mu.Lock()
	defer w.mu.Unlock()
	if step := r.offsetFromMonotonic - w.offsetAtLastAdjustment; step.Abs() >= clockStepTolerance {
		r.stepSinceAdjustment = step
	}
	r.storedTimesNeedAdjustment = !w.hasAdjustedStoredTimes || r.stepSinceAdjustment != 0
	return r
}

// recordAdjustment records that a transaction adjusts the stored times to the clock, so that the next transaction does not. If
// the transaction fails, the caller calls undo; only its first call has an effect.
func (w *wallClockStepDetector) recordAdjustment(r clockReading) (undo func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	offset, adjusted := w.offsetAtLastAdjustment, w.hasAdjustedStoredTimes
	w.hasAdjustedStoredTimes = true
	if r.stepSinceAdjustment != 0 {
		w.offsetAtLastAdjustment = r.offsetFromMonotonic
	}
	return sync.OnceFunc(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.offsetAtLastAdjustment, w.hasAdjustedStoredTimes = offset, adjusted
	})
}

// RequestClockCheck makes Run check whether the wall clock has made a step. It does not block.
func (s *Scheduler) RequestClockCheck() { wait.Notify(s.clockCheckRequested) }

// runClockChecks adjusts the stored times after wall clock steps, until ctx ends. Every other transaction does so when it
// starts.
func (s *Scheduler) runClockChecks(ctx context.Context) {
	for {
		select {
		case <-s.clockCheckRequested:
		case <-time.After(maxTimerWait):
		case <-ctx.Done():
			return
		}
		if s.wallClock.readAndDetectStep(s.hostEnv).storedTimesNeedAdjustment {
			s.updateWithRetry(ctx, "clock step", nil, func(*schedulerTxn) {})
		}
	}
}

// clockAdjustment is a schedulerTxn that adjusts the stored times to the wall clock.
type clockAdjustment struct{ *schedulerTxn }

// adjustStoredTimes adjusts the stored times to the wall clock: in a scheduler's first transaction, and after each clock step.
func (c clockAdjustment) adjustStoredTimes(r clockReading) {
	if r.stepSinceAdjustment != 0 {
		c.scheduler.logger.Info("clock stepped", "step", r.stepSinceAdjustment)
		c.moveDeadlines(r.stepSinceAdjustment)
	}
	c.replaceFutureTimes()
	if r.stepSinceAdjustment != 0 {
		c.restoreTimersAndReconcileJobs()
	}
	// The adjustment is recorded before the commit: the next transaction can start earlier, and must not adjust again.
	c.undoClockAdjustment = c.scheduler.wallClock.recordAdjustment(r)
	c.tx.OnCommit(func() {
		// The timer queues compute their delays again: after a step, the time until a deadline is another duration.
		wait.Notify(c.scheduler.evalTimers.timesChanged)
		wait.Notify(c.scheduler.progressDeadlineTimers.timesChanged)
		wait.Notify(c.scheduler.periodicLaunchTimers.timesChanged)
		wait.Notify(c.scheduler.drainTimer.timesChanged)
	})
}

// moveDeadlines adds the clock step to deadlines computed from durations, so that the remaining durations stay the same.
func (c clockAdjustment) moveDeadlines(step time.Duration) {
	for _, e := range c.tx.Evaluations(nil, "") {
		if e.Status == api.EvalStatusPending && !e.WaitUntil.IsZero() {
			moved := *e
			moved.WaitUntil = e.WaitUntil.Add(step)
			moved.CreateTime = c.creationTimeAfterStep(e.CreateTime, step)
			c.tx.PutEvaluation(&moved)
		}
	}
	for _, d := range c.tx.Deployments(nil, "") {
		if model.DeploymentActive(d) {
			c.updateProgressDeadlines(d, func(s *api.DeploymentState) time.Time { return s.RequireProgressBy.Add(step) })
		}
	}
	if n := c.tx.Node(nil, c.scheduler.nodeID); n != nil && n.DrainStrategy != nil && !n.DrainStrategy.ForceDeadline.IsZero() {
		moved, strategy := *n, *n.DrainStrategy
		strategy.ForceDeadline = strategy.ForceDeadline.Add(step)
		moved.DrainStrategy = &strategy
		nodeDrain(c).putNodeAndSetDrainTimer(&moved)
	}
}

// creationTimeAfterStep returns the creation time of a record when a clock step moves its deadline. A time that is in the
// future only because of the step becomes the current time. If it was in the future before the step, as after a step between
// two agents, it keeps its distance from the deadline, from which replaceFutureTimes computes the new deadline.
func (c clockAdjustment) creationTimeAfterStep(created int64, step time.Duration) int64 {
	if moved := created + int64(step); c.isFutureTime(time.Unix(0, moved)) {
		return moved
	}
	return min(created, c.now.UnixNano())
}

// isFutureTime reports whether a stored time is in the future. Such a time was stored while the clock was ahead.
func (c clockAdjustment) isFutureTime(at time.Time) bool { return at.Sub(c.now) > clockStepTolerance }

// replaceFutureTimes replaces times stored while the clock was ahead: past events get the current time, and deadlines at most
// the current time plus their duration. Otherwise actions that depend on these times would be blocked until the clock reaches
// the times again.
func (c clockAdjustment) replaceFutureTimes() {
	for _, job := range c.tx.Jobs(nil, store.AnyNamespace, "") {
		if key := JobKeyOf(job); c.isFutureTime(lastPeriodicLaunchTime(c.tx.Reader, key)) {
			childJobLauncher(c).recordLaunchNow(key)
		}
	}
	for _, job := range c.tx.Jobs(nil, store.AnyNamespace, "") {
		if c.isFutureTime(time.Unix(0, pointer.Value(job.SubmitTime))) {
			copied := *job
			copied.SubmitTime = new(c.now.UnixNano())
			c.tx.PutJobAndVersion(&copied)
		}
	}
	for _, e := range c.tx.Evaluations(nil, "") {
		c.replaceFutureTimesOfEval(e)
	}
	for _, a := range c.tx.Allocations(nil, "") {
		c.replaceFutureTimesOfAlloc(a)
	}
	for _, d := range c.tx.Deployments(nil, "") {
		if c.isFutureTime(time.Unix(0, d.ModifyTime)) {
			copied := *d
			copied.ModifyTime = c.now.UnixNano()
			c.tx.PutDeployment(&copied)
			d = &copied
		}
		if model.DeploymentActive(d) {
			c.updateProgressDeadlines(d, func(s *api.DeploymentState) time.Time {
				if latest := c.now.Add(s.ProgressDeadline); s.RequireProgressBy.After(latest) {
					return latest
				}
				return s.RequireProgressBy
			})
		}
	}
	c.replaceFutureTimesOfDrain()
}

func (c clockAdjustment) replaceFutureTimesOfEval(e *api.Evaluation) {
	created, modified := time.Unix(0, e.CreateTime), time.Unix(0, e.ModifyTime)
	if !c.isFutureTime(created) && !c.isFutureTime(modified) {
		return
	}
	copied := *e
	if c.isFutureTime(created) {
		if !e.WaitUntil.IsZero() {
			copied.WaitUntil = e.WaitUntil.Add(c.now.Sub(created))
		}
		copied.CreateTime = c.now.UnixNano()
	}
	copied.ModifyTime = c.now.UnixNano()
	c.tx.PutEvaluation(&copied)
}

func (c clockAdjustment) replaceFutureTimesOfAlloc(a *api.Allocation) {
	now := c.now.UnixNano()
	copied, changed := *a, false
	for _, at := range []*int64{&copied.CreateTime, &copied.ModifyTime} {
		if c.isFutureTime(time.Unix(0, *at)) {
			*at, changed = now, true
		}
	}
	if s := a.DeploymentStatus; s != nil && c.isFutureTime(s.Timestamp) {
		status := *s
		status.Timestamp = c.now
		copied.DeploymentStatus, changed = &status, true
	}
	if t := a.RescheduleTracker; t != nil && slices.ContainsFunc(t.Events, c.isFutureRescheduleEvent) {
		tracker := *t
		tracker.Events = slices.Clone(t.Events)
		for i, event := range tracker.Events {
			if c.isFutureRescheduleEvent(event) {
				moved := *event
				moved.RescheduleTime = now
				tracker.Events[i] = &moved
			}
		}
		copied.RescheduleTracker, changed = &tracker, true
	}
	if !changed {
		return
	}
	c.wroteAllocs = true
	c.tx.PutReportedAllocation(&copied)
	if !c.tx.AllocationEnded(a.ID) {
		c.nodeUsage.PutAlloc(&copied)
	}
}

func (c clockAdjustment) isFutureRescheduleEvent(e *api.RescheduleEvent) bool {
	return c.isFutureTime(time.Unix(0, e.RescheduleTime))
}

func (c clockAdjustment) replaceFutureTimesOfDrain() {
	n := c.tx.Node(nil, c.scheduler.nodeID)
	if n == nil || n.DrainStrategy == nil {
		return
	}
	moved, strategy := *n, *n.DrainStrategy
	if c.isFutureTime(strategy.StartedAt) {
		strategy.StartedAt = c.now
	}
	if latest := c.now.Add(strategy.Deadline); strategy.Deadline > 0 && strategy.ForceDeadline.After(latest) {
		strategy.ForceDeadline = latest
	}
	if strategy != *n.DrainStrategy {
		moved.DrainStrategy = &strategy
		nodeDrain(c).putNodeAndSetDrainTimer(&moved)
	}
}

// updateProgressDeadlines sets each group's progress deadline to newDeadline's result, and stores the deployment if a deadline
// differs. Groups without a progress deadline are left out.
func (c clockAdjustment) updateProgressDeadlines(d *api.Deployment, newDeadline func(*api.DeploymentState) time.Time) {
	copied, changed := copyDeployment(d), false
	for _, state := range copied.TaskGroups {
		if state.RequireProgressBy.IsZero() {
			continue
		}
		if at := newDeadline(state); !at.Equal(state.RequireProgressBy) {
			state.RequireProgressBy, changed = at, true
		}
	}
	if changed {
		c.tx.PutDeployment(copied)
	}
}
