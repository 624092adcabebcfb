package supervisor

import (
	"slices"
	"testing"
)

func TestTransitions(t *testing.T) {
	for _, tt := range []struct {
		name   string
		events []event
		want   []state // state after each event
	}{
		{"a plugin that exits is launched again at once",
			[]event{eventLaunchStarted, eventLaunched, eventExited, eventLaunched}, []state{stateStarting, stateRunning, stateStarting, stateRunning}},
		{"an early exit delays the next launch",
			[]event{eventLaunchStarted, eventLaunched, eventExitedEarly, eventLaunchStarted, eventLaunched}, []state{stateStarting, stateRunning, stateBackingOff, stateStarting, stateRunning}},
		{"a failed launch is retried after a delay",
			[]event{eventLaunchStarted, eventLaunchFailed, eventLaunchStarted, eventLaunched}, []state{stateStarting, stateBackingOff, stateStarting, stateRunning}},
		{"a plugin with an error in the catalog is never launched",
			[]event{eventLaunchRejected, eventLaunchStarted, eventLaunched}, []state{stateFailed, stateFailed, stateFailed}},
		{"a builtin hook is launched on request",
			[]event{eventUnused, eventLaunchStarted, eventLaunched}, []state{stateIdle, stateStarting, stateRunning}},
		{"an unused builtin is launched again on request",
			[]event{eventLaunchStarted, eventLaunched, eventUnused, eventLaunchStarted, eventLaunched}, []state{stateStarting, stateRunning, stateIdle, stateStarting, stateRunning}},
		{"a plugin without a process is not unused",
			[]event{eventLaunchStarted, eventUnused, eventLaunchFailed, eventUnused}, []state{stateStarting, stateStarting, stateBackingOff, stateBackingOff}},
		{"a superseded builtin is not launched",
			[]event{eventReplaced, eventLaunchStarted, eventLaunched}, []state{stateSuperseded, stateSuperseded, stateSuperseded}},
		{"a superseded plugin stays superseded when its process exits",
			[]event{eventLaunchStarted, eventLaunched, eventReplaced, eventExited, eventLaunchFailed, eventUnused}, []state{stateStarting, stateRunning, stateSuperseded, stateSuperseded, stateSuperseded, stateSuperseded}},
		{"an idle builtin is superseded and ignores requests",
			[]event{eventUnused, eventReplaced, eventLaunchStarted}, []state{stateIdle, stateSuperseded, stateSuperseded}},
		{"a plugin in back-off is superseded and not launched",
			[]event{eventLaunchStarted, eventLaunchFailed, eventReplaced, eventLaunchStarted}, []state{stateStarting, stateBackingOff, stateSuperseded, stateSuperseded}},
		{"a removed plugin drains until it is released",
			[]event{eventLaunchStarted, eventLaunched, eventRemoved, eventDiscarded}, []state{stateStarting, stateRunning, stateDraining, stateGone}},
		{"a draining plugin that exits is launched for its tasks, and drains again",
			[]event{eventLaunchStarted, eventLaunched, eventRemoved, eventExited, eventLaunched, eventRemoved, eventDiscarded}, []state{stateStarting, stateRunning, stateDraining, stateStarting, stateRunning, stateDraining, stateGone}},
		{"a draining plugin waits before the launch after an early exit",
			[]event{eventLaunchStarted, eventLaunched, eventRemoved, eventExitedEarly, eventDiscarded}, []state{stateStarting, stateRunning, stateDraining, stateBackingOff, stateGone}},
		{"a draining builtin without tasks is idle until it is released",
			[]event{eventLaunchStarted, eventLaunched, eventRemoved, eventUnused, eventDiscarded}, []state{stateStarting, stateRunning, stateDraining, stateIdle, stateGone}},
		{"a draining plugin is superseded",
			[]event{eventLaunchStarted, eventLaunched, eventRemoved, eventReplaced, eventDiscarded}, []state{stateStarting, stateRunning, stateDraining, stateSuperseded, stateGone}},
		{"a removed plugin without a process does not drain",
			[]event{eventRemoved, eventLaunchStarted, eventRemoved, eventLaunchFailed, eventRemoved, eventDiscarded}, []state{stateNotLaunched, stateStarting, stateStarting, stateBackingOff, stateBackingOff, stateGone}},
	} {
		var s state
		var got []state
		for _, e := range tt.events {
			s = s.next(e)
			got = append(got, s)
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: states %v, want %v", tt.name, got, tt.want)
		}
	}
}

// Every state changes to superseded or gone by eventReplaced or eventDiscarded, and no
// other event leads back.
func TestEveryStateEnds(t *testing.T) {
	if len(transitions) != int(stateGone)+1 {
		t.Fatalf("%d rows, want one for each of %d states", len(transitions), stateGone+1)
	}
	for s := stateNotLaunched; s <= stateGone; s++ {
		if got := s.next(eventDiscarded); got != stateGone {
			t.Errorf("state %d after released: %d", s, got)
		}
		if got := s.next(eventReplaced); got != stateSuperseded && s != stateGone {
			t.Errorf("state %d after replaced: %d", s, got)
		}
	}
	for e := eventLaunchRejected; e <= eventDiscarded; e++ {
		if got := stateGone.next(e); got != stateGone {
			t.Errorf("a plugin that is gone after event %d: state %d", e, got)
		}
		if got := stateSuperseded.next(e); got != stateSuperseded && e != eventDiscarded {
			t.Errorf("a superseded plugin after event %d: state %d", e, got)
		}
	}
}
