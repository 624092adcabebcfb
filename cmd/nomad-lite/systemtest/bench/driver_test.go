package bench

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/plugins/base/basewire"
)

// installBenchDrivers installs external drivers, and returns the configuration that starts them.
// commands maps the names of their files to their programs and arguments.
func installBenchDrivers(b *testing.B, commands map[string]string) string {
	b.Helper()
	dir := b.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		b.Fatal(err)
	}
	config := fmt.Sprintf("plugin_dir = %q\n", dir)
	for name, command := range commands {
		program, args, _ := strings.Cut(command, " ")
		path, err := exec.LookPath(program)
		if err != nil {
			b.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), fmt.Appendf(nil, "#!/bin/sh\nexec %s %s\n", path, args), 0o755); err != nil {
			b.Fatal(err)
		}
		config += fmt.Sprintf("plugin %q {}\n", name)
	}
	return config
}

// healthyDriverProcess waits until a driver is healthy in a process other than before, and returns the process.
func (a *benchAgent) healthyDriverProcess(b *testing.B, driver string, before int) int {
	b.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		self, err := a.client.Agent().Self()
		if err != nil {
			b.Fatal(err)
		}
		plugins, _ := self.Config["Plugins"].([]any)
		for _, p := range plugins {
			p := p.(map[string]any)
			if pid := int(p["PID"].(float64)); p["Serves"] == driver && p["State"] == "healthy" && pid != 0 && pid != before {
				return pid
			}
		}
		if time.Now().After(deadline) {
			b.Fatalf("driver %s is not healthy: %v", driver, plugins)
		}
	}
}

// BenchmarkExternalDriver measures what a driver in a file of its own costs.
func BenchmarkExternalDriver(b *testing.B) {
	config := installBenchDrivers(b, map[string]string{"shell-driver": "shell-driver"})
	round := 0
	for b.Loop() {
		round++
		without := startBenchAgent(b, b.TempDir())
		without.end(b, syscall.SIGINT)
		a := startBenchAgent(b, b.TempDir(), config)
		addBenchSample(b, "ready, driver", systemtest.Milliseconds(a.startDuration), systemtest.Milliseconds(without.startDuration))
		pid := a.healthyDriverProcess(b, "shell", 0)

		// Without a host, the program reports that it is a plugin, and exits.
		floor := measureTime(b, func() error { _ = exec.Command("shell-driver").Run(); return nil })
		began := time.Now()
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			b.Fatal(err)
		}
		a.healthyDriverProcess(b, "shell", pid)
		addBenchSample(b, "driver launch", systemtest.Milliseconds(time.Since(began)), systemtest.Milliseconds(floor))

		count := sized(100)
		var rates []float64
		for _, driver := range []string{"shell", "raw_exec"} {
			a.driver = driver
			id := fmt.Sprint("true-", driver, round)
			began := time.Now()
			a.run(b, "batch", id, count, "/bin/true")
			a.waitStatus(b, id, count, api.AllocClientStatusComplete)
			rates = append(rates, float64(count)/time.Since(began).Seconds())
		}
		addBenchSample(b, "100 complete, external", rates[0], rates[1])
		a.end(b, syscall.SIGINT)
	}
}

// BenchmarkDriverCall measures a call of a driver plugin.
func BenchmarkDriverCall(b *testing.B) {
	cmd := exec.Command("shell-driver")
	cmd.Env = append(os.Environ(), basewire.Handshake.MagicCookieKey+"="+basewire.Handshake.MagicCookieValue, "PLUGIN_PROTOCOL_VERSIONS=2")
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // the process was killed
	}()
	line, err := bufio.NewReader(stdout).ReadString('\n')
	fields := strings.Split(line, "|")
	if err != nil || len(fields) < 5 {
		b.Fatalf("handshake %q, %v", line, err)
	}
	defer os.Remove(fields[3])
	conn, err := grpc.NewClient("unix:"+fields[3], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	plugin, health := basewire.NewClient(conn, make(chan struct{})), healthpb.NewHealthClient(conn)
	for b.Loop() {
		var calls, floors []float64
		for range 200 {
			calls = append(calls, systemtest.Milliseconds(measureTime(b, func() error { _, err := plugin.PluginInfo(b.Context()); return err })))
			floors = append(floors, systemtest.Milliseconds(measureTime(b, func() error {
				_, err := health.Check(b.Context(), &healthpb.HealthCheckRequest{Service: "plugin"})
				return err
			})))
		}
		addBenchSample(b, "driver call", systemtest.Median(calls), systemtest.Median(floors))
	}
}

