package peertest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// TestPluginConfig compares the configuration that a driver of the SDK receives with the agent's configuration.
func TestPluginConfig(t *testing.T) {
	forEachHost(t, func(t *testing.T, h *host) {
		var config struct {
			Greeting         string
			MinPort, MaxPort uint32
		}
		h.awaitCall(t, "probe", "Configure", "", &config)
		for _, field := range []string{"base.ConfigSchemaResponse.spec", "base.SetConfigRequest.msgpack_config", "hclspec.Spec.default", "hclspec.Default.primary", "hclspec.Default.default"} {
			assertField(t, field, config.Greeting, "hello")
		}
		assertField(t, "base.SetConfigRequest.nomad_config", config.MinPort != 0, true)
		assertField(t, "base.NomadConfig.driver", config.MinPort != 0, true)
		assertField(t, "base.NomadDriverConfig.ClientMinPort", config.MinPort, uint32(14100))
		assertField(t, "base.NomadDriverConfig.ClientMaxPort", config.MaxPort, uint32(14400))
	})
}

// TestTaskCalls compares the arguments of a driver's calls with the requests to the host, and the results with the host's API.
func TestTaskCalls(t *testing.T) {
	forEachHost(t, func(t *testing.T, h *host) {
		task := api.NewTask("main", "probe")
		task.KillSignal, task.KillTimeout = "SIGUSR2", new(7*time.Second)
		job := newJob("calls", task)
		alloc := h.run(t, job, "it runs", isRunning)

		var event *api.TaskEvent
		await(t, "an event of the driver", func() bool {
			alloc, _, err := h.Allocations().Info(alloc.ID, nil)
			if err != nil {
				t.Fatal(err)
			}
			event = lastEvent(alloc, "main", "Driver")
			return event != nil
		})
		assertField(t, "drivers.DriverTaskEvent.message", event.DisplayMessage, "the probe has started")
		assertField(t, "drivers.DriverTaskEvent.annotations", event.Details["color"], "red")
		assertField(t, "drivers.DriverTaskEvent.timestamp", time.Since(time.Unix(0, event.Time)).Abs() < 5*time.Minute, true)
		fieldShown(t, "drivers.DriverTaskEvent.alloc_id", "drivers.DriverTaskEvent.task_name") // the host found the task by them
		fieldShown(t, "drivers.StartTaskResponse.handle")                                      // the host reports a task without a handle as failed

		if err := h.Allocations().Signal(alloc, nil, "main", "SIGWINCH"); err != nil {
			t.Fatal(err)
		}
		var signal string
		h.awaitCall(t, "probe", "Signal", alloc.ID, &signal)
		fieldShown(t, "drivers.SignalTaskRequest.task_id") // the call has found the task
		assertField(t, "drivers.SignalTaskRequest.signal", signal, "SIGWINCH")

		h.checkStats(t, alloc)
		h.checkExec(t, alloc)

		if _, _, err := h.Jobs().Deregister("calls", false, nil); err != nil {
			t.Fatal(err)
		}
		var stop struct {
			Timeout time.Duration
			Signal  string
		}
		h.awaitCall(t, "probe", "Stop", alloc.ID, &stop)
		fieldShown(t, "drivers.StopTaskRequest.task_id") // the call has found the task
		assertField(t, "drivers.StopTaskRequest.timeout", stop.Timeout, 7*time.Second)
		assertField(t, "drivers.StopTaskRequest.signal", stop.Signal, "SIGUSR2")
		await(t, "the end of the task", func() bool {
			ended, _, err := h.Allocations().Info(alloc.ID, nil)
			return err == nil && ended.ClientStatus == api.AllocClientStatusComplete
		})
		fieldShown(t, "drivers.WaitTaskRequest.task_id") // the call has found the task
	})
}

