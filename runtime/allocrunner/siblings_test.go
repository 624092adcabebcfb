package allocrunner

import (
	"testing"

	"github.com/nomad-lite/nomad-lite/runtime/lifecycle"
)

func TestEvaluateTasks(t *testing.T) {
	const (
		pending   = lifecycle.Pending
		running   = lifecycle.Running
		succeeded = lifecycle.Succeeded
		failed    = lifecycle.Failed
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
		want  string // expected display message of the stop, "finished", or "" if the tasks continue
	}{
		{"everything runs", []siblingState{pre(succeeded), side(running), main(running), stop(pending)}, ""},
		{"a task that waits for its restart lives", []siblingState{side(running), main(pending)}, ""},
		{"nothing but poststop is left", []siblingState{main(succeeded), stop(pending)}, "finished"},
		{"a failed poststop concerns nobody", []siblingState{main(running), stop(failed)}, ""},
		{"RS-013: a failed prestart task takes the others with it", []siblingState{pre(failed), main(pending), stop(pending)}, "Sibling Task Failed pre"},
		{"RS-016: sidecars do not outlive main", []siblingState{side(running), main(succeeded), stop(pending)}, "Main Tasks Dead "},
		{"RS-018: a poststart task that has not run keeps the sidecar", []siblingState{side(running), main(succeeded), post(pending)}, ""},
		{"RS-018: a poststart sidecar that has not run is not worth a start", []siblingState{main(succeeded), postSide(pending)}, "Main Tasks Dead "},
		{"RS-020: a leader that ended well takes the others with it", []siblingState{lead(succeeded), main(running)}, "Leader Task Dead "},
		{"RS-021: a leader that failed is a failed sibling", []siblingState{lead(failed), main(running)}, "Sibling Task Failed lead"},
		{"the first failed task is named", []siblingState{pre(failed), main(failed), side(running)}, "Sibling Task Failed pre"},
		{"a leader that ended well counts more than a failure", []siblingState{main(failed), lead(succeeded), side(running)}, "Leader Task Dead "},
		{"a failure counts more than dead main tasks", []siblingState{main(failed), side(running)}, "Sibling Task Failed main"},
		{"all failed", []siblingState{main(failed), side(failed)}, "finished"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := ""
			switch why, finished := evaluateSiblings(c.tasks); {
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
