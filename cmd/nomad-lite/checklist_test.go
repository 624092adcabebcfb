package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// checklistPoints is the number of points in the checklist of the API.
const checklistPoints = 42

// TestEachPointOfTheChecklistHasATest searches for the numbers of points in the comments of
// tests and scripts. With -v it prints where each is.
func TestEachPointOfTheChecklistHasATest(t *testing.T) {
	t.Parallel()
	named := regexp.MustCompile(`checklist (?:\d+,?\s*(?:#\s*)?)+`)
	eachHasATest(t, "point %d of the checklist", checklistPoints, named)
}

// behaviours is the number of behaviours in the catalogue of the semantics.
const behaviours = 97

// TestEachBehaviourOfTheCatalogueHasATest searches for their numbers after RS, in comments of
// tests and in the names of the files that tests read.
func TestEachBehaviourOfTheCatalogueHasATest(t *testing.T) {
	t.Parallel()
	eachHasATest(t, "behaviour RS-%03d", behaviours, regexp.MustCompile(`RS-?\d{3}`))
}

// eachHasATest fails for each number from 1 to n that has no test.
func eachHasATest(t *testing.T, what string, n int, named *regexp.Regexp) {
	t.Helper()
	number := regexp.MustCompile(`\d+`)
	tests := make(map[int][]string)
	err := filepath.WalkDir("../..", func(path string, entry fs.DirEntry, err error) error {
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
	for i := 1; i <= n; i++ {
		name := fmt.Sprintf(what, i)
		t.Logf("%s: %s", name, strings.Join(tests[i], ", "))
		if len(tests[i]) == 0 {
			t.Errorf("no test is named after %s", name)
		}
	}
}
