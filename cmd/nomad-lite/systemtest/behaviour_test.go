package systemtest

import (
	"os"
	"path/filepath"
	"testing"

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
	shared := os.Getenv("NOMAD_LITE_SHARED")
	if shared == "" {
		shared = filepath.Join("..", "..", "..", "..", "shared")
	}
	scenarios, err := filepath.Abs(filepath.Join(shared, "conformance", "behaviour"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(scenarios); err != nil {
		t.Skipf("no scenarios at %s: set NOMAD_LITE_SHARED to the directory that holds them", scenarios)
	}
	params := scriptParams(t, "testdata/behaviour")
	setup := params.Setup
	params.Setup = func(env *testscript.Env) error {
		env.Setenv("SCENARIOS", scenarios)
		return setup(env)
	}
	testscript.Run(t, params)
}
