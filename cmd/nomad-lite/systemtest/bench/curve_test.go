package bench

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/descriptors"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
)

// scalePoint is a number of tasks that run at once, and the driver that runs them.
type scalePoint struct {
	driver string
	bridge bool
	count  int
}

// scalePoints are the points of the curve of each driver.
var scalePoints = []scalePoint{
	{"raw_exec", false, 100}, {"raw_exec", false, 1000}, {"raw_exec", false, 2000}, {"raw_exec", false, 5000}, {"raw_exec", false, 10000},
	{"exec", false, 100}, {"exec", false, 1000},
	{"exec", true, 100}, {"exec", true, 200},
}

const maxOpenFiles = 200000 // of each process

// BenchmarkScaleCurve measures how the figures of an agent depend on the number of its tasks. It prints a table, and needs some
// minutes:
//
//	make bench-scale
func BenchmarkScaleCurve(b *testing.B) {
	if !*quick && !slowtest.Enabled() {
		b.Skip("runs with make bench-scale")
	}
	if os.Geteuid() != 0 {
		b.Skip("needs root, to isolate tasks")
	}
	// 10,000 tasks need more open files than many sessions permit, and only CAP_SYS_RESOURCE can raise the limit.
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: maxOpenFiles, Max: maxOpenFiles}); err != nil {
		b.Logf("the limit of open files is not raised: %v", err)
	}
	once(b, func() {
		b.ReportMetric(0, "ns/op")
		t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "\ndriver\ttasks\tstarts/s\tfloor/s\tkB per task\tidle CPU of the agent\tread, p99\tread beside 1,000 starts, p99\tstop ms\t")
		for _, p := range scalePoints {
			measureScalePoint(b, t, p)
		}
		_ = t.Flush() // to a terminal
	})
}

// measureScalePoint prints the row of one point.
func measureScalePoint(b *testing.B, table *tabwriter.Writer, p scalePoint) {
	count, more := sized(p.count), sized(1000)
	a := startBenchAgent(b, b.TempDir(), "plugin \"exec\" {}\n")
	a.driver, a.bridge = p.driver, p.bridge
	a.healthyDriverProcess(b, p.driver, 0)
	name := p.driver
	if p.bridge {
		name += ", bridge"
	}
	if room := a.taskRoom(b); count+more > room {
		fmt.Fprintf(table, "%s\t%d\tnot measured: the limit of open files has room for %d tasks\t\n", name, count, room)
		a.end(b, syscall.SIGINT)
		return
	}
	idle := a.measureMemoryMB(b, settleDelay/4)
	began := time.Now()
	a.run(b, "service", "sleep", count, "/bin/sleep", "100000")
	a.waitStatus(b, "sleep", count, api.AllocClientStatusRunning)
	rate := float64(count) / time.Since(began).Seconds()
	forked, kill := forkPrograms(b, count, "/bin/sleep", "100000")
	kill()
	floor := float64(count) / (forked + createAllocDirs(b, count)).Seconds()
	perTask := (a.measureMemoryMB(b, settleDelay) - idle) / float64(count) * 1000
	const idleTime = 10 * time.Second
	cpu := processCPUTime(b, a.Process.Pid)
	settle(idleTime)
	idleCPU := (processCPUTime(b, a.Process.Pid) - cpu).Seconds() / idleTime.Seconds() * 100
	list, _, err := a.client.Jobs().Allocations("sleep", false, nil)
	if err != nil {
		b.Fatal(err)
	}
	read := func() { // as a person or a monitoring system does
		if _, _, err := a.client.Allocations().Info(list[0].ID, nil); err != nil {
			b.Error(err)
		}
	}
	quiet := systemtest.Milliseconds(percentile99(200, read))
	busy := "-"
	if p.driver == "raw_exec" {
		var done atomic.Bool
		result := make(chan time.Duration)
		go func() { result <- percentile99While(func() bool { return !done.Load() }, read) }()
		a.run(b, "service", "more", more, "/bin/sleep", "100000")
		a.waitStatus(b, "more", more, api.AllocClientStatusRunning)
		done.Store(true)
		busy = fmt.Sprintf("%.1f ms", systemtest.Milliseconds(<-result))
		a.stopJob(b, "more", more)
	}
	stop := systemtest.Milliseconds(a.stopJob(b, "sleep", count))
	a.end(b, syscall.SIGINT)
	fmt.Fprintf(table, "%s\t%d\t%.0f\t%.0f\t%.0f\t%.2f %%\t%.1f ms\t%s\t%.0f\t\n", name, count, rate, floor, perTask, idleCPU, quiet, busy, stop)
}

// taskRoom returns the number of tasks for which the node has open files.
func (a *benchAgent) taskRoom(b *testing.B) int {
	b.Helper()
	room, err := strconv.Atoi(a.node(b).Attributes[descriptors.AttributeDescriptors])
	if err != nil {
		b.Fatal(err)
	}
	return room / descriptors.PerTask
}

// percentile99 returns the 99th percentile of the durations of n calls.
func percentile99(n int, call func()) time.Duration {
	return percentile99While(func() bool { n--; return n >= 0 }, call)
}

// percentile99While is like percentile99 for calls as long as another is wanted, with pauses of a millisecond.
func percentile99While(another func() bool, call func()) time.Duration {
	var all []time.Duration
	for another() {
		began := time.Now()
		call()
		all = append(all, time.Since(began))
		time.Sleep(time.Millisecond)
	}
	slices.Sort(all)
	return all[len(all)*99/100]
}

// processCPUTime returns the CPU time that a process has used, in user and kernel mode.
func processCPUTime(b testing.TB, pid int) time.Duration {
	b.Helper()
	p, err := procfs.NewProc(pid)
	if err != nil {
		b.Fatal(err)
	}
	stat, err := p.Stat()
	if err != nil {
		b.Fatal(err)
	}
	return time.Duration(stat.CPUTime() * float64(time.Second))
}