// checkStats compares the statistics of the API with the sample of the probe.
func (h *host) checkStats(t *testing.T, alloc *api.Allocation) {
	t.Helper()
	type usage struct {
		CpuStats    map[string]any
		MemoryStats map[string]any
	}
	var stats struct {
		Tasks map[string]struct {
			ResourceUsage usage
			Pids          map[string]usage
			Timestamp     int64
		}
	}
	await(t, "statistics of the task", func() bool {
		_, err := h.Raw().Query("/v1/client/allocation/"+alloc.ID+"/stats", &stats, nil)
		return err == nil && stats.Tasks["main"].Timestamp > 0
	})
	main := stats.Tasks["main"]
	fieldShown(t, "drivers.TaskStatsRequest.task_id") // the call has found the task
	fieldShown(t, "drivers.TaskStatsResponse.stats", "drivers.TaskStats.agg_resource_usage", "drivers.TaskResourceUsage.cpu", "drivers.TaskResourceUsage.memory")
	assertField(t, "drivers.TaskStats.timestamp", main.Timestamp, probeStatsTime.UnixNano())
	for where, u := range map[string]usage{"TaskStats.agg_resource_usage": main.ResourceUsage, "TaskStats.resource_usage_by_pid": main.Pids["4711"]} {
		t.Run(where, func(t *testing.T) {
			fieldShown(t, "drivers."+where)
			number := func(field string, got any, want float64) {
				t.Helper()
				assertField(t, "drivers."+field, got, any(want))
			}
			number("CPUUsage.system_mode", u.CpuStats["SystemMode"], 1.25)
			number("CPUUsage.user_mode", u.CpuStats["UserMode"], 2.5)
			number("CPUUsage.percent", u.CpuStats["Percent"], 3.75)
			number("CPUUsage.total_ticks", u.CpuStats["TotalTicks"], 4.5)
			number("CPUUsage.throttled_periods", u.CpuStats["ThrottledPeriods"], 5)
			number("CPUUsage.throttled_time", u.CpuStats["ThrottledTime"], 6)
			assertField(t, "drivers.CPUUsage.measured_fields", fmt.Sprint(u.CpuStats["Measured"]), "[System Mode User Mode Percent Total Ticks Throttled Periods Throttled Time]")
			number("MemoryUsage.rss", u.MemoryStats["RSS"], 11)
			number("MemoryUsage.cache", u.MemoryStats["Cache"], 12)
			number("MemoryUsage.swap", u.MemoryStats["Swap"], 13)
			number("MemoryUsage.usage", u.MemoryStats["Usage"], 14)
			number("MemoryUsage.max_usage", u.MemoryStats["MaxUsage"], 15)
			number("MemoryUsage.kernel_usage", u.MemoryStats["KernelUsage"], 16)
			number("MemoryUsage.kernel_max_usage", u.MemoryStats["KernelMaxUsage"], 17)
			assertField(t, "drivers.MemoryUsage.measured_fields", fmt.Sprint(u.MemoryStats["Measured"]), "[RSS Cache Swap Usage Max Usage Kernel Usage Kernel Max Usage]")
		})
	}
}

