package systemtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// HostileProbeEnvVar is the environment variable with the path of a built probe, for a machine without Go.
const HostileProbeEnvVar = "NOMAD_LITE_HOSTILE_PROBE"

// BuildHostileProbe returns the path of the probe of package hostile, a static program. It builds the probe in a directory
// unless HostileProbeEnvVar names a built one.
func BuildHostileProbe(t testing.TB, dir string) (path string) {
	t.Helper()
	if path := os.Getenv(HostileProbeEnvVar); path != "" {
		return path
	}
	path = filepath.Join(dir, "probe")
	BuildStaticProgram(t, path, "./cmd/nomad-lite/systemtest/hostile/attack/probe")
	return path
}

// BuildStaticProgram builds a package of the repository as a static program at a path, without the race detector, which needs C.
func BuildStaticProgram(t testing.TB, path, pkg string) {
	t.Helper()
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", path, pkg)
	build.Dir = RepositoryDir()
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
