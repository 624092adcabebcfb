package allocrunner

import (
	"testing"

	"github.com/nomad-lite/nomad-lite/runtime/lifecycle"
)

func TestReact(t *testing.T) {
	const (
		pending   = lifecycle.Pending
		running   = lifecycle.Running
		succeeded = lifecycle.Succeeded
		failed    = lifecycle.Failed
	)
	pre := func(s lifecycle.State) observed { return observed{"pre", lifecycle.PrestartEphemeral, false, s} }
	side := func(s lifecycle.State) observed { return observed{"side", lifecycle.PrestartSidecar, false, s} }
	main := func(s lifecycle.State) observed { return observed{"main", lifecycle.MainTask, false, s} }
	lead := func(s lifecycle.State) observed { return observed{"lead", lifecycle.MainTask, true, s} }
	post := func(s lifecycle.State) observed { return observed{"post", lifecycle.PoststartEphemeral, false, s} }
	postSide := func(s lifecycle.State) observed { return observed{"postside", lifecycle.PoststartSidecar, false, s} }
	stop := func(s lifecycle.State) observed { return observed{"stop", lifecycle.PoststopTask, false, s} }

	for _, c := range []struct {
		name  string
		tasks []observed
		want  string // display message, "finished", or nothing
	}{
		{"everything runs", []observed{pre(succeeded), side(running), main(running), stop(pending)}, ""},
		{"a task that waits for its restart lives", []observed{side(running), main(pending)}, ""},
		{"nothing but poststop is left", []observed{main(succeeded), stop(pending)}, "finished"},
		{"a failed poststop concerns nobody", []observed{main(running), stop(failed)}, ""},
		{"RS-013: a failed prestart task takes the others with it", []observed{pre(failed), main(pending), stop(pending)}, "Sibling Task Failed pre"},
		{"RS-016: sidecars do not outlive main", []observed{side(running), main(succeeded), stop(pending)}, "Main Tasks Dead "},
		{"RS-018: a poststart task that has not run keeps the sidecar", []observed{side(running), main(succeeded), post(pending)}, ""},
		{"RS-018: a poststart sidecar that has not run is not worth a start", []observed{main(succeeded), postSide(pending)}, "Main Tasks Dead "},
		{"RS-020: a leader that ended well takes the others with it", []observed{lead(succeeded), main(running)}, "Leader Task Dead "},
		{"RS-021: a leader that failed is a failed sibling", []observed{lead(failed), main(running)}, "Sibling Task Failed lead"},
		{"the first failed task is named", []observed{pre(failed), main(failed), side(running)}, "Sibling Task Failed pre"},
		{"a leader that ended well counts more than a failure", []observed{main(failed), lead(succeeded), side(running)}, "Leader Task Dead "},
		{"a failure counts more than dead main tasks", []observed{main(failed), side(running)}, "Sibling Task Failed main"},
		{"all failed", []observed{main(failed), side(failed)}, "finished"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := ""
			switch why, finished := react(c.tasks); {
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
