package bench

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
)

// processCounts is what a process has used since its start. Unlike times, the numbers hardly depend on the machine.
type processCounts struct {
	cpu                               float64 // milliseconds
	pageFaults, switches, readsWrites float64
	allocatedBytes, allocatedObjects  float64 // of the Go heap; only known of the agent
}

func (c processCounts) minus(o processCounts) processCounts {
	return processCounts{c.cpu - o.cpu, c.pageFaults - o.pageFaults, c.switches - o.switches, c.readsWrites - o.readsWrites,
		c.allocatedBytes - o.allocatedBytes, c.allocatedObjects - o.allocatedObjects}
}

// countsByKind returns the counts of the agent and its helper processes, by kind; "plugin" is the driver's process.
func (a *benchAgent) countsByKind(b *testing.B) map[string]processCounts {
	b.Helper()
	counts := map[string]processCounts{}
	for _, p := range systemtest.FindDataDirProcesses(a.dir) {
		if p.Kind != systemtest.OnDemandPluginKind && !strings.Contains(p.Kind, "/") {
			counts[p.Kind] = readProcessCounts(b, p.PID)
		}
	}
	agent := readProcessCounts(b, a.Process.Pid)
	agent.allocatedBytes, agent.allocatedObjects = a.heapCounts(b)
	counts["agent"] = agent
	return counts
}

func readProcessCounts(b *testing.B, pid int) (c processCounts) {
	b.Helper()
	p, err := procfs.NewProc(pid)
	if err != nil {
		b.Fatal(err)
	}
	stat, err := p.Stat()
	if err != nil {
		b.Fatal(err)
	}
	io, err := p.IO()
	if err != nil {
		b.Fatal(err)
	}
	threads, err := procfs.AllThreads(pid)
	if err != nil {
		b.Fatal(err)
	}
	for _, thread := range threads {
		if status, err := thread.NewStatus(); err == nil { // the thread may have exited
			c.switches += float64(status.VoluntaryCtxtSwitches + status.NonVoluntaryCtxtSwitches)
		}
	}
	c.cpu, c.pageFaults, c.readsWrites = stat.CPUTime()*1000, float64(stat.MinFlt), float64(io.SyscR+io.SyscW)
	return c
}

var heapTotalsPattern = regexp.MustCompile(`(?m)^# (?:TotalAlloc|Mallocs) = (\d+)`)

// heapCounts returns the bytes and objects that the agent has allocated since its start.
func (a *benchAgent) heapCounts(b *testing.B) (bytes, objects float64) {
	b.Helper()
	text, err := a.client.Agent().Lookup("heap", api.PprofOptions{Debug: 1}, nil)
	if err != nil {
		b.Fatal(err)
	}
	found := heapTotalsPattern.FindAllSubmatch(text, -1)
	if len(found) != 2 {
		b.Fatalf("the profile has %d totals, want bytes and objects", len(found))
	}
	var totals [2]float64
	for i := range totals {
		if totals[i], err = strconv.ParseFloat(string(found[i][1]), 64); err != nil {
			b.Fatal(err)
		}
	}
	return totals[0], totals[1]
}

// machinePrices is BenchmarkMachine's result as text, for the end of the report.
var machinePrices string

func printMachinePrices(w io.Writer) {
	if machinePrices != "" {
		fmt.Fprintln(w, machinePrices)
	}
}

// BenchmarkMachine measures what a figure in milliseconds is made of. The report ends with its results.
func BenchmarkMachine(b *testing.B) {
	once(b, func() {
		median := func(unit time.Duration, do func() error) float64 {
			var all []float64
			for range 20 {
				all = append(all, float64(measureTime(b, do))/float64(unit))
			}
			return systemtest.Median(all)
		}
		idle := buildGoProgram(b, "package main\n\nfunc main() {}\n")
		echo := exec.Command("cat")
		in, _ := echo.StdinPipe() // the command has not started
		out, _ := echo.StdoutPipe()
		if err := echo.Start(); err != nil {
			b.Fatal(err)
		}
		file, err := os.Create(filepath.Join(b.TempDir(), "synced"))
		if err != nil {
			b.Fatal(err)
		}
		block := make([]byte, 4096)
		machinePrices = fmt.Sprintf("\nprices of this machine: page fault %.2g µs, fork and exec of /bin/true %.3g ms, empty Go program %.3g ms, round trip over pipes %.3g µs, fdatasync %.3g ms",
			measurePageFault(b), median(time.Millisecond, func() error { return exec.Command("/bin/true").Run() }),
			median(time.Millisecond, func() error { return exec.Command(idle).Run() }),
			median(time.Microsecond, func() error {
				_, err := in.Write(block[:1])
				if err == nil {
					_, err = io.ReadFull(out, block[:1])
				}
				return err
			}),
			median(time.Millisecond, func() error {
				_, err := file.WriteAt(block, 0)
				if err == nil {
					err = unix.Fdatasync(int(file.Fd()))
				}
				return err
			}))
		if err := errors.Join(in.Close(), echo.Wait(), file.Close()); err != nil {
			b.Fatal(err)
		}
	})
}

