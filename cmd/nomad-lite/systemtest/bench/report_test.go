package bench

import (
	"fmt"
	"io"
	"math"
	"testing"
	"text/tabwriter"

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
	{name: "ready, fresh", description: "agent exec -> node ready, fresh", unit: "ms", budget: "60", nomadValue: "1300-2700"},
	{name: "ready, warm", description: "the same, with a data directory that was used", unit: "ms", budget: "60", nomadValue: "1300-2700"},
	{name: "ready, broken plugins", description: "the same, with 20 plugins of which each fails in its way; floor: without", unit: "ms"},
	{name: "idle memory", description: "idle memory, all processes", unit: "MB", budget: "30", nomadValue: "90"},
	{name: "memory per task, 100", description: "memory per task beyond itself, of 100", unit: "MB", budget: "0.15", nomadValue: "28.7"},
	{name: "memory per task, 500", description: "the same, of 500", unit: "MB", budget: "0.15", nomadValue: "28.7"},
	{name: "first instruction", description: "job submitted -> first instruction", unit: "ms", budget: "8", nomadValue: "128"},
	{name: "said to run", description: "first instruction -> API says running; floor: a request", unit: "ms", budget: "5", nomadValue: "about 1000"},
	{name: "run", description: "run exec -> first instruction", unit: "ms"},
	{name: "100 sleeping", description: "100 sleeping allocs running; floor: their directories and forks", unit: "/s", budget: "300", nomadValue: "11"},
	{name: "500 sleeping", description: "500 sleeping allocs running", unit: "/s", budget: "300", nomadValue: "11"},
	{name: "100 complete", description: "100 no-op batch allocs complete; floor: the same", unit: "/s", budget: "200", nomadValue: "12"},
	{name: "500 complete", description: "500 no-op batch allocs complete", unit: "/s", budget: "200", nomadValue: "12"},
	{name: "stop, fresh", description: "stop 100 allocs; floor: to kill and reap", unit: "ms", budget: "100", nomadValue: "1100-7900"},
	{name: "stop, re-adopted", description: "the same, re-adopted", unit: "ms", budget: "100", nomadValue: "1100-7900"},
	{name: "respawn", description: "crash -> respawn, delay 0", unit: "ms", budget: "5", nomadValue: "55"},
	{name: "line to follower", description: "log line written -> seen by a follower", unit: "ms", budget: "5", nomadValue: "297"},
	{name: "exec", description: "alloc exec of /bin/true, end to end", unit: "ms"},
	{name: "exec, terminal", description: "the same, with a terminal", unit: "ms"},
	{name: "log throughput", description: "log throughput, 1 GiB, 64 KiB writes", unit: "GB/s", budget: "1.2", nomadValue: "0.4-0.8"},
	{name: "recovery", description: "agent killed with 100 tasks -> owned again; floor: a program's start", unit: "ms", budget: "300", nomadValue: "2000 (20 tasks)"},
	{name: "recovery, plugin", description: "the same, with the driver plugin", unit: "ms", budget: "300"},
	{name: "recovery, collector", description: "the same, with the log collector", unit: "ms", budget: "300"},
	{name: "recovery, another build", description: "the same, and the next agent is another build", unit: "ms", budget: "300"},
	{name: "syncs per life, 1", description: "fdatasyncs in the life of a task", unit: ""},
	{name: "syncs per life, 100", description: "the same, for each of 100 at once", unit: ""},
	{name: "1 hook", description: "a hook plugin adds to a task's start; floor: a unary call", unit: "ms", budget: "1"},
	{name: "3 hooks", description: "three hook plugins add; floor: three calls", unit: "ms", budget: "3"},
	{name: "500 with a hook", description: "500 no-op batch allocs with a hook plugin; floor: without", unit: "/s"},
	{name: "idle hook", description: "memory of an idle hook plugin", unit: "MB"},
	{name: "ready, driver", description: "agent exec -> node ready with an external driver healthy; floor: without it", unit: "ms"},
	{name: "driver launch", description: "driver plugin killed -> the next is healthy; floor: its program's start", unit: "ms"},
	{name: "driver call", description: "call of a driver plugin; floor: a plain gRPC call of the same process", unit: "ms"},
	{name: "100 complete, external", description: "100 no-op batch allocs with an external driver; floor: with raw_exec", unit: "/s"},
	{name: "chroot", description: "job submitted -> first instruction in a chroot; floor: the same driver without", unit: "ms"},
	{name: "exec driver", description: "job submitted -> first instruction of a task of exec; floor: raw_exec", unit: "ms"},
	{name: "finished", description: "heap of each of 1000 allocs that have ended", unit: "kB", budget: "5"},
	{name: "health, socket", description: "slowest of 50 health requests during any kind of attack, unix socket; floor: without", unit: "ms", budget: "100"},
	{name: "health, second address", description: "the same over TCP, from another address", unit: "ms", budget: "100"},
	{name: "page", description: "navigation -> jobs are on the web page, no cache; floor: a static file of 67 kB", unit: "ms", budget: "150"},
	{name: "page weight", description: "files of the page of jobs", unit: "kB", budget: "60"},
	{name: "page memory", description: "memory of the agent with ten open pages minus none", unit: "kB"},
	{name: "page events", description: "events shown while jobs are registered; floor: a client of the stream", unit: "/s"},
	{name: "binary", description: "binary, stripped", unit: "MB", budget: "60", nomadValue: "100+"},
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
