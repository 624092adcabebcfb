package model

import (
	"time"

	"github.com/hashicorp/nomad/api"
)

// NextReschedule says when an allocation that failed at that time may be
// replaced; false means never.
func NextReschedule(p *api.ReschedulePolicy, tracker *api.RescheduleTracker, failed time.Time) (time.Time, bool) {
	if p == nil || val(p.Attempts) <= 0 && !val(p.Unlimited) {
		return time.Time{}, false
	}
	var events []*api.RescheduleEvent
	if tracker != nil {
		events = tracker.Events
	}
	if !val(p.Unlimited) && attemptsSince(events, failed.Add(-val(p.Interval))) >= val(p.Attempts) {
		return time.Time{}, false
	}
	steps := 0
	if n := len(events); n > 0 && !delayReset(p, failed.Sub(time.Unix(0, events[n-1].RescheduleTime))) {
		steps = stepsAfter(p, events)
	}
	return failed.Add(rescheduleDelay(p, steps)), true
}

// ExtendTracker returns the tracker of an allocation that replaces another. It
// keeps as many events as anybody will ever ask for.
func ExtendTracker(p *api.ReschedulePolicy, tracker *api.RescheduleTracker, event api.RescheduleEvent) *api.RescheduleTracker {
	var events []*api.RescheduleEvent
	if tracker != nil {
		events = tracker.Events
	}
	keep := 1
	if p != nil {
		keep = max(len(slotsOf(val(p.DelayFunction), val(p.Delay), val(p.MaxDelay)).listed)+1, val(p.Attempts))
	}
	if n := len(events) + 1 - keep; n > 0 {
		events = events[n:]
	}
	// The old events are shared, their list is not.
	all := make([]*api.RescheduleEvent, 0, len(events)+1)
	all = append(append(all, events...), &event)
	return &api.RescheduleTracker{Events: all, LastReschedule: "ok"}
}

func attemptsSince(events []*api.RescheduleEvent, start time.Time) int {
	n := 0
	for _, e := range events {
		if time.Unix(0, e.RescheduleTime).After(start) {
			n++
		}
	}
	return n
}

// delayReset tells whether an allocation lived long enough for the delay to begin
// at its base again.
func delayReset(p *api.ReschedulePolicy, life time.Duration) bool {
	return val(p.DelayFunction) != delayConstant && life > val(p.MaxDelay)
}

// stepsAfter returns how many delays of a series have passed with these events.
// How long the allocations between them lived follows from the times: what lies
// between two events is a life and a delay.
func stepsAfter(p *api.ReschedulePolicy, events []*api.RescheduleEvent) int {
	steps := 0
	for i := range events {
		if i > 0 {
			gap := time.Duration(events[i].RescheduleTime - events[i-1].RescheduleTime)
			if delayReset(p, gap-rescheduleDelay(p, steps)) {
				steps = 0
			}
		}
		steps++
	}
	return steps
}

// RescheduleDelays returns the delay before each event of a tracker, computed from the
// times of the events. The first delay of a tracker whose oldest events were dropped
// counts as the first of a series.
func RescheduleDelays(p *api.ReschedulePolicy, tracker *api.RescheduleTracker) map[*api.RescheduleEvent]time.Duration {
	if p == nil || tracker == nil {
		return nil
	}
	delays := make(map[*api.RescheduleEvent]time.Duration, len(tracker.Events))
	for i, event := range tracker.Events {
		// stepsAfter with this event ends with the step that leads to it.
		delays[event] = rescheduleDelay(p, max(stepsAfter(p, tracker.Events[:i+1])-1, 0))
	}
	return delays
}

// rescheduleDelay returns the delay after so many others of a series.
func rescheduleDelay(p *api.ReschedulePolicy, steps int) time.Duration {
	delay, ceiling := val(p.Delay), val(p.MaxDelay)
	switch val(p.DelayFunction) {
	case delayExponential:
		for range steps {
			if delay > ceiling/2 {
				return ceiling
			}
			delay *= 2
		}
	case delayFibonacci:
		before := time.Duration(0)
		for range steps {
			if delay > ceiling-before {
				return ceiling
			}
			before, delay = delay, before+delay
		}
	default:
		return delay
	}
	return min(delay, ceiling)
}
