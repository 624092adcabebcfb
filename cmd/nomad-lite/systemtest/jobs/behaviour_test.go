package jobs

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/rogpeppe/go-internal/testscript"
)

// nomadComparisonEnvVar enables TestBehaviourMatchesNomad.
const nomadComparisonEnvVar = "NOMAD_LITE_BEHAVIOUR"

// TestBehaviourMatchesNomad runs scenarios whose results on Nomad were recorded, and compares the
// results. The scenarios are not part of this repository.
func TestBehaviourMatchesNomad(t *testing.T) {
	if os.Getenv(nomadComparisonEnvVar) == "" {
		t.Skipf("takes the better part of a minute, and a machine that does nothing else; %s=1 runs it", nomadComparisonEnvVar)
	}
	scenarios := sharedDir(t, "conformance", "behaviour")
	params := systemtest.NewScriptParams("testdata/behaviour")
	setup := params.Setup
	params.Setup = func(env *testscript.Env) error {
		env.Setenv("SCENARIOS", scenarios)
		return setup(env)
	}
	testscript.Run(t, params)
}

// sharedDir returns the absolute path of a directory with samples of Nomad, which are not part of this
// repository. It skips the test if there is no such directory.
func sharedDir(t *testing.T, names ...string) string {
	t.Helper()
	shared := os.Getenv("NOMAD_LITE_SHARED")
	if shared == "" {
		shared = filepath.Join(systemtest.RepositoryDir(), "..", "shared")
	}
	dir, err := filepath.Abs(filepath.Join(append([]string{shared}, names...)...))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Skipf("nothing at %s: set NOMAD_LITE_SHARED to the directory that holds %s", dir, filepath.Join(names...))
	}
	return dir
}
