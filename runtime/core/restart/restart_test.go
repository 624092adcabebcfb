package restart

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/nomad-lite/nomad-lite/runtime/core/lifecycle"
)

// startTime is when the first windows in this file start.
var startTime = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// noJitter makes each delay equal to the policy's delay.
func noJitter(int64) int64 { return 0 }

func testPolicy(change func(*Policy)) Policy {
	p := Policy{Attempts: 2, Interval: 20 * time.Second, Delay: time.Second, Mode: ModeFail, RestartsOnSuccess: true}
	if change != nil {
		change(&p)
	}
	return p
}

// tracker has one task's state.
type tracker struct {
	Policy
	State
	randomInt64N func(int64) int64
}

func newTracker(p Policy, randomInt64N func(int64) int64) *tracker {
	return &tracker{p, State{WindowStart: startTime}, randomInt64N}
}

func (t *tracker) Decide(now time.Time, o RunOutcome) (d Decision) {
	d, t.State = t.Policy.Decide(t.State, now, o, t.randomInt64N)
	return d
}

func TestNextDecision(t *testing.T) {
	const exceededReason = `Exceeded allowed attempts 1 in interval 20s and mode is "fail"`
	var (
		failureOutcome       = RunOutcome{}
		successOutcome       = RunOutcome{Success: true}
		withinPolicyDecision = Decision{ActionRestart, ReasonWithinPolicy, time.Second}
	)
	type testStep struct {
		at      time.Duration // time since start
		outcome RunOutcome
		want    Decision
	}
	for _, c := range []struct {
		name   string
		policy Policy
		steps  []testStep
	}{
		{
			"RS-001 one attempt: the second failure is the last",
			testPolicy(func(p *Policy) { p.Attempts = 1 }),
			[]testStep{{0, failureOutcome, withinPolicyDecision}, {2 * time.Second, failureOutcome, Decision{ActionGiveUp, exceededReason, 0}}},
		},
		{
			"RS-002 a clean exit of a task that may finish ends it quietly",
			testPolicy(func(p *Policy) { p.RestartsOnSuccess = false }),
			[]testStep{{0, successOutcome, Decision{ActionFinish, "", 0}}},
		},
		{
			"RS-003 without attempts the first failure is the last",
			testPolicy(func(p *Policy) { p.Attempts = 0 }),
			[]testStep{{0, failureOutcome, Decision{ActionGiveUp, ReasonNoRestarts, 0}}},
		},
		{
			"without attempts a clean exit ends a task that may finish quietly",
			testPolicy(func(p *Policy) { p.Attempts, p.RestartsOnSuccess = 0, false }),
			[]testStep{{0, successOutcome, Decision{ActionFinish, "", 0}}},
		},
		{
			"without attempts a clean exit fails a task that may not finish",
			testPolicy(func(p *Policy) { p.Attempts = 0 }),
			[]testStep{{0, successOutcome, Decision{ActionGiveUp, ReasonNoRestarts, 0}}},
		},
		{
			"without attempts even an unrecoverable error gives the policy as the reason",
			testPolicy(func(p *Policy) { p.Attempts = 0 }),
			[]testStep{{0, RunOutcome{StartUnrecoverable: true}, Decision{ActionGiveUp, ReasonNoRestarts, 0}}},
		},
		{
			"RS-004 mode delay: clean exits over the attempts wait for the rest of the window",
			testPolicy(func(p *Policy) { p.Mode = ModeDelay }),
			[]testStep{
				{1 * time.Second, successOutcome, withinPolicyDecision},
				{3 * time.Second, successOutcome, withinPolicyDecision},
				{5 * time.Second, successOutcome, Decision{ActionRestart, ReasonDelay, 15 * time.Second}},
				{21 * time.Second, successOutcome, withinPolicyDecision},
			},
		},
		{
			"RS-004 mode fail: a second clean exit over one attempt fails",
			testPolicy(func(p *Policy) { p.Attempts = 1 }),
			[]testStep{{0, successOutcome, withinPolicyDecision}, {time.Second, successOutcome, Decision{ActionGiveUp, exceededReason, 0}}},
		},
		{
			"an unknown mode is fail",
			testPolicy(func(p *Policy) { p.Attempts, p.Mode = 1, "x" }),
			[]testStep{{0, failureOutcome, withinPolicyDecision}, {time.Second, failureOutcome, Decision{ActionGiveUp, exceededReason, 0}}},
		},
		{
			"RS-010 after the window it counts from one",
			testPolicy(func(p *Policy) { p.Attempts = 1 }),
			[]testStep{
				{0, failureOutcome, withinPolicyDecision},
				{20*time.Second + 1, failureOutcome, withinPolicyDecision},
				{20*time.Second + 2, failureOutcome, Decision{ActionGiveUp, exceededReason, 0}},
			},
		},
		{
			"the last moment of the window belongs to it",
			testPolicy(func(p *Policy) { p.Attempts = 1 }),
			[]testStep{{0, failureOutcome, withinPolicyDecision}, {20 * time.Second, failureOutcome, Decision{ActionGiveUp, exceededReason, 0}}},
		},
		{
			"the first window begins with the task, not with the first failure",
			testPolicy(func(p *Policy) { p.Attempts = 1 }),
			[]testStep{{15 * time.Second, failureOutcome, withinPolicyDecision}, {21 * time.Second, failureOutcome, withinPolicyDecision}},
		},
		{
			"RS-046 a recoverable start error counts like a failure",
			testPolicy(func(p *Policy) { p.Attempts = 1 }),
			[]testStep{{0, failureOutcome, withinPolicyDecision}, {time.Second, failureOutcome, Decision{ActionGiveUp, exceededReason, 0}}},
		},
		{
			"RS-047 an unrecoverable start error is the last",
			testPolicy(nil),
			[]testStep{{0, RunOutcome{StartUnrecoverable: true}, Decision{ActionGiveUp, ReasonUnrecoverable, 0}}},
		},
		{
			"a killed task stays down, whatever else is true",
			testPolicy(nil),
			[]testStep{{0, RunOutcome{Killed: true, RestartRequested: true, Success: true, StartUnrecoverable: true}, Decision{ActionKill, "", 0}}},
		},
		{
			"RS-037 a requested restart costs no attempt",
			testPolicy(func(p *Policy) { p.Attempts = 1 }),
			[]testStep{
				{0, RunOutcome{RestartRequested: true}, Decision{ActionRestart, "", 0}},
				{0, RunOutcome{RestartRequested: true, Success: true}, Decision{ActionRestart, "", 0}},
				{0, failureOutcome, withinPolicyDecision},
			},
		},
		{
			"a requested restart needs no attempts",
			testPolicy(func(p *Policy) { p.Attempts = 0 }),
			[]testStep{{0, RunOutcome{RestartRequested: true}, Decision{ActionRestart, "", 0}}},
		},
		{
			"an unhealthy task follows the policy, also if it then exits cleanly and may finish",
			testPolicy(func(p *Policy) { p.Attempts, p.RestartsOnSuccess = 1, false }),
			[]testStep{
				{0, RunOutcome{UnhealthyRestartRequested: true, Success: true}, withinPolicyDecision},
				{0, RunOutcome{UnhealthyRestartRequested: true, Success: true}, Decision{ActionGiveUp, exceededReason, 0}},
			},
		},
		{
			"an unhealthy task without attempts fails",
			testPolicy(func(p *Policy) { p.Attempts, p.RestartsOnSuccess = 0, false }),
			[]testStep{{0, RunOutcome{UnhealthyRestartRequested: true, Success: true}, Decision{ActionGiveUp, ReasonNoRestarts, 0}}},
		},
		{
			"no delay is none",
			testPolicy(func(p *Policy) { p.Delay = 0 }),
			[]testStep{{0, failureOutcome, Decision{ActionRestart, ReasonWithinPolicy, 0}}},
		},
		{
			"a clock that was set back does not make the window longer",
			testPolicy(func(p *Policy) { p.Attempts, p.Mode = 1, ModeDelay }),
			[]testStep{
				{0, failureOutcome, withinPolicyDecision},
				{-time.Hour, failureOutcome, Decision{ActionRestart, ReasonDelay, 20 * time.Second}},
				{-time.Hour + 20*time.Second + 1, failureOutcome, withinPolicyDecision},
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			tracker := newTracker(c.policy, noJitter)
			for i, s := range c.steps {
				if got := tracker.Decide(startTime.Add(s.at), s.outcome); got != s.want {
					t.Errorf("decision %d = %+v, want %+v", i+1, got, s.want)
				}
			}
		})
	}
}

