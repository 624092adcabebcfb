package thirdparty

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/slowtest"
)

// The plugins in testdata/plugins were written by authors who knew only the documentation. Each of them builds against the
// published module, and its check.sh passes: unit tests, contract tests, and a job that uses the plugin.
func TestPluginsOfAuthors(t *testing.T) {
	slowtest.Skip(t, "builds plugins outside of the repository, and runs their tests")
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
			removeNewCgroupsAtEnd(t)
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

// removeNewCgroupsAtEnd removes the empty cgroups of tasks at the end of the test: `agent stop -all` leaves them for the next
// agent.
func removeNewCgroupsAtEnd(t *testing.T) {
	t.Helper()
	list := func() []string {
		var dirs []string
		for _, pattern := range []string{"/sys/fs/cgroup/nomad/*.*", "/sys/fs/cgroup/*/nomad/*.*"} {
			found, err := filepath.Glob(pattern)
			if err != nil {
				t.Fatal(err)
			}
			dirs = append(dirs, found...)
		}
		return dirs
	}
	before := list()
	t.Cleanup(func() {
		for _, dir := range list() {
			if info, err := os.Stat(dir); err == nil && info.IsDir() && !slices.Contains(before, dir) {
				_ = os.Remove(dir) // a cgroup with processes remains, and fails the tests
			}
		}
	})
}
