package restart

import (
	"fmt"
	"math"
	"time"

	"github.com/nomad-lite/nomad-lite/runtime/lifecycle"
)

// Mode says what happens when the attempts of an interval are used up.
type Mode string

// The modes. Anything else counts as Fail.
const (
	Fail  Mode = "fail"
	Delay Mode = "delay"
)

// Policy is the restart block of a task.
type Policy struct {
	Attempts int
	Interval time.Duration
	Delay    time.Duration
	Mode     Mode
	// OnSuccess restarts the task after a clean exit too; see [OnSuccess].
	OnSuccess bool
}

// OnSuccess tells for which tasks a clean exit is no reason to stay down:
// sidecars, and the main tasks of the job types that never finish.
func OnSuccess(jobType string, stage lifecycle.Stage) bool {
	if stage.Sidecar() {
		return true
	}
	return stage == lifecycle.MainTask && (jobType == "service" || jobType == "system")
}

// Outcome is how a start of a task ended. The zero value is a failure that
// another start may heal: a bad exit, an exit of which nothing is known, or a
// recoverable start error.
type Outcome struct {
	Killed        bool // the task was killed, and shall stay down
	Requested     bool // a user, a template or an identity asked for a restart
	Unhealthy     bool // a check asked for a restart; it counts as a failure, whatever the exit code
	Unrecoverable bool // the task did not start, and another try is of no use
	Success       bool // exit code 0, no signal, no error
}

// Action is what becomes of a task that has ended.
type Action uint8

// The actions.
const (
	Finish  Action = iota // it is done; no event
	Kill                  // it was killed: event Killed
	GiveUp                // event Not Restarting, which fails the task
	Restart               // event Restarting, and again after the delay
)

func (a Action) String() string {
	return [...]string{"finish", "kill", "give up", "restart"}[a]
}

// Decision is the answer of a Tracker.
type Decision struct {
	Action Action
	Reason string        // for the event; empty for a requested restart
	Delay  time.Duration // with Restart
}

// The reasons. Users and clients match on these texts.
const (
	ReasonNoRestarts    = "Policy allows no restarts"
	ReasonUnrecoverable = "Error was unrecoverable"
	ReasonWithinPolicy  = "Restart within policy"
	ReasonDelay         = "Exceeded allowed attempts, applying a delay"
)

// State is what a Tracker remembers, for the store.
type State struct {
	Count       int       // ends that counted in this window
	WindowStart time.Time // begin of the window
	NextStart   time.Time // when the last delay ends; zero if there was none
	// Delay is the last delay. It is zero in a record of an earlier version.
	Delay time.Duration `json:",omitempty"`
}

// Tracker applies a policy to the ends of one task. It is not safe for
// concurrent use.
type Tracker struct {
	policy Policy
	jitter func(n int64) int64
	state  State
}

// New returns a tracker whose first window begins now. jitter returns a random
// number in [0,n), n > 0, as [math/rand/v2.Int64N] does; it must not be seeded
// from the time, or tasks that fail together come back together.
func New(p Policy, now time.Time, jitter func(n int64) int64) *Tracker {
	return &Tracker{policy: p, jitter: jitter, state: State{WindowStart: now}}
}

// State returns what Resume needs.
func (t *Tracker) State() State { return t.state }

// Resume goes on where a tracker of an earlier agent was.
func (t *Tracker) Resume(s State) { t.state = s }

// SetPolicy replaces the policy from the next decision on. What was counted
// stays counted.
func (t *Tracker) SetPolicy(p Policy) { t.policy = p }

// Started tells that the task has started again: nothing remains of its delay.
func (t *Tracker) Started() { t.state.NextStart, t.state.Delay = time.Time{}, 0 }

// Remaining returns how long the task has still to wait for its next start: the
// rest of the last delay. It never exceeds that delay, however the clock was set
// meanwhile.
func (t *Tracker) Remaining(now time.Time) time.Duration {
	if t.state.NextStart.IsZero() {
		return 0
	}
	longest := t.state.Delay
	if longest == 0 {
		longest = max(saturate(t.policy.Delay, t.policy.Delay/4), t.policy.Interval)
	}
	return min(max(t.state.NextStart.Sub(now), 0), longest)
}

// Next decides what becomes of the task that has just ended. With Restart, the
// state says when the delay ends.
func (t *Tracker) Next(now time.Time, o Outcome) Decision {
	t.state.NextStart, t.state.Delay = time.Time{}, 0
	d := t.decide(now, o)
	if d.Action == Restart {
		t.state.NextStart, t.state.Delay = now.Add(d.Delay), d.Delay
	}
	return d
}

func (t *Tracker) decide(now time.Time, o Outcome) Decision {
	if o.Killed {
		return Decision{Action: Kill}
	}
	if o.Requested {
		return Decision{Action: Restart}
	}

	finished := o.Success && !o.Unhealthy && !t.policy.OnSuccess
	if t.policy.Attempts <= 0 {
		if finished {
			return Decision{Action: Finish}
		}
		return Decision{Action: GiveUp, Reason: ReasonNoRestarts}
	}

	t.count(now)
	switch {
	case o.Unrecoverable:
		return Decision{Action: GiveUp, Reason: ReasonUnrecoverable}
	case finished:
		return Decision{Action: Finish}
	case t.state.Count <= t.policy.Attempts:
		return Decision{Action: Restart, Reason: ReasonWithinPolicy, Delay: t.delay()}
	case t.policy.Mode == Delay:
		return Decision{Action: Restart, Reason: ReasonDelay, Delay: t.restOfWindow(now)}
	}
	return Decision{Action: GiveUp, Reason: fmt.Sprintf(
		"Exceeded allowed attempts %d in interval %v and mode is %q", t.policy.Attempts, t.policy.Interval, Fail)}
}

// count counts one end, in a new window if the old one is over.
func (t *Tracker) count(now time.Time) {
	switch age := now.Sub(t.state.WindowStart); {
	case age > t.policy.Interval:
		t.state.Count = 0
		t.state.WindowStart = now
	case age < 0: // the clock was set back: without this the window would last until it has caught up
		t.state.WindowStart = now
	}
	t.state.Count++
}

// delay adds up to a quarter, so that tasks that failed together do not come
// back together.
func (t *Tracker) delay() time.Duration {
	d := t.policy.Delay
	if d <= 0 {
		return 0
	}
	return saturate(d, time.Duration(t.jitter(int64(d))/4))
}

// restOfWindow is at least 1 ns: a task that ends at the very end of a window
// starts again in the next one.
func (t *Tracker) restOfWindow(now time.Time) time.Duration {
	return max(t.policy.Interval-now.Sub(t.state.WindowStart), 1)
}

// saturate adds durations that are not negative.
func saturate(a, b time.Duration) time.Duration {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
