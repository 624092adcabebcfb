package upgrade

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
)

// packTwoReleases makes the last release and a release of this commit, and returns their programs, as the archives have them. Before
// the first release, both are of this commit.
func packTwoReleases(t *testing.T) (programs [2]string) {
	t.Helper()
	tag := ""
	if out, err := exec.Command("git", "-C", systemtest.RepositoryDir(), "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*", "HEAD").Output(); err == nil {
		tag = strings.TrimSpace(string(out)) // without a tag, git fails
	}
	last, next, err := versionsToPack(tag)
	if err != nil {
		t.Fatal(err)
	}
	sources := systemtest.RepositoryDir()
	if tag != "" {
		sources = t.TempDir()
		run(t, exec.Command("sh", "-c", `git -C "$1" archive "$2" | tar -x -C "$3"`, "sh", systemtest.RepositoryDir(), tag, sources))
	}
	return [2]string{packRelease(t, sources, last), packRelease(t, systemtest.RepositoryDir(), next)}
}

// versionsToPack returns the version of the last release, which has a tag such as v0.1.0, and the patch version after it.
// Without a tag, the last release is 0.1.0.
func versionsToPack(tag string) (last, next string, err error) {
	last = "0.1.0"
	if tag != "" {
		last = strings.TrimPrefix(tag, "v")
	}
	core, _, _ := strings.Cut(last, "-") // without the suffix of a prerelease
	numbers := strings.Split(core, ".")
	patch, err := strconv.Atoi(numbers[len(numbers)-1])
	if err != nil || len(numbers) != 3 {
		return "", "", fmt.Errorf("tag %q: write it as v0.1.0 or v0.1.0-rc.1", tag)
	}
	return last, fmt.Sprintf("%s.%s.%d", numbers[0], numbers[1], patch+1), nil
}

// packRelease makes the release of a version from sources, and returns the program of its archive.
func packRelease(t *testing.T, sources, version string) string {
	t.Helper()
	dir := t.TempDir()
	pack := exec.Command("go", "run", "-C", filepath.Join(sources, "internal/tools"), "./release", "-version", version, "-source", sources,
		"-out", filepath.Join(dir, "dist"), "-targets", "linux/"+runtime.GOARCH, "-revision", "upgrade-test")
	pack.Env = append(os.Environ(), "SOURCE_DATE_EPOCH=1790000000", "GOFLAGS=", "CGO_ENABLED=0")
	run(t, pack)
	name := fmt.Sprintf("nomad-lite_%s_linux_%s", version, runtime.GOARCH)
	run(t, exec.Command("tar", "-C", dir, "-xzf", filepath.Join(dir, "dist", name+".tar.gz")))
	program := filepath.Join(dir, name, "bin", "nomad-lite")
	if out := run(t, exec.Command(program, "version")); !strings.HasPrefix(out, "nomad-lite "+version+"\n") {
		t.Fatalf("the program of release %s prints %q", version, out)
	}
	return program
}

// run runs a command to its successful end, and returns its output.
func run(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	return string(out)
}

func TestVersionsToPack(t *testing.T) {
	for tag, want := range map[string]string{
		"": "0.1.0 0.1.1", "v0.1.0": "0.1.0 0.1.1", "v0.2.9": "0.2.9 0.2.10", "v1.0.0-rc.1": "1.0.0-rc.1 1.0.1", "v1": "error", "vnext": "error",
	} {
		last, next, err := versionsToPack(tag)
		got := last + " " + next
		if err != nil {
			got = "error"
		}
		if got != want {
			t.Errorf("tag %q: %s, want %s", tag, got, want)
		}
	}
}
