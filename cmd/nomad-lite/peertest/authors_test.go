package peertest

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/peers"
)

// TestDevicePluginOfAuthor runs the device plugin sensorbus, which an author wrote who knew only the documentation, under both
// agents, as server and client: the node shows its devices, and a task has the variables of the reservation. At
// first the bus is not there: the reason in the first fingerprint is a field that the stock agent does not know.
func TestDevicePluginOfAuthor(t *testing.T) {
	nomad := peers.ProgramOrSkip(t, "nomad")
	if os.Geteuid() != 0 {
		t.Skip("the stock agent needs root")
	}
	source := filepath.Join(systemtest.RepositoryDir(), "testdata/plugins/sensorbus")
	build := filepath.Join(t.TempDir(), "sensorbus")
	if err := os.CopyFS(build, os.DirFS(source)); err != nil {
		t.Fatal(err)
	}
	environ := systemtest.PublishModule(t)
	runIn := func(dir, program string, arguments ...string) {
		t.Helper()
		command := exec.Command(program, arguments...)
		command.Dir, command.Env = dir, environ
		if out, err := command.CombinedOutput(); err != nil {
			t.Fatalf("%q: %v\n%s", arguments, err, out)
		}
	}
	runIn(build, "go", "mod", "tidy")
	runIn(build, "go", "build", "-o", "sensorbus", ".")
	config := hostConfig{
		plugins: map[string]string{"sensorbus": filepath.Join(build, "sensorbus")},
		text: `
client {
  options = { "driver.raw_exec.enable" = "1" }
}
plugin "raw_exec" {
  config { enabled = true }
}
plugin "sensorbus" {
  config {
    dir    = "DIR/bus"
    vendor = "acme"
    model "R7" {
      attributes { switches = "2 kW" }
    }
  }
}
`,
	}
	for _, start := range []func() (*host, error){
		func() (*host, error) { return startNomad(nomad, config) },
		func() (*host, error) { return startLite(config) },
	} {
		h, err := start()
		if err != nil {
			t.Fatal(err)
		}
		t.Run(h.name, func(t *testing.T) {
			if devices := h.node(t).NodeResources.Devices; len(devices) > 0 {
				t.Fatalf("without a bus, the node has devices: %v", devices)
			}
			runIn(build, "./mkbus.sh", filepath.Join(h.dir, "bus"))
			var relay *api.NodeDeviceResource
			await(t, "the devices of the bus", func() bool {
				devices := h.node(t).NodeResources.Devices
				for _, d := range devices {
					if d.ID() == "acme/relay/R7" {
						relay = d
					}
				}
				return len(devices) == 3 && relay != nil
			})
			if len(relay.Instances) != 1 || relay.Instances[0].ID != "relay/pump" || !relay.Instances[0].Healthy || relay.Attributes["switches"].String() != "2 kW" {
				t.Errorf("relay %+v, attributes %v", relay.Instances, relay.Attributes)
			}

			task := api.NewTask("main", "raw_exec")
			task.Config = map[string]any{"command": "/bin/sh", "args": []string{"-c", "echo $SENSORBUS_RELAY_PUMP >$NOMAD_ALLOC_DIR/relay; exec sleep 1000"}}
			task.Resources = &api.Resources{Devices: []*api.RequestedDevice{{
				Name: "acme/relay", Constraints: []*api.Constraint{api.NewConstraint("${device.attr.switches}", ">=", "1500 W")},
			}}}
			alloc := h.run(t, newJob("sensorbus", task), "it runs", isRunning)
			if got := alloc.AllocatedResources.Tasks["main"].Devices; len(got) != 1 || strings.Join(got[0].DeviceIDs, ",") != "relay/pump" {
				t.Errorf("the allocation has the devices %v", got)
			}
			want := filepath.Join(h.dir, "bus/relay/pump")
			await(t, "the variable of the reservation", func() bool {
				text, err := readAllocFile(h, alloc, "alloc/relay")
				return err == nil && strings.TrimSpace(text) == want
			})
		})
		if err := h.stop(); err != nil {
			t.Error(err)
		}
	}
}

// readAllocFile returns a file of an allocation.
func readAllocFile(h *host, alloc *api.Allocation, path string) (string, error) {
	reader, err := h.AllocFS().Cat(alloc, path, nil)
	if err != nil {
		return "", err
	}
	defer reader.Close()
	var text strings.Builder
	_, err = io.Copy(&text, reader)
	return text.String(), err
}