func TestDelayHasUpToAQuarterOfJitter(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for range 2000 {
		delay := time.Duration(1 + rng.Int64N(int64(10*time.Second)))
		tracker := newTracker(testPolicy(func(p *Policy) { p.Delay = delay }), rng.Int64N)
		got := tracker.Decide(startTime, RunOutcome{}).Delay
		if got < delay || got >= delay+delay/4+1 {
			t.Fatalf("delay %v for a policy of %v", got, delay)
		}
	}
	if got := newTracker(testPolicy(func(p *Policy) { p.Delay = 1 }), rng.Int64N).Decide(startTime, RunOutcome{}).Delay; got != 1 {
		t.Errorf("the shortest delay is %v", got)
	}
	full := func(n int64) int64 { return n - 1 }
	tracker := newTracker(testPolicy(nil), full)
	if got, want := tracker.Decide(startTime, RunOutcome{}).Delay, 1250*time.Millisecond-1; got != want {
		t.Errorf("longest delay %v, want %v", got, want)
	}
}

// Two tasks created at the same time do not restart together (rule RS-005 of
// docs/reference/rules.md).
func TestJitterIsIndependent(t *testing.T) {
	p := testPolicy(func(p *Policy) { p.Delay = time.Hour })
	a, b := newTracker(p, rand.Int64N), newTracker(p, rand.Int64N)
	if a.Decide(startTime, RunOutcome{}) == b.Decide(startTime, RunOutcome{}) {
		t.Error("both drew the same delay")
	}
}

