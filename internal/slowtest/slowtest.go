package slowtest

import (
	"fmt"
	"hash/fnv"
	"os"
	"testing"
)

// EnvVar is the environment variable that enables slow tests: with the value 1, as in "make test-slow", all of them; with K/N, such
// as 2/3 in CI, the K-th of N parts. The name of a test selects its part.
const EnvVar = "NOMAD_LITE_SLOW"

// Enabled reports whether the slow part of a test runs: EnvVar enables it, and the tests do not run with -short. It panics if the
// value of EnvVar is no part.
func Enabled(t testing.TB) bool {
	return !testing.Short() && isInPart(os.Getenv(EnvVar), t.Name())
}

// AllEnabled reports whether all slow tests run, so that what they have found together can be checked for gaps.
func AllEnabled() bool { return os.Getenv(EnvVar) == "1" && !testing.Short() }

// isInPart reports whether the value of EnvVar enables the test with the name.
func isInPart(value, name string) bool {
	if value == "" || value == "1" {
		return value == "1"
	}
	var part, parts uint32
	if n, err := fmt.Sscanf(value, "%d/%d", &part, &parts); err != nil || n != 2 || part < 1 || part > parts {
		panic(fmt.Sprintf("%s=%s: want 1 for all slow tests, or a part of them such as 2/3", EnvVar, value))
	}
	hash := fnv.New32a()
	hash.Write([]byte(name))
	return hash.Sum32()%parts == part-1
}

// Skip skips a test unless it is enabled. reason is the text for the log, and describes what makes the test slow.
func Skip(t testing.TB, reason string) {
	t.Helper()
	if !Enabled(t) {
		t.Skipf("%s; %s=1 without -short, as in make test-slow, runs it, and so does one of several runs of CI", reason, EnvVar)
	}
}
