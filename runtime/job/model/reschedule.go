package model

import (
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
)

const (
	minRescheduleInterval = 15 * time.Second
	minRescheduleDelay    = 5 * time.Second
)

// The functions by which the delay between two reschedules grows.
const (
	delayConstant    = "constant"
	delayExponential = "exponential"
	delayFibonacci   = "fibonacci"
)

var delayFunctions = []string{delayConstant, delayExponential, delayFibonacci}

func checkReschedule(r *faultReport, jobType string, p *api.ReschedulePolicy) {
	if p == nil {
		return
	}
	if jobType == api.JobTypeSystem || jobType == api.JobTypeSysbatch {
		r.addFault("System or sysbatch jobs should not have a reschedule policy")
		return
	}
	attempts, interval, unlimited := pointer.Value(p.Attempts), pointer.Value(p.Interval), pointer.Value(p.Unlimited)
	if attempts == 0 && !unlimited {
		return
	}
	before := len(*r.faults)
	if attempts > 0 && interval <= 0 {
		r.addFault("Interval must be a non zero value if Attempts > 0")
	}
	if attempts > 0 && unlimited {
		r.addFault("Reschedule Policy with Attempts = %d, Interval = %v, and Unlimited = true is ambiguous", attempts, interval)
		r.addFault("If Attempts >0, Unlimited cannot also be set to true")
	}
	checkRescheduleDelay(r, p)
	if unlimited {
		return
	}
	if interval < minRescheduleInterval {
		r.addFault("Interval cannot be less than %v (got %v)", minRescheduleInterval, interval)
	}
	if len(*r.faults) == before {
		checkAttemptsFitInterval(r, p)
	}
}

func checkRescheduleDelay(r *faultReport, p *api.ReschedulePolicy) {
	function, delay, ceiling := pointer.Value(p.DelayFunction), pointer.Value(p.Delay), pointer.Value(p.MaxDelay)
	if !slices.Contains(delayFunctions, function) {
		r.addFault("Invalid delay function %q, must be one of %q", function, delayFunctions)
	}
	if delay < minRescheduleDelay {
		r.addFault("Delay cannot be less than %v (got %v)", minRescheduleDelay, delay)
	}
	if function == delayConstant {
		return
	}
	if ceiling < minRescheduleDelay {
		// At this place Nomad's message has the delay, not the maximum delay.
		r.addFault("Max Delay cannot be less than %v (got %v)", minRescheduleDelay, delay)
	}
	if ceiling < delay {
		r.addFault("Max Delay cannot be less than Delay %v (got %v)", delay, ceiling)
	}
}

// checkAttemptsFitInterval checks that all attempts fit into the interval of an otherwise valid limited policy.
func checkAttemptsFitInterval(r *faultReport, p *api.ReschedulePolicy) {
	attempts, interval, delay := pointer.Value(p.Attempts), pointer.Value(p.Interval), pointer.Value(p.Delay)
	if attempts < 0 {
		return
	}
	slots := newAttemptTimes(pointer.Value(p.DelayFunction), delay, pointer.Value(p.MaxDelay))
	limit := interval
	if pointer.Value(p.DelayFunction) == delayExponential {
		limit-- // an attempt exactly at the interval's end does not count
	}
	possible := slots.countAttemptsUntil(limit)
	if possible >= attempts {
		return
	}
	if pointer.Value(p.DelayFunction) == delayConstant {
		r.addFault("Nomad can only make %d attempts in %v with initial delay %v and delay function %q",
			possible, interval, delay, delayConstant)
	} else {
		r.addFault("Nomad can only make %d attempts in %v with initial delay %v, delay function %q, and delay ceiling %v",
			possible, interval, delay, pointer.Value(p.DelayFunction), pointer.Value(p.MaxDelay))
	}
	r.addFault("Set the interval to at least %v to accommodate %d attempts", slots.timeOfAttempt(attempts-1), attempts)
}

// rescheduleAttemptTimes are a policy's attempt times, as its check computes them: first the times in timesInFirstInterval, then
// one attempt after each laterInterval.
type rescheduleAttemptTimes struct {
	timesInFirstInterval []time.Duration
	laterInterval        time.Duration
}

func newAttemptTimes(delayFunction string, delay, ceiling time.Duration) rescheduleAttemptTimes {
	switch delayFunction {
	case delayExponential:
		listed := []time.Duration{delay}
		for last := delay; last <= ceiling/2; {
			last *= 2
			listed = append(listed, last)
		}
		return rescheduleAttemptTimes{listed, ceiling}
	case delayFibonacci:
		listed := []time.Duration{delay, delay}
		for a, b := delay, delay; a <= ceiling-b; {
			a, b = b, a+b
			listed = append(listed, b)
		}
		return rescheduleAttemptTimes{append(listed, ceiling), ceiling}
	default:
		return rescheduleAttemptTimes{[]time.Duration{delay}, delay}
	}
}

// timeOfAttempt returns attempt i's time, counted from 0.
func (a rescheduleAttemptTimes) timeOfAttempt(i int) time.Duration {
	if i < len(a.timesInFirstInterval) {
		return a.timesInFirstInterval[i]
	}
	last := a.timesInFirstInterval[len(a.timesInFirstInterval)-1]
	rest := saturatingMulDuration(i-len(a.timesInFirstInterval)+1, a.laterInterval)
	if rest > 1<<63-1-last {
		return 1<<63 - 1
	}
	return last + rest
}

// countAttemptsUntil returns the number of attempts not later than limit.
func (a rescheduleAttemptTimes) countAttemptsUntil(limit time.Duration) int {
	for i, slot := range a.timesInFirstInterval {
		if slot > limit {
			return i
		}
	}
	last := a.timesInFirstInterval[len(a.timesInFirstInterval)-1]
	return len(a.timesInFirstInterval) + int((limit-last)/a.laterInterval)
}
