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
	pre := func(s lifecycle.State) taskView { return taskView{"pre", lifecycle.PrestartEphemeral, false, s} }
	side := func(s lifecycle.State) taskView { return taskView{"side", lifecycle.PrestartSidecar, false, s} }
	main := func(s lifecycle.State) taskView { return taskView{"main", lifecycle.MainTask, false, s} }
	lead := func(s lifecycle.State) taskView { return taskView{"lead", lifecycle.MainTask, true, s} }
	post := func(s lifecycle.State) taskView { return taskView{"post", lifecycle.PoststartEphemeral, false, s} }
	postSide := func(s lifecycle.State) taskView { return taskView{"postside", lifecycle.PoststartSidecar, false, s} }
	stop := func(s lifecycle.State) taskView { return taskView{"stop", lifecycle.PoststopTask, false, s} }

	for _, c := range []struct {
		name  string
		tasks []taskView
		want  string // expected display message of the stop, "finished", or "" if the tasks continue
	}{
		{"everything runs", []taskView{pre(succeeded), side(running), main(running), stop(pending)}, ""},
		{"a task that waits for its restart lives", []taskView{side(running), main(pending)}, ""},
		{"nothing but poststop is left", []taskView{main(succeeded), stop(pending)}, "finished"},
		{"a failed poststop concerns nobody", []taskView{main(running), stop(failed)}, ""},
		{"RS-013: a failed prestart task takes the others with it", []taskView{pre(failed), main(pending), stop(pending)}, "Sibling Task Failed pre"},
		{"RS-016: sidecars do not outlive main", []taskView{side(running), main(succeeded), stop(pending)}, "Main Tasks Dead "},
		{"RS-018: a poststart task that has not run keeps the sidecar", []taskView{side(running), main(succeeded), post(pending)}, ""},
		{"RS-018: a poststart sidecar that has not run is not worth a start", []taskView{main(succeeded), postSide(pending)}, "Main Tasks Dead "},
		{"RS-020: a leader that ended well takes the others with it", []taskView{lead(succeeded), main(running)}, "Leader Task Dead "},
		{"RS-021: a leader that failed is a failed sibling", []taskView{lead(failed), main(running)}, "Sibling Task Failed lead"},
		{"the first failed task is named", []taskView{pre(failed), main(failed), side(running)}, "Sibling Task Failed pre"},
		{"a leader that ended well counts more than a failure", []taskView{main(failed), lead(succeeded), side(running)}, "Leader Task Dead "},
		{"a failure counts more than dead main tasks", []taskView{main(failed), side(running)}, "Sibling Task Failed main"},
		{"all failed", []taskView{main(failed), side(failed)}, "finished"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := ""
			switch why, finished := evaluateTasks(c.tasks); {
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
