package jobs

import (
	"os"
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
	scenarios := systemtest.SharedDirOrSkip(t, "conformance", "behaviour")
	params := systemtest.NewScriptParams("testdata/behaviour")
	setup := params.Setup
	params.Setup = func(env *testscript.Env) error {
		env.Setenv("SCENARIOS", scenarios)
		return setup(env)
	}
	testscript.Run(t, params)
}
