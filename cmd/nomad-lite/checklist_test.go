package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestEachPointOfTheChecklistHasATest checks that each numbered point of the checklist in
// docs/reference/rules.md is named in a comment of a test or a script. With -v it prints where.
func TestEachPointOfTheChecklistHasATest(t *testing.T) {
	t.Parallel()
	named := regexp.MustCompile(`checklist (?:\d+,?\s*(?:#\s*)?)+`)
	checkRuleRowsHaveTests(t, `(?m)^\| (\d+) \|`, named)
}

// TestEachBehaviourOfTheCatalogueHasATest checks that each RS number in docs/reference/rules.md is in a
// comment of a test, or in the name of a file that tests read.
func TestEachBehaviourOfTheCatalogueHasATest(t *testing.T) {
	t.Parallel()
	checkRuleRowsHaveTests(t, `(?m)^\| RS-(\d{3}) \|`, regexp.MustCompile(`RS-?\d{3}`))
}

// checkRuleRowsHaveTests fails for each row of docs/reference/rules.md that has no test.
func checkRuleRowsHaveTests(t *testing.T, row string, named *regexp.Regexp) {
	t.Helper()
	rules, err := os.ReadFile("../../docs/reference/rules.md")
	if err != nil {
		t.Fatal(err)
	}
	number := regexp.MustCompile(`\d+`)
	tests := make(map[int][]string)
	err = filepath.WalkDir("../..", func(path string, entry fs.DirEntry, err error) error {
		inTestdata := slices.Contains(strings.Split(path, "/"), "testdata") && filepath.Ext(path) == ".txt"
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, "_test.go") && filepath.Ext(path) != ".txtar" && !inTestdata {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, found := range named.FindAllString(filepath.Base(path)+"\n"+string(text), -1) {
			for _, digits := range number.FindAllString(found, -1) {
				n, err := strconv.Atoi(digits)
				if err != nil {
					return err
				}
				if file := filepath.Base(path); !slices.Contains(tests[n], file) {
					tests[n] = append(tests[n], file)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile(row).FindAllSubmatch(rules, -1)
	if len(rows) == 0 {
		t.Fatal("docs/reference/rules.md has no such row")
	}
	for _, row := range rows {
		n, err := strconv.Atoi(string(row[1]))
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s %s", row[0], strings.Join(tests[n], ", "))
		if len(tests[n]) == 0 {
			t.Errorf("no test names the rule %s", row[0])
		}
	}
}
