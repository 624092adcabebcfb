package promises

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/docpage"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/golden"
)

// separator is between the name and the value of a promise.
const separator = ": "

// CompleteEnvVar is the environment variable with which Check fails for a line that docs/promises does not have. It is set before a
// release, which promises all that it has.
const CompleteEnvVar = "NOMAD_LITE_PROMISES_COMPLETE"

// Check fails the test for each promise of docs/promises/FILE that the current lines do not keep, and, if CompleteEnvVar is set, for
// each current line that the file does not have. make reference adds these lines. It removes no line, so that a promise is only
// withdrawn by hand.
func Check(t testing.TB, file string, current []string) {
	t.Helper()
	path := filepath.Join(docpage.Dir(t), "promises", file)
	promised := readLines(t, path)
	added := CheckKept(t, file, current)
	switch {
	case len(added) == 0:
	case golden.Updating():
		golden.CheckReference(t, path, strings.Join(merge(promised, added), "\n")+"\n")
	case os.Getenv(CompleteEnvVar) != "":
		t.Errorf("docs/promises/%s does not have %q: %s", file, added, golden.Advice)
	default:
		t.Logf("new and not in docs/promises/%s: %d lines, for example %q: make reference promises them", file, len(added), added[0])
	}
}

// CheckKept fails the test for each promise of docs/promises/FILE that the lines do not keep, and returns the lines that the file does
// not have.
func CheckKept(t testing.TB, file string, lines []string) (added []string) {
	t.Helper()
	broken, added, err := compare(file, readLines(t, filepath.Join(docpage.Dir(t), "promises", file)), lines)
	if err != nil {
		t.Fatal(err)
	}
	for _, message := range broken {
		t.Error(message)
	}
	return added
}

// CheckOnly fails the test unless the lines break exactly one promise of docs/promises/FILE, whose name is given. Tests call it
// with lines from which they have removed something, to show that Check reports the removal.
func CheckOnly(t testing.TB, file string, lines []string, name string) {
	t.Helper()
	broken, _, err := compare(file, readLines(t, filepath.Join(docpage.Dir(t), "promises", file)), lines)
	if err != nil {
		t.Fatal(err)
	}
	if len(broken) != 1 || !strings.Contains(broken[0], "promises "+name+",") || !strings.Contains(broken[0], "docs/reference/compatibility.md") {
		t.Errorf("broken promises %q, want only %s", broken, name)
	}
}

// readLines returns the lines of a file.
func readLines(t testing.TB, path string) []string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err) // without this, a removed file would withdraw its promises silently
	}
	return strings.FieldsFunc(string(text), func(r rune) bool { return r == '\n' })
}

// compare returns a message for each promised line that the current lines do not keep, and the current lines that are not promised.
func compare(file string, promised, current []string) (broken, added []string, err error) {
	is, err := valuesByName(current)
	if err != nil {
		return nil, nil, fmt.Errorf("current lines of %s: %w", file, err)
	}
	was, err := valuesByName(promised)
	if err != nil {
		return nil, nil, fmt.Errorf("docs/promises/%s: %w", file, err)
	}
	for _, line := range promised {
		name, value, _ := strings.Cut(line, separator)
		now, exists := is[name]
		switch {
		case !exists:
			broken = append(broken, fmt.Sprintf("docs/promises/%s promises %s, which no longer exists. Restore it, or follow \"Change a promise\" in docs/reference/compatibility.md", file, name))
		case value != "" && now != value:
			broken = append(broken, fmt.Sprintf("docs/promises/%s promises %s, whose value was %q and is now %q. Restore the value, or follow \"Change a promise\" in docs/reference/compatibility.md", file, name, value, now))
		}
	}
	for _, line := range current {
		name, value, _ := strings.Cut(line, separator)
		if promisedValue, exists := was[name]; !exists || promisedValue == "" && value != "" {
			added = append(added, line)
		}
	}
	return broken, added, nil
}

// valuesByName returns the value of each name. Two lines with one name are an error: the value of one of them would not be compared.
func valuesByName(lines []string) (map[string]string, error) {
	values := make(map[string]string, len(lines))
	for _, line := range lines {
		name, value, _ := strings.Cut(line, separator)
		if _, exists := values[name]; exists || name == "" || strings.Contains(line, "\n") {
			return nil, fmt.Errorf("%q is no line, or its name has a second line: each name needs one line", line)
		}
		values[name] = value
	}
	return values, nil
}

// merge returns the sorted lines of both. An added line with a value replaces the promised line with the same name.
func merge(promised, added []string) []string {
	replaced := make(map[string]bool)
	for _, line := range added {
		name, _, _ := strings.Cut(line, separator)
		replaced[name] = true
	}
	lines := slices.DeleteFunc(slices.Clone(promised), func(line string) bool { return replaced[line] })
	lines = append(lines, added...)
	slices.Sort(lines)
	return lines
}
