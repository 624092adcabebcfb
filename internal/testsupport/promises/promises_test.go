package promises

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestCompare(t *testing.T) {
	promised := []string{"metric a: gauge", "metric a, label host", "metric b: counter"}
	for name, test := range map[string]struct {
		current   []string
		broken    string // part of the only message; empty if no promise is broken
		additions []string
	}{
		"the same lines keep all promises":       {promised, "", nil},
		"another order keeps all promises":       {[]string{promised[2], promised[0], promised[1]}, "", nil},
		"an addition keeps all promises":         {append(slices.Clone(promised), "metric c: gauge"), "", []string{"metric c: gauge"}},
		"a removal breaks its promise":           {promised[:2], "promises metric b, which no longer exists", nil},
		"another value breaks its promise":       {[]string{promised[0], promised[1], "metric b: gauge"}, `promises metric b, whose value was "counter" and is now "gauge"`, nil},
		"a value that disappears is a change":    {[]string{promised[0], promised[1], "metric b"}, `promises metric b, whose value was "counter" and is now ""`, nil},
		"a value can be added to a name":         {[]string{promised[0], "metric a, label host: text", promised[2]}, "", []string{"metric a, label host: text"}},
		"a renamed line is removed and added":    {[]string{promised[0], promised[1], "metric z: counter"}, "promises metric b, which no longer exists", []string{"metric z: counter"}},
		"a value with a separator stays a value": {[]string{"metric a: gauge: x", promised[1], promised[2]}, `is now "gauge: x"`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			broken, added, err := compare("x.txt", promised, test.current)
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case test.broken == "" && len(broken) > 0:
				t.Errorf("broken promises %q, want none", broken)
			case test.broken != "" && (len(broken) != 1 || !strings.Contains(broken[0], test.broken) || !strings.Contains(broken[0], "docs/reference/compatibility.md")):
				t.Errorf("broken promises %q, want one with %q", broken, test.broken)
			}
			if !slices.Equal(added, test.additions) {
				t.Errorf("additions %q, want %q", added, test.additions)
			}
		})
	}
}

func TestTwoLinesWithOneNameAreAnError(t *testing.T) {
	twice := []string{"metric a: gauge", "metric a: counter"}
	if _, _, err := compare("x.txt", nil, twice); err == nil {
		t.Error("two current lines with one name have no error")
	}
	if _, _, err := compare("x.txt", twice, nil); err == nil {
		t.Error("two promised lines with one name have no error")
	}
}

// errorRecorder keeps the errors that a test reports.
type errorRecorder struct {
	testing.TB
	errors []string
}

func (r *errorRecorder) Errorf(format string, args ...any) {
	r.errors = append(r.errors, fmt.Sprintf(format, args...))
}

func TestAdditionIsAnErrorBeforeRelease(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "docs", "promises"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "docs", "promises", "x.txt"), []byte("a: 1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	for value, want := range map[string]int{"": 0, "1": 1} {
		t.Setenv(CompleteEnvVar, value)
		r := &errorRecorder{TB: t}
		Check(r, "x.txt", []string{"a: 1", "b: 2"})
		if len(r.errors) != want || want > 0 && !strings.Contains(r.errors[0], `"b: 2"]: run make reference`) {
			t.Errorf("with %s=%q: errors %q, want %d", CompleteEnvVar, value, r.errors, want)
		}
	}
}

// An update keeps the lines that are broken, so that a promise is only withdrawn by hand.
func TestMergeKeepsPromises(t *testing.T) {
	got := merge([]string{"a: 1", "b", "d: 4"}, []string{"c: 3", "b: 2"})
	if want := []string{"a: 1", "b: 2", "c: 3", "d: 4"}; !slices.Equal(got, want) {
		t.Errorf("merged lines %q, want %q", got, want)
	}
}
