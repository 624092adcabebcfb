package shareddir

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// OrSkip returns the absolute path of a directory with samples: that of NOMAD_LITE_SHARED or, by default, of the directory "shared"
// beside the repository. names are the elements of the path below it. OrSkip skips the test if there is no such directory.
func OrSkip(t testing.TB, repositoryDir string, names ...string) string {
	t.Helper()
	shared := os.Getenv("NOMAD_LITE_SHARED")
	if shared == "" {
		shared = filepath.Join(repositoryDir, "..", "shared")
	}
	dir, err := filepath.Abs(filepath.Join(append([]string{shared}, names...)...))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Skipf("nothing at %s: set NOMAD_LITE_SHARED to the directory that holds %s", dir, filepath.Join(names...))
	}
	return dir
}

// ReadJSONLines returns the values in a file that has one JSON value in each line. An error ends the test.
func ReadJSONLines[T any](t testing.TB, path string) (values []T) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for decoder := json.NewDecoder(file); ; {
		var v T
		switch err := decoder.Decode(&v); {
		case errors.Is(err, io.EOF):
			return values
		case err != nil:
			t.Fatalf("%s: %v", path, err)
		}
		values = append(values, v)
	}
}
