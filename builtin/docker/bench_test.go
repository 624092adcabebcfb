package docker

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/nomad-lite/nomad-lite/builtin/docker/dockertest"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// BenchmarkStart compares the start of a task, until its program runs, with other ways to start
// a container of the same image:
//
//	docker      Start of the driver
//	docker-run  docker run --detach
//	engine      the engine's calls create and start
//
// BenchmarkDriver of package rawexec has the start of a process.
func BenchmarkStart(b *testing.B) {
	e := dockertest.StartOrSkip(b)
	ctx := b.Context()
	b.Run("docker", func(b *testing.B) {
		d := &Driver{config: pluginConfig{Endpoint: e.Host}, images: newImageStore()}
		d.engine = newUntypedEngineClient(e.Client)
		d.images.setEngineAndConfig(e.Client, &d.config)
		b.Cleanup(d.reaper.stopReaping)
		dir := b.TempDir()
		for i := 0; b.Loop(); i++ {
			b.StopTimer()
			allocID := fmt.Sprintf("bench-%d", i)
			config := encodeBlock(b, taskSchema, map[string]any{"image": dockertest.Image, "command": "sleep", "args": list("3600")})
			start := &sdk.StartRequest{TaskConfig: driver.TaskConfig{
				ID: allocID + "/web/0badcafe", Name: "web", AllocID: allocID, AllocDir: filepath.Join(dir, allocID), DriverConfig: config,
			}}
			for _, sub := range []string{"alloc", "web/local", "web/secrets"} {
				if err := os.MkdirAll(filepath.Join(start.AllocDir, sub), 0o755); err != nil {
					b.Fatal(err)
				}
			}
			b.StartTimer()
			task, err := d.Start(ctx, start)
			if err != nil {
				b.Fatal(err)
			}
			b.StopTimer()
			d.config.GC.RemoveExitedContainers = true
			if err := task.Destroy(ctx); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
		}
	})
	b.Run("docker-run", func(b *testing.B) {
		if _, err := exec.LookPath("docker"); err != nil {
			b.Skip(err)
		}
		for b.Loop() {
			cmd := exec.Command("docker", "run", "--detach", "--name", "bench", dockertest.Image, "sleep", "3600")
			cmd.Env = append(os.Environ(), "DOCKER_HOST="+e.Host)
			if out, err := cmd.CombinedOutput(); err != nil {
				b.Fatalf("%v: %s", err, out)
			}
			removeBenchContainer(b, ctx, e.Client, "bench")
		}
	})
	b.Run("engine", func(b *testing.B) {
		for b.Loop() {
			created, err := e.ContainerCreate(ctx, client.ContainerCreateOptions{Config: &container.Config{Image: dockertest.Image, Cmd: []string{"sleep", "3600"}}})
			if err == nil {
				_, err = e.ContainerStart(ctx, created.ID, client.ContainerStartOptions{})
			}
			if err != nil {
				b.Fatal(err)
			}
			removeBenchContainer(b, ctx, e.Client, created.ID)
		}
	})
}

// removeBenchContainer removes a container without being measured.
func removeBenchContainer(b *testing.B, ctx context.Context, engine *client.Client, name string) {
	b.StopTimer()
	if err := killAndRemoveContainer(ctx, engine, name); err != nil {
		b.Fatal(err)
	}
	b.StartTimer()
}
