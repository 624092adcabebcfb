package commands

import (
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/nomad-lite/nomad-lite/builtin/docker/dockertest"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
)

// TestDocker runs scripts with a Docker engine, whose address is in DOCKER_HOST and whose image
// is in IMAGE.
func TestDocker(t *testing.T) {
	slowtest.SkipLong(t, "starts and stops a Docker engine and 50 containers")
	engine := dockertest.StartOrSkip(t)
	importComposeImages(t, engine)
	// The scripts of the first directory share the engine, and run at the same time. A script of the second directory sees the
	// networks of all agents, and one of the third stops the engine.
	t.Run("shared", func(t *testing.T) { testscript.Run(t, dockerScriptParams(t, "testdata/docker", engine)) })
	t.Run("networks", func(t *testing.T) { testscript.Run(t, dockerScriptParams(t, "testdata/dockernetworks", engine)) })
	t.Run("engine", func(t *testing.T) { testscript.Run(t, dockerScriptParams(t, "testdata/dockerengine", engine)) })
	if names := engine.ContainerNames(t); len(names) > 0 {
		t.Errorf("containers remain: %v", names)
	}
}

// importComposeImages makes the images of the compose files that scripts import. Except for busybox, they are stand-ins: their
// programs print their arguments, and run until they are stopped.
func importComposeImages(t *testing.T, engine *dockertest.Engine) {
	t.Helper()
	engine.ImportBusyboxImage(t, "busybox:1.37", nil)
	const server = "#!/bin/sh\necho \"${0##*/} $* for $DATABASE_URL with $SECRET_KEY\"\nexec sleep 1000\n"
	const program = "#!/bin/sh\necho \"${0##*/} $*\"\n"
	programs := map[string][]byte{
		"/bin/pg_isready": []byte("#!/bin/sh\ntest \"$2\" = app\n"), "/bin/redis-cli": []byte("#!/bin/sh\necho PONG\n"), "/bin/rabbitmq-diagnostics": []byte("#!/bin/sh\n"),
		"/bin/redis-server": []byte(server), "/bin/gunicorn": []byte(server), "/bin/celery": []byte(server), "/bin/app": []byte(server),
		"/bin/python": []byte(program), "/bin/extract": []byte(program), "/bin/load": []byte(program), "/bin/report": []byte(program),
	}
	for _, image := range []string{
		"postgres:17-alpine", "redis:8", "registry.example.com/shop:2.0", "mysql:8.4", "example/app:1", "example/pages:1", "example/agent:9", "example/files:1", "rabbitmq:4", "example/etl:2",
	} {
		engine.ImportBusyboxImage(t, image, programs, `CMD ["sh", "-c", "httpd -p 8080 -h /www; exec sleep 1000"]`)
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
