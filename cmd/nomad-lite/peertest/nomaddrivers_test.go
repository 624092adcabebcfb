package peertest

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
)

// These tests run the same job with Nomad's drivers raw_exec and exec under both agents: under Nomad the drivers are builtin,
// under nomad-lite they are an external plugin. The kernel must show the same properties of the task.

// facts are properties of a task's process, by name.
type facts map[string]string

// findProcess returns the process of a task that has a command line.
func findProcess(t testing.TB, alloc *api.Allocation, task, commandLine string) int {
	t.Helper()
	pid := 0
	await(t, fmt.Sprintf("a process %q of task %q", commandLine, task), func() bool {
		for candidate, environ := range allocProcesses(alloc) {
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", candidate))
			if err == nil && slices.Contains(environ, "NOMAD_TASK_NAME="+task) && strings.TrimSuffix(strings.ReplaceAll(string(text), "\x00", " "), " ") == commandLine {
				pid = candidate
			}
		}
		return pid != 0
	})
	return pid
}

// allocProcesses returns the processes of the tasks of an allocation with their environments.
func allocProcesses(alloc *api.Allocation) map[int][]string {
	files, _ := filepath.Glob("/proc/[0-9]*/environ") // the pattern is valid
	processes := map[int][]string{}
	for _, file := range files {
		var pid int
		text, err := os.ReadFile(file)
		if environ := strings.Split(string(text), "\x00"); err == nil && slices.Contains(environ, "NOMAD_ALLOC_ID="+alloc.ID) { // an error means that the process has exited
			if _, err := fmt.Sscanf(file, "/proc/%d/environ", &pid); err == nil {
				processes[pid] = environ
			}
		}
	}
	return processes
}

// collectFacts reads from the kernel the properties of a process.
func collectFacts(t testing.TB, pid int) facts {
	t.Helper()
	proc := fmt.Sprintf("/proc/%d/", pid)
	read := func(path string) string {
		text, err := os.ReadFile(path)
		if err != nil {
			return err.Error()
		}
		return strings.TrimSpace(string(text))
	}
	f := facts{}
	for line := range strings.Lines(read(proc + "status")) {
		if name, value, _ := strings.Cut(line, ":"); name == "Uid" || name == "Gid" {
			f[name] = strings.Fields(value)[0]
		}
	}
	for line := range strings.Lines(read(proc + "cgroup")) {
		_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		controller, path, _ := strings.Cut(rest, ":")
		for file, of := range map[string]string{"memory.limit_in_bytes": "memory", "memory.soft_limit_in_bytes": "memory", "cpu.shares": "cpu"} {
			if of == controller {
				f[file] = read(filepath.Join("/sys/fs/cgroup", controller, path, file))
			}
		}
		if controller == "" && !strings.Contains(read("/proc/self/mountinfo"), " - cgroup cgroup ") {
			for _, file := range []string{"memory.max", "memory.low", "cpu.weight"} {
				f[file] = read(filepath.Join("/sys/fs/cgroup", path, file))
			}
		}
	}
	for entry := range strings.SplitSeq(read(proc+"environ"), "\x00") {
		if name, value, _ := strings.Cut(entry, "="); slices.Contains([]string{"COLOR", "GAUGE", "NOMAD_MEMORY_LIMIT", "NOMAD_MEMORY_MAX_LIMIT", "NOMAD_CPU_LIMIT"}, name) {
			f["variable "+name] = value
		}
	}
	for line := range strings.Lines(read(proc + "mountinfo")) {
		if fields := strings.Fields(line); len(fields) > 5 && slices.Contains([]string{"/data", "/gauge-files"}, fields[4]) {
			f["mount "+fields[4]] = strings.Split(fields[5], ",")[0]
		}
	}
	var device syscall.Stat_t
	if err := syscall.Stat(proc+"root/dev/gauge", &device); err == nil {
		f["device"] = fmt.Sprintf("%x", device.Rdev)
	}
	if f["resolv.conf"] = read(proc + "root/etc/resolv.conf"); f["resolv.conf"] == read("/etc/resolv.conf") {
		f["resolv.conf"] = "that of the machine"
	}
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	namespace, err := os.Readlink(proc + "ns/net")
	if err != nil {
		t.Fatal(err)
	}
	f["own network"] = fmt.Sprint(namespace != own)
	f["oom_score_adj"] = read(proc + "oom_score_adj")
	return f
}

