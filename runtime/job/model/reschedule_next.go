package model

import (
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
)

// NextReschedule returns when an allocation that failed at failedAt may be replaced;
// false means never.
func NextReschedule(p *api.ReschedulePolicy, tracker *api.RescheduleTracker, failedAt time.Time) (time.Time, bool) {
	if p == nil || pointer.Value(p.Attempts) <= 0 && !pointer.Value(p.Unlimited) {
		return time.Time{}, false
	}
	var events []*api.RescheduleEvent
	if tracker != nil {
		events = tracker.Events
	}
	if !pointer.Value(p.Unlimited) && countEventsSince(events, failedAt.Add(-pointer.Value(p.Interval))) >= pointer.Value(p.Attempts) {
		return time.Time{}, false
	}
	steps := 0
	if n := len(events); n > 0 && !lifetimeResetsDelay(p, failedAt.Sub(time.Unix(0, events[n-1].RescheduleTime))) {
		steps = countEventsSinceDelayReset(p, events)
	}
	return failedAt.Add(rescheduleDelay(p, steps)), true
}

// AppendRescheduleEvent returns the tracker for an allocation that replaces another one. It keeps only as many events as
// NextReschedule needs.
func AppendRescheduleEvent(p *api.ReschedulePolicy, tracker *api.RescheduleTracker, event api.RescheduleEvent) *api.RescheduleTracker {
	var events []*api.RescheduleEvent
	if tracker != nil {
		events = tracker.Events
	}
	keep := 1
	if p != nil {
		keep = max(len(newAttemptTimes(pointer.Value(p.DelayFunction), pointer.Value(p.Delay), pointer.Value(p.MaxDelay)).timesInFirstInterval)+1, pointer.Value(p.Attempts))
	}
	if n := len(events) + 1 - keep; n > 0 {
		events = events[n:]
	}
	// The new tracker shares the old events, but not the old tracker's list.
	all := make([]*api.RescheduleEvent, 0, len(events)+1)
	all = append(append(all, events...), &event)
	return &api.RescheduleTracker{Events: all, LastReschedule: "ok"}
}

func countEventsSince(events []*api.RescheduleEvent, start time.Time) int {
	n := 0
	for _, e := range events {
		if time.Unix(0, e.RescheduleTime).After(start) {
			n++
		}
	}
	return n
}

// lifetimeResetsDelay reports whether an allocation lived long enough to reset the delay to its
// base.
func lifetimeResetsDelay(p *api.ReschedulePolicy, lifetime time.Duration) bool {
	return pointer.Value(p.DelayFunction) != delayConstant && lifetime > pointer.Value(p.MaxDelay)
}

// countEventsSinceDelayReset returns the number of events since the last delay reset. The time between two events is an
// allocation's lifetime plus a delay, so lifetimes are computed from event times.
func countEventsSinceDelayReset(p *api.ReschedulePolicy, events []*api.RescheduleEvent) int {
	steps := 0
	for i := range events {
		if i > 0 {
			gap := time.Duration(events[i].RescheduleTime - events[i-1].RescheduleTime)
			if lifetimeResetsDelay(p, gap-rescheduleDelay(p, steps)) {
				steps = 0
			}
		}
		steps++
	}
	return steps
}

// DelayByRescheduleEvent returns the delay before each of a tracker's events, computed from the event times. If the oldest events
// were dropped, the first delay counts as the first of a series.
func DelayByRescheduleEvent(p *api.ReschedulePolicy, tracker *api.RescheduleTracker) map[*api.RescheduleEvent]time.Duration {
	if p == nil || tracker == nil {
		return nil
	}
	delays := make(map[*api.RescheduleEvent]time.Duration, len(tracker.Events))
	for i, event := range tracker.Events {
		// countEventsSinceDelayReset also counts event i itself, so one step is subtracted.
		delays[event] = rescheduleDelay(p, max(countEventsSinceDelayReset(p, tracker.Events[:i+1])-1, 0))
	}
	return delays
}

// rescheduleDelay returns a series' delay after the given number of steps.
func rescheduleDelay(p *api.ReschedulePolicy, steps int) time.Duration {
	delay, ceiling := pointer.Value(p.Delay), pointer.Value(p.MaxDelay)
	switch pointer.Value(p.DelayFunction) {
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
