package bench

import (
	"flag"
	"fmt"
	"io"
	"math"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
)

// benchResult is a line of the benchmark report: the budget, the measured values, and the baselines
// that the same run has measured.
type benchResult struct {
	name, description, unit string
	budget, nomadValue      string // nomadValue is the value of Nomad from an earlier measurement
	values, baselines       []float64
}

var benchResults = []*benchResult{
	{name: "ready, fresh", description: "agent exec -> ready, fresh data directory; floor: nomad-lite version", unit: "ms", budget: "2 x floor", nomadValue: "2200"},
	{name: "ready, warm", description: "the same, used data directory", unit: "ms", budget: "2 x floor"},
	{name: "ready, stopped jobs", description: "the same, with 1,000 stopped jobs", unit: "ms", budget: "ready + 30"},
	{name: "ready, broken plugins", description: "the same, with 20 plugins of which each fails in its way; floor: without", unit: "ms", budget: "floor + 15"},
	{name: "idle memory, driver", description: "idle memory: agent, keeper, raw_exec; floor: 3 programs with the libraries", unit: "MB", budget: "9.4 within 10 s", nomadValue: "19-22"},
	{name: "idle memory", description: "the same, after the unused driver has exited; floor: 2 programs", unit: "MB", budget: "9.4"},
	{name: "idle memory, drivers", description: "agent, keeper, raw_exec, exec; floor: 4 programs", unit: "MB", budget: "9.4 within 10 s"},
	{name: "idle memory, exec", description: "the same, after the unused drivers have exited; floor: 2 programs", unit: "MB", budget: "9.4"},
	{name: "one task", description: "the first task adds to a node with a running driver; floor: a program", unit: "MB", budget: "2"},
	{name: "memory per task, 100", description: "memory per raw_exec task, of 100", unit: "MB", budget: "0.11", nomadValue: "27.7"},
	{name: "memory per task, 1000", description: "the same, of 1,000", unit: "MB", budget: "0.095"},
	{name: "memory per exec task", description: "memory per exec task, of 100", unit: "MB", budget: "0.12"},
	{name: "memory per exec task, bridge", description: "the same, in a bridge", unit: "MB", budget: "0.15"},
	{name: "descriptors, agent", description: "descriptors per running task: agent", unit: "", budget: "4"},
	{name: "descriptors, log-collector", description: "the same: log collector", unit: "", budget: "3"},
	{name: "descriptors, keeper", description: "the same: keeper", unit: "", budget: "2"},
	{name: "first instruction", description: "job submitted -> first instruction", unit: "ms", budget: "floor + 7", nomadValue: "109"},
	{name: "first instruction, pause", description: "the same, after a pause of 4 s", unit: "ms", budget: "floor + 7"},
	{name: "said to run", description: "first instruction -> API says running; floor: a request", unit: "ms"},
	{name: "run", description: "run exec -> first instruction", unit: "ms", budget: "2.5 x nomad-lite version"},
	{name: "exec driver", description: "job submitted -> first instruction of a task of exec; floor: raw_exec", unit: "ms", budget: "floor + 2.5"},
	{name: "100 sleeping", description: "raw_exec starts per second, of 100; floor: their directories and forks", unit: "/s", budget: "0.38 x floor", nomadValue: "10-13"},
	{name: "2000 sleeping", description: "the same, of 2,000", unit: "/s", budget: "0.38 x floor"},
	{name: "100 complete", description: "100 no-op batch allocations complete; floor: the same", unit: "/s", budget: "0.38 x floor", nomadValue: "13-14"},
	{name: "2000 complete", description: "the same, of 2,000", unit: "/s", budget: "0.38 x floor"},
	{name: "CPU per start", description: "CPU of agent, plugin, log collector and keeper per start, of 300 with 55 variables", unit: "ms", budget: "7.5"},
	{name: "bytes per start", description: "the same: allocated by the agent", unit: "kB", budget: "260"},
	{name: "objects per start", description: "the same: objects", unit: "", budget: "2800"},
	{name: "CPU per stop", description: "CPU of these processes per stop", unit: "ms", budget: "4.8"},
	{name: "bytes per stop", description: "the same: allocated by the agent", unit: "kB"},
	{name: "objects per stop", description: "the same: objects", unit: ""},
	{name: "100 exec", description: "exec starts per second, of 100; floor: forks with namespaces", unit: "/s", budget: "1.5 x runc run"},
	{name: "100 exec, bridge", description: "the same, in a bridge", unit: "/s", budget: "0.7 x exec"},
	{name: "docker starts", description: "docker starts per second, of 50; floor: the engine alone", unit: "/s", budget: "floor - 5 %"},
	{name: "stop, docker in bridges", description: "stop of 25 containers in bridges; floor: the engine alone", unit: "ms", budget: "2 x floor"},
	{name: "stop, 100", description: "stop of 100 tasks; floor: to kill and reap", unit: "ms", budget: "130", nomadValue: "1000-1700"},
	{name: "stop, re-adopted", description: "the same, after the agent was replaced", unit: "ms", budget: "130"},
	{name: "stop, 2000", description: "stop of 2,000 tasks", unit: "ms", budget: "3000"},
	{name: "respawn", description: "crash -> respawn, delay 0", unit: "ms", budget: "floor + 4"},
	{name: "recovery", description: "agent killed -> 100 tasks owned; floor: a program's start", unit: "ms", budget: "120", nomadValue: "2000 (20 tasks)"},
	{name: "recovery, plugin", description: "the same, with the driver plugin", unit: "ms"},
	{name: "recovery, collector", description: "the same, with the log collector", unit: "ms"},
	{name: "recovery, another build", description: "the same, and the next agent is another build", unit: "ms"},
	{name: "recovery, 2000", description: "agent killed -> 2,000 tasks owned; floor: a program's start", unit: "ms", budget: "1900"},
	{name: "log throughput", description: "log throughput, 1 GiB, 64 KiB writes; floor: to a file", unit: "GB/s", budget: "80 % of the floor", nomadValue: "0.8-1.0"},
	{name: "log fairness", description: "100 tasks write 20 MB at once: slowest, of the median; floor: to files", unit: "x"},
	{name: "line to follower", description: "log line -> follower", unit: "ms", budget: "1", nomadValue: "297"},
	{name: "exec", description: "alloc exec of /bin/true, end to end", unit: "ms"},
	{name: "exec, terminal", description: "the same, with a terminal", unit: "ms"},
	{name: "1 hook", description: "one hook plugin adds; floor: a unary call", unit: "ms", budget: "0.8"},
	{name: "3 hooks", description: "three hook plugins add; floor: three calls", unit: "ms"},
	{name: "500 with a hook", description: "500 no-op batch allocations with a hook plugin; floor: without", unit: "/s"},
	{name: "idle hook", description: "memory of an idle hook plugin", unit: "MB"},
	{name: "ready, driver", description: "agent exec -> ready with an external driver healthy; floor: without it", unit: "ms"},
	{name: "driver launch", description: "driver plugin killed -> the next is healthy; floor: its program's start", unit: "ms"},
	{name: "driver call", description: "call of a driver plugin; floor: a plain gRPC call of the same process", unit: "ms"},
	{name: "100 complete, external", description: "100 no-op batch allocations with an external driver; floor: with raw_exec", unit: "/s"},
	{name: "chroot", description: "job submitted -> first instruction in a chroot; floor: the same driver without", unit: "ms"},
	{name: "list", description: "list of 1,000 allocations, gzip, median; floor: the answer from memory", unit: "ms", budget: "3"},
	{name: "ended, ready", description: "ready with 10,000 ended allocations; floor: with none", unit: "ms", budget: "floor + 40"},
	{name: "ended, memory", description: "memory of that agent", unit: "MB", budget: "35"},
	{name: "ended, pauses", description: "all pauses of its garbage collections together", unit: "ms", budget: "10 each"},
	{name: "finished", description: "heap of each of 1,000 allocations that have ended", unit: "kB"},
	{name: "syncs per life, 1", description: "fdatasyncs in the life of a task", unit: ""},
	{name: "syncs per life, 100", description: "the same, for each of 100 at once", unit: ""},
	{name: "init", description: "initialization of packages, per process; floor: of the libraries", unit: "ms", budget: "floor + 0.7"},
	{name: "init, heap", description: "memory that it allocates", unit: "MB", budget: "floor + 0.5"},
	{name: "health, socket", description: "slowest of 50 health requests during any kind of attack, unix socket; floor: without", unit: "ms"},
	{name: "health, second address", description: "the same over TCP, from another address", unit: "ms"},
	{name: "page", description: "navigation -> jobs are on the web page, no cache; floor: a static file of 67 kB", unit: "ms"},
	{name: "page of 1,000", description: "the same, of 1,000 jobs", unit: "ms", budget: "300"},
	{name: "page weight", description: "files of the page of jobs", unit: "kB"},
	{name: "page memory", description: "memory of the agent with ten open pages minus none", unit: "kB"},
	{name: "page CPU", description: "CPU of the agent with ten open pages, of a core", unit: "%", budget: "0.5"},
	{name: "page events", description: "changes shown while jobs are registered; floor: a client of the stream", unit: "/s"},
	{name: "binary", description: "binary, stripped", unit: "MB", budget: "60", nomadValue: "151"},
}