// checkExec runs a command with a terminal, and one without.
func (h *host) checkExec(t *testing.T, alloc *api.Allocation) {
	t.Helper()
	for _, tty := range []bool{false, true} {
		var stdout, stderr bytes.Buffer
		sizes := make(chan api.TerminalSize, 1)
		sizes <- api.TerminalSize{Height: 33, Width: 77}
		ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
		defer cancel()
		code, err := h.Allocations().Exec(ctx, alloc, "main", tty, []string{"say", "hello"}, strings.NewReader("some input"), &stdout, &stderr, sizes, nil)
		if err != nil {
			t.Fatalf("terminal %v: %v, output %q", tty, err, &stdout)
		}
		var call struct {
			Command []string
			TTY     bool
		}
		h.awaitCall(t, "probe", "Exec", alloc.ID, &call)
		assertField(t, "drivers.ExecTaskStreamingRequest.setup", call.Command, []string{"say", "hello"})
		assertField(t, "drivers.ExecTaskStreamingRequest.Setup.command", call.Command, []string{"say", "hello"})
		assertField(t, "drivers.ExecTaskStreamingRequest.Setup.tty", call.TTY, tty)
		assertField(t, "drivers.ExecTaskStreamingRequest.Setup.task_id", code, 42)
		wantOut, wantErr := "input \"some input\"\n", "an error message\n"
		if tty {
			wantOut, wantErr = wantOut+"terminal of 33 rows, 77 columns\n", ""
			fieldShown(t, "drivers.ExecTaskStreamingRequest.tty_size", "drivers.ExecTaskStreamingRequest.TerminalSize.height", "drivers.ExecTaskStreamingRequest.TerminalSize.width")
		}
		assertField(t, "drivers.ExecTaskStreamingResponse.stdout", stdout.String(), wantOut)
		if !tty {
			assertField(t, "drivers.ExecTaskStreamingResponse.stderr", stderr.String(), wantErr)
		}
		fieldShown(t, "drivers.ExecTaskStreamingRequest.stdin", "drivers.ExecTaskStreamingIOOperation.data", "drivers.ExecTaskStreamingIOOperation.close",
			"drivers.ExecTaskStreamingResponse.exited", "drivers.ExecTaskStreamingResponse.result")
	}
}

// TestScriptCheck runs a command by ExecTask, for a check of a service.
func TestScriptCheck(t *testing.T) {
	forEachHost(t, func(t *testing.T, h *host) {
		task := api.NewTask("main", "probe")
		// Services of the provider "nomad" have no script checks, so a template's change script calls ExecTask.
		task.Templates = []*api.Template{{
			EmbeddedTmpl: new("{{ with nomadVar \"nomad/jobs/scripts\" }}{{ .color }}{{ end }}"), DestPath: new("local/color"), ChangeMode: new("script"), Splay: new(time.Duration(0)),
			ChangeScript: &api.ChangeScript{Command: new("say"), Args: []string{"changed"}, Timeout: new(9 * time.Second), FailOnError: new(true)},
		}}
		variable := api.NewVariable("nomad/jobs/scripts")
		variable.Items = api.VariableItems{"color": "red"}
		if _, _, err := h.Variables().Update(variable, nil); err != nil {
			t.Fatal(err)
		}
		alloc := h.run(t, newJob("scripts", task), "it runs", isRunning)
		variable.Items["color"] = "blue"
		if _, _, err := h.Variables().Update(variable, nil); err != nil {
			t.Fatal(err)
		}
		var call struct {
			Command []string
			Timeout time.Duration
			Limited bool
		}
		h.awaitCall(t, "probe", "Exec", alloc.ID, &call)
		fieldShown(t, "drivers.ExecTaskRequest.task_id") // the call has found the task
		assertField(t, "drivers.ExecTaskRequest.command", call.Command, []string{"say", "changed"})
		assertField(t, "drivers.ExecTaskRequest.timeout", call.Limited && call.Timeout > 8*time.Second && call.Timeout <= 9*time.Second, true)
		await(t, "the exit code in an event", func() bool {
			alloc, _, err := h.Allocations().Info(alloc.ID, nil)
			if err != nil {
				t.Fatal(err)
			}
			return regexp.MustCompile(`\b42\b`).MatchString(allEvents(alloc, "main"))
		})
		fieldShown(t, "drivers.ExecTaskResponse.result")
	})
}

// TestExit compares the exit status that the host reports with the probe's.
func TestExit(t *testing.T) {
	forEachHost(t, func(t *testing.T, h *host) {
		task := api.NewTask("main", "probe")
		task.Config = map[string]any{"exit": []any{map[string]any{"code": 7, "signal": 15, "oom": true}}}
		alloc := h.run(t, newJob("exit", task), "it fails", hasEnded)
		event := lastEvent(alloc, "main", api.TaskTerminated)
		assertField(t, "drivers.WaitTaskResponse.result", event != nil, true)
		assertField(t, "drivers.ExitResult.exit_code", event.Details["exit_code"], "7")
		assertField(t, "drivers.ExitResult.signal", event.Details["signal"], "15")
		assertField(t, "drivers.ExitResult.oom_killed", event.Details["oom_killed"], "true")
	})
}

