package scheduler

import (
	"testing"
	"time"
)

// A due time with a monotonic reading would be compared with it. After a clock step, a time that was moved by the step would be due
// later by that step.
func TestDueTimesHaveNoMonotonicReading(t *testing.T) {
	q := newTimerQueue[string]()
	at := time.Now()
	q.setOrClearDueTime("eval", at)
	if got := q.earliestDueTime(); got != at.Round(0) {
		t.Errorf("got %v, want %v", got, at.Round(0))
	}
}
