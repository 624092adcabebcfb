package restart

import (
	"fmt"
	"math"
	"time"

	"github.com/nomad-lite/nomad-lite/runtime/core/lifecycle"
)

// Mode selects the behaviour when an interval's attempts are used up.
type Mode string

// The modes. Any other value counts as ModeFail.
const (
	ModeFail  Mode = "fail"
	ModeDelay Mode = "delay"
)

// Policy is a task's restart block.
type Policy struct {
	Attempts int
	Interval time.Duration
	Delay    time.Duration
	Mode     Mode
	// RestartsOnSuccess restarts the task after a clean exit too; see [RestartsOnSuccess].
	RestartsOnSuccess bool
}

// RestartsOnSuccess reports whether a task restarts after a clean exit: sidecars do, and so do main
// tasks in job types that never finish.
func RestartsOnSuccess(jobType string, stage lifecycle.Stage) bool {
	if stage.Sidecar() {
		return true
	}
	return stage == lifecycle.MainTask && (jobType == "service" || jobType == "system")
}

// RunOutcome is how a task run has ended. The zero value is a failure after which a restart can
// help: a non-zero exit code, an unknown exit status, or a retryable start error.
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

// Decision is the result of [Policy.Decide].
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

// State is the history for a decision. The task runner stores it for the next agent. The first window starts when the agent
// receives the task.
type State struct {
	EndsInWindow int           // ends in the current window that count as attempts
	WindowStart  time.Time     // start of the current window
	NextStart    time.Time     // when the last delay ends; zero if there was none
	Delay        time.Duration // the last delay
}

// RemainingDelay returns how much of the last delay remains until the task starts again. It never exceeds the
// delay, even if the clock was set back.
func (s State) RemainingDelay(now time.Time) time.Duration {
	return min(max(s.NextStart.Sub(now), 0), s.Delay)
}

// WithoutDelay returns the state for a task that starts now.
func (s State) WithoutDelay() State {
	s.NextStart, s.Delay = time.Time{}, 0
	return s
}

// Decide decides about a task that has just ended, and returns the state after that. For ActionRestart the state also has the
// time when the delay ends. randomInt64N returns a random number in [0,n), n > 0, as [math/rand/v2.Int64N] does; it must not be
// seeded from the time, or tasks that fail together restart together.
func (p Policy) Decide(s State, now time.Time, o RunOutcome, randomInt64N func(n int64) int64) (Decision, State) {
	s = s.WithoutDelay()
	d := p.countAttemptAndDecide(&s, now, o, randomInt64N)
	if d.Action == ActionRestart {
		s.NextStart, s.Delay = now.Add(d.Delay), d.Delay
	}
	return d, s
}

func (p Policy) countAttemptAndDecide(s *State, now time.Time, o RunOutcome, randomInt64N func(int64) int64) Decision {
	if o.Killed {
		return Decision{Action: ActionKill}
	}
	if o.RestartRequested {
		return Decision{Action: ActionRestart}
	}

	finished := o.Success && !o.UnhealthyRestartRequested && !p.RestartsOnSuccess
	if p.Attempts <= 0 {
		if finished {
			return Decision{Action: ActionFinish}
		}
		return Decision{Action: ActionGiveUp, Reason: ReasonNoRestarts}
	}

	s.countAttempt(now, p.Interval)
	switch {
	case o.StartUnrecoverable:
		return Decision{Action: ActionGiveUp, Reason: ReasonUnrecoverable}
	case finished:
		return Decision{Action: ActionFinish}
	case s.EndsInWindow <= p.Attempts:
		return Decision{Action: ActionRestart, Reason: ReasonWithinPolicy, Delay: p.delayWithJitter(randomInt64N)}
	case p.Mode == ModeDelay:
		return Decision{Action: ActionRestart, Reason: ReasonDelay, Delay: p.remainingInterval(s, now)}
	}
	return Decision{Action: ActionGiveUp, Reason: fmt.Sprintf(
		"Exceeded allowed attempts %d in interval %v and mode is %q", p.Attempts, p.Interval, ModeFail)}
}

// countAttempt adds one end to the current window. It starts a new window if interval has passed.
func (s *State) countAttempt(now time.Time, interval time.Duration) {
	switch age := now.Sub(s.WindowStart); {
	case age > interval:
		s.EndsInWindow = 0
		s.WindowStart = now
	case age < 0: // the clock was set back: the old window would last until the clock has caught up
		s.WindowStart = now
	}
	s.EndsInWindow++
}

// delayWithJitter returns the policy's delay plus up to a quarter, so that tasks failing together
// do not restart together.
func (p Policy) delayWithJitter(randomInt64N func(int64) int64) time.Duration {
	d := p.Delay
	if d <= 0 {
		return 0
	}
	return addSaturating(d, time.Duration(randomInt64N(int64(d))/4))
}

// remainingInterval returns the remaining window, at least 1 ns: a task that ends at the very end
// of a window starts again in the next window.
func (p Policy) remainingInterval(s *State, now time.Time) time.Duration {
	return max(p.Interval-now.Sub(s.WindowStart), 1)
}

// addSaturating adds two non-negative durations without overflow.
func addSaturating(a, b time.Duration) time.Duration {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
