package jobspec

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var updateGolden = flag.Bool("update", false, "rewrite the golden files in testdata")

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
	if jobs == 0 || jobs != len(goldens) && !*updateGolden {
		t.Errorf("%d jobs and %d golden files", jobs, len(goldens))
	}
}

func compareGolden(t *testing.T, path string) {
	stem, _, _ := strings.Cut(path, ".nomad.")
	golden := stem + ".golden.json"
	got := readExpectedJSON(t, path)
	if *updateGolden {
		if err := os.WriteFile(golden, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := jsonDiff(t, got, want); diff != "" {
		t.Errorf("got %s", diff)
	}
	if !bytes.Equal(got, want) {
		t.Error("the layout of the output differs")
	}
}
