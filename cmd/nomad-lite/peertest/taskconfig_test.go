package peertest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// calls returns the calls of a method that a probe has recorded. An empty allocID means all allocations.
func (h *host) calls(t testing.TB, probe, method, allocID string) []probeCall {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(h.dir, probe+".calls"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	var calls []probeCall
	for line := range bytes.Lines(text) {
		var call probeCall
		if !bytes.HasSuffix(line, []byte("\n")) {
			break // the probe is writing the line
		}
		if err := json.Unmarshal(line, &call); err != nil {
			t.Fatal(err)
		}
		if call.Method == method && (allocID == "" || call.AllocID == allocID) {
			calls = append(calls, call)
		}
	}
	return calls
}

// awaitCall waits for a call of a method, and decodes the arguments of the last one.
func (h *host) awaitCall(t testing.TB, probe, method, allocID string, args any) probeCall {
	t.Helper()
	var calls []probeCall
	await(t, fmt.Sprintf("%s: call of %s.%s", h.name, probe, method), func() bool {
		calls = h.calls(t, probe, method, allocID)
		return len(calls) > 0
	})
	last := calls[len(calls)-1]
	if err := json.Unmarshal(last.Args, args); err != nil {
		t.Fatal(err)
	}
	return last
}

// probeStart has the arguments of the recorded call Start.
type probeStart struct {
	TaskConfig driver.TaskConfig
	Config     probeTaskConfig
}

// startedTask returns the arguments with which a host started a task of the driver probe.
func (h *host) startedTask(t testing.TB, alloc *api.Allocation, task string) probeStart {
	t.Helper()
	for _, call := range h.calls(t, "probe", "Start", alloc.ID) {
		if call.Task == task {
			var start probeStart
			if err := json.Unmarshal(call.Args, &start); err != nil {
				t.Fatal(err)
			}
			return start
		}
	}
	t.Fatalf("%s has not started task %q", h.name, task)
	return probeStart{}
}

// TestTaskConfig compares the TaskConfig that a driver of the SDK receives with the job and with the API of the host.
func TestTaskConfig(t *testing.T) {
	starts := map[string]probeStart{}
	forEachHost(t, func(t *testing.T, h *host) {
		main := api.NewTask("main", "probe")
		main.User = "nobody"
		main.Env = map[string]string{"COLOR": "green"}
		main.Resources = &api.Resources{CPU: new(111), MemoryMB: new(33), MemoryMaxMB: new(77), Devices: []*api.RequestedDevice{{Name: "acme/gauge/deluxe"}}}
		volumes := api.NewTask("volumes", "probe")
		volumes.VolumeMounts = []*api.VolumeMount{{Volume: new("data"), Destination: new("/data"), ReadOnly: new(true), PropagationMode: new("bidirectional"), SELinuxLabel: new("Z")}}
		job := newJob("taskconfig", main, volumes)
		group := job.TaskGroups[0]
		group.Volumes = map[string]*api.VolumeRequest{"data": {Name: "data", Type: "host", Source: "shared", ReadOnly: true}}
		group.Networks = []*api.NetworkResource{{
			Mode: "host", DynamicPorts: []api.Port{{Label: "web", To: 8080}},
			DNS: &api.DNSConfig{Servers: []string{"192.0.2.53"}, Searches: []string{"peer.test"}, Options: []string{"ndots:3"}},
		}}
		alloc := h.run(t, job, "it runs", isRunning)
		start := h.startedTask(t, alloc, "main")
		starts[h.name] = start
		c := start.TaskConfig
		field := func(name string, got, want any) { t.Helper(); assertField(t, "drivers.TaskConfig."+name, got, want) }

		field("id", regexp.MustCompile("^"+alloc.ID+"/main/[0-9a-f]{8}$").MatchString(c.ID), true)
		field("name", c.Name, "main")
		field("env", c.Env["COLOR"], "green")
		field("env", c.Env["NOMAD_MEMORY_LIMIT"], "33")
		field("env", c.Env["NOMAD_MEMORY_MAX_LIMIT"], "77")
		field("device_env", c.DeviceEnv, map[string]string{"GAUGE": "gauge-1"})
		field("devices", c.Devices, []driver.Device{{TaskPath: "/dev/gauge", HostPath: "/dev/null", Permissions: "rw"}})
		fieldShown(t, "drivers.Device.task_path", "drivers.Device.host_path", "drivers.Device.cgroup_permissions")
		field("mounts", c.Mounts, []driver.Mount{{TaskPath: "/gauge-files", HostPath: "/usr/share", Readonly: true}})
		fieldShown(t, "device.ReserveRequest.device_ids", "device.ReserveResponse.container_res",
			"device.ContainerReservation.envs", "device.ContainerReservation.mounts", "device.ContainerReservation.devices",
			"device.Mount.task_path", "device.Mount.host_path", "device.Mount.read_only",
			"device.DeviceSpec.task_path", "device.DeviceSpec.host_path", "device.DeviceSpec.permissions")
		field("user", c.User, "nobody")
		field("alloc_dir", filepath.Base(c.AllocDir), alloc.ID)
		field("task_group_name", c.TaskGroupName, "group-of-taskconfig")
		field("job_name", c.JobName, "name-of-taskconfig")
		field("job_id", c.JobID, "taskconfig")
		field("alloc_id", c.AllocID, alloc.ID)
		field("namespace", c.Namespace, "default")
		field("node_name", c.NodeName, "peer")
		field("node_id", c.NodeID, h.nodeID)
		field("dns", c.DNS, &driver.DNSConfig{Servers: []string{"192.0.2.53"}, Searches: []string{"peer.test"}, Options: []string{"ndots:3"}})
		fieldShown(t, "drivers.DNSConfig.servers", "drivers.DNSConfig.searches", "drivers.DNSConfig.options")
		if c.ParentJobID != "" {
			t.Errorf("parent_job_id is %q", c.ParentJobID)
		}
		fieldShown(t, "drivers.StartTaskRequest.task")

		field("resources", c.Resources != nil, true)
		r := c.Resources
		fieldShown(t, "drivers.Resources.allocated_resources", "drivers.Resources.linux_resources",
			"drivers.AllocatedTaskResources.cpu", "drivers.AllocatedTaskResources.memory")
		assertField(t, "drivers.AllocatedCpuResources.cpu_shares", r.CPUShares, int64(111))
		assertField(t, "drivers.AllocatedMemoryResources.memory_mb", r.MemoryMB, int64(33))
		assertField(t, "drivers.AllocatedMemoryResources.memory_max_mb", r.MemoryMaxMB, int64(77))
		assertField(t, "drivers.LinuxResources.cpu_shares", r.Linux.CPUShares, int64(111))
		assertField(t, "drivers.LinuxResources.memory_limit_bytes", r.Linux.MemoryLimitBytes, int64(77<<20))
		assertField(t, "drivers.LinuxResources.PercentTicks", r.Linux.PercentTicks, 111.0/100000)
		if want := (driver.LinuxResources{CPUShares: 111, MemoryLimitBytes: 77 << 20, PercentTicks: 111.0 / 100000, CpusetCgroup: r.Linux.CpusetCgroup}); r.Linux != want {
			t.Errorf("linux_resources are %+v, want %+v", r.Linux, want)
		}
		port := alloc.AllocatedResources.Shared.Ports[0]
		assertField(t, "drivers.Resources.ports", r.Ports, []driver.PortMapping{{Label: "web", Value: int32(port.Value), To: 8080, HostIP: port.HostIP}})
		fieldShown(t, "drivers.PortMapping.label", "drivers.PortMapping.value", "drivers.PortMapping.to", "drivers.PortMapping.host_ip")
		if port.HostIP == "" || port.Value == 0 {
			t.Errorf("the allocation has the port %+v", port)
		}

		mounts := h.startedTask(t, alloc, "volumes").TaskConfig.Mounts
		field("mounts", mounts, []driver.Mount{{
			TaskPath: "/data", HostPath: filepath.Join(h.dir, "volume"), Readonly: true, PropagationMode: "bidirectional", SELinuxLabel: "Z", RequestName: "shared",
		}})
		fieldShown(t, "drivers.Mount.task_path", "drivers.Mount.host_path", "drivers.Mount.readonly", "drivers.Mount.propagation_mode", "drivers.Mount.selinux_label", "drivers.Mount.request_name")

		field("stdout_path", h.readLog(t, alloc, "main", "stdout"), "output of the probe\n")
		field("stderr_path", h.readLog(t, alloc, "main", "stderr"), "errors of the probe\n")
	})
	compareEnvironments(t, starts["nomad-lite"].TaskConfig.Env, starts["Nomad"].TaskConfig.Env)
}

// compareEnvironments asserts that tasks of nomad-lite have the variables that tasks of Nomad have. PWD is the directory of the
// agent.
func compareEnvironments(t *testing.T, lite, nomad map[string]string) {
	t.Helper()
	ours, theirs := slices.Sorted(maps.Keys(lite)), slices.Sorted(maps.Keys(nomad))
	if !slices.Equal(ours, theirs) {
		t.Errorf("variables of the task:\nnomad-lite %q\nNomad      %q", ours, theirs)
	}
	for _, name := range theirs {
		if ours, theirs := lite[name], nomad[name]; ours != theirs && name != "PWD" && !strings.HasPrefix(name, "NOMAD_") {
			t.Errorf("%s=%q, under Nomad %q", name, ours, theirs)
		}
	}
}

// readLog returns the output of a task, for which it waits.
func (h *host) readLog(t testing.TB, alloc *api.Allocation, task, kind string) string {
	t.Helper()
	stop := make(chan struct{})
	defer close(stop)
	frames, errs := h.AllocFS().Logs(alloc, true, task, kind, "start", 0, stop, nil)
	for {
		select {
		case frame := <-frames:
			if frame != nil && len(frame.Data) > 0 {
				return string(frame.Data)
			}
		case err := <-errs:
			if err != io.EOF {
				t.Fatalf("%s: logs: %v", h.name, err)
			}
		case <-time.After(waitTimeout):
			t.Fatalf("%s: no output of task %q", h.name, task)
		}
	}
}

// TestReservedCores compares the core that a task has reserved with the variable of the task.
func TestReservedCores(t *testing.T) {
	forEachHost(t, func(t *testing.T, h *host) {
		task := api.NewTask("main", "probe")
		task.Resources = &api.Resources{Cores: new(1), MemoryMB: new(32)}
		alloc := h.run(t, newJob("cores", task), "it runs", isRunning)
		c := h.startedTask(t, alloc, "main").TaskConfig
		linux := c.Resources.Linux
		assertField(t, "drivers.LinuxResources.cpuset_cpus", linux.CpusetCpus != "" && linux.CpusetCpus == c.Env["NOMAD_CPU_CORES"], true)
		assertField(t, "drivers.LinuxResources.cpuset_cgroup", strings.TrimSuffix(filepath.Base(linux.CpusetCgroup), ".scope"), alloc.ID+".main") // the suffix is that of cgroups v2
	})
}

// TestDriverConfig runs a task whose config block has each kind of part that a schema can have.
func TestDriverConfig(t *testing.T) {
	forEachHost(t, func(t *testing.T, h *host) {
		task := api.NewTask("main", "probe")
		task.Config = map[string]any{
			"any":        []any{"x", 1, true},
			"attributes": []any{map[string]any{"size": "large"}},
			"list":       []any{map[string]any{"n": 2}, map[string]any{"n": 1}},
			"set":        []any{map[string]any{"n": 2}, map[string]any{"n": 1}, map[string]any{"n": 2}},
			"map":        []any{map[string]any{"one": []any{map[string]any{"n": 1}}}},
			"first":      "a", "second": "b",
		}
		alloc := h.run(t, newJob("driverconfig", task), "it runs", isRunning)
		c := h.startedTask(t, alloc, "main").Config
		assertField(t, "drivers.TaskConfigSchemaResponse.spec", c.Constant, "unchangeable")
		for _, field := range []string{"Spec.literal", "Literal.value"} {
			assertField(t, "hclspec."+field, c.Constant, "unchangeable")
		}
		for _, field := range []string{"drivers.TaskConfig.msgpack_driver_config", "hclspec.Spec.object", "hclspec.Object.attributes", "hclspec.Spec.Attr", "hclspec.Attr.name", "hclspec.Attr.type"} {
			assertField(t, field, fmt.Sprint(c.Any), "[x 1 true]")
		}
		for _, field := range []string{"Spec.block_attrs", "BlockAttrs.name", "BlockAttrs.type"} {
			assertField(t, "hclspec."+field, c.Attributes, map[string]string{"size": "large"})
		}
		for _, field := range []string{"Spec.block_list", "BlockList.name", "BlockList.nested"} {
			assertField(t, "hclspec."+field, c.List, []probeNumber{{2}, {1}})
		}
		for _, field := range []string{"Spec.block_set", "BlockSet.name", "BlockSet.nested"} {
			assertField(t, "hclspec."+field, c.Set, []probeNumber{{1}, {2}})
		}
		for _, field := range []string{"Spec.block_map", "BlockMap.name", "BlockMap.labels", "BlockMap.nested"} {
			assertField(t, "hclspec."+field, c.Map, map[string]probeNumber{"one": {1}})
		}
		for _, field := range []string{"Spec.array", "Array.values"} {
			assertField(t, "hclspec."+field, c.Tuple, []string{"a", "b"})
		}
		// limits returns a config with a block "limits" in which two blocks of each of these names are.
		limits := func(names ...string) map[string]any {
			block := map[string]any{}
			for _, name := range names {
				block[name] = []any{map[string]any{"n": 1}, map[string]any{"n": 2}}
			}
			return map[string]any{"limits": []any{block}}
		}
		for i, test := range []struct {
			fields []string
			config map[string]any
			error  string
		}{
			{[]string{"BlockList.max_items"}, map[string]any{"list": []any{map[string]any{"n": 1}, map[string]any{"n": 1}, map[string]any{"n": 1}}}, `No more than 2 "list" blocks`},
			{[]string{"BlockSet.max_items"}, map[string]any{"set": []any{map[string]any{"n": 1}, map[string]any{"n": 2}, map[string]any{"n": 3}, map[string]any{"n": 4}}}, `No more than 3 "set" blocks`},
			{[]string{"BlockList.min_items"}, limits("couple"), `At least 2 "pair" blocks`},
			{[]string{"BlockSet.min_items"}, limits("pair"), `At least 2 "couple" blocks`},
			{[]string{"Block.required"}, limits("pair", "couple"), `"needed"`},
			{[]string{"BlockAttrs.required"}, limits("pair", "couple"), `"labels"`},
			{[]string{"Attr.required"}, map[string]any{"list": []any{map[string]any{}}}, `The argument "n" is required`},
			{[]string{"Spec.block_value", "Block.name", "Block.nested"}, map[string]any{"exit": []any{map[string]any{"code": 1}}}, `The argument "oom" is required`},
		} {
			t.Run(test.fields[0], func(t *testing.T) {
				t.Parallel()
				task := api.NewTask("main", "probe")
				task.Config = test.config
				alloc := h.run(t, newJob(fmt.Sprint("wrongconfig-", i), task), "it ends", hasEnded)
				for _, field := range test.fields {
					assertField(t, "hclspec."+field, strings.Contains(allEvents(alloc, "main"), test.error), true)
				}
				if t.Failed() {
					t.Log(allEvents(alloc, "main"))
				}
			})
		}
	})
}
