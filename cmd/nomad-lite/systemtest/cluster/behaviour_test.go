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
	if os.Getenv(behaviourEnvVar) == "" {
		t.Skipf("takes minutes, and a machine that does nothing else; %s=1 runs it", behaviourEnvVar)
	}
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("the scenarios are written in Python: ", err)
	}
	program := filepath.Join(systemtest.SharedDirOrSkip(t, "conformance", "behaviour"), "run.py")
	c := startCluster(t, serverOptions{})
	c.startNode(t, "lite")

	run := func(arguments ...string) (out string, ok bool) {
		t.Helper()
		cmd := exec.Command(python, append([]string{program, "check", "--addr", c.api().Address(), "--exclusive", "--work", t.TempDir()}, arguments...)...)
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
