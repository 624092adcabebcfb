package clock

import (
	"context"
	"testing"
	"time"
)

// WatchSteps does not call stepped if the clock is not set, and returns when its context ends. A test
// in a virtual machine, whose clock can be set, checks that a step is reported (TestVM/clock in
// cmd/nomad-lite/systemtest/vm).
func TestWatchEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	calls := 0
	if err := WatchSteps(ctx, func() { calls++ }); err != nil {
		t.Error(err)
	}
	if calls > 0 {
		t.Errorf("%d steps reported", calls)
	}
}
