package main

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
)

// benchAgent is an agent in a process of its own.
type benchAgent struct {
	*exec.Cmd
	client *api.Client
	ready  time.Duration // from the start of the program until jobs can be placed
	log    *bufio.Scanner
}

func startAgent(b *testing.B, dir string) *benchAgent {
	config := filepath.Join(b.TempDir(), "agent.hcl")
	text := `
ports {
  http = 0
}
client {
  cpu_total_compute = 1000000
  memory_total_mb   = 1000000
  disk_total_mb     = 10000000
  gc_max_allocs     = 100000
}
plugin "raw_exec" {
  config {
    enabled = true
  }
}`
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		b.Fatal(err)
	}
	a := &benchAgent{Cmd: exec.Command("nomad-lite", "agent", "-config", config, "-data-dir", dir)}
	a.Env = append(os.Environ(), "WORK="+dir)
	stderr, err := a.StderrPipe()
	if err != nil {
		b.Fatal(err)
	}
	began := time.Now()
	if err := a.Start(); err != nil {
		b.Fatal(err)
	}
	a.log = bufio.NewScanner(stderr)
	for a.log.Scan() {
		if strings.Contains(a.log.Text(), "agent is ready") {
			a.ready = time.Since(began)
			break
		}
	}
	if a.ready == 0 {
		b.Fatal("the agent is not ready")
	}
	go func() {
		for a.log.Scan() {
		}
	}()
	if a.client, err = api.NewClient(&api.Config{Address: "unix://" + filepath.Join(dir, socketFile)}); err != nil {
		b.Fatal(err)
	}
	return a
}

func (a *benchAgent) end(b *testing.B, signal syscall.Signal) {
	a.client.Close()
	if err := a.Process.Signal(signal); err != nil {
		b.Fatal(err)
	}
	_ = a.Wait() // a killed one has no good end
}

// submit registers a job and waits until all its allocations have a status.
func (a *benchAgent) submit(b *testing.B, kind string, count int, status string) time.Duration {
	command := []string{"/bin/true"}
	if status == api.AllocClientStatusRunning {
		command = []string{"/bin/sleep", "1000"}
	}
	job := api.NewServiceJob("bench", "bench", "global", 50)
	job.Type = &kind
	task := api.NewTask("t", "raw_exec").SetConfig("command", command[0]).SetConfig("args", command[1:])
	task.Resources = &api.Resources{CPU: new(1), MemoryMB: new(10)}
	job.AddTaskGroup(api.NewTaskGroup("g", count).AddTask(task))
	began := time.Now()
	if _, _, err := a.client.Jobs().Register(job, nil); err != nil {
		b.Fatal(err)
	}
	a.await(b, count, status)
	return time.Since(began)
}

func (a *benchAgent) await(b *testing.B, count int, status string) {
	index := uint64(0)
	for deadline := time.Now().Add(time.Minute); ; {
		summary, meta, err := a.client.Jobs().Summary("bench", &api.QueryOptions{WaitIndex: index, WaitTime: time.Minute})
		if err != nil {
			b.Fatal(err)
		}
		g := summary.Summary["g"]
		if status == api.AllocClientStatusRunning && g.Running == count || status == api.AllocClientStatusComplete && g.Complete == count {
			return
		}
		if time.Now().After(deadline) {
			b.Fatalf("after a minute: %+v", g)
		}
		index = meta.LastIndex
	}
}

// BenchmarkAgentReady is the time from exec to a node that takes jobs, with an
// empty data directory and with one that was used.
func BenchmarkAgentReady(b *testing.B) {
	var fresh, warm []time.Duration
	for b.Loop() {
		dir := b.TempDir()
		for _, all := range []*[]time.Duration{&fresh, &warm} {
			a := startAgent(b, dir)
			*all = append(*all, a.ready)
			a.end(b, syscall.SIGINT)
		}
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(milliseconds(median(fresh)), "ms/fresh")
	b.ReportMetric(milliseconds(median(warm)), "ms/warm")
}

// BenchmarkAgentStarts is the rate at which allocations come up, from the
// registration until the API says that they run (or are complete), and the time
// to stop them.
func BenchmarkAgentStarts(b *testing.B) {
	for _, c := range []struct {
		kind, status string
		count        int
	}{
		{"service", api.AllocClientStatusRunning, 1},
		{"service", api.AllocClientStatusRunning, 100},
		{"service", api.AllocClientStatusRunning, 500},
		{"batch", api.AllocClientStatusComplete, 100},
		{"batch", api.AllocClientStatusComplete, 500},
	} {
		b.Run(fmt.Sprintf("%s-%d", c.kind, c.count), func(b *testing.B) {
			var starts, stops []time.Duration
			for b.Loop() {
				a := startAgent(b, b.TempDir())
				starts = append(starts, a.submit(b, c.kind, c.count, c.status))
				began := time.Now()
				if _, _, err := a.client.Jobs().Deregister("bench", false, nil); err != nil {
					b.Fatal(err)
				}
				a.await(b, c.count, api.AllocClientStatusComplete)
				stops = append(stops, time.Since(began))
				a.end(b, syscall.SIGINT)
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(milliseconds(median(starts)), "ms/up")
			b.ReportMetric(float64(c.count)/median(starts).Seconds(), "allocs/s")
			b.ReportMetric(milliseconds(median(stops)), "ms/stop")
		})
	}
}