// measurePageFault returns the microseconds of the first touch of an anonymous page.
func measurePageFault(b *testing.B) float64 {
	b.Helper()
	const pages = 4096
	memory, err := unix.Mmap(-1, 0, pages*4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err == nil {
		err = unix.Madvise(memory, unix.MADV_NOHUGEPAGE)
	}
	if err != nil {
		b.Fatal(err)
	}
	began := time.Now()
	for i := range pages {
		memory[i*4096] = 1
	}
	took := time.Since(began)
	if err := unix.Munmap(memory); err != nil {
		b.Fatal(err)
	}
	return float64(took) / float64(time.Microsecond) / pages
}

// waitSummaryRarely waits until a job's summary is as wanted, and then until the agent is idle. It sends one request per second:
// waitStatus sends one per change, and its requests make a quarter of the agent's garbage.
func (a *benchAgent) waitSummaryRarely(b *testing.B, id string, wanted func(api.TaskGroupSummary) bool) {
	b.Helper()
	for deadline := time.Now().Add(systemtest.MeasurementTimeout); ; {
		time.Sleep(time.Second)
		summary, _, err := a.client.Jobs().Summary(id, nil)
		switch {
		case err != nil:
			b.Fatal(err)
		case wanted(summary.Summary["g"]):
			settle(time.Second)
			return
		case time.Now().After(deadline):
			b.Fatalf("%+v", summary.Summary["g"])
		}
	}
}

// agentAllocations are what the agent allocates per start and per stop in BenchmarkCounts, which hardly depends on the machine: objects,
// and bytes in kB.
var agentAllocations = map[string]float64{"bytes per start": 363, "objects per start": 3040, "bytes per stop": 324, "objects per stop": 3180}

// BenchmarkCounts prints, as a table, what each process uses per start and per stop of one of 300 raw_exec tasks with 55 variables.
func BenchmarkCounts(b *testing.B) {
	once(b, func() {
		count := sized(300)
		a := startBenchAgent(b, b.TempDir(), "enable_debug = true\n")
		a.healthyDriverProcess(b, "raw_exec", 0)
		a.env = map[string]string{}
		for i := range 30 { // the agent sets 25 more
			a.env[fmt.Sprintf("VARIABLE_%d", i)] = "a value of some length, as a path has"
		}
		start := func(id string, count int) {
			a.run(b, "service", id, count, "/bin/sleep", "100000")
			a.waitSummaryRarely(b, id, func(g api.TaskGroupSummary) bool { return g.Running == count })
		}
		stop := func(id string, count int) {
			if _, _, err := a.client.Jobs().Deregister(id, false, nil); err != nil {
				b.Fatal(err)
			}
			a.waitSummaryRarely(b, id, func(g api.TaskGroupSummary) bool { return g.Complete == count })
		}
		start("first", 20) // what an agent does only once
		stop("first", 20)
		idle := a.countsByKind(b)
		start("sleep", count)
		running := a.countsByKind(b)
		stop("sleep", count)
		stopped := a.countsByKind(b)
		a.end(b, syscall.SIGINT)

		table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
		fmt.Fprintf(table, "\n\tCPU ms\tpage faults\tswitches\treads, writes\tkB\tobjects\t\n")
		for _, phase := range []struct {
			name          string
			before, after map[string]processCounts
		}{{"start", idle, running}, {"stop", running, stopped}} {
			total := 0.0
			for _, kind := range []string{"agent", "plugin", "log-collector", "keeper"} {
				c := phase.after[kind].minus(phase.before[kind])
				n := float64(count)
				fmt.Fprintf(table, "per %s, %s\t%.2f\t%.1f\t%.1f\t%.1f\t%.1f\t%.0f\t\n", phase.name, kind,
					c.cpu/n, c.pageFaults/n, c.switches/n, c.readsWrites/n, c.allocatedBytes/n/1000, c.allocatedObjects/n)
				total += c.cpu / n
			}
			addBenchSample(b, "CPU per "+phase.name, total, missingBaselineValue)
			agent := phase.after["agent"].minus(phase.before["agent"])
			for unit, got := range map[string]float64{"bytes": agent.allocatedBytes / float64(count) / 1000, "objects": agent.allocatedObjects / float64(count)} {
				name := unit + " per " + phase.name
				addBenchSample(b, name, got, missingBaselineValue)
				if want := agentAllocations[name]; !*quick && math.Abs(got-want) > want/20 {
					b.Errorf("%s: %.0f, want %.0f within 5 %%: find the cause, or change the value", name, got, want)
				}
			}
		}
		_ = table.Flush() // to a terminal
	})
}
