package clock

import (
	"context"
	"testing"
	"time"
)

// A clock that nobody sets is no reason to call, and the end of the context ends the
// watch. That a step is reported is tested in a virtual machine, whose clock can be set
// (TestVM/clock in cmd/nomad-lite).
func TestWatchEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	calls := 0
	if err := Watch(ctx, func() { calls++ }); err != nil {
		t.Error(err)
	}
	if calls > 0 {
		t.Errorf("%d steps reported", calls)
	}
}
