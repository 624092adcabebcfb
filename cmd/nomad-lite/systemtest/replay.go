package systemtest

import (
	"os"
	"path/filepath"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/golden"
	"github.com/nomad-lite/nomad-lite/runtime/core/tasksteps/transitioncheck"
)

// checkTransitionsFile is the script command "replay FILE [FIXTURE]". It checks the transitions.json of a debug bundle
// with transitioncheck.CheckBundle. FIXTURE is the path of such a file in the repository. If golden.EnvVar is set and FIXTURE
// is missing or does not match the table of steps, FILE is copied to it.
func checkTransitionsFile(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 || len(args) > 2 {
		ts.Fatalf("usage: replay file [fixture]")
	}
	text, err := os.ReadFile(ts.MkAbs(args[0]))
	ts.Check(err)
	ts.Check(transitioncheck.CheckBundle(text))
	if len(args) == 1 || !golden.Updating() {
		return
	}
	path := filepath.Join(RepositoryDir(), args[1])
	if old, err := os.ReadFile(path); err == nil && transitioncheck.CheckBundle(old) == nil {
		return
	}
	ts.Check(os.MkdirAll(filepath.Dir(path), 0o755))
	ts.Check(os.WriteFile(path, text, 0o644))
}
