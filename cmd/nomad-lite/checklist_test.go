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

// checklistPoints is how many points the checklist of the API has.
const checklistPoints = 42

// TestEachPointOfTheChecklistHasATest looks for them: a test is named after its
// point, and a script names those that it is about. With -v it says where each is.
func TestEachPointOfTheChecklistHasATest(t *testing.T) {
	t.Parallel()
	named := regexp.MustCompile(`func TestChecklist(\d\d)|"Checklist(\d\d)|func checklist(\d\d)\(|\(?checklist ((?:\d+,?\s*(?:#\s*)?)+)`)
	number := regexp.MustCompile(`\d+`)
	tests := make(map[int][]string)
	err := filepath.WalkDir("../..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, "_test.go") && filepath.Ext(path) != ".txtar" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, found := range named.FindAllString(string(text), -1) {
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
	for n := range checklistPoints {
		n++
		t.Logf("%2d  %s", n, strings.Join(tests[n], ", "))
		if len(tests[n]) == 0 {
			t.Errorf("no test is named after point %d of the checklist", n)
		}
	}
}
