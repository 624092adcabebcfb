package bench

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
)

// BenchmarkMemory measures the memory of a node without tasks, the additional memory per task, and the additional descriptors.
func BenchmarkMemory(b *testing.B) {
	once(b, func() {
		a := startBenchAgent(b, b.TempDir())
		idle := a.measureMemoryMB(b, beforeUnusedDriversExit)
		addBenchSample(b, "idle memory, driver", idle, measureIdleProcessesMB(b, 3))
		addBenchSample(b, "idle memory", a.measureMemoryMB(b, afterUnusedDriversExit), measureIdleProcessesMB(b, 2))
		a.run(b, "service", "one", 1, "/bin/sleep", "1000")
		a.waitStatus(b, "one", 1, api.AllocClientStatusRunning)
		one := a.measureMemoryMB(b, settleDelay)
		addBenchSample(b, "one task", one-idle, measureIdleProcessesMB(b, 1))
		before := a.countDescriptors(b)
		for _, count := range []int{100, 1000} {
			taskCount := sized(count)
			id := fmt.Sprint("sleep-", count)
			a.run(b, "service", id, taskCount, "/bin/sleep", "1000")
			a.waitStatus(b, id, taskCount, api.AllocClientStatusRunning)
			addBenchSample(b, fmt.Sprintf("memory per task, %d", count), (a.measureMemoryMB(b, settleDelay)-one)/float64(taskCount), missingBaselineValue)
			if count == 100 {
				for kind, n := range a.countDescriptors(b) {
					addBenchSample(b, "descriptors, "+kind, float64(n-before[kind])/float64(taskCount), missingBaselineValue)
				}
			}
			a.stopJob(b, id, taskCount)
		}
		a.stopJob(b, "one", 1)
		a.end(b, syscall.SIGINT)
	})
}

// BenchmarkExecMemory measures the memory of a node with the driver exec, and the additional memory per isolated task.
func BenchmarkExecMemory(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("needs root, to isolate tasks")
	}
	once(b, func() {
		a := startBenchAgent(b, b.TempDir(), "plugin \"exec\" {}\n")
		a.driver = "exec"
		a.healthyDriverProcess(b, a.driver, 0)
		addBenchSample(b, "idle memory, drivers", a.measureMemoryMB(b, beforeUnusedDriversExit), measureIdleProcessesMB(b, 4))
		addBenchSample(b, "idle memory, exec", a.measureMemoryMB(b, afterUnusedDriversExit), measureIdleProcessesMB(b, 2))
		a.run(b, "service", "one", 1, "/bin/sleep", "1000")
		a.waitStatus(b, "one", 1, api.AllocClientStatusRunning)
		one := a.measureMemoryMB(b, settleDelay)
		for _, name := range []string{"memory per exec task", "memory per exec task, bridge"} {
			a.bridge = name != "memory per exec task"
			taskCount := sized(100)
			a.run(b, "service", "sleep", taskCount, "/bin/sleep", "1000")
			a.waitStatus(b, "sleep", taskCount, api.AllocClientStatusRunning)
			addBenchSample(b, name, (a.measureMemoryMB(b, settleDelay)-one)/float64(taskCount), missingBaselineValue)
			a.stopJob(b, "sleep", taskCount)
		}
		a.bridge = false
		a.stopJob(b, "one", 1)
		a.end(b, syscall.SIGINT)
	})
}

// A builtin driver without a task exits after a minute. The memory of an idle node is measured after these times without
// work, with the processes of its drivers and without them.
const (
	beforeUnusedDriversExit = 10 * time.Second
	afterUnusedDriversExit  = 65 * time.Second
)

// settleDelay is the time after which a deployment has ended, and a driver has sent another fingerprint.
const settleDelay = 40 * time.Second

// once runs a measurement in the first iteration only: it takes minutes and varies little.
func once(b *testing.B, measure func()) {
	b.Helper()
	for first := true; b.Loop(); first = false {
		if first {
			measure()
		}
	}
}

// measureMemoryMB returns the sum of the anonymous and shared memory of all processes of nomad-lite, in MB, after they
// were idle for the duration quiet.
func (a *benchAgent) measureMemoryMB(b testing.TB, quiet time.Duration) float64 {
	b.Helper()
	settle(quiet)
	kib := 0
	for _, p := range systemtest.FindDataDirProcesses(a.dir) {
		if !strings.Contains(p.Kind, "/") {
			kib += systemtest.ReadMemoryKiB(b, p.PID)
		}
	}
	return float64(kib) / 1000 * 1.024
}

// countDescriptors returns the number of open descriptors of the agent, the log collector and the keeper.
func (a *benchAgent) countDescriptors(b testing.TB) map[string]int {
	b.Helper()
	counts := map[string]int{"agent": 0, "log-collector": 0, "keeper": 0}
	for _, p := range systemtest.FindDataDirProcesses(a.dir) {
		if _, ok := counts[p.Kind]; !ok {
			continue
		}
		fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.PID))
		if err != nil {
			b.Fatal(err)
		}
		counts[p.Kind] += len(fds)
	}
	return counts
}

// idleProgramSource is a program that imports the libraries that every agent needs, and does
// nothing.
const idleProgramSource = `package main

import (
	"time"

	_ "github.com/hashicorp/go-plugin"
	_ "github.com/hashicorp/hcl/v2/hclsyntax"
	_ "go.etcd.io/bbolt"
	_ "google.golang.org/grpc"
)

func main() { time.Sleep(time.Hour) }
`

// buildGoProgram builds a program of one file, and returns its path.
func buildGoProgram(b *testing.B, source string) string {
	b.Helper()
	program := filepath.Join(b.TempDir(), "program")
	if err := os.WriteFile(program+".go", []byte(source), 0o600); err != nil {
		b.Fatal(err)
	}
	if out, err := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", program, program+".go").CombinedOutput(); err != nil {
		b.Fatalf("build: %v\n%s", err, out)
	}
	return program
}

// measureIdleProcessesMB returns the memory of count processes of a program that does nothing, in MB. It
// is the baseline for the memory of a node, which is an agent, a keeper and a driver plugin.
func measureIdleProcessesMB(b *testing.B, count int) (sum float64) {
	b.Helper()
	program := buildGoProgram(b, idleProgramSource)
	var all []*exec.Cmd
	for range count {
		cmd := exec.Command(program)
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		all = append(all, cmd)
	}
	time.Sleep(time.Second)
	for _, cmd := range all {
		sum += float64(systemtest.ReadMemoryKiB(b, cmd.Process.Pid)) / 1000 * 1.024
	}
	for _, cmd := range all {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // the process was killed
	}
	return sum
}
