package allocrunner

import (
	"testing"

	"github.com/nomad-lite/nomad-lite/runtime/core/lifecycle"
)

func TestEvaluateTasks(t *testing.T) {
	const (
		statePending   = lifecycle.Pending
		stateRunning   = lifecycle.Running
		stateSucceeded = lifecycle.Succeeded
		stateFailed    = lifecycle.Failed
	)
	pre := func(s lifecycle.State) siblingState {
		return siblingState{"pre", lifecycle.PrestartEphemeral, false, s}
	}
	side := func(s lifecycle.State) siblingState { return siblingState{"side", lifecycle.PrestartSidecar, false, s} }
	main := func(s lifecycle.State) siblingState { return siblingState{"main", lifecycle.MainTask, false, s} }
	lead := func(s lifecycle.State) siblingState { return siblingState{"lead", lifecycle.MainTask, true, s} }
	post := func(s lifecycle.State) siblingState {
		return siblingState{"post", lifecycle.PoststartEphemeral, false, s}
	}
	postSide := func(s lifecycle.State) siblingState {
		return siblingState{"postside", lifecycle.PoststartSidecar, false, s}
	}
	stop := func(s lifecycle.State) siblingState { return siblingState{"stop", lifecycle.PoststopTask, false, s} }

	for _, c := range []struct {
		name  string
		tasks []siblingState
		want  string // the stop's expected display message, "finished", or "" if the tasks continue
	}{
		{"everything runs", []siblingState{pre(stateSucceeded), side(stateRunning), main(stateRunning), stop(statePending)}, ""},
		{"a task that waits for its restart lives", []siblingState{side(stateRunning), main(statePending)}, ""},
		{"nothing but poststop is left", []siblingState{main(stateSucceeded), stop(statePending)}, "finished"},
		{"a failed poststop concerns nobody", []siblingState{main(stateRunning), stop(stateFailed)}, ""},
		{"RS-013: a failed prestart task takes the others with it", []siblingState{pre(stateFailed), main(statePending), stop(statePending)}, "Sibling Task Failed pre"},
		{"RS-016: sidecars do not outlive main", []siblingState{side(stateRunning), main(stateSucceeded), stop(statePending)}, "Main Tasks Dead "},
		{"RS-018: a poststart task that has not run keeps the sidecar", []siblingState{side(stateRunning), main(stateSucceeded), post(statePending)}, ""},
		{"RS-018: a poststart sidecar that has not run is not worth a start", []siblingState{main(stateSucceeded), postSide(statePending)}, "Main Tasks Dead "},
		{"RS-020: a leader that ended well takes the others with it", []siblingState{lead(stateSucceeded), main(stateRunning)}, "Leader Task Dead "},
		{"RS-021: a leader that failed is a failed sibling", []siblingState{lead(stateFailed), main(stateRunning)}, "Sibling Task Failed lead"},
		{"the first failed task is named", []siblingState{pre(stateFailed), main(stateFailed), side(stateRunning)}, "Sibling Task Failed pre"},
		{"a leader that ended well counts more than a failure", []siblingState{main(stateFailed), lead(stateSucceeded), side(stateRunning)}, "Leader Task Dead "},
		{"a failure counts more than dead main tasks", []siblingState{main(stateFailed), side(stateRunning)}, "Sibling Task Failed main"},
		{"all failed", []siblingState{main(stateFailed), side(stateFailed)}, "finished"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := ""
			switch why, finished := evaluateSiblingStop(c.tasks); {
			case finished:
				got = "finished"
			case why != nil:
				e := why()
				got = e.Type + " " + e.FailedSibling
			}
			if got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
