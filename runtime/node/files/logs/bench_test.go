package logs

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper"
)

// newBenchFixture returns a fixture for a benchmark.
func newBenchFixture(b *testing.B) *fixture {
	b.Helper()
	base := b.TempDir()
	s := &fixture{runDir: filepath.Join(base, "run"), logDir: filepath.Join(base, "alloc", "alloc", "logs")}
	if err := os.MkdirAll(s.logDir, 0o777); err != nil {
		b.Fatal(err)
	}
	k, err := keeper.ConnectOrStart(b.Context(), keeper.Config{DataDir: s.runDir, KeeperArgv: []string{"nomad-lite", "keeper"}, Ephemeral: true})
	if err != nil {
		b.Fatal(err)
	}
	c, err := New(Config{Keeper: k, DataDir: s.runDir, CollectorArgv: []string{"nomad-lite", "log-collector"}})
	if err != nil {
		b.Fatal(err)
	}
	s.keeper, s.collector = k, c
	b.Cleanup(func() {
		c.Close()
		if err := k.Close(); err != nil {
			b.Error(err)
		}
	})
	return s
}

// gibibyte is how many bytes the throughput benchmarks write.
const gibibyte = 1 << 30

// measureThroughput makes another process write a gibibyte to path, as a task does, and then waits for the output's end.
func measureThroughput(b *testing.B, path func() string, end func()) {
	b.SetBytes(gibibyte)
	for b.Loop() {
		task := exec.Command("/proc/self/exe", "blocks", path(), strconv.Itoa(gibibyte))
		task.Stderr = os.Stderr
		if err := task.Run(); err != nil {
			b.Fatal(err)
		}
		end()
	}
}

// writeBlocks writes lines in pieces of 64 KiB.
func writeBlocks(args []string) error {
	total, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	fd, err := unix.Open(args[0], unix.O_WRONLY|unix.O_CREAT, 0o644)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), args[0])
	defer f.Close()
	block := []byte(strings.Repeat(strings.Repeat("x", 127)+"\n", 512))
	for ; total > 0; total -= len(block) {
		if _, err := f.Write(block); err != nil {
			return err
		}
	}
	return nil
}

// All throughput benchmarks keep 10 files with 10 MiB each.
func BenchmarkThroughput(b *testing.B) {
	b.Run("collector", func(b *testing.B) {
		s := newBenchFixture(b)
		start := func() string {
			stdout, _, err := s.collector.Start(b.Context(), newTask(s.logDir, StreamLimits{MaxFiles: 10, MaxFileBytes: 10 << 20}))
			if err != nil {
				b.Fatal(err)
			}
			return stdout
		}
		measureThroughput(b, start, func() {
			if err := s.collector.Stop(b.Context(), "a1", "web", true); err != nil {
				b.Fatal(err)
			}
		})
	})
	floor := func(move func(b *testing.B, fifo, file *os.File) (int64, error)) func(*testing.B) {
		return func(b *testing.B) {
			dir := b.TempDir()
			fifo := filepath.Join(dir, "fifo")
			if err := unix.Mkfifo(fifo, 0o600); err != nil {
				b.Fatal(err)
			}
			done := make(chan error, 1)
			measureThroughput(b, func() string {
				go func() { done <- moveFIFOToFiles(b, fifo, dir, move) }()
				return fifo
			}, func() {
				if err := <-done; err != nil {
					b.Fatal(err)
				}
			})
		}
	}
	b.Run("floor=splice", floor(func(b *testing.B, fifo, file *os.File) (int64, error) {
		n, err := unix.Splice(int(fifo.Fd()), nil, int(file.Fd()), nil, 1<<20, 0)
		return n, err
	}))
	buf := make([]byte, 64<<10)
	b.Run("floor=copy", floor(func(b *testing.B, fifo, file *os.File) (int64, error) {
		n, err := fifo.Read(buf)
		if err == io.EOF {
			return 0, nil
		}
		if err != nil {
			return 0, err
		}
		_, err = file.Write(buf[:n])
		return int64(n), err
	}))
	b.Run("floor=file", func(b *testing.B) {
		file := filepath.Join(b.TempDir(), "log")
		measureThroughput(b, func() string { return file }, func() { os.Remove(file) })
	})
}

