package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// findTestNames returns the names of all tests and fuzz targets of the repository.
func findTestNames(t *testing.T) map[string]bool {
	names := make(map[string]bool)
	declared := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	err := filepath.WalkDir("../..", func(path string, e fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, match := range declared.FindAllSubmatch(text, -1) {
			names[string(match[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// Each row of the table of advisories must name existing tests, or the reason why there is none.
func TestSecurityAdvisoriesHaveTests(t *testing.T) {
	text, err := os.ReadFile("../../docs/reference/advisories.md")
	if err != nil {
		t.Fatal(err)
	}
	names, rows := findTestNames(t), 0
	for line := range strings.SplitSeq(string(text), "\n") {
		cells := strings.Split(line, " | ")
		if len(cells) != 3 || !regexp.MustCompile(`^\| (CVE|GH)-`).MatchString(line) {
			continue
		}
		rows++
		named := regexp.MustCompile("`((?:Test|Fuzz)\\w+)`").FindAllStringSubmatch(cells[2], -1)
		if len(named) == 0 && !strings.HasPrefix(cells[2], "Reason: ") {
			t.Errorf("%s: neither a test nor a reason", cells[0])
		}
		for _, name := range named {
			if !names[name[1]] {
				t.Errorf("%s: there is no test %s", cells[0], name[1])
			}
		}
	}
	if rows != 43 {
		t.Errorf("%d rows, want 43", rows)
	}
}