// runForFacts runs a job with a long-running task of a driver, and returns the facts of its process.
func (h *host) runForFacts(t *testing.T, driver string) (*api.Allocation, facts) {
	t.Helper()
	task := api.NewTask("main", driver)
	task.Config = map[string]any{"command": "/bin/sleep", "args": []string{"4711"}}
	task.Env = map[string]string{"COLOR": "green"}
	task.Resources = &api.Resources{CPU: new(111), MemoryMB: new(33), MemoryMaxMB: new(77)}
	job := newJob("facts-"+strings.ReplaceAll(driver, "_", "-"), task)
	if driver == "exec" {
		task.User = "daemon"
		task.Resources.Devices = []*api.RequestedDevice{{Name: "acme/gauge/deluxe"}}
		job.TaskGroups[0].Networks = []*api.NetworkResource{{Mode: "cni/probe", DNS: &api.DNSConfig{Servers: []string{"192.0.2.53"}, Searches: []string{"peer.test"}, Options: []string{"ndots:3"}}}}
	}
	alloc := h.run(t, job, "it runs", isRunning)
	return alloc, collectFacts(t, findProcess(t, alloc, "main", "/bin/sleep 4711"))
}

// TestNomadDriversLimitTasks compares the limits, the user, the variables, the devices, the mounts and the network of a task.
func TestNomadDriversLimitTasks(t *testing.T) {
	for _, driver := range []string{"raw_exec", "exec"} {
		t.Run(driver, func(t *testing.T) {
			_, want := nomadHost(t).runForFacts(t, driver)
			alloc, got := liteHost(t).runForFacts(t, driver)
			if !maps.Equal(got, want) {
				for _, name := range slices.Sorted(maps.Keys(want)) {
					if got[name] != want[name] {
						t.Errorf("%s is %q, under Nomad %q", name, got[name], want[name])
					}
				}
			}
			if len(want) < 10 || len(got) != len(want) {
				t.Errorf("facts %v, under Nomad %v", got, want)
			}
			if limit := want["memory.limit_in_bytes"] + want["memory.max"]; driver == "exec" && limit != "80740352" {
				t.Errorf("memory limit %q, want 77 MiB: %v", limit, want)
			}
			fieldShown(t, "drivers.AllocatedMemoryResources.memory_mb", "drivers.AllocatedCpuResources.cpu_shares", "drivers.TaskConfig.env", "drivers.TaskConfig.msgpack_driver_config")
			if driver == "exec" {
				fieldShown(t, "drivers.AllocatedMemoryResources.memory_max_mb", "drivers.TaskConfig.user", "drivers.TaskConfig.dns", "drivers.TaskConfig.network_isolation_spec",
					"drivers.NetworkIsolationSpec.path", "drivers.Mount.task_path", "drivers.Mount.readonly", "drivers.Device.task_path", "drivers.Device.host_path",
					"drivers.DriverCapabilities.network_isolation_modes") // a task of a driver without modes cannot have the network
			}
			liteHost(t).checkDriverCalls(t, alloc)
		})
	}
}

// checkDriverCalls runs a command in a task, reads its statistics, and sends it a signal.
func (h *host) checkDriverCalls(t *testing.T, alloc *api.Allocation) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	var stdout, stderr bytes.Buffer
	code, err := h.Allocations().Exec(ctx, alloc, "main", false, []string{"/bin/sh", "-c", "cat; echo wrong >&2; exit 3"}, strings.NewReader("some input"), &stdout, &stderr, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	assertField(t, "drivers.ExecTaskStreamingResponse.result", code, 3)
	assertField(t, "drivers.ExecTaskStreamingResponse.stdout", stdout.String(), "some input")
	assertField(t, "drivers.ExecTaskStreamingResponse.stderr", stderr.String(), "wrong\n")
	fieldShown(t, "drivers.ExecTaskStreamingRequest.setup", "drivers.ExecTaskStreamingRequest.stdin", "drivers.ExecTaskStreamingIOOperation.data",
		"drivers.ExecTaskStreamingIOOperation.close", "drivers.ExecTaskStreamingResponse.exited") // cat ends at the close, and the call at the exit
	await(t, "memory in the statistics", func() bool {
		usage, err := h.Allocations().Stats(alloc, nil)
		if err != nil || usage.Tasks["main"] == nil || usage.Tasks["main"].ResourceUsage == nil {
			return false
		}
		memory := usage.Tasks["main"].ResourceUsage.MemoryStats
		return memory != nil && memory.RSS+memory.Usage > 0 && len(memory.Measured) > 0
	})
	fieldShown(t, "drivers.TaskStats.agg_resource_usage", "drivers.MemoryUsage.measured_fields")
	if err := h.Allocations().Signal(alloc, nil, "main", "SIGKILL"); err != nil { // the first process of a namespace ignores other signals
		t.Fatal(err)
	}
	ended := h.waitEnd(t, alloc)
	event := lastEvent(ended, "main", api.TaskTerminated)
	if event == nil {
		t.Fatal(allEvents(ended, "main"))
	}
	assertField(t, "drivers.SignalTaskRequest.signal", event.Details["signal"], "9")
	assertField(t, "drivers.ExitResult.signal", event.Details["signal"], "9")
}

