package scheduler

import (
	"testing"
	"time"
)

// A clock step is adjusted once, and again if the adjusting change is not stored.
func TestClockStepIsAdjustedOnce(t *testing.T) {
	now, uptime := time.Unix(1000, 0), time.Duration(0)
	env := Env{Now: func() time.Time { return now }, MonotonicUptime: func() time.Duration { return uptime }}
	w := newWallClock(env)
	w.recordAdjustment(w.readAndDetectStep(env)) // a scheduler's first change
	now = now.Add(time.Hour)
	for attempt := range 2 {
		first := w.readAndDetectStep(env)
		if first.stepSinceAdjustment != time.Hour || !first.storedTimesNeedAdjustment {
			t.Fatalf("attempt %d: step %v, needs adjustment: %v", attempt, first.stepSinceAdjustment, first.storedTimesNeedAdjustment)
		}
		undo := w.recordAdjustment(first)
		if second := w.readAndDetectStep(env); second.stepSinceAdjustment != 0 || second.storedTimesNeedAdjustment {
			t.Fatalf("attempt %d: the next change adjusts by %v again", attempt, second.stepSinceAdjustment)
		}
		if attempt == 0 {
			undo()
			undo()
		}
	}
}
