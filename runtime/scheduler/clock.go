package scheduler

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// clockStepTolerance is the difference between wall clock and monotonic clock from which the wall clock has made a step.
// Because of it, a correction of less than a second does not repeat the launch of a periodic job.
const clockStepTolerance = time.Second

// wallClock detects steps of the wall clock. A suspend of the machine is a step
// too, because the monotonic clock stands still during it.
type wallClock struct {
	mu            sync.Mutex
	offset        time.Duration // difference between wall clock and monotonic clock at the last adjustment of the state
	stateAdjusted bool          // the state was adjusted since this scheduler was created
}

// clockReading is the current time, and how the wall clock differs from its last reading.
type clockReading struct {
	now             time.Time
	offset          time.Duration
	step            time.Duration // step since the last adjustment of the state, or zero
	needsAdjustment bool          // stored times must be adjusted to the clock
}

func newWallClock(h Env) *wallClock {
	w := new(wallClock)
	if h.Uptime != nil {
		w.offset = h.clockOffset(h.Now())
	}
	return w
}

// clockOffset returns the wall clock minus the monotonic clock.
func (h Env) clockOffset(now time.Time) time.Duration {
	if h.Uptime == nil {
		return 0
	}
	return time.Duration(now.UnixNano()) - h.Uptime()
}

func (w *wallClock) read(h Env) clockReading {
	now := h.Now().Round(0) // Round removes the monotonic part, which stored times lack
	r := clockReading{now: now, offset: h.clockOffset(now)}
	w.mu.Lock()
	defer w.mu.Unlock()
	if step := r.offset - w.offset; step.Abs() >= clockStepTolerance {
		r.step = step
	}
	r.needsAdjustment = !w.stateAdjusted || r.step != 0
	return r
}

// recordAdjustment records that a change adjusts the stored times to the clock. The caller calls undo if the change is
// not stored; only its first call has an effect.
func (w *wallClock) recordAdjustment(r clockReading) (undo func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	offset, adjusted := w.offset, w.stateAdjusted
	w.stateAdjusted = true
	if r.step != 0 {
		w.offset = r.offset
	}
	return sync.OnceFunc(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.offset, w.stateAdjusted = offset, adjusted
	})
}

// ClockStepped makes Run check the clock. It does not block.
func (s *Scheduler) ClockStepped() { notify(s.clockCheckRequested) }

// runClockChecks adjusts the state after steps of the clock, until ctx ends. Any other
// change of the state makes the same adjustment first.
func (s *Scheduler) runClockChecks(ctx context.Context) {
	for {
		select {
		case <-s.clockCheckRequested:
		case <-time.After(maxTimerWait):
		case <-ctx.Done():
			return
		}
		if s.wallClock.read(s.env).needsAdjustment {
			s.updateWithRetry(ctx, "clock step", nil, func(*txn) {})
		}
	}
}

// clockAdjustment adjusts stored times to the clock.
type clockAdjustment struct{ *txn }

// adjustState adjusts stored times to the clock: the times that an earlier scheduler stored, and all times after a step
// of the clock.
func (c clockAdjustment) adjustState(r clockReading) {
	if r.step != 0 {
		c.s.logger.Info("clock stepped", "step", r.step)
		c.moveDeadlines(r.step)
	}
	c.clearFutureTimes()
	if r.step != 0 {
		c.restoreTimers()
	}
	// The step is recorded before the commit: the next change can begin earlier, and must not adjust the times again.
	c.undoClockAdjustment = c.s.wallClock.recordAdjustment(r)
	c.tx.OnCommit(func() {
		// The timers must be recomputed: after a step, the same times are reached after other durations.
		notify(c.s.evalTimers.changed)
		notify(c.s.deploymentTimers.changed)
		notify(c.s.launchTimers.changed)
		notify(c.s.drainTimer.changed)
	})
}

