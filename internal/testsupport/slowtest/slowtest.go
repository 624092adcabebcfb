package slowtest

import (
	"os"
	"testing"
)

// EnvVar is the environment variable that enables slow tests: with the value 1, as in CI, those that are not long, and with the
// value all, as in "make test-slow", all of them. Long are tests of more than two minutes, and those that start engines or build
// plugins, which together take a quarter of an hour.
const EnvVar = "NOMAD_LITE_SLOW"

// Enabled reports whether slow tests run: EnvVar enables them, and the tests do not run with -short.
func Enabled() bool { return os.Getenv(EnvVar) != "" && !testing.Short() }

// LongEnabled reports whether long tests run.
func LongEnabled() bool { return os.Getenv(EnvVar) == "all" && !testing.Short() }

// Skip skips a test unless slow tests are enabled. reason is the text for the log, and describes what makes the
// test slow.
func Skip(t testing.TB, reason string) {
	t.Helper()
	if !Enabled() {
		t.Skipf("%s; %s=1 without -short runs it, as do make test-slow and CI", reason, EnvVar)
	}
}

// SkipLong is Skip for a long test.
func SkipLong(t testing.TB, reason string) {
	t.Helper()
	if !LongEnabled() {
		t.Skipf("%s; make test-long runs it", reason)
	}
}
