package golden

import (
	"os"
	"strings"
	"testing"
)

// EnvVar is the environment variable with which tests write their files.
const EnvVar = "NOMAD_LITE_UPDATE"

// Advice is what a test says if a file is out of date that make reference writes.
const Advice = "run make reference and commit what it writes"

// ReferencePrefix starts the names of the tests that make reference runs.
const ReferencePrefix = "TestReference"

// Updating reports whether tests write their files.
func Updating() bool { return os.Getenv(EnvVar) != "" }

// Check fails the test unless the file has the given text, which is the expected result of the test.
func Check(t testing.TB, path, text string) {
	t.Helper()
	check(t, path, text, "if that is intended, run this test with "+EnvVar+"=1, and read the diff")
}

// CheckReference fails the test unless the file has the given text, which make reference writes.
func CheckReference(t testing.TB, path, text string) {
	t.Helper()
	if !strings.HasPrefix(t.Name(), ReferencePrefix) {
		t.Fatalf("make reference runs only tests whose names start with %s", ReferencePrefix)
	}
	check(t, path, text, Advice)
}

func check(t testing.TB, path, text, advice string) {
	t.Helper()
	if Updating() {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	current, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v: %s", err, advice)
	}
	if line, got, want := firstDifference(text, string(current)); line > 0 {
		t.Errorf("%s:%d: the file has %q, and the test %q: %s", path, line, want, got, advice)
	}
}

// firstDifference returns the first line in which two texts differ, and its number, or 0 if the texts are equal.
func firstDifference(a, b string) (line int, inA, inB string) {
	if a == b {
		return 0, "", ""
	}
	linesOfA, linesOfB := strings.SplitAfter(a, "\n"), strings.SplitAfter(b, "\n")
	for line < min(len(linesOfA), len(linesOfB)) && linesOfA[line] == linesOfB[line] {
		line++
	}
	// A text that ends before the other one has an empty line there.
	linesOfA, linesOfB = append(linesOfA, ""), append(linesOfB, "")
	return line + 1, linesOfA[line], linesOfB[line]
}
