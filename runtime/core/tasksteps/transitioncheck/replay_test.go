package transitioncheck

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nomad-lite/nomad-lite/runtime/core/tasksteps"
)

// The files in ../testdata/bundles are transitions.json files from debug bundles. The system test script alloc_transitions
// wrote agent.json, and replaces it if NOMAD_LITE_UPDATE is set and the file does not match the table.
func TestReplayOfBundles(t *testing.T) {
	paths, err := filepath.Glob("../testdata/bundles/*")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no bundles: %v", err)
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			text, err := os.ReadFile(path)
			if err == nil {
				err = CheckBundle(text)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
}

func TestCheckBundle(t *testing.T) {
	const good = `{"Time":"2026-11-25T13:00:00Z","Step":"no step","Result":"done","Next":"recover the task of an earlier agent"}`
	const bad = `{"Time":"2026-11-25T13:00:00Z","Step":"start the task","Result":"restart","Next":"wait for the exit"}`
	bundle := func(tasks string) string { return `[{"AllocID":"a","TransitionsByTask":{` + tasks + `}}]` }
	for _, c := range []struct{ name, text, wantErr string }{
		{"possible transitions", bundle(`"t":[` + good + `],"has not begun":[]`), ""},
		{"impossible transition of one task", bundle(`"t":[` + good + `],"u":[` + bad + `]`), `allocation "a": task "u": transition 0: the step "start the task" cannot`},
		{"no transitions", bundle(`"t":[]`), "no transitions"},
		{"no allocations", `[]`, "no transitions"},
		{"unknown step", bundle(`"t":[{"Step":"fly"}]`), `no step of a task has the name "fly"`},
		{"another file", `{}`, "cannot unmarshal"},
	} {
		err := CheckBundle([]byte(c.text))
		if (err == nil) != (c.wantErr == "") || err != nil && !strings.Contains(err.Error(), c.wantErr) {
			t.Errorf("%s: error %v, want %q", c.name, err, c.wantErr)
		}
	}
}

func TestCheck(t *testing.T) {
	move := func(s tasksteps.Step, r tasksteps.Result, next tasksteps.Step) tasksteps.Transition {
		return tasksteps.Transition{Time: time.Unix(1, 0), Step: s, Result: r, Next: next}
	}
	good := []tasksteps.Transition{
		move(tasksteps.None, tasksteps.Done, tasksteps.RecoverTask), move(tasksteps.RecoverTask, tasksteps.Done, tasksteps.AwaitRestartDelay), move(tasksteps.AwaitRestartDelay, tasksteps.Killed, tasksteps.MarkDead),
	}
	text, err := json.Marshal(good)
	var read []tasksteps.Transition
	if err == nil {
		err = json.Unmarshal(text, &read)
	}
	if err != nil || Check(good) != nil || Check(good[2:]) != nil || Check(read) != nil {
		t.Errorf("%v, %v, %v, %v", err, Check(good), Check(good[2:]), Check(read))
	}
	for name, bad := range map[string][]tasksteps.Transition{
		"another first step":   {move(tasksteps.None, tasksteps.Done, tasksteps.StartTask)},
		"impossible result":    {move(tasksteps.StartTask, tasksteps.Restart, tasksteps.AwaitExit)},
		"another next step":    {move(tasksteps.StartTask, tasksteps.Done, tasksteps.AwaitExit)},
		"a transition is lost": {good[0], good[2]},
	} {
		if Check(bad) == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
