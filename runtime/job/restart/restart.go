package restart

import (
	"fmt"
	"math"
	"time"

	"github.com/nomad-lite/nomad-lite/runtime/job/lifecycle"
)

// Mode selects the behaviour when the attempts of an interval are used up.
type Mode string

// The modes. Any other value counts as ModeFail.
const (
	ModeFail  Mode = "fail"
	ModeDelay Mode = "delay"
)

// Policy is the restart block of a task.
type Policy struct {
	Attempts int
	Interval time.Duration
	Delay    time.Duration
	Mode     Mode
	// RestartsOnSuccess restarts the task after a clean exit too; see [RestartsOnSuccess].
	RestartsOnSuccess bool
}

// RestartsOnSuccess reports whether a task restarts after a clean exit: sidecars do, and the
// main tasks of the job types that never finish.
func RestartsOnSuccess(jobType string, stage lifecycle.Stage) bool {
	if stage.Sidecar() {
		return true
	}
	return stage == lifecycle.MainTask && (jobType == "service" || jobType == "system")
}

// RunOutcome is how a run of a task has ended. The zero value is a failure after which a restart can
// help: a non-zero exit code, an unknown exit status, or a start error that can be retried.
type RunOutcome struct {
	Killed                    bool // the task was killed and must stay down
	RestartRequested          bool // a user, a template or an identity requested a restart
	UnhealthyRestartRequested bool // a check requested a restart; it counts as a failure, whatever the exit code
	StartUnrecoverable        bool // the task did not start, and another attempt cannot succeed
	Success                   bool // exit code 0, no signal, no error
}

// Action is the consequence of a task's end.
type Action uint8

// The actions.
const (
	ActionFinish  Action = iota // the task is complete; no event
	ActionKill                  // the task was killed: event Killed
	ActionGiveUp                // the task fails: event Not Restarting
	ActionRestart               // the task starts again after the delay: event Restarting
)

func (a Action) String() string {
	return [...]string{"finish", "kill", "give up", "restart"}[a]
}

// Decision is the result of [Tracker.Decide].
type Decision struct {
	Action Action
	Reason string        // text for the event; empty for a requested restart
	Delay  time.Duration // delay before the start, for ActionRestart
}

// The reasons. Users and clients match on these texts.
const (
	ReasonNoRestarts    = "Policy allows no restarts"
	ReasonUnrecoverable = "Error was unrecoverable"
	ReasonWithinPolicy  = "Restart within policy"
	ReasonDelay         = "Exceeded allowed attempts, applying a delay"
)

// State is the state of a Tracker that the task runner stores for the next agent.
type State struct {
	EndsInWindow int           // ends in the current window that count as attempts
	WindowStart  time.Time     // start of the current window
	NextStart    time.Time     // time at which the last delay ends; zero if there was none
	Delay        time.Duration // the last delay
}

// Tracker decides for one task, each time that it has ended, whether it starts again under a Policy. It
// is not safe for concurrent use.
type Tracker struct {
	policy       Policy
	randomInt64N func(n int64) int64
	state        State
}

// NewTracker returns a tracker whose first window starts now. randomInt64N returns a random number
// in [0,n), n > 0, as [math/rand/v2.Int64N] does; it must not be seeded from the time,
// or tasks that fail together restart together.
func NewTracker(p Policy, now time.Time, randomInt64N func(n int64) int64) *Tracker {
	return &Tracker{policy: p, randomInt64N: randomInt64N, state: State{WindowStart: now}}
}

// State returns the state for RestoreState.
func (t *Tracker) State() State { return t.state }

// RestoreState restores the state of an earlier agent's tracker.
func (t *Tracker) RestoreState(s State) { t.state = s }

// SetPolicy replaces the policy from the next decision on. It does not reset the count.
func (t *Tracker) SetPolicy(p Policy) { t.policy = p }

// ClearDelay records that the task has started again, which clears its delay.
func (t *Tracker) ClearDelay() { t.state.NextStart, t.state.Delay = time.Time{}, 0 }

// RemainingDelay returns the time until the task starts again: the rest of the last delay. It is never longer than
// that delay, even if the clock was set back.
func (t *Tracker) RemainingDelay(now time.Time) time.Duration {
	if t.state.NextStart.IsZero() {
		return 0
	}
	return min(max(t.state.NextStart.Sub(now), 0), t.state.Delay)
}

// Decide decides about a task that has just ended. For ActionRestart it also records the end of
// the delay in the state.
func (t *Tracker) Decide(now time.Time, o RunOutcome) Decision {
	t.state.NextStart, t.state.Delay = time.Time{}, 0
	d := t.countAttemptAndDecide(now, o)
	if d.Action == ActionRestart {
		t.state.NextStart, t.state.Delay = now.Add(d.Delay), d.Delay
	}
	return d
}

func (t *Tracker) countAttemptAndDecide(now time.Time, o RunOutcome) Decision {
	if o.Killed {
		return Decision{Action: ActionKill}
	}
	if o.RestartRequested {
		return Decision{Action: ActionRestart}
	}

	finished := o.Success && !o.UnhealthyRestartRequested && !t.policy.RestartsOnSuccess
	if t.policy.Attempts <= 0 {
		if finished {
			return Decision{Action: ActionFinish}
		}
		return Decision{Action: ActionGiveUp, Reason: ReasonNoRestarts}
	}

	t.countAttempt(now)
	switch {
	case o.StartUnrecoverable:
		return Decision{Action: ActionGiveUp, Reason: ReasonUnrecoverable}
	case finished:
		return Decision{Action: ActionFinish}
	case t.state.EndsInWindow <= t.policy.Attempts:
		return Decision{Action: ActionRestart, Reason: ReasonWithinPolicy, Delay: t.delayWithJitter()}
	case t.policy.Mode == ModeDelay:
		return Decision{Action: ActionRestart, Reason: ReasonDelay, Delay: t.remainingInterval(now)}
	}
	return Decision{Action: ActionGiveUp, Reason: fmt.Sprintf(
		"Exceeded allowed attempts %d in interval %v and mode is %q", t.policy.Attempts, t.policy.Interval, ModeFail)}
}

// countAttempt adds one to the number of ends in the current window. It starts a new window if Interval has passed.
func (t *Tracker) countAttempt(now time.Time) {
	switch age := now.Sub(t.state.WindowStart); {
	case age > t.policy.Interval:
		t.state.EndsInWindow = 0
		t.state.WindowStart = now
	case age < 0: // the clock was set back: the old window would last until the clock has caught up
		t.state.WindowStart = now
	}
	t.state.EndsInWindow++
}

// delayWithJitter returns the policy's delay plus up to a quarter, so that tasks that failed
// together do not restart together.
func (t *Tracker) delayWithJitter() time.Duration {
	d := t.policy.Delay
	if d <= 0 {
		return 0
	}
	return addSaturating(d, time.Duration(t.randomInt64N(int64(d))/4))
}

// remainingInterval returns the rest of the window, at least 1 ns: a task that ends at the
// very end of a window starts again in the next window.
func (t *Tracker) remainingInterval(now time.Time) time.Duration {
	return max(t.policy.Interval-now.Sub(t.state.WindowStart), 1)
}

// addSaturating adds two non-negative durations without overflow.
func addSaturating(a, b time.Duration) time.Duration {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