// moveFIFOToFiles moves a FIFO into files with 10 MiB each, and keeps ten.
func moveFIFOToFiles(b *testing.B, fifo, dir string, move func(b *testing.B, fifo, file *os.File) (int64, error)) error {
	in, err := os.OpenFile(fifo, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer in.Close()
	for i := 0; ; i++ {
		out, err := os.Create(filepath.Join(dir, fmt.Sprintf("log.%d", i%10)))
		if err != nil {
			return err
		}
		for size := int64(0); size < 10<<20; {
			n, err := move(b, in, out)
			if err != nil || n == 0 {
				out.Close()
				return err
			}
			size += n
		}
		out.Close()
	}
}

// BenchmarkLineToFollower measures the time from a line's write to the follower's call.
func BenchmarkLineToFollower(b *testing.B) {
	s := newBenchFixture(b)
	stdout, _, err := s.collector.Start(b.Context(), newTask(s.logDir, StreamLimits{MaxFiles: 10, MaxFileBytes: 10 << 20}))
	if err != nil {
		b.Fatal(err)
	}
	fd, err := unix.Open(stdout, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer unix.Close(fd)
	seen := make(chan time.Time, 1)
	done := make(chan error, 1)
	go func() {
		done <- s.collector.Follow(b.Context(), FollowRequest{AllocID: "a1", Task: "web", LogDir: s.logDir, Stream: Stdout}, func(OutputChunk) error {
			seen <- time.Now()
			return nil
		})
	}()
	var worstLatency, totalLatency time.Duration
	n := 0
	for b.Loop() {
		begin := time.Now()
		if _, err := unix.Write(fd, []byte("a line of output\n")); err != nil {
			b.Fatal(err)
		}
		took := (<-seen).Sub(begin)
		worstLatency, totalLatency, n = max(worstLatency, took), totalLatency+took, n+1
	}
	b.ReportMetric(float64(worstLatency.Microseconds())/1000, "worst-ms")
	b.ReportMetric(float64(totalLatency.Microseconds())/float64(n)/1000, "mean-ms")
}

// BenchmarkIdleStreams measures the memory for the processes and for one more idle stream.
func BenchmarkIdleStreams(b *testing.B) {
	const warmupStreams, measuredStreams = 200, 400 // the further streams are measured, because the first ones fill gaps in the heap
	for b.Loop() {
		s := newBenchFixture(b)
		k, c := func() osprocess.ID { return s.keeper.Status().KeeperProcess }, s.collector.LastProcess
		start := func(from, to int) {
			for i := range to - from {
				t := newTask(s.logDir, StreamLimits{MaxFiles: 10, MaxFileBytes: 10 << 20})
				t.Name = fmt.Sprintf("web%d", from+i)
				if _, _, err := s.collector.Start(b.Context(), t); err != nil {
					b.Fatal(err)
				}
			}
			time.Sleep(1500 * time.Millisecond) // the process frees memory after one second without stream changes
		}
		start(0, 1)
		b.ReportMetric(float64(processMemory(b, k().PID)), "keeper-KiB")
		b.ReportMetric(float64(processMemory(b, c().PID)), "collector-KiB")
		start(1, warmupStreams)
		keeperBefore, collectorBefore := processMemory(b, k().PID), processMemory(b, c().PID)
		start(warmupStreams, warmupStreams+measuredStreams)
		b.ReportMetric(float64(processMemory(b, k().PID)-keeperBefore)/(2*measuredStreams), "keeper-KiB/stream")
		b.ReportMetric(float64(processMemory(b, c().PID)-collectorBefore)/(2*measuredStreams), "collector-KiB/stream")
		s.collector.Close()
		if err := s.keeper.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// processMemory returns a process's memory that the kernel cannot drop, in KiB: its share of anonymous and shared memory.
func processMemory(b *testing.B, pid int) (kib int) {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		b.Skip("cannot measure:", err)
	}
	for _, match := range regexp.MustCompile(`(?m)^Pss_(Anon|Shmem): +([0-9]+) kB`).FindAllSubmatch(text, -1) {
		n, err := strconv.Atoi(string(match[2]))
		if err != nil {
			b.Fatal(err)
		}
		kib += n
	}
	return kib
}

// BenchmarkStartAndStop measures log collection's share in a task's start and stop.
func BenchmarkStartAndStop(b *testing.B) {
	s := newBenchFixture(b)
	t := newTask(s.logDir, StreamLimits{MaxFiles: 10, MaxFileBytes: 10 << 20})
	if _, _, err := s.collector.Start(b.Context(), t); err != nil { // starts the process
		b.Fatal(err)
	}
	var startTotal, stopTotal time.Duration
	n := 0
	for b.Loop() {
		t.AllocID = fmt.Sprintf("a%d", n) // each task has its own directory
		t.LogDir = filepath.Join(filepath.Dir(s.logDir), t.AllocID, "alloc", "logs")
		if err := os.MkdirAll(t.LogDir, 0o777); err != nil {
			b.Fatal(err)
		}
		begin := time.Now()
		if _, _, err := s.collector.Start(b.Context(), t); err != nil {
			b.Fatal(err)
		}
		started := time.Now()
		if err := s.collector.Stop(b.Context(), t.AllocID, t.Name, true); err != nil {
			b.Fatal(err)
		}
		startTotal, stopTotal, n = startTotal+started.Sub(begin), stopTotal+time.Since(started), n+1
	}
	b.ReportMetric(startTotal.Seconds()*1e3/float64(n), "start-ms")
	b.ReportMetric(stopTotal.Seconds()*1e3/float64(n), "stop-ms")
}
