package systemtest

import (
	"os"
	"path/filepath"
	"testing"
)

// SharedDirOrSkip returns the absolute path of a directory with samples of Nomad, which are not part of this
// repository. It skips the test if there is no such directory.
func SharedDirOrSkip(t testing.TB, names ...string) string {
	t.Helper()
	shared := os.Getenv("NOMAD_LITE_SHARED")
	if shared == "" {
		shared = filepath.Join(RepositoryDir(), "..", "shared")
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
