package cluster

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
)

// behaviourEnvVar enables TestBehaviourMatchesNomadInCluster.
const behaviourEnvVar = "NOMAD_LITE_BEHAVIOUR"

// TestBehaviourMatchesNomadInCluster runs the scenarios whose results on Nomad were recorded, with a stock server and a node of
// nomad-lite, and compares the results.
func TestBehaviourMatchesNomadInCluster(t *testing.T) {
	scenarios := findScenarios(t)
	c := startCluster(t, serverOptions{})
	c.startNode(t, "lite")
	scenarios.check(t, c.api().Address())
}

// TestBehaviourMatchesNomadWithOwnScheduler runs the same scenarios with the scheduler and the HTTP API of this repository as
// the server of a node.
func TestBehaviourMatchesNomadWithOwnScheduler(t *testing.T) {
	scenarios := findScenarios(t)
	scenarios.check(t, startOwnServer(t).address)
}

// scenarios is the program with the scenarios.
type scenarios struct{ python, program string }

// findScenarios returns the scenarios. It skips the test if they are not enabled, or if the machine does not have them.
func findScenarios(t *testing.T) scenarios {
	t.Helper()
	if os.Getenv(behaviourEnvVar) == "" {
		t.Skipf("takes minutes, and a machine that does nothing else; %s=1 runs it", behaviourEnvVar)
	}
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("the scenarios are written in Python: ", err)
	}
	return scenarios{python, filepath.Join(systemtest.SharedDirOrSkip(t, "conformance", "behaviour"), "run.py")}
}

// check runs all scenarios against the HTTP API at an address, and fails the test if their results differ from those on Nomad.
func (s scenarios) check(t *testing.T, address string) {
	t.Helper()
	run := func(arguments ...string) (out string, ok bool) {
		t.Helper()
		cmd := exec.Command(s.python, append([]string{s.program, "check", "--addr", address, "--exclusive", "--work", t.TempDir()}, arguments...)...)
		text, err := cmd.CombinedOutput()
		t.Logf("%s\n%s", strings.Join(arguments, " "), text)
		return string(text), err == nil
	}
	out, ok := run("--jobs", "4")
	// Several scenarios at once keep a small machine so busy that some differ. These are played again, one after the other.
	for try := 0; !ok && try < 3; try++ {
		failed := regexp.MustCompile(`(?m)^failed: (.*)$`).FindStringSubmatch(out)
		if failed == nil {
			t.Fatal("the scenarios were not played")
		}
		names := strings.Fields(failed[1])
		slices.Sort(names)
		out, ok = run("--jobs", "1", "--only", strings.Join(names, ","))
	}
	if !ok {
		t.Error("scenarios have other results than on Nomad; see above")
	}
}