// TestStartError compares the decisions of the host after a recoverable error and after an unrecoverable error.
func TestStartError(t *testing.T) {
	forEachHost(t, func(t *testing.T, h *host) {
		for name, recoverable := range map[string]bool{"final": false, "recoverable": true} {
			task := api.NewTask("main", "probe")
			task.Config = map[string]any{"start_error": "no paper", "recoverable": recoverable}
			job := newJob("error-"+name, task)
			job.TaskGroups[0].RestartPolicy = &api.RestartPolicy{Attempts: new(1), Delay: new(5 * time.Second), Interval: new(time.Hour), Mode: new("fail")}
			alloc := h.run(t, job, "an error of the start", func(a *api.Allocation) bool { return lastEvent(a, "main", api.TaskDriverFailure) != nil })
			restarting := false
			await(t, "the decision after the error", func() bool {
				alloc, _, err := h.Allocations().Info(alloc.ID, nil)
				if err != nil {
					t.Fatal(err)
				}
				restarting = lastEvent(alloc, "main", api.TaskRestarting) != nil
				return restarting || lastEvent(alloc, "main", api.TaskNotRestarting) != nil
			})
			assertField(t, "structs.RecoverableError.recoverable", restarting, recoverable)
		}
	})
}

// TestNetworkOverride compares the service that the host registers with the address of the task.
func TestNetworkOverride(t *testing.T) {
	forEachHost(t, func(t *testing.T, h *host) {
		task := api.NewTask("main", "probe")
		task.Config = map[string]any{"override": []any{map[string]any{"address": "192.0.2.99", "port": 4242}}}
		task.Services = []*api.Service{
			{Name: "automatic", PortLabel: "web", Provider: "nomad"},
			{Name: "chosen", PortLabel: "web", Provider: "nomad", AddressMode: "driver"},
		}
		job := newJob("override", task)
		job.TaskGroups[0].Networks = []*api.NetworkResource{{Mode: "host", DynamicPorts: []api.Port{{Label: "web", To: 8080}}}}
		h.run(t, job, "it runs", isRunning)
		for name, fields := range map[string][]string{
			"automatic": {"NetworkOverride.auto_advertise"},
			"chosen":    {"StartTaskResponse.network_override", "NetworkOverride.addr"},
		} {
			var services []*api.ServiceRegistration
			await(t, "the service "+name, func() bool {
				var err error
				services, _, err = h.Services().Get(name, nil)
				return err == nil && len(services) == 1
			})
			for _, field := range fields {
				assertField(t, "drivers."+field, fmt.Sprint(services[0].Address, ":", services[0].Port), "192.0.2.99:8080")
			}
		}
	})
}

