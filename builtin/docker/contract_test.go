package docker

import (
	"os"
	"testing"

	"github.com/nomad-lite/nomad-lite/builtin/docker/dockertest"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
	"github.com/nomad-lite/nomad-lite/sdk"
	"github.com/nomad-lite/nomad-lite/sdk/sdktest"
)

func TestMain(m *testing.M) {
	sdktest.Main(m, func() { sdk.ServeDriver(&Driver{}) })
}

// testPlugin runs scripts in the pid namespace of the host, because a process with the pid
// 1 of a namespace cannot send itself a signal, as a case of the suite does.
func testPlugin(e *dockertest.Engine) sdktest.Plugin {
	return sdktest.Plugin{
		Path:   os.Args[0],
		Config: map[string]any{"endpoint": e.Host, "allow_privileged": true, "gc": []any{map[string]any{"image": false}}},
		Tasks: sdktest.Tasks{Shell: func(script string) map[string]any {
			return map[string]any{"image": dockertest.Image, "command": "/bin/sh", "args": []any{"-c", script}, "pid_mode": "host"}
		}},
	}
}

func TestContract(t *testing.T) {
	slowtest.Skip(t, "starts a hundred containers")
	e := dockertest.StartOrSkip(t)
	sdktest.Driver(t, testPlugin(e))
	if names := e.ContainerNames(t); len(names) > 0 {
		t.Errorf("containers remain: %v", names)
	}
}

// The cases are those that depend on the answers of the engine. With NOMAD_LITE_ALL_CASES set, all cases run.
func TestContractWithPodman(t *testing.T) {
	slowtest.SkipLong(t, "runs the contract suite a second time, with another engine")
	e := dockertest.StartPodmanOrSkip(t)
	p := testPlugin(e)
	shell := p.Tasks.Shell
	p.Tasks.Shell = func(script string) map[string]any {
		config := shell(script)
		config["network_mode"] = "host" // a bridge of podman would remain
		return config
	}
	if os.Getenv("NOMAD_LITE_ALL_CASES") == "" {
		p.OnlyCasePatterns = "start.*,stop.twice,stop.unknown-signal,destroy.*,stats.samples,exec.*,recover.after-kill,crash.*"
	}
	sdktest.Driver(t, p)
	if names := e.ContainerNames(t); len(names) > 0 {
		t.Errorf("containers remain: %v", names)
	}
}

func BenchmarkDriver(b *testing.B) { sdktest.Benchmark(b, testPlugin(dockertest.StartOrSkip(b))) }
