package faults

import (
	"os"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/nomad-lite/nomad-lite/builtin/docker/dockertest"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
)

// TestRemovable runs a script with the kinds of tasks that this machine can run. The kinds are the names of files of the script.
func TestRemovable(t *testing.T) {
	processKinds, containerKinds := []string{"isolated", "foreign", "plain", "renamed"}, ""
	params := systemtest.NewScriptParams("testdata/removable")
	setUp := params.Setup
	if slowtest.Enabled() {
		for kind, program := range map[string]string{"java": "javac", "qemu": "qemu-system-x86_64"} {
			if systemtest.HasProgram(program) {
				processKinds = append(processKinds, kind)
			}
		}
		if os.Geteuid() == 0 && systemtest.HasProgram("podman") && systemtest.HasProgram("busybox") {
			t.Setenv("DOCKER_HOST", dockertest.StartPodmanOrSkip(t).Host)
			containerKinds = "container"
		}
	}
	params.Setup = func(env *testscript.Env) error {
		env.Setenv("PROCESS_KINDS", strings.Join(processKinds, " "))
		env.Setenv("CONTAINER_KINDS", containerKinds)
		env.Setenv("DOCKER_HOST", os.Getenv("DOCKER_HOST"))
		env.Setenv("IMAGE", dockertest.Image)
		return setUp(env)
	}
	testscript.Run(t, params)
}