func TestHugeDelaysDoNotOverflow(t *testing.T) {
	full := func(n int64) int64 { return n - 1 }
	tracker := newTracker(testPolicy(func(p *Policy) { p.Delay = math.MaxInt64 }), full)
	if got := tracker.Decide(startTime, RunOutcome{}).Delay; got != math.MaxInt64 {
		t.Errorf("delay %v", got)
	}
}

// The count, the window and the pending delay outlive the agent (rule RS-069 of
// docs/reference/rules.md).
func TestResume(t *testing.T) {
	p := testPolicy(func(p *Policy) { p.Attempts, p.Interval, p.Delay = 2, 5*time.Minute, 58*time.Second })
	before := newTracker(p, noJitter)
	before.Decide(startTime.Add(time.Second), RunOutcome{})

	after := newTracker(p, noJitter)
	after.State = before.State
	if got, want := after.RemainingDelay(startTime.Add(21*time.Second)), 38*time.Second; got != want {
		t.Errorf("remaining delay %v, want %v", got, want)
	}
	if got := after.WithoutDelay(); got.RemainingDelay(startTime.Add(time.Second)) != 0 || got.EndsInWindow != 1 {
		t.Errorf("a task that has started: %+v", got)
	}
	if got := after.RemainingDelay(startTime.Add(time.Hour)); got != 0 {
		t.Errorf("remaining delay after its end %v, want none", got)
	}
	if got := after.Decide(startTime.Add(time.Minute), RunOutcome{}); got.Action != ActionRestart {
		t.Errorf("second failure: %+v", got)
	}
	if got := after.Decide(startTime.Add(2*time.Minute), RunOutcome{}); got.Action != ActionGiveUp {
		t.Errorf("third failure, one of them before the agent's restart: %+v", got)
	}
	if !after.NextStart.IsZero() || after.State.Delay != 0 {
		t.Errorf("delay of a task that has ended: %+v", after.State)
	}
}

func TestRemainingIsBoundedWhenTheClockIsSetBack(t *testing.T) {
	tracker := newTracker(testPolicy(nil), noJitter)
	tracker.Decide(startTime, RunOutcome{})
	if got, want := tracker.RemainingDelay(startTime.Add(-time.Hour)), time.Second; got != want {
		t.Errorf("remaining %v, want the delay, %v", got, want)
	}
}

