package peertest

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/moby/moby/client"

	"github.com/nomad-lite/nomad-lite/builtin/docker/dockertest"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/peers"
)

// TestPodmanDriverLimitsMemory runs a container with the podman driver under both agents. The engine shows its limits.
func TestPodmanDriverLimitsMemory(t *testing.T) {
	program := peers.ProgramOrSkip(t, "nomad-driver-podman")
	if os.Geteuid() != 0 {
		t.Skip("the stock agent needs root")
	}
	engine := dockertest.StartPodmanOrSkip(t)
	image, err := engine.ImageInspect(t.Context(), dockertest.Image)
	if err != nil {
		t.Fatal(err)
	}
	config := hostConfig{
		plugins: map[string]string{"nomad-driver-podman": program},
		text:    fmt.Sprintf("plugin \"nomad-driver-podman\" {\n  config {\n    socket_path = %q\n  }\n}\n", engine.Host),
	}
	for _, start := range []func() (*host, error){
		func() (*host, error) { return startNomad(peers.ProgramOrSkip(t, "nomad"), config) },
		func() (*host, error) { return startLite(config) },
	} {
		h, err := start()
		if err != nil {
			t.Fatal(err)
		}
		t.Run(h.name, func(t *testing.T) {
			task := api.NewTask("main", "podman")
			task.Config = map[string]any{"image": image.RepoTags[0], "command": "sleep", "args": []string{"1000"}, "force_pull": false}
			task.Env = map[string]string{"COLOR": "green"}
			task.Resources = &api.Resources{CPU: new(111), MemoryMB: new(33), MemoryMaxMB: new(77)}
			alloc := h.run(t, newJob("podman", task), "it runs", isRunning)
			containers, err := engine.ContainerList(t.Context(), client.ContainerListOptions{})
			if err != nil || len(containers.Items) != 1 {
				t.Fatalf("containers %v, %v", containers.Items, err)
			}
			container, err := engine.ContainerInspect(t.Context(), containers.Items[0].ID, client.ContainerInspectOptions{})
			if err != nil {
				t.Fatal(err)
			}
			limits := container.Container.HostConfig
			got := []any{limits.Memory, limits.MemoryReservation, limits.CPUShares, container.Container.Name}
			if want := []any{int64(77 << 20), int64(33 << 20), int64(111), "/main-" + alloc.ID}; !slices.Equal(got, want) {
				t.Errorf("memory limit, reservation, CPU shares and name are %v, want %v", got, want)
			}
		})
		if err := h.stop(); err != nil {
			t.Error(err)
		}
	}
}
