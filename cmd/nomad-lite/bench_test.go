package main

import (
	"bufio"
	"bytes"
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// BenchmarkRunToFirstInstruction is the time from the start of `nomad-lite run`
// to the first instruction of a task, beside the floor of the same machine: to
// fork and execute the same program.
func BenchmarkRunToFirstInstruction(b *testing.B) {
	job := benchJob(b, 1, "/bin/date", "+%s%N")
	var runs, floors []time.Duration
	for b.Loop() {
		started := time.Now()
		out, err := exec.Command("nomad-lite", "run", job).Output()
		if err != nil {
			b.Fatal(err)
		}
		runs = append(runs, stamp(b, out).Sub(started))

		started = time.Now()
		if out, err = exec.Command("/bin/date", "+%s%N").Output(); err != nil {
			b.Fatal(err)
		}
		floors = append(floors, stamp(b, out).Sub(started))
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(milliseconds(median(runs)), "ms/run")
	b.ReportMetric(milliseconds(median(floors)), "ms/fork+exec")
}

// BenchmarkMemoryPerTask is what 100 running tasks cost beyond themselves: the
// growth of the memory (PSS) of all our processes between 1 task and 100.
func BenchmarkMemoryPerTask(b *testing.B) {
	figures := map[string][]float64{}
	add := func(unit string, value float64) { figures[unit] = append(figures[unit], value) }
	for b.Loop() {
		one, idle := memoryOf(b, 1)
		hundred, busy := memoryOf(b, 100)
		add("KiB/task", float64(hundred-one)/99)
		add("MiB/idle", float64(one)/1024)
		for name, kib := range busy {
			add("KiB/task-"+name, float64(kib-idle[name])/99)
		}
	}
	b.ReportMetric(0, "ns/op")
	for unit, values := range figures {
		b.ReportMetric(median(values), unit)
	}
}

// memoryOf runs a job of count sleeping tasks and sums up the memory of our
// processes, in KiB.
func memoryOf(b *testing.B, count int) (total int, parts map[string]int) {
	work := b.TempDir()
	run := exec.Command("nomad-lite", "run", benchJob(b, count, "/bin/sleep", "1000"))
	run.Env = append(os.Environ(), "WORK="+work)
	stderr, err := run.StderrPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := run.Start(); err != nil {
		b.Fatal(err)
	}
	lines := bufio.NewScanner(stderr)
	for started := 0; started < count && lines.Scan(); {
		if strings.Contains(lines.Text(), "* Started") {
			started++
		}
	}
	time.Sleep(2 * time.Second) // let the start-up's garbage go

	parts = map[string]int{}
	for pid, command := range processes(work) {
		name := regexp.MustCompile(`nomad-lite (run|keeper|log-collector|plugin)`).FindStringSubmatch(command)
		if name == nil {
			continue
		}
		kib := pss(b, pid)
		parts[name[1]] += kib
		total += kib
	}
	if err := run.Process.Signal(syscall.SIGTERM); err != nil {
		b.Fatal(err)
	}
	for lines.Scan() {
	}
	if err := run.Wait(); err != nil {
		b.Fatal(err)
	}
	return total, parts
}

func pss(b *testing.B, pid int) int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		b.Fatal(err)
	}
	match := regexp.MustCompile(`(?m)^Pss: +([0-9]+) kB`).FindSubmatch(text)
	kib, err := strconv.Atoi(string(match[1]))
	if err != nil {
		b.Fatal(err)
	}
	return kib
}

func benchJob(b *testing.B, count int, command, arg string) string {
	kind := "batch"
	if count > 1 || command == "/bin/sleep" {
		kind = "service"
	}
	job := fmt.Sprintf(`job "bench" {
  type = %q
  group "g" {
    count = %d
    task "t" {
      driver = "raw_exec"
      config {
        command = %q
        args    = [%q]
      }
      resources {
        cpu    = 10
        memory = 10
      }
    }
  }
}
`, kind, count, command, arg)
	path := filepath.Join(b.TempDir(), "bench.nomad.hcl")
	if err := os.WriteFile(path, []byte(job), 0o644); err != nil {
		b.Fatal(err)
	}
	return path
}

// stamp finds the nanoseconds since 1970 that a program has written.
func stamp(b *testing.B, out []byte) time.Time {
	digits := regexp.MustCompile(`[0-9]{19}`).Find(bytes.TrimSpace(out))
	ns, err := strconv.ParseInt(string(digits), 10, 64)
	if err != nil {
		b.Fatalf("no time in %q", out)
	}
	return time.Unix(0, ns)
}

func median[T cmp.Ordered](values []T) T {
	slices.Sort(values)
	return values[len(values)/2]
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