// BenchmarkChrootDriver measures the start of a task in a chroot, which the agent fills.
func BenchmarkChrootDriver(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("needs root, to mount the files of a chroot")
	}
	a := startBenchAgent(b, b.TempDir(), installBenchDrivers(b, map[string]string{"chroot": "wire-driver chroot", "plain": "wire-driver plain"}))
	defer a.end(b, syscall.SIGINT)
	for _, driver := range []string{"wire-chroot", "wire-plain"} {
		a.healthyDriverProcess(b, driver, 0)
	}
	a.compareStarts(b, "chroot", [2]string{"wire-chroot", "wire-plain"}, func(script string) map[string]any {
		return map[string]any{"script": script}
	})
}

// BenchmarkExecDriver measures the start of a task of the driver exec beside one of raw_exec.
func BenchmarkExecDriver(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("needs root, to isolate tasks")
	}
	a := startBenchAgent(b, b.TempDir(), "plugin \"exec\" {}\n")
	defer a.end(b, syscall.SIGINT)
	drivers := [2]string{"exec", "raw_exec"}
	for _, driver := range drivers {
		a.healthyDriverProcess(b, driver, 0)
	}
	a.compareStarts(b, "exec driver", drivers, func(script string) map[string]any {
		return map[string]any{"command": "/bin/sh", "args": []string{"-c", script}}
	})
}

// BenchmarkExecBursts starts many isolated allocations at once, without and with a network of their own.
func BenchmarkExecBursts(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("needs root, to isolate tasks")
	}
	for b.Loop() {
		a := startBenchAgent(b, b.TempDir(), "plugin \"exec\" {}\n")
		a.driver = "exec"
		a.healthyDriverProcess(b, a.driver, 0)
		for i, figure := range []string{"100 exec", "100 exec, bridge"} {
			a.bridge = i == 1
			job := fmt.Sprint("sleep-", i) // waitStatus would also count the stopped allocations of an earlier job with this name
			count := sized(100)
			rate := func(d time.Duration) float64 { return float64(count) / d.Seconds() }
			began := time.Now()
			a.run(b, "service", job, count, "/bin/sleep", "1000")
			a.waitStatus(b, job, count, api.AllocClientStatusRunning)
			took := time.Since(began)
			addBenchSample(b, figure, rate(took), rate(forkIsolatedPrograms(b, count, "/bin/sleep", "1000")))
			a.stopJob(b, job, count)
		}
		a.end(b, syscall.SIGINT)
	}
}

// forkIsolatedPrograms starts count programs, one after the other, in new namespaces, as the driver exec does, and returns the time
// that this took.
func forkIsolatedPrograms(b *testing.B, count int, argv ...string) time.Duration {
	b.Helper()
	var all []*exec.Cmd
	defer func() {
		for _, cmd := range all {
			_ = cmd.Process.Kill()
			_ = cmd.Wait() // the process was killed
		}
	}()
	began := time.Now()
	for range count {
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC}
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		all = append(all, cmd)
	}
	return time.Since(began)
}

// compareStarts measures the time from the submission of a job to the first instruction of its task, for a
// driver and for the driver that is its floor. The task needs the config that newConfig returns for a script.
func (a *benchAgent) compareStarts(b *testing.B, name string, drivers [2]string, newConfig func(script string) map[string]any) {
	b.Helper()
	round := 0
	for b.Loop() {
		round++
		var starts []float64
		for _, driver := range drivers {
			id := fmt.Sprint(driver, round)
			job := api.NewServiceJob(id, id, "global", 50)
			task := api.NewTask("t", driver)
			task.Config = newConfig("date +%s%N >$NOMAD_ALLOC_DIR/data/stamp; exec sleep 1000")
			task.KillTimeout = new(time.Duration) // a process 1 ignores the stop signal
			task.Resources = &api.Resources{CPU: new(1), MemoryMB: new(30)}
			job.AddTaskGroup(api.NewTaskGroup("g", 1).AddTask(task))
			began := time.Now()
			if _, _, err := a.client.Jobs().Register(job, nil); err != nil {
				b.Fatal(err)
			}
			a.waitStatus(b, id, 1, api.AllocClientStatusRunning)
			allocs, _, err := a.client.Jobs().Allocations(id, false, nil)
			if err != nil {
				b.Fatal(err)
			}
			first := systemtest.WaitTimestamps(b, filepath.Join(a.dir, "alloc", allocs[0].ID, "alloc/data/stamp"), 1)[0]
			starts = append(starts, systemtest.Milliseconds(first.Sub(began)))
			a.stopJob(b, id, 1)
		}
		addBenchSample(b, name, starts[0], starts[1])
	}
}
