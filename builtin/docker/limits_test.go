package docker

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// testLimits runs tasks that use what their limits permit, and then try to use more. The scripts write a line to /local/answer
// for each of the two that succeeds.
func testLimits(t *testing.T, d *Driver, start func(*testing.T, *Driver, map[string]any, func(*sdk.StartRequest)) *task, wait func(*testing.T, *task) driver.ExitResult) {
	const (
		within = "\necho within >>/local/answer\n"
		beyond = " && echo beyond >>/local/answer\ntrue\n"
	)
	for _, c := range []struct {
		name      string
		config    map[string]any
		resources driver.Resources
		script    string
	}{
		{
			name: "memory beyond memory_max", resources: driver.Resources{MemoryMB: 20, MemoryMaxMB: 60},
			script: "dd if=/dev/zero of=/dev/null bs=35M count=1 || exit 1" + within + "dd if=/dev/zero of=/dev/null bs=90M count=1" + beyond,
		},
		{
			name: "memory beyond memory_hard_limit", config: map[string]any{"memory_hard_limit": 60}, resources: driver.Resources{MemoryMB: 20},
			script: "dd if=/dev/zero of=/dev/null bs=35M count=1 || exit 1" + within + "dd if=/dev/zero of=/dev/null bs=90M count=1" + beyond,
		},
		{
			name: "processes beyond pids_limit", config: map[string]any{"pids_limit": 10},
			script: "sleep 60 & sleep 60 & sleep 60 &" + within + "(for i in $(seq 20); do sleep 60 & done)" + beyond,
		},
		{
			name: "files beyond the ulimit nofile", config: map[string]any{"ulimit": list(map[string]any{"nofile": "20"})},
			script: "cd /tmp; tee $(seq 10) </dev/null || exit 1" + within + "(ulimit -n 1000 || tee $(seq 30) </dev/null)" + beyond,
		},
		{
			name: "shared memory beyond shm_size", config: map[string]any{"shm_size": 1 << 20},
			script: "dd if=/dev/zero of=/dev/shm/x bs=512k count=1 || exit 1" + within + "dd if=/dev/zero of=/dev/shm/y bs=1M count=1" + beyond,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			config := map[string]any{"args": list("-c", c.script)}
			for name, value := range c.config {
				config[name] = value
			}
			task := start(t, d, config, func(s *sdk.StartRequest) {
				if c.resources.MemoryMB > 0 {
					s.Resources = &c.resources
				}
			})
			wait(t, task)
			if answer := readAnswer(t, task); answer != "within\n" {
				t.Errorf("the task has written %q, want only \"within\"", answer)
			}
		})
	}

	t.Run("processor time beyond cpu_hard_limit", func(t *testing.T) {
		const cores = 0.2
		config := map[string]any{"cpu_hard_limit": true, "args": list("-c", `
			read before rest </proc/uptime
			while :; do :; done & loop=$!
			sleep 3
			read after rest </proc/uptime
			echo $before $after $(cut -d ' ' -f 14,15 /proc/$loop/stat) >/local/answer
			kill -9 $loop`)}
		task := start(t, d, config, func(s *sdk.StartRequest) {
			s.Resources = &driver.Resources{MemoryMB: 50, Linux: driver.LinuxResources{PercentTicks: cores / float64(runtime.NumCPU())}}
		})
		wait(t, task)
		var before, after, user, system float64
		if _, err := fmt.Sscan(readAnswer(t, task), &before, &after, &user, &system); err != nil {
			t.Fatal(err)
		}
		const ticksPerSecond = 100
		if used, seconds := (user+system)/ticksPerSecond, after-before; used < 0.05 || used > 1.5*cores*seconds {
			t.Errorf("a busy loop has used %.2f s of a core in %.2f s, want up to %v of a core", used, seconds, cores)
		}
	})

	for name, c := range map[string]struct{ option, reserved string }{
		"cores beyond the reserved ones": {"", "0"}, "cores beyond cpuset_cpus": {"0", ""}, "cores of cpuset_cpus beyond the reserved ones": {"0-1", "0"},
	} {
		t.Run(name, func(t *testing.T) {
			if runtime.NumCPU() < 2 {
				t.Skip("needs two cores")
			}
			config := map[string]any{"args": list("-c", "taskset 1 true || exit 1"+within+"taskset 2 true"+beyond), "cpuset_cpus": c.option}
			task := start(t, d, config, func(s *sdk.StartRequest) {
				s.Resources = &driver.Resources{MemoryMB: 50, Linux: driver.LinuxResources{CpusetCpus: c.reserved}}
			})
			wait(t, task)
			if answer := readAnswer(t, task); answer != "within\n" {
				t.Errorf("the task has written %q, want only \"within\"", answer)
			}
		})
	}
}

// readAnswer returns the text that a task has written to /local/answer.
func readAnswer(t *testing.T, task *task) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(task.start.TaskDir(), "local/answer"))
	if err != nil {
		t.Error(err)
	}
	return string(text)
}
