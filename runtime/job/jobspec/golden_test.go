package jobspec

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/golden"
)

// TestGolden parses each job in testdata and compares it with its golden JSON file.
func TestGolden(t *testing.T) {
	entries, err := os.ReadDir("testdata")
	if err != nil {
		t.Fatal(err)
	}
	jobs, goldens := 0, map[string]bool{}
	for _, entry := range entries {
		name := entry.Name()
		switch {
		case name == "fuzz":
		case strings.HasSuffix(name, ".golden.json"):
			goldens[name] = true
		case strings.Contains(name, ".nomad."):
			jobs++
			t.Run(name, func(t *testing.T) { compareGolden(t, filepath.Join("testdata", name)) })
		default:
			t.Errorf("testdata/%s: nothing uses it", name)
		}
	}
	if jobs == 0 || jobs != len(goldens) && !golden.Updating() {
		t.Errorf("%d jobs and %d golden files", jobs, len(goldens))
	}
}

func compareGolden(t *testing.T, path string) {
	stem, _, _ := strings.Cut(path, ".nomad.")
	golden.Check(t, stem+".golden.json", string(readExpectedJSON(t, path)))
}