var quick = flag.Bool("quick", false, "benchmarks: with a fiftieth of the tasks, and without pauses; only shows that the benchmarks work")

// sized returns the number of tasks, jobs or allocations with which a benchmark runs that measures count of them.
func sized(count int) int {
	if *quick {
		return count / 50
	}
	return count
}

// settle waits, in a benchmark that measures what is after a time without work.
func settle(d time.Duration) {
	if !*quick {
		time.Sleep(d)
	}
}

// missingBaselineValue is the baseline of a measurement without a baseline.
var missingBaselineValue = math.NaN()

// addBenchSample adds a measured value and its baseline to the result with this name.
func addBenchSample(b *testing.B, name string, value, floor float64) {
	b.Helper()
	for _, f := range benchResults {
		if f.name == name {
			f.values = append(f.values, value)
			if !math.IsNaN(floor) {
				f.baselines = append(f.baselines, floor)
			}
			b.ReportMetric(0, "ns/op") // a benchmark reports several results, so the duration of the whole benchmark means nothing
			return
		}
	}
	b.Fatalf("figure %q is not in the report", name)
}

// printBenchResults prints the medians of the measured values.
func printBenchResults(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	head := "\n\tmeasured\tfloor of this run\tbudget\tNomad 2.0.6-dev, not remeasured\t\n"
	for _, f := range benchResults {
		if len(f.values) == 0 {
			continue
		}
		floor := "-"
		if len(f.baselines) > 0 {
			floor = fmt.Sprintf("%.3g", systemtest.Median(f.baselines))
		}
		fmt.Fprintf(t, "%s%s\t%.3g %s\t%s\t%s\t%s\t\n", head, f.description, systemtest.Median(f.values), f.unit, floor, dashIfEmpty(f.budget), dashIfEmpty(f.nomadValue))
		head = ""
	}
	_ = t.Flush() // to a terminal
}

func dashIfEmpty(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