// waitEnd waits until an allocation has ended.
func (h *host) waitEnd(t testing.TB, alloc *api.Allocation) *api.Allocation {
	t.Helper()
	await(t, "the end of the allocation", func() bool {
		now, _, err := h.Allocations().Info(alloc.ID, nil)
		if err != nil {
			t.Fatal(err)
		}
		alloc = now
		return hasEnded(now)
	})
	return alloc
}

// TestNomadExecKillsTaskAboveLimit runs a task that takes more memory than it has.
func TestNomadExecKillsTaskAboveLimit(t *testing.T) {
	forEachHost(t, func(t *testing.T, h *host) {
		task := api.NewTask("main", "exec")
		task.Config = map[string]any{"command": "/bin/sh", "args": []string{"-c", "x=$(head -c 120000000 /dev/zero | tr '\\0' x); test -n \"$x\""}}
		task.Resources = &api.Resources{CPU: new(50), MemoryMB: new(20)}
		alloc := h.run(t, newJob("greedy", task), "it is killed", hasEnded)
		event := lastEvent(alloc, "main", api.TaskTerminated)
		if event == nil {
			t.Fatal(allEvents(alloc, "main"))
		}
		assertField(t, "drivers.ExitResult.exit_code", event.Details["exit_code"], "137")
		fieldShown(t, "drivers.AllocatedMemoryResources.memory_mb")
	})
}

// TestNomadRawExecStops stops a task that handles its signal, and a task that ignores its signal.
func TestNomadRawExecStops(t *testing.T) {
	forEachHost(t, func(t *testing.T, h *host) {
		for _, test := range []struct {
			name, script string
			exitCode     string
			timeout      time.Duration
		}{
			{"handles", "trap 'exit 5' USR2; echo ready; while :; do sleep 0.1; done", "5", 20 * time.Second},
			{"ignores", "trap '' USR2; echo ready; while :; do sleep 0.1; done", "137", time.Second},
		} {
			task := api.NewTask("main", "raw_exec")
			task.Config = map[string]any{"command": "/bin/sh", "args": []string{"-c", test.script}}
			task.KillSignal, task.KillTimeout = "SIGUSR2", &test.timeout
			alloc := h.run(t, newJob("stop-"+test.name, task), "it runs", isRunning)
			h.readLog(t, alloc, "main", "stdout")
			if _, _, err := h.Jobs().Deregister("stop-"+test.name, false, nil); err != nil {
				t.Fatal(err)
			}
			ended := h.waitEnd(t, alloc)
			event, killing := lastEvent(ended, "main", api.TaskTerminated), lastEvent(ended, "main", api.TaskKilling)
			if event == nil || killing == nil {
				t.Fatal(allEvents(ended, "main"))
			}
			assertField(t, "drivers.StopTaskRequest.signal", event.Details["exit_code"], test.exitCode)
			if test.name == "ignores" {
				// Without the timeout, the driver would kill the task at once.
				assertField(t, "drivers.StopTaskRequest.timeout", time.Duration(event.Time-killing.Time) >= test.timeout, true)
			}
			fieldShown(t, "drivers.ExitResult.exit_code", "drivers.StopTaskRequest.task_id", "drivers.WaitTaskRequest.task_id")
		}
	})
}

// TestNomadRawExecRecovers kills the process of the driver plugin: the task continues, and its exit status is not lost.
func TestNomadRawExecRecovers(t *testing.T) {
	h := liteHost(t)
	task := api.NewTask("main", "raw_exec")
	task.Config = map[string]any{"command": "/bin/sh", "args": []string{"-c", "trap 'exit 6' USR1; echo ready; while :; do sleep 0.1; done"}}
	alloc := h.run(t, newJob("recover-raw-exec", task), "it runs", isRunning)
	h.readLog(t, alloc, "main", "stdout")
	killed := 0
	for _, pid := range processesOf(filepath.Join(h.dir, "plugins")) {
		command, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if program, _, _ := bytes.Cut(command, []byte{0}); err != nil || filepath.Base(string(program)) != "ext-raw-exec" || bytes.Contains(command, []byte("\x00executor\x00")) {
			continue // another plugin, or the driver's helper process of a task
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		killed++
	}
	if killed != 1 {
		t.Fatalf("killed %d processes of the plugin, want one", killed)
	}
	await(t, "a signal to the recovered task", func() bool { return h.Allocations().Signal(alloc, nil, "main", "SIGUSR1") == nil })
	ended := h.waitEnd(t, alloc)
	event := lastEvent(ended, "main", api.TaskTerminated)
	if event == nil {
		t.Fatal(allEvents(ended, "main"))
	}
	assertField(t, "drivers.TaskHandle.driver_state", event.Details["exit_code"], "6")
	fieldShown(t, "drivers.RecoverTaskRequest.handle")
}
