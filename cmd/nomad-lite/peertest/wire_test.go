package peertest

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"github.com/hashicorp/nomad/api"
	"github.com/zclconf/go-cty/cty"

	"github.com/nomad-lite/nomad-lite/hclspec/block"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/peers"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/base/basewire"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/driver/driverwire"
)

// TestTopology compares the description of the processors that a driver receives with the machine and the agent's configuration.
func TestTopology(t *testing.T) {
	read := func(path string) int {
		t.Helper()
		text, err := os.ReadFile(path)
		if err != nil {
			t.Skipf("the kernel does not describe the processors: %v", err)
		}
		n, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	topologies := map[string]*base.Topology{}
	forEachHost(t, func(t *testing.T, h *host) {
		var config base.Config
		await(t, "a configuration with the agent's part", func() bool {
			h.awaitCall(t, "probe_wire", "SetConfig", "", &config)
			return config.Driver != nil && config.Driver.Topology != nil
		})
		assertField(t, "base.SetConfigRequest.plugin_api_version", config.APIVersion, "v0.1.0")
		topology := config.Driver.Topology
		topologies[h.name] = topology
		assertField(t, "base.NomadDriverConfig.Topology", topology != nil, true)
		assertField(t, "base.ClientTopology.override_total_compute", topology.OverrideTotalCompute, uint64(100000))
		assertField(t, "base.ClientTopology.override_withold_compute", topology.OverrideWithholdCompute, uint64(300))
		assertField(t, "base.ClientTopology.node_ids", topology.NodeIDs, []uint32{0})
		if len(topology.Cores) == 0 {
			t.Fatal("no cores")
		}
		core := topology.Cores[len(topology.Cores)-1]
		directory := fmt.Sprintf("/sys/devices/system/cpu/cpu%d/topology/", core.CoreID)
		assertField(t, "base.ClientTopology.cores", len(topology.Cores), len(h.cores(t)))
		assertField(t, "base.ClientTopologyCore.core_id", int(core.CoreID), len(topology.Cores)-1)
		if want := read(directory + "physical_package_id"); int(core.SocketID) != want { // not shown: it is 0 on a machine with one socket
			t.Errorf("socket %d, want %d", core.SocketID, want)
		}
		if speed := core.BaseSpeed + core.MaxSpeed + core.GuessSpeed; speed < 100 || speed > 30000 {
			t.Errorf("core %+v has no plausible speed", core)
		}
	})
	lite, nomad := topologies["nomad-lite"], topologies["Nomad"]
	for i, core := range nomad.Cores {
		if lite.Cores[i] != core {
			t.Errorf("core %+v, under Nomad %+v", lite.Cores[i], core)
		}
	}
	if core := nomad.Cores[0]; core.MaxSpeed == 0 { // the kernel of a machine with frequency scaling states both
		assertField(t, "base.ClientTopologyCore.base_speed", core.BaseSpeed > 0, true)
	}
}

// cores returns the directories of the machine's processors.
func (h *host) cores(t testing.TB) []string {
	t.Helper()
	cores, err := filepath.Glob("/sys/devices/system/cpu/cpu[0-9]*/topology")
	if err != nil {
		t.Fatal(err)
	}
	return cores
}

// TestPluginInfo compares the names, types and versions that the hosts report with those of the plugins.
func TestPluginInfo(t *testing.T) {
	line := "detected plugin: name=probe type=driver plugin_version=4.5.6"
	assertField(t, "base.PluginInfoResponse.plugin_version", strings.Contains(nomadHost(t).log(), line), true)
	out, err := exec.Command("nomad-lite", "plugin", "inspect", "-json", peers.ProgramOrSkip(t, "hello-driver")).Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var info struct {
		Name, Type, Version string
		APIVersions         []string
	}
	if err := json.Unmarshal(out, &info); err != nil {
		t.Fatal(err)
	}
	assertField(t, "base.PluginInfoResponse.name", info.Name, "hello-world-example") // the file has another name
	assertField(t, "base.PluginInfoResponse.type", info.Type, "driver")
	assertField(t, "base.PluginInfoResponse.plugin_version", info.Version, "v0.1.0")
	assertField(t, "base.PluginInfoResponse.plugin_api_versions", info.APIVersions, []string{"v0.1.0"})
}

// TestWireOfTask compares parts of calls that the SDK hides from authors with the behavior of the host.
func TestWireOfTask(t *testing.T) {
	forEachHost(t, func(t *testing.T, h *host) {
		task := api.NewTask("main", "probe_wire")
		alloc := h.run(t, newJob("wire", task), "it runs", isRunning)
		var id string
		start := h.awaitCall(t, "probe_wire", "StartTask", alloc.ID, &id)
		var stats struct {
			ID       string
			Interval time.Duration
		}
		if _, err := h.Raw().Query("/v1/client/allocation/"+alloc.ID+"/stats", new(any), nil); err != nil { // nomad-lite samples on request
			t.Fatal(err)
		}
		h.awaitCall(t, "probe_wire", "TaskStats", "", &stats)
		assertField(t, "drivers.TaskStatsRequest.task_id", stats.ID, id)
		assertField(t, "drivers.TaskStatsRequest.collection_interval", stats.Interval, time.Second)

		if err := syscall.Kill(start.PID, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		var handle driver.Handle
		h.awaitCall(t, "probe_wire", "RecoverTask", alloc.ID, &handle)
		assertField(t, "drivers.TaskHandle.state", handle.State, driver.TaskRunning)
		assertField(t, "drivers.TaskHandle.version", handle.Version, int32(5))
		assertField(t, "drivers.TaskHandle.driver_state", string(handle.DriverState), "opaque")

		if _, _, err := h.Jobs().Deregister("wire", false, nil); err != nil {
			t.Fatal(err)
		}
		ended := h.waitEnd(t, alloc)
		event := lastEvent(ended, "main", api.TaskTerminated)
		if event == nil {
			t.Fatal(allEvents(ended, "main"))
		}
		assertField(t, "drivers.WaitTaskResponse.err", strings.Contains(allEvents(ended, "main"), "lost sight of the task"), true)
		var destroyed struct {
			ID    string
			Force bool
		}
		h.awaitCall(t, "probe_wire", "DestroyTask", "", &destroyed)
		assertField(t, "drivers.DestroyTaskRequest.task_id", destroyed.ID, id)
		assertField(t, "drivers.DestroyTaskRequest.force", destroyed.Force, true)
	})
}

// TestNomadDriverAnswers calls Nomad's mock driver, for calls that no host makes and for options that no host sets.
func TestNomadDriverAnswers(t *testing.T) {
	dir := t.TempDir()
	if err := linkPlugins(dir, map[string]string{"ext-mock": peers.ProgramOrSkip(t, "ext-drivers")}); err != nil {
		t.Fatal(err)
	}
	client := plugin.NewClient(&plugin.ClientConfig{
		HandshakeConfig: basewire.Handshake, Cmd: exec.Command(filepath.Join(dir, "ext-mock")), AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
		Plugins: plugin.PluginSet{basewire.PluginName: &basewire.GRPCPlugin{}, driverwire.PluginName: &driverwire.GRPCPlugin{}}, Logger: hclog.NewNullLogger(),
	})
	t.Cleanup(client.Kill)
	connection, err := client.Client()
	if err != nil {
		t.Fatal(err)
	}
	dispensed, err := connection.Dispense(driverwire.PluginName)
	if err != nil {
		t.Fatal(err)
	}
	d := dispensed.(driver.Driver)
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	start := func(id string, config map[string]cty.Value) {
		t.Helper()
		text, err := block.Marshal(cty.ObjectVal(config))
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := d.StartTask(ctx, &driver.TaskConfig{ID: id, Name: "main", AllocID: id, DriverConfig: text, StdoutPath: os.DevNull, StderrPath: os.DevNull, AllocDir: t.TempDir()}); err != nil {
			t.Fatal(err)
		}
	}

	start("short", map[string]cty.Value{"run_for": cty.StringVal("10ms"), "exit_code": cty.NumberIntVal(7), "exit_signal": cty.NumberIntVal(3), "exit_err_msg": cty.StringVal("slipped")})
	result, err := d.WaitTask(ctx, "short")
	if err != nil {
		t.Fatal(err)
	}
	assertField(t, "drivers.WaitTaskResponse.err", result.Err != nil && strings.Contains(result.Err.Error(), "slipped"), true)
	assertField(t, "drivers.ExitResult.exit_code", result.ExitCode, 7)
	assertField(t, "drivers.ExitResult.signal", result.Signal, 3)
	status, err := d.InspectTask(ctx, "short")
	if err != nil {
		t.Fatal(err)
	}
	assertField(t, "drivers.InspectTaskRequest.task_id", status.ID, "short")
	assertField(t, "drivers.InspectTaskResponse.task", status.ID, "short")
	assertField(t, "drivers.TaskStatus.id", status.ID, "short")
	assertField(t, "drivers.TaskStatus.name", status.Name, "main")
	assertField(t, "drivers.TaskStatus.state", status.State, driver.TaskExited)
	assertField(t, "drivers.TaskStatus.started_at", time.Since(status.StartedAt).Abs() < time.Minute, true)
	assertField(t, "drivers.TaskStatus.completed_at", !status.CompletedAt.Before(status.StartedAt) && time.Since(status.CompletedAt).Abs() < time.Minute, true)
	assertField(t, "drivers.TaskStatus.result", status.ExitResult.ExitCode, 7)

	start("long", map[string]cty.Value{"run_for": cty.StringVal("1h")})
	executed, err := d.ExecTask(ctx, "long", []string{"say"}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	assertField(t, "drivers.ExecTaskResponse.stdout", string(executed.Stdout), `Exec("main", ["say"])`)
	assertField(t, "drivers.ExecTaskRequest.command", string(executed.Stdout), `Exec("main", ["say"])`)
	if err := d.DestroyTask(ctx, "long", false); err == nil {
		t.Error("a running task is destroyed without force")
	}
	assertField(t, "drivers.DestroyTaskRequest.force", d.DestroyTask(ctx, "long", true), error(nil))
	assertField(t, "drivers.DestroyTaskRequest.task_id", d.DestroyTask(ctx, "short", false), error(nil))
}
