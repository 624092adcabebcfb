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
			[]event{launchStarted, launched, exited, launched}, []state{starting, running, starting, running}},
		{"an early exit delays the next launch",
			[]event{launchStarted, launched, exitedEarly, launchStarted, launched}, []state{starting, running, backingOff, starting, running}},
		{"a failed launch is retried after a delay",
			[]event{launchStarted, launchFailed, launchStarted, launched}, []state{starting, backingOff, starting, running}},
		{"a plugin with an error in the catalog is never launched",
			[]event{launchRejected, launchStarted, launched}, []state{failed, failed, failed}},
		{"a builtin hook is launched on request",
			[]event{unused, launchStarted, launched}, []state{idle, starting, running}},
		{"an unused builtin is launched again on request",
			[]event{launchStarted, launched, unused, launchStarted, launched}, []state{starting, running, idle, starting, running}},
		{"a plugin without a process is not unused",
			[]event{launchStarted, unused, launchFailed, unused}, []state{starting, starting, backingOff, backingOff}},
		{"a superseded builtin is not launched",
			[]event{replaced, launchStarted, launched}, []state{superseded, superseded, superseded}},
		{"a superseded plugin stays superseded when its process exits",
			[]event{launchStarted, launched, replaced, exited, launchFailed, unused}, []state{starting, running, superseded, superseded, superseded, superseded}},
		{"an idle builtin is superseded and ignores requests",
			[]event{unused, replaced, launchStarted}, []state{idle, superseded, superseded}},
		{"a plugin in back-off is superseded and not launched",
			[]event{launchStarted, launchFailed, replaced, launchStarted}, []state{starting, backingOff, superseded, superseded}},
		{"a removed plugin drains until it is released",
			[]event{launchStarted, launched, removed, released}, []state{starting, running, draining, gone}},
		{"a draining plugin that exits is launched for its tasks, and drains again",
			[]event{launchStarted, launched, removed, exited, launched, removed, released}, []state{starting, running, draining, starting, running, draining, gone}},
		{"a draining plugin waits before the launch after an early exit",
			[]event{launchStarted, launched, removed, exitedEarly, released}, []state{starting, running, draining, backingOff, gone}},
		{"a draining builtin without tasks is idle until it is released",
			[]event{launchStarted, launched, removed, unused, released}, []state{starting, running, draining, idle, gone}},
		{"a draining plugin is superseded",
			[]event{launchStarted, launched, removed, replaced, released}, []state{starting, running, draining, superseded, gone}},
		{"a removed plugin without a process does not drain",
			[]event{removed, launchStarted, removed, launchFailed, removed, released}, []state{held, starting, starting, backingOff, backingOff, gone}},
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

// Each state can be superseded and can be released, and the plugin is not used after that.
func TestEveryStateEnds(t *testing.T) {
	if len(transitions) != int(gone)+1 {
		t.Fatalf("%d rows, want one for each of %d states", len(transitions), gone+1)
	}
	for s := held; s <= gone; s++ {
		if got := s.next(released); got != gone {
			t.Errorf("state %d after released: %d", s, got)
		}
		if got := s.next(replaced); got != superseded && s != gone {
			t.Errorf("state %d after replaced: %d", s, got)
		}
	}
	for e := launchRejected; e <= released; e++ {
		if got := gone.next(e); got != gone {
			t.Errorf("a plugin that is gone after event %d: state %d", e, got)
		}
		if got := superseded.next(e); got != superseded && e != released {
			t.Errorf("a superseded plugin after event %d: state %d", e, got)
		}
	}
}
