package process

import (
	"slices"
	"testing"
	"time"
)

// The stock Nomad command "alloc status -stats" prints a title for each measured field, and values
// only for those that Nomad's own drivers measure.
func TestTotalTicksAreNotListedAsMeasured(t *testing.T) {
	var s cpuSampler
	start := time.Unix(1700000000, 0)
	s.computeRates(start, map[int]cpuTime{0: {}})
	got := s.computeRates(start.Add(time.Second), map[int]cpuTime{0: {user: 400 * time.Millisecond, system: 100 * time.Millisecond}})[0]
	if want := []string{"System Mode", "User Mode", "Percent"}; !slices.Equal(got.Measured, want) {
		t.Errorf("measured fields %q, want %q", got.Measured, want)
	}
	if got.Percent != 50 || got.TotalTicks != cpuFrequencyMHz()/2 {
		t.Errorf("%v %% and %v MHz of a core with %v MHz, want half of it", got.Percent, got.TotalTicks, cpuFrequencyMHz())
	}
}