// TestTaskNetwork compares the network of a task, as in jobs for Nomad before 0.12, with the allocation.
func TestTaskNetwork(t *testing.T) {
	forEachHost(t, func(t *testing.T, h *host) {
		task := api.NewTask("main", "probe")
		task.Config = map[string]any{"override": []any{map[string]any{"address": "192.0.2.99", "port": 4242}}}
		task.Resources = &api.Resources{CPU: new(50), MemoryMB: new(32), Networks: []*api.NetworkResource{{MBits: new(5), DynamicPorts: []api.Port{{Label: "web"}}, ReservedPorts: []api.Port{{Label: "fixed", Value: 23456}}}}}
		task.Services = []*api.Service{{Name: "mapped", PortLabel: "web", Provider: "nomad", AddressMode: "driver"}}
		alloc := h.run(t, newJob("tasknetwork", task), "it runs", isRunning)
		allocated := alloc.AllocatedResources.Tasks["main"].Networks[0]
		networks := h.startedTask(t, alloc, "main").TaskConfig.Resources.Networks
		if len(networks) != 1 {
			t.Fatalf("networks %+v, want one", networks)
		}
		n := networks[0]
		assertField(t, "drivers.AllocatedTaskResources.networks", len(networks), 1)
		assertField(t, "drivers.NetworkResource.device", n.Device != "" && n.Device == allocated.Device, true)
		assertField(t, "drivers.NetworkResource.ip", n.IP != "" && n.IP == allocated.IP, true)
		assertField(t, "drivers.NetworkResource.mbits", n.MBits, int32(5))
		assertField(t, "drivers.NetworkResource.reserved_ports", n.ReservedPorts, []driver.NetworkPort{{Label: "fixed", Value: 23456}})
		assertField(t, "drivers.NetworkResource.dynamic_ports", n.DynamicPorts, []driver.NetworkPort{{Label: "web", Value: int32(allocated.DynamicPorts[0].Value)}})
		fieldShown(t, "drivers.NetworkPort.label", "drivers.NetworkPort.value")
		var services []*api.ServiceRegistration
		await(t, "the service", func() bool {
			var err error
			services, _, err = h.Services().Get("mapped", nil)
			return err == nil && len(services) == 1
		})
		assertField(t, "drivers.NetworkOverride.port_map", services[0].Port, 4242)
	})
}