// An updated policy applies from the next decision on.
func TestUpdatedPolicy(t *testing.T) {
	tracker := newTracker(testPolicy(func(p *Policy) { p.Attempts = 1 }), noJitter)
	tracker.Decide(startTime, RunOutcome{})
	tracker.Policy = testPolicy(func(p *Policy) { p.Attempts = 2 })
	if got := tracker.Decide(startTime, RunOutcome{}); got.Action != ActionRestart {
		t.Errorf("second failure under a policy of two attempts: %+v", got)
	}
	want := `Exceeded allowed attempts 2 in interval 20s and mode is "fail"`
	if got := tracker.Decide(startTime, RunOutcome{}); got != (Decision{ActionGiveUp, want, 0}) {
		t.Errorf("third failure: %+v, want what was counted to stay counted", got)
	}
}

func TestOnSuccess(t *testing.T) {
	stages := []lifecycle.Stage{
		lifecycle.MainTask, lifecycle.PrestartEphemeral, lifecycle.PrestartSidecar,
		lifecycle.PoststartEphemeral, lifecycle.PoststartSidecar, lifecycle.PoststopTask,
	}
	for jobType, want := range map[string][6]bool{
		"service":  {true, false, true, false, true, false},
		"system":   {true, false, true, false, true, false},
		"batch":    {false, false, true, false, true, false},
		"sysbatch": {false, false, true, false, true, false},
	} {
		for i, stage := range stages {
			if got := RestartsOnSuccess(jobType, stage); got != want[i] {
				t.Errorf("OnSuccess(%s, stage %v) = %v, want %v", jobType, stage, got, want[i])
			}
		}
	}
}

// In any failure sequence, no window has more restarts than attempts in mode fail, and mode delay
// never gives up.
func TestRandomSequences(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	for range 500 {
		p := Policy{
			Attempts: 1 + rng.IntN(4), Interval: time.Duration(1+rng.IntN(60)) * time.Second,
			Delay: time.Duration(rng.IntN(5)) * time.Second, Mode: ModeFail,
		}
		if rng.IntN(2) == 0 {
			p.Mode = ModeDelay
		}
		tracker := newTracker(p, rng.Int64N)
		now := startTime
		restarts := 0
		window := tracker.WindowStart
		for range 50 {
			now = now.Add(time.Duration(rng.Int64N(int64(10 * time.Second))))
			d := tracker.Decide(now, RunOutcome{})
			if !tracker.WindowStart.Equal(window) {
				window, restarts = tracker.WindowStart, 0
			}
			if d.Action == ActionGiveUp {
				if p.Mode == ModeDelay {
					t.Fatalf("%+v gave up: %+v", p, d)
				}
				break
			}
			restarts++
			if p.Mode == ModeFail && restarts > p.Attempts {
				t.Fatalf("%+v: %d restarts in one window", p, restarts)
			}
			if d.Delay < 0 || d.Reason == ReasonDelay && d.Delay > p.Interval {
				t.Fatalf("%+v: %+v", p, d)
			}
			if got := tracker.RemainingDelay(now); got != d.Delay {
				t.Fatalf("%+v: remaining %v of a delay of %v", p, got, d.Delay)
			}
			now = now.Add(d.Delay)
		}
	}
}

// Without the minimum of one nanosecond, the next end at the same time would still be in the
// window, and the task would restart repeatedly without delay.
func TestDelayMayExceedTheWindow(t *testing.T) {
	now := startTime
	tracker := newTracker(Policy{Attempts: 1, Interval: 10 * time.Second, Mode: ModeDelay}, noJitter)
	tracker.Decide(now, RunOutcome{})
	now = now.Add(10 * time.Second) // the end of the window
	d := tracker.Decide(now, RunOutcome{})
	if d.Reason != ReasonDelay || d.Delay != 1 {
		t.Fatalf("at the end of the window: %+v", d)
	}
	if d = tracker.Decide(now.Add(d.Delay), RunOutcome{}); d.Reason != ReasonWithinPolicy {
		t.Errorf("after the delay: %+v", d)
	}
}