// moveDeadlines moves deadlines that were set as durations by the step of the clock, so that the remaining durations
// stay the same.
func (c clockAdjustment) moveDeadlines(step time.Duration) {
	for _, e := range c.tx.Evaluations(nil, "") {
		if e.Status == api.EvalStatusPending && !e.WaitUntil.IsZero() {
			moved := *e
			moved.WaitUntil = e.WaitUntil.Add(step)
			moved.CreateTime = min(e.CreateTime, c.now.UnixNano())
			c.tx.PutEvaluation(&moved)
		}
	}
	for _, d := range c.tx.Deployments(nil, "") {
		if model.DeploymentActive(d) {
			c.setProgressDeadlines(d, func(s *api.DeploymentState) time.Time { return s.RequireProgressBy.Add(step) })
		}
	}
	if n := c.tx.Node(nil, c.s.nodeID); n != nil && n.DrainStrategy != nil && !n.DrainStrategy.ForceDeadline.IsZero() {
		moved, strategy := *n, *n.DrainStrategy
		strategy.ForceDeadline = strategy.ForceDeadline.Add(step)
		moved.DrainStrategy = &strategy
		nodeDrain(c).putNode(&moved)
	}
}

// isFutureTime reports whether a stored time is in the future, so that it comes from a clock that was ahead.
func (c clockAdjustment) isFutureTime(at time.Time) bool { return at.Sub(c.now) > clockStepTolerance }

// clearFutureTimes replaces stored times of a clock that was ahead: event times in the future become the current time,
// and deadlines that are too far in the future become the current time plus their duration. Otherwise actions that
// depend on these times would be blocked until the clock reaches the times again.
func (c clockAdjustment) clearFutureTimes() {
	for _, job := range c.tx.Jobs(nil, store.AnyNamespace, "") {
		if key := KeyOf(job); c.isFutureTime(lastLaunch(c.tx.Reader, key)) {
			childJobLauncher(c).putLaunchTime(key)
		}
	}
	for _, job := range c.tx.Jobs(nil, store.AnyNamespace, "") {
		if c.isFutureTime(time.Unix(0, pointer.Value(job.SubmitTime))) {
			copied := *job
			copied.SubmitTime = new(c.now.UnixNano())
			c.tx.PutJob(&copied)
		}
	}
	for _, e := range c.tx.Evaluations(nil, "") {
		c.clearFutureTimesOfEval(e)
	}
	for _, a := range c.tx.Allocations(nil, "") {
		c.clearFutureTimesOfAlloc(a)
	}
	for _, d := range c.tx.Deployments(nil, "") {
		if c.isFutureTime(time.Unix(0, d.ModifyTime)) {
			copied := *d
			copied.ModifyTime = c.now.UnixNano()
			c.tx.PutDeployment(&copied)
			d = &copied
		}
		if model.DeploymentActive(d) {
			c.setProgressDeadlines(d, func(s *api.DeploymentState) time.Time {
				if latest := c.now.Add(s.ProgressDeadline); s.RequireProgressBy.After(latest) {
					return latest
				}
				return s.RequireProgressBy
			})
		}
	}
	c.clearFutureTimesOfDrain()
}

func (c clockAdjustment) clearFutureTimesOfEval(e *api.Evaluation) {
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

func (c clockAdjustment) clearFutureTimesOfAlloc(a *api.Allocation) {
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
	if t := a.RescheduleTracker; t != nil && slices.ContainsFunc(t.Events, c.isFutureEvent) {
		tracker := *t
		tracker.Events = slices.Clone(t.Events)
		for i, event := range tracker.Events {
			if c.isFutureEvent(event) {
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
		c.nodeUsage.Put(&copied)
	}
}

func (c clockAdjustment) isFutureEvent(e *api.RescheduleEvent) bool {
	return c.isFutureTime(time.Unix(0, e.RescheduleTime))
}

func (c clockAdjustment) clearFutureTimesOfDrain() {
	n := c.tx.Node(nil, c.s.nodeID)
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
		nodeDrain(c).putNode(&moved)
	}
}

// setProgressDeadlines stores a copy of a deployment with new progress deadlines if they differ.
func (c clockAdjustment) setProgressDeadlines(d *api.Deployment, deadline func(*api.DeploymentState) time.Time) {
	copied, changed := copyDeployment(d), false
	for _, state := range copied.TaskGroups {
		if state.RequireProgressBy.IsZero() {
			continue
		}
		if at := deadline(state); !at.Equal(state.RequireProgressBy) {
			state.RequireProgressBy, changed = at, true
		}
	}
	if changed {
		c.tx.PutDeployment(copied)
	}
}
