package sdktest

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// allCases returns the cases of each plugin type.
func allCases() map[string][]testCase {
	shell := func(string) map[string]any { return nil }
	return map[string][]testCase{"driver": driverCases(Plugin{Tasks: Tasks{Shell: shell}}), "hook": hookCases(), "device": deviceCases()}
}

var idPattern = regexp.MustCompile(`^[a-z]+(\.[a-z]+(-[a-z]+)*)$`)

func TestCasesAreDocumented(t *testing.T) {
	for kind, cases := range allCases() {
		seen := map[string]bool{}
		for _, c := range cases {
			if !idPattern.MatchString(c.id) || seen[c.id] {
				t.Errorf("%s: the id %q is malformed or not unique", kind, c.id)
			}
			seen[c.id] = true
			if c.expectation == "" || c.consequence == "" || !slices.Contains([]Severity{Must, Should, Quirk}, c.severity) {
				t.Errorf("%s %s: incomplete: %q, %q, %q", kind, c.id, c.severity, c.expectation, c.consequence)
			}
			path, heading, _ := strings.Cut(c.docsLink, "#")
			if !slices.Contains(headingAnchors(t, path), heading) {
				t.Errorf("%s %s: %s has no heading #%s", kind, c.id, path, heading)
			}
		}
	}
}

var headingPattern = regexp.MustCompile(`(?m)^#+ (.*)$`)

// headingAnchors returns the anchors of the headings of a file of the repository.
func headingAnchors(t *testing.T, path string) (anchors []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../..", path))
	if err != nil {
		t.Fatal(err)
	}
	for _, heading := range headingPattern.FindAllSubmatch(text, -1) {
		anchors = append(anchors, strings.ReplaceAll(strings.ToLower(string(heading[1])), " ", "-"))
	}
	return anchors
}
