package slowtest

import (
	"os"
	"testing"
)

// EnvVar is the environment variable that enables slow tests. It is set in CI and by "make test-slow".
const EnvVar = "NOMAD_LITE_SLOW"

// Enabled reports whether slow tests run: EnvVar is set, and the tests do not run with -short.
func Enabled() bool { return os.Getenv(EnvVar) != "" && !testing.Short() }

// Skip skips a test unless slow tests are enabled. reason is the text for the log, and describes what makes the test slow.
func Skip(t testing.TB, reason string) {
	t.Helper()
	if !Enabled() {
		t.Skipf("%s; %s=1 without -short, as in make test-slow and CI, runs it", reason, EnvVar)
	}
}