// TestRecover kills the process of the driver: the host passes the handle of the task to the next process.
func TestRecover(t *testing.T) {
	forEachHost(t, func(t *testing.T, h *host) {
		task := api.NewTask("main", "probe")
		task.Config = map[string]any{"attributes": []any{map[string]any{"size": "large"}}}
		alloc := h.run(t, newJob("recover", task), "it runs", isRunning)
		start := h.calls(t, "probe", "Start", alloc.ID)[0]
		if err := syscall.Kill(start.PID, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		var recovered struct {
			TaskConfig   driver.TaskConfig
			StateVersion int32
			State        probeTaskConfig
		}
		h.awaitCall(t, "probe", "Recover", alloc.ID, &recovered)
		assertField(t, "drivers.RecoverTaskRequest.handle", recovered.TaskConfig.AllocID, alloc.ID)
		assertField(t, "drivers.TaskHandle.config", recovered.TaskConfig.AllocID, alloc.ID)
		assertField(t, "drivers.TaskHandle.version", recovered.StateVersion, int32(probeStateVersion))
		assertField(t, "drivers.TaskHandle.driver_state", recovered.State.Attributes, map[string]string{"size": "large"})
	})
}

// TestCapabilities compares the behavior of the host with the capabilities that a driver declares.
func TestCapabilities(t *testing.T) {
	forEachHost(t, func(t *testing.T, h *host) {
		// The driver cannot join a network namespace, mounts nothing, reads its logs itself, and needs users.
		task := api.NewTask("main", "probe_limited")
		alloc := h.run(t, newJob("limited", task), "it runs", isRunning)
		start := h.calls(t, "probe_limited", "Start", alloc.ID)[0]
		var args probeStart
		if err := json.Unmarshal(start.Args, &args); err != nil {
			t.Fatal(err)
		}
		assertField(t, "drivers.DriverCapabilities.dynamic_workload_users", regexp.MustCompile(`^nomad-8\d{4}$`).MatchString(args.TaskConfig.User), true)
		_, err := os.Stat(args.TaskConfig.StdoutPath)
		assertField(t, "drivers.DriverCapabilities.disable_log_collection", os.IsNotExist(err), true)
		assertField(t, "drivers.DriverCapabilities.fs_isolation", args.TaskConfig.Env["NOMAD_TASK_DIR"], args.TaskConfig.AllocDir+"/main/local")
		fieldShown(t, "drivers.CapabilitiesResponse.capabilities")

		task = api.NewTask("main", "probe_limited")
		task.VolumeMounts = []*api.VolumeMount{{Volume: new("data"), Destination: new("/data")}}
		job := newJob("limited-mounts", task)
		job.TaskGroups[0].Volumes = map[string]*api.VolumeRequest{"data": {Name: "data", Type: "host", Source: "shared"}}
		alloc = h.run(t, job, "it fails", hasEnded)
		assertField(t, "drivers.DriverCapabilities.mount_configs", strings.Contains(allEvents(alloc, "main"), `does not support host volumes`), true)

		task = api.NewTask("main", "probe_limited")
		job = newJob("limited-network", task)
		job.TaskGroups[0].Networks = []*api.NetworkResource{{Mode: "cni/probe"}}
		alloc = h.run(t, job, "it fails", hasEnded)
		refusal := `task main does not support "cni/probe" networking mode` // Nomad has it in the description of the allocation only
		if text := allEvents(alloc, "main") + alloc.ClientDescription; !strings.Contains(text, refusal) {
			t.Errorf("%s, want %q", text, refusal)
		}
	})
}

// TestCreateNetwork compares the network that a driver makes with the network that its tasks receive.
func TestCreateNetwork(t *testing.T) {
	forEachHost(t, func(t *testing.T, h *host) {
		job := newJob("createnetwork", api.NewTask("main", "probe_network"))
		job.TaskGroups[0].Networks = []*api.NetworkResource{{Mode: "cni/probe", Hostname: "wanted-name"}}
		alloc := h.run(t, job, "it runs", isRunning)
		var created struct{ Hostname string }
		h.awaitCall(t, "probe_network", "CreateNetwork", alloc.ID, &created)
		assertField(t, "drivers.DriverCapabilities.must_create_network", created.Hostname, "wanted-name")
		fieldShown(t, "drivers.CreateNetworkRequest.alloc_id") // awaitCall finds the call by it
		assertField(t, "drivers.CreateNetworkRequest.hostname", created.Hostname, "wanted-name")

		var start probeStart
		h.awaitCall(t, "probe_network", "Start", alloc.ID, &start)
		spec := start.TaskConfig.NetworkIsolation
		if spec == nil || spec.Hosts == nil {
			t.Fatalf("network isolation is %+v", spec)
		}
		for _, field := range []string{"CreateNetworkResponse.isolation_spec", "TaskConfig.network_isolation_spec", "NetworkIsolationSpec.mode"} {
			assertField(t, "drivers."+field, spec.Mode, driver.NetworkGroup)
		}
		assertField(t, "drivers.NetworkIsolationSpec.path", spec.Path, networkPath(alloc.ID))
		assertField(t, "drivers.NetworkIsolationSpec.labels", spec.Labels, map[string]string{"taste": "sweet"})
		assertField(t, "drivers.NetworkIsolationSpec.hostsConfig", spec.Hosts != nil, true)
		assertField(t, "drivers.HostsConfig.hostname", spec.Hosts.Hostname, "probe-host")
		assertField(t, "drivers.HostsConfig.address", spec.Hosts.Address, "192.0.2.7")
		assertField(t, "drivers.DriverCapabilities.fs_isolation", start.TaskConfig.Env["NOMAD_TASK_DIR"], "/local")

		if _, _, err := h.Jobs().Deregister("createnetwork", false, nil); err != nil {
			t.Fatal(err)
		}
		var destroyed driver.NetworkIsolation
		h.awaitCall(t, "probe_network", "DestroyNetwork", alloc.ID, &destroyed)
		fieldShown(t, "drivers.DestroyNetworkRequest.alloc_id") // awaitCall finds the call by it
		assertField(t, "drivers.DestroyNetworkRequest.isolation_spec", destroyed.Labels, map[string]string{"taste": "sweet"})
	})
}

func allEvents(alloc *api.Allocation, task string) string {
	var text strings.Builder
	if alloc.TaskStates[task] == nil {
		return ""
	}
	for _, event := range alloc.TaskStates[task].Events {
		fmt.Fprintln(&text, event.Type, event.DisplayMessage, event.Details)
	}
	return text.String()
}

// TestDevice compares the devices and statistics of a device plugin of the SDK with the host's node.
func TestDevice(t *testing.T) {
	forEachHost(t, func(t *testing.T, h *host) {
		var found *api.NodeDeviceResource
		for _, group := range h.node(t).NodeResources.Devices {
			if group.Vendor == "acme" {
				found = group
			}
		}
		if found == nil {
			t.Fatal("the node has no device of acme")
		}
		fieldShown(t, "device.FingerprintResponse.device_group")
		assertField(t, "device.DeviceGroup.vendor", found.Vendor, "acme")
		assertField(t, "device.DeviceGroup.device_type", found.Type, "gauge")
		assertField(t, "device.DeviceGroup.device_name", found.Name, "deluxe")
		assertField(t, "device.DeviceGroup.devices", len(found.Instances), 2)
		assertField(t, "device.DetectedDevice.ID", found.Instances[0].ID, "gauge-1")
		assertField(t, "device.DetectedDevice.healthy", []bool{found.Instances[0].Healthy, found.Instances[1].Healthy}, []bool{true, false})
		assertField(t, "device.DetectedDevice.health_description", found.Instances[1].HealthDescription, "glass is cracked")
		assertField(t, "device.DetectedDevice.hw_locality", found.Instances[0].Locality != nil, true)
		assertField(t, "device.DeviceLocality.pci_bus_id", found.Instances[0].Locality.PciBusID, "0000:01:02.3")
		assertField(t, "device.DeviceGroup.attributes", len(found.Attributes), 4)
		assertField(t, "structs.Attribute.int_val", found.Attributes["memory"].IntVal, new(int64(2048)))
		assertField(t, "structs.Attribute.unit", found.Attributes["memory"].Unit, "MiB")
		assertField(t, "structs.Attribute.float_val", found.Attributes["clock"].FloatVal, new(1.5))
		assertField(t, "structs.Attribute.string_val", found.Attributes["maker"].StringVal, new("Acme"))
		assertField(t, "structs.Attribute.bool_val", found.Attributes["turbo"].BoolVal, new(true))

		var stats *api.DeviceStats
		await(t, "statistics of the device", func() bool {
			all, err := h.Nodes().Stats(h.nodeID, nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, group := range all.DeviceStats {
				if group.Vendor == "acme" && group.Type == "gauge" && group.Name == "deluxe" {
					stats = group.InstanceStats["gauge-1"]
				}
			}
			return stats != nil
		})
		fieldShown(t, "device.StatsResponse.groups", "device.DeviceGroupStats.vendor", "device.DeviceGroupStats.type", "device.DeviceGroupStats.name", "device.DeviceGroupStats.instance_stats")
		assertField(t, "device.DeviceStats.timestamp", stats.Timestamp.Equal(probeDeviceStats.Timestamp), true)
		summary := stats.Summary
		assertField(t, "device.DeviceStats.summary", summary != nil, true)
		assertField(t, "structs.StatValue.int_numerator_val", summary.IntNumeratorVal, new(int64(21)))
		assertField(t, "structs.StatValue.int_denominator_val", summary.IntDenominatorVal, new(int64(84)))
		assertField(t, "structs.StatValue.unit", summary.Unit, "degree")
		assertField(t, "structs.StatValue.desc", summary.Desc, "temperature")
		fieldShown(t, "device.DeviceStats.stats", "structs.StatObject.attributes")
		load := stats.Stats.Attributes["load"]
		assertField(t, "structs.StatValue.float_numerator_val", load.FloatNumeratorVal, new(0.25))
		assertField(t, "structs.StatValue.float_denominator_val", load.FloatDenominatorVal, new(4.5))
		assertField(t, "structs.StatValue.string_val", stats.Stats.Attributes["state"].StringVal, new("idle"))
		assertField(t, "structs.StatValue.bool_val", stats.Stats.Attributes["alarm"].BoolVal, new(true))
		assertField(t, "structs.StatObject.nested", stats.Stats.Nested["needle"].Attributes["turns"].IntNumeratorVal, new(int64(3)))
	})
}
