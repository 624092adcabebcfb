package sdktest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// Benchmark measures a driver, and operations of this machine that no driver can
// be faster than:
//
//	fork+exec  starting and waiting for /bin/true, a lower bound for drivers that run commands
//	launch     from exec of the plugin to its first fingerprint
//	unary      the round trip of a call that does nothing, a lower bound for StartTask
//	StartTask  the round trip of StartTask, for a task that runs
//	memory     what 100 running tasks add to the plugin, in KB of anonymous and shared memory per task
func Benchmark(b *testing.B, p Plugin) {
	b.Run("fork+exec", func(b *testing.B) {
		for b.Loop() {
			if err := exec.Command("/bin/true").Run(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("launch", func(b *testing.B) {
		for b.Loop() {
			h := newTestHost(p)
			c, err := h.launchOrGetSharedProcess(b).driverClient.Fingerprint(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			if f := <-c; f.Health != driver.HealthHealthy {
				b.Fatalf("fingerprint %+v", f)
			}
			b.StopTimer()
			h.closeHostAndPlugins()
			b.StartTimer()
		}
	})
	h := newTestHost(p)
	b.Cleanup(h.closeHostAndPlugins)
	b.Run("unary", func(b *testing.B) {
		p := h.launchOrGetSharedProcess(b)
		for b.Loop() {
			if _, err := p.baseClient.PluginInfo(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("StartTask", func(b *testing.B) {
		config, s := h.prepareTaskWithoutOutput(b)
		for i := 0; b.Loop(); i++ {
			config.ID = fmt.Sprintf("%s/task/%08x", config.AllocID, i)
			s.start(config)
			b.StopTimer()
			s.destroy()
			b.StartTimer()
		}
	})
	b.Run("memory", func(b *testing.B) {
		const taskCount = 100
		for b.Loop() {
			before := readMemoryKB(b, h.launchOrGetSharedProcess(b).pid)
			ctx, cancel := context.WithCancel(b.Context())
			var tasks []*testTask
			for range taskCount {
				config, s := h.prepareTaskWithoutOutput(b)
				s.start(config)
				// A host also waits for each task and samples its statistics.
				go s.host.sharedProcess.driverClient.WaitTask(ctx, config.ID)
				if c, err := s.host.sharedProcess.driverClient.TaskStats(ctx, config.ID, time.Second); err == nil {
					go func() {
						for range c {
						}
					}()
				}
				tasks = append(tasks, s)
			}
			time.Sleep(2 * time.Second) // time for some samples
			after := readMemoryKB(b, h.launchOrGetSharedProcess(b).pid)
			b.ReportMetric(float64(after-before)/taskCount, "KB/task")
			b.ReportMetric(float64(before), "KB/plugin")
			cancel()
			for _, s := range tasks {
				s.destroy()
			}
		}
	})
}

// prepareTaskWithoutOutput is prepareTaskDirsAndConfig for the task LongRunning, with the null device as its outputs.
func (h *testHost) prepareTaskWithoutOutput(t tb) (*driver.TaskConfig, *testTask) {
	t.Helper()
	config, s := h.prepareTaskDirsAndConfig(t, h.testedPlugin.Tasks.LongRunning)
	config.StdoutPath, config.StderrPath = os.DevNull, os.DevNull
	return config, s
}

// readMemoryKB returns the memory of a process that the kernel cannot drop, in KB: its share of anonymous and shared memory, without
// the pages of files.
func readMemoryKB(t tb, pid int) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "smaps_rollup"))
	if err != nil {
		t.Skipf("memory cannot be seen: %v", err)
	}
	found, sum := false, 0
	for line := range bytes.Lines(text) {
		fields := bytes.Fields(line)
		if len(fields) < 2 || string(fields[0]) != "Pss_Anon:" && string(fields[0]) != "Pss_Shmem:" {
			continue
		}
		n, err := strconv.Atoi(string(fields[1]))
		if err != nil {
			t.Fatalf("%v", err)
		}
		found, sum = true, sum+n
	}
	if !found {
		t.Skipf("memory cannot be seen: the kernel does not report anonymous memory")
	}
	return sum
}
