package thirdparty

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
)

// The plugins in testdata/plugins were written by authors who knew only the documentation. Each of them builds against the
// published module, and its check.sh passes: unit tests, contract tests, and a job that uses the plugin.
func TestPluginsOfAuthors(t *testing.T) {
	slowtest.SkipLong(t, "builds plugins outside of the repository, and runs their tests")
	if os.Geteuid() != 0 {
		t.Skip("the tasks of the examples run with the driver exec, which needs root")
	}
	environ := systemtest.PublishModule(t)
	sources, err := filepath.Glob(filepath.Join(systemtest.RepositoryDir(), "testdata/plugins/*"))
	if err != nil || len(sources) == 0 {
		t.Fatalf("plugins %v, %v", sources, err)
	}
	for _, source := range sources {
		t.Run(filepath.Base(source), func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "plugin")
			if err := os.CopyFS(dir, os.DirFS(source)); err != nil {
				t.Fatal(err)
			}
			run(t, dir, environ, "go", "mod", "tidy") // adds the checksum of the published module, which each change of this repository changes
			if goMod := filepath.Join(dir, "go.mod"); readFile(t, goMod) != readFile(t, filepath.Join(source, "go.mod")) {
				t.Errorf("go mod tidy changes go.mod to\n%s", readFile(t, goMod))
			}
			t.Log(run(t, dir, environ, "./check.sh"))
		})
	}
}
