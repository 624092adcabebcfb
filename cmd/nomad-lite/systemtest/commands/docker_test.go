package commands

import (
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/nomad-lite/nomad-lite/builtin/docker/dockertest"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/slowtest"
)

// TestDocker runs scripts with a Docker engine, whose address is in DOCKER_HOST and whose image
// is in IMAGE.
func TestDocker(t *testing.T) {
	slowtest.Skip(t, "starts and stops a Docker engine and 50 containers")
	engine := dockertest.StartOrSkip(t)
	engine.ImportBusyboxImage(t, "busybox:1.37", nil) // of the compose files of import.txtar
	// The scripts of the first directory share the engine, and run at the same time. A script of the
	// second directory stops the engine.
	t.Run("shared", func(t *testing.T) { testscript.Run(t, dockerScriptParams(t, "testdata/docker", engine)) })
	t.Run("engine", func(t *testing.T) { testscript.Run(t, dockerScriptParams(t, "testdata/dockerengine", engine)) })
	if names := engine.ContainerNames(t); len(names) > 0 {
		t.Errorf("containers remain: %v", names)
	}
}

func dockerScriptParams(t *testing.T, dir string, engine *dockertest.Engine) testscript.Params {
	params := systemtest.NewScriptParams(dir)
	params.Cmds["engine"] = func(ts *testscript.TestScript, neg bool, args []string) {
		if neg || len(args) != 1 {
			ts.Fatalf("usage: engine start|stop|kill")
		}
		switch args[0] {
		case "start":
			ts.Check(engine.TryStartProcess())
		case "stop":
			engine.Stop(t, syscall.SIGTERM)
		case "kill":
			engine.Stop(t, syscall.SIGKILL)
		default:
			ts.Fatalf("usage: engine start|stop|kill")
		}
	}
	setUp := params.Setup
	params.Setup = func(env *testscript.Env) error {
		env.Setenv("DOCKER_HOST", engine.Host)
		env.Setenv("IMAGE", dockertest.Image)
		return setUp(env)
	}
	return params
}
