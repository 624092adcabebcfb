package supervisor

import (
	"slices"
	"testing"
)

func TestStateTransitions(t *testing.T) {
	for _, tt := range []struct {
		name   string
		events []pluginEvent
		want   []pluginState // state after each event
	}{
		{"a plugin that exits is launched again at once",
			[]pluginEvent{eventLaunchStarted, eventLaunched, eventExited, eventLaunched}, []pluginState{stateFirstStarting, stateRunning, stateStarting, stateRunning}},
		{"an early exit delays the next launch",
			[]pluginEvent{eventLaunchStarted, eventLaunched, eventExitedEarly, eventLaunchStarted, eventLaunched}, []pluginState{stateFirstStarting, stateRunning, stateBackingOff, stateStarting, stateRunning}},
		{"a failed launch is retried after a delay",
			[]pluginEvent{eventLaunchStarted, eventLaunchFailed, eventLaunchStarted, eventLaunched}, []pluginState{stateFirstStarting, stateBackingOff, stateStarting, stateRunning}},
		{"a plugin with an error in the catalog is never launched",
			[]pluginEvent{eventLaunchRejected, eventLaunchStarted, eventLaunched}, []pluginState{stateFailed, stateFailed, stateFailed}},
		{"a device plugin that reports no further devices is not launched again",
			[]pluginEvent{eventLaunchStarted, eventLaunched, eventStreamEnded, eventLaunchStarted, eventPluginDiscarded}, []pluginState{stateFirstStarting, stateRunning, stateFailed, stateFailed, stateGone}},
		{"a builtin with a slow fingerprint is launched after the other plugins",
			[]pluginEvent{eventLaunchDeferred, eventLaunchStarted, eventLaunchFailed}, []pluginState{stateStarting, stateStarting, stateBackingOff}},
		{"a builtin hook is launched on request",
			[]pluginEvent{eventPluginUnused, eventLaunchStarted, eventLaunched}, []pluginState{stateIdle, stateStarting, stateRunning}},
		{"an unused builtin is launched again on request",
			[]pluginEvent{eventLaunchStarted, eventLaunched, eventPluginUnused, eventLaunchStarted, eventLaunched}, []pluginState{stateFirstStarting, stateRunning, stateIdle, stateStarting, stateRunning}},
		{"a plugin without a process is not unused",
			[]pluginEvent{eventLaunchStarted, eventPluginUnused, eventLaunchFailed, eventPluginUnused}, []pluginState{stateFirstStarting, stateFirstStarting, stateBackingOff, stateBackingOff}},
		{"a superseded builtin is not launched",
			[]pluginEvent{eventPluginReplaced, eventLaunchStarted, eventLaunched}, []pluginState{stateSuperseded, stateSuperseded, stateSuperseded}},
		{"a superseded plugin stays superseded when its process exits",
			[]pluginEvent{eventLaunchStarted, eventLaunched, eventPluginReplaced, eventExited, eventLaunchFailed, eventPluginUnused}, []pluginState{stateFirstStarting, stateRunning, stateSuperseded, stateSuperseded, stateSuperseded, stateSuperseded}},
		{"an idle builtin is superseded and ignores requests",
			[]pluginEvent{eventPluginUnused, eventPluginReplaced, eventLaunchStarted}, []pluginState{stateIdle, stateSuperseded, stateSuperseded}},
		{"a plugin in back-off is superseded and not launched",
			[]pluginEvent{eventLaunchStarted, eventLaunchFailed, eventPluginReplaced, eventLaunchStarted}, []pluginState{stateFirstStarting, stateBackingOff, stateSuperseded, stateSuperseded}},
		{"a removed plugin drains until it is released",
			[]pluginEvent{eventLaunchStarted, eventLaunched, eventPluginRemoved, eventPluginDiscarded}, []pluginState{stateFirstStarting, stateRunning, stateDraining, stateGone}},
		{"a draining plugin that exits is launched for its tasks, and drains again",
			[]pluginEvent{eventLaunchStarted, eventLaunched, eventPluginRemoved, eventExited, eventLaunched, eventPluginRemoved, eventPluginDiscarded}, []pluginState{stateFirstStarting, stateRunning, stateDraining, stateStarting, stateRunning, stateDraining, stateGone}},
		{"a draining plugin waits before the launch after an early exit",
			[]pluginEvent{eventLaunchStarted, eventLaunched, eventPluginRemoved, eventExitedEarly, eventPluginDiscarded}, []pluginState{stateFirstStarting, stateRunning, stateDraining, stateBackingOff, stateGone}},
		{"a draining builtin without tasks is idle until it is released",
			[]pluginEvent{eventLaunchStarted, eventLaunched, eventPluginRemoved, eventPluginUnused, eventPluginDiscarded}, []pluginState{stateFirstStarting, stateRunning, stateDraining, stateIdle, stateGone}},
		{"a draining plugin is superseded",
			[]pluginEvent{eventLaunchStarted, eventLaunched, eventPluginRemoved, eventPluginReplaced, eventPluginDiscarded}, []pluginState{stateFirstStarting, stateRunning, stateDraining, stateSuperseded, stateGone}},
		{"a removed plugin without a process does not drain",
			[]pluginEvent{eventPluginRemoved, eventLaunchStarted, eventPluginRemoved, eventLaunchFailed, eventPluginRemoved, eventPluginDiscarded}, []pluginState{stateNotLaunched, stateFirstStarting, stateFirstStarting, stateBackingOff, stateBackingOff, stateGone}},
	} {
		var s pluginState
		var got []pluginState
		for _, e := range tt.events {
			s = s.next(e)
			got = append(got, s)
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: states %v, want %v", tt.name, got, tt.want)
		}
	}
}

// Every state changes to superseded or gone by eventPluginReplaced or eventPluginDiscarded, and no
// other event leads back.
func TestSupersededAndGoneAreFinalStates(t *testing.T) {
	if len(stateTransitions) != int(stateGone)+1 || len(stateFacts) != len(stateTransitions) {
		t.Fatalf("%d and %d rows, want one for each of %d states", len(stateTransitions), len(stateFacts), stateGone+1)
	}
	for s := stateNotLaunched; s <= stateGone; s++ {
		if got := s.next(eventPluginDiscarded); got != stateGone {
			t.Errorf("state %d after released: %d", s, got)
		}
		if got := s.next(eventPluginReplaced); got != stateSuperseded && s != stateGone {
			t.Errorf("state %d after replaced: %d", s, got)
		}
	}
	for e := eventLaunchRejected; e <= eventPluginDiscarded; e++ {
		if got := stateGone.next(e); got != stateGone {
			t.Errorf("a plugin that is gone after event %d: state %d", e, got)
		}
		if got := stateSuperseded.next(e); got != stateSuperseded && e != eventPluginDiscarded {
			t.Errorf("a superseded plugin after event %d: state %d", e, got)
		}
	}
}
