package logs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/descriptors"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/host/helperdir"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs/collector"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs/collectorwire"
)

func TestOutputOfSeveralRuns(t *testing.T) {
	t.Parallel()
	s := newFixture(t, Config{})
	limits := StreamLimits{MaxFiles: 3, MaxFileBytes: 1 << 20}
	stdout, stderr := s.startTask(limits)
	if want := filepath.Join(fifoDir(s.logDir), ".web.stdout.fifo"); stdout != want {
		t.Errorf("stdout goes to %s, want %s", stdout, want)
	}
	for _, path := range []string{stdout, stderr} {
		if st, err := os.Lstat(path); err != nil || st.Mode() != os.ModeNamedPipe|0o600 {
			t.Errorf("%s is %v, %v; want a FIFO with mode 0600", path, st.Mode(), err)
		}
	}
	out, errs := s.openFIFO(stdout), s.openFIFO(stderr)
	s.writeText(out, "first run\n")
	s.writeText(errs, "complaint\n")
	out.Close()
	errs.Close()
	s.awaitOutput(Stdout, "first run\n")

	// After a task restart, the existing FIFOs are read.
	if again, _ := s.startTask(limits); again != stdout {
		t.Errorf("stdout goes to %s after a restart", again)
	}
	out = s.openFIFO(stdout)
	s.writeText(out, "second run\n")
	out.Close()
	s.stopTask()
	names, b := s.readFiles(Stdout)
	if string(b) != "first run\nsecond run\n" || len(names) != 1 {
		t.Errorf("%v hold %q", names, b)
	}
	if _, b := s.readFiles(Stderr); string(b) != "complaint\n" {
		t.Errorf("stderr holds %q", b)
	}
	if st, err := os.Stat(filepath.Join(s.logDir, names[0])); err != nil || st.Mode() != 0o644 {
		t.Errorf("log file has mode %v, %v", st.Mode(), err)
	}
	if keys, err := s.keeper.FetchStoredFDKeys(t.Context()); err != nil || len(keys) != 0 {
		t.Errorf("the keeper still holds %v, %v", keys, err)
	}

	// After another start, the output continues in the same files.
	stdout, _ = s.startTask(limits)
	out = s.openFIFO(stdout)
	s.writeText(out, "third\n")
	out.Close()
	s.stopTask()
	if _, b := s.readFiles(Stdout); string(b) != "first run\nsecond run\nthird\n" {
		t.Errorf("stdout holds %q", b)
	}
}

// docs/reference/rules.md, RS-078.
func TestOnlyTheNewestFilesAreKept(t *testing.T) {
	t.Parallel()
	s := newFixture(t, Config{})
	stdout, _ := s.startTask(StreamLimits{MaxFiles: 3, MaxFileBytes: 1 << 20})
	out := s.openFIFO(stdout)
	var all bytes.Buffer
	for n := 0; all.Len() < 6<<20; n++ {
		all.WriteString(numberedLine(n))
	}
	s.writeText(out, all.String())
	out.Close()
	s.stopTask()
	names, b := s.readFiles(Stdout)
	if len(names) != 3 {
		t.Fatalf("files %v, want three", names)
	}
	if !bytes.HasSuffix(all.Bytes(), b) || len(b) < 2<<20 {
		t.Errorf("the files hold %d bytes, and not the last ones that were written", len(b))
	}
	if names[2] != "web.stdout.6" && names[2] != "web.stdout.5" {
		t.Errorf("files %v", names)
	}
	for _, name := range names[:2] {
		f, err := os.ReadFile(filepath.Join(s.logDir, name))
		if err != nil || f[len(f)-1] != '\n' || len(f) > 1<<20 || len(f) < 1<<20-32<<10 {
			t.Errorf("%s: %d bytes, last one %q, %v", name, len(f), f[len(f)-1], err)
		}
	}
}

func TestNoLineEndForManyMegabytes(t *testing.T) {
	t.Parallel()
	s := newFixture(t, Config{})
	stdout, _ := s.startTask(StreamLimits{MaxFiles: 100, MaxFileBytes: 1 << 20})
	out := s.openFIFO(stdout)
	data := bytes.Repeat([]byte{0, 'a', 0xff}, 7<<20)
	if _, err := out.Write(data); err != nil {
		t.Fatal(err)
	}
	out.Close()
	s.stopTask()
	names, b := s.readFiles(Stdout)
	if !bytes.Equal(b, data) || len(names) != 21 {
		t.Errorf("%d files hold %d bytes, want 21 with %d", len(names), len(b), len(data))
	}
}

func TestStoppedCollectorHoldsTheTaskButLosesNothing(t *testing.T) {
	t.Parallel()
	s := newFixture(t, Config{})
	stdout, _ := s.startTask(StreamLimits{MaxFiles: 100, MaxFileBytes: 1 << 20})
	if err := s.collector.LastProcess().Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	awaitProcessStopped(t, s.collector.LastProcess().PID)
	// The open returns at once without a reader in this process: the keeper holds the read end.
	out := s.openFIFO(stdout)
	data := bytes.Repeat([]byte("flood\n"), 1<<18)
	var writersWG sync.WaitGroup
	writersWG.Go(func() { s.writeText(out, string(data)) })
	time.Sleep(20 * time.Millisecond)
	if _, b := s.readFiles(Stdout); len(b) != 0 {
		t.Errorf("%d bytes were collected by a stopped process", len(b))
	}
	if err := s.collector.LastProcess().Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	writersWG.Wait()
	out.Close()
	s.stopTask()
	if _, b := s.readFiles(Stdout); !bytes.Equal(b, data) {
		t.Errorf("%d bytes arrived, want %d", len(b), len(data))
	}
}

// awaitProcessStopped waits until none of a process's threads runs: each thread stops when it handles the signal.
func awaitProcessStopped(t *testing.T, pid int) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(stats, func(path string) bool {
			line, err := os.ReadFile(path)
			return err == nil && !bytes.Contains(line, []byte(") T "))
		}) {
			return
		}
	}
	t.Fatalf("process %d does not stop", pid)
}

func TestWritersOfDifferentKinds(t *testing.T) {
	t.Parallel()
	for name, flags := range map[string]int{
		"non-blocking":        unix.O_WRONLY | unix.O_NONBLOCK,
		"reading and writing": unix.O_RDWR,
		"appending":           unix.O_WRONLY | unix.O_APPEND,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newFixture(t, Config{})
			stdout, _ := s.startTask(StreamLimits{MaxFiles: 10, MaxFileBytes: 10 << 20})
			var want bytes.Buffer
			for i := range 20 {
				fd, err := unix.Open(stdout, flags|unix.O_CLOEXEC, 0)
				if err != nil {
					t.Fatal(err)
				}
				for left := bytes.Repeat(fmt.Appendf(nil, "%d\n", i), 20<<10); len(left) > 0; {
					n, err := unix.Write(fd, left)
					if errors.Is(err, unix.EAGAIN) {
						time.Sleep(100 * time.Microsecond)
						continue
					}
					if err != nil {
						t.Fatal(err)
					}
					want.Write(left[:n])
					left = left[n:]
				}
				unix.Close(fd) // the writer opens the FIFO again
			}
			s.stopTask()
			if _, b := s.readFiles(Stdout); !bytes.Equal(b, want.Bytes()) {
				t.Errorf("%d bytes arrived, want %d", len(b), want.Len())
			}
		})
	}
}

// CVE-2026-6959: a task replaces its FIFO.
func TestReplacedFIFO(t *testing.T) {
	t.Parallel()
	for name, place := range map[string]func(target, path string) error{
		"a symbolic link": os.Symlink,
		"a hard link":     os.Link,
		"a file":          func(_, path string) error { return os.WriteFile(path, []byte("x"), 0o600) },
		"a directory":     func(_, path string) error { return os.MkdirAll(filepath.Join(path, "sub"), 0o700) },
		"another FIFO":    func(_, path string) error { return unix.Mkfifo(path, 0o666) },
		"nothing":         func(_, path string) error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newFixture(t, Config{})
			target := filepath.Join(t.TempDir(), "target")
			if err := os.WriteFile(target, []byte("precious"), 0o600); err != nil {
				t.Fatal(err)
			}
			limits := StreamLimits{MaxFiles: 3, MaxFileBytes: 1 << 20}
			stdout := filepath.Join(fifoDir(s.logDir), ".web.stdout.fifo")
			want := ""
			for _, when := range []string{"before the first start\n", "before the second\n"} {
				if err := os.RemoveAll(stdout); err != nil {
					t.Fatal(err)
				}
				if err := place(target, stdout); err != nil {
					t.Fatal(err)
				}
				if got, _ := s.startTask(limits); got != stdout {
					t.Errorf("stdout goes to %s", got)
				}
				if st, err := os.Lstat(stdout); err != nil || st.Mode() != os.ModeNamedPipe|0o600 {
					t.Fatalf("the FIFO is %v, %v", st.Mode(), err)
				}
				out := s.openFIFO(stdout)
				s.writeText(out, when)
				out.Close()
				want += when
				s.awaitOutput(Stdout, want)
			}
			s.stopTask()
			if b, _ := os.ReadFile(target); string(b) != "precious" {
				t.Errorf("the target holds %q", b)
			}
		})
	}
}

// The allocation's directory is removed while the task runs. The next agent's start for a running task must not close the FIFO to
// which the task writes.
func TestRunningTaskKeepsRemovedFIFO(t *testing.T) {
	t.Parallel()
	s := newFixture(t, Config{})
	limits := StreamLimits{MaxFiles: 3, MaxFileBytes: 1 << 20}
	stdout, _ := s.startTask(limits)
	out := s.openFIFO(stdout)
	s.writeText(out, "before\n")
	s.awaitOutput(Stdout, "before\n")
	if err := os.RemoveAll(fifoDir(s.logDir)); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(s.logDir, 0o777); err != nil {
		t.Fatal(err)
	}
	running := newTask(s.logDir, limits)
	running.AlreadyRunning = true
	if _, _, err := s.collector.Start(t.Context(), running); err != nil {
		t.Fatal(err)
	}
	if _, err := out.WriteString("after\n"); err != nil {
		t.Fatalf("the running task cannot write: %v", err) // EPIPE; a program gets SIGPIPE
	}
	s.awaitOutput(Stdout, "after\n")
	out.Close()
	s.stopTask()

	s.startTask(limits)
	out = s.openFIFO(stdout)
	s.writeText(out, "next start\n")
	s.awaitOutput(Stdout, "after\nnext start\n")
	out.Close()
	s.stopTask()
}

// Tasks can write to the log directory and to its parent, and not to the allocation's directory, which has the FIFOs: another
// task's FIFO gets no output from this task.
func TestTasksCannotReplaceFIFOs(t *testing.T) {
	t.Parallel()
	s := newFixture(t, Config{})
	limits := StreamLimits{MaxFiles: 3, MaxFileBytes: 1 << 20}
	if err := unix.Mkfifo(filepath.Join(s.logDir, ".web.stderr.fifo"), 0o666); err != nil {
		t.Fatal(err)
	}
	for _, path := range pathList(s.startTask(limits)) {
		if rel, err := filepath.Rel(filepath.Dir(s.logDir), path); err != nil || filepath.IsLocal(rel) {
			t.Errorf("%s is below a directory that tasks can write to", path)
		}
		if st, err := os.Lstat(path); err != nil || st.Mode() != os.ModeNamedPipe|0o600 {
			t.Errorf("the FIFO is %v, %v", st.Mode(), err)
		}
	}
	s.stopTask()
}

func pathList(stdout, stderr string) []string { return []string{stdout, stderr} }

func TestStopOfATaskThatNeverWrote(t *testing.T) {
	t.Parallel()
	s := newFixture(t, Config{writersCloseTimeout: 10 * time.Minute})
	s.startTask(StreamLimits{MaxFiles: 3, MaxFileBytes: 1 << 20})
	begin := time.Now()
	s.stopTask()
	if took := time.Since(begin); took > 5*time.Minute {
		t.Errorf("took %v: it waited for a writer that never was", took)
	}
	s.stopTask() // a second stop is no error
}

// Stop returns when the last writer has exited, also if the collector process is killed
// during the wait.
func TestStopWaitsForWriters(t *testing.T) {
	t.Parallel()
	s := newFixture(t, Config{writersCloseTimeout: 10 * time.Minute})
	stdout, stderr := s.startTask(StreamLimits{MaxFiles: 3, MaxFileBytes: 1 << 20})
	out, errs := s.openFIFO(stdout), s.openFIFO(stderr)
	s.writeText(out, "a")
	old := s.collector.LastProcess()
	time.AfterFunc(50*time.Millisecond, func() {
		_, _ = out.WriteString("b\n")
		_ = old.Signal(unix.SIGKILL)
		_, _ = errs.WriteString("last words\n")
		out.Close()
		errs.Close()
	})
	begin := time.Now()
	s.stopTask()
	if took := time.Since(begin); took > 5*time.Minute {
		t.Errorf("took %v", took)
	}
	if _, b := s.readFiles(Stdout); string(b) != "ab\n" {
		t.Errorf("stdout holds %q", b)
	}
	if _, b := s.readFiles(Stderr); string(b) != "last words\n" {
		t.Errorf("stderr holds %q", b)
	}
}

// Stop waits for a remaining writer only until the timeout, also if the collector
// process is killed during the wait.
func TestStopClosesFIFOsWithWriters(t *testing.T) {
	t.Parallel()
	const stopGrace = 500 * time.Millisecond
	s := newFixture(t, Config{writersCloseTimeout: stopGrace})
	stdout, _ := s.startTask(StreamLimits{MaxFiles: 3, MaxFileBytes: 1 << 20})
	stays := s.openFIFO(stdout)
	s.writeText(stays, "c\n")
	old := s.collector.LastProcess()
	time.AfterFunc(100*time.Millisecond, func() { _ = old.Signal(unix.SIGKILL) })
	begin := time.Now()
	s.stopTask()
	if took := time.Since(begin); took < stopGrace*9/10 {
		t.Errorf("took only %v", took)
	}
	if _, b := s.readFiles(Stdout); string(b) != "c\n" {
		t.Errorf("stdout holds %q", b)
	}
	// A process that another test forks concurrently has copies of these descriptors until it
	// executes its program.
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		_, err := stays.WriteString("late")
		if errors.Is(err, unix.EPIPE) {
			break
		}
		if err != nil || time.Now().After(end) {
			t.Fatalf("write after the stop: %v, want a broken pipe", err)
		}
	}
}

// A task with an unknown exit keeps a reader: its writes succeed and are collected after the stop, also when the collector is
// killed, until it closes its output.
func TestStopOfATaskThatMayRunKeepsItsReader(t *testing.T) {
	t.Parallel()
	s := newFixture(t, Config{writersCloseTimeout: 50 * time.Millisecond, idleProcessTimeout: 20 * time.Millisecond})
	limits := StreamLimits{MaxFiles: 3, MaxFileBytes: 1 << 20}
	stdout, _ := s.startTask(limits)
	out := s.openFIFO(stdout)
	s.writeText(out, "a\n")
	if err := s.collector.Stop(t.Context(), "a1", "web", false); err != nil {
		t.Fatal(err)
	}
	s.writeText(out, "b\n")
	s.awaitOutput(Stdout, "a\nb\n")
	time.Sleep(100 * time.Millisecond) // longer than a collector process without tasks runs
	old := s.collector.LastProcess()
	_ = old.Signal(unix.SIGKILL)
	awaitProcessExit(t, old)
	s.writeText(out, "c\n")
	s.awaitOutput(Stdout, "a\nb\nc\n")
	if keys, err := s.keeper.FetchStoredFDKeys(t.Context()); err != nil || !slices.Equal(keys, []string{"fifo/a1/web/stdout"}) {
		t.Errorf("held: %v, %v", keys, err)
	}
	out.Close()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		keys, err := s.keeper.FetchStoredFDKeys(t.Context())
		if err == nil && len(keys) == 0 {
			break
		}
		if err != nil || time.Now().After(end) {
			t.Fatalf("held after the last writer has gone: %v, %v", keys, err)
		}
	}
	awaitProcessExit(t, s.collector.LastProcess()) // no task remains

	// Another run is collected again, and a stop after its exit closes the FIFOs.
	s.startTask(limits)
	child := s.openFIFO(stdout)
	s.writeText(child, "d\n")
	if err := s.collector.Stop(t.Context(), "a1", "web", false); err != nil {
		t.Fatal(err)
	}
	s.startTask(limits)
	s.writeText(child, "e\n")
	s.awaitOutput(Stdout, "a\nb\nc\nd\ne\n")
	s.stopTask()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		_, err := child.WriteString("late")
		if errors.Is(err, unix.EPIPE) {
			break
		}
		if err != nil || time.Now().After(end) {
			t.Fatalf("write after the stop: %v, want a broken pipe", err)
		}
	}
}

// Endless output does not delay a stop.
func TestStopWhileTaskWrites(t *testing.T) {
	t.Parallel()
	const stopGrace = 500 * time.Millisecond
	s := newFixture(t, Config{writersCloseTimeout: stopGrace})
	stdout, _ := s.startTask(StreamLimits{MaxFiles: 2, MaxFileBytes: 1 << 20})
	out := s.openFIFO(stdout)
	done := make(chan error, 1)
	go func() {
		data := bytes.Repeat([]byte("flood\n"), 5000)
		for {
			if _, err := out.Write(data); err != nil {
				done <- err
				return
			}
		}
	}()
	begin := time.Now()
	s.stopTask()
	if took := time.Since(begin); took > stopGrace+time.Minute {
		t.Errorf("took %v", took)
	}
	if err := <-done; !errors.Is(err, unix.EPIPE) {
		t.Errorf("the writer got %v", err)
	}
}

// On a real full file system: the task continues, the loss is reported, and output is written
// again when space is free.
func TestFullFileSystem(t *testing.T) {
	if testing.Short() {
		t.Skip("waits three seconds for the reports of lost output")
	}
	t.Parallel()
	s, losses, out, data := fillLogDir(t)
	first := nextOutputLoss(t, losses)
	if first.WritingResumed || first.Task != "web" || first.Stream != Stdout || !strings.Contains(first.Reason, "no space left") {
		t.Errorf("loss %+v", first)
	}
	name := filepath.Join(s.logDir, "web.stdout.0")
	st, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	kept := st.Size()
	if err := unix.Mount("tmpfs", s.logDir, "tmpfs", unix.MS_REMOUNT, "size=8m"); err != nil {
		t.Fatal(err)
	}
	last := nextOutputLoss(t, losses)
	s.writeText(out, "again\n")
	status := s.collector.Status(t.Context())
	out.Close()
	s.stopTask()
	if !status.Connected || !status.HasCounts || status.ProcessStarts != 1 || status.Streams != 2 || status.LostBytes != last.DroppedBytes {
		t.Errorf("status %+v", status)
	}
	if ended := s.collector.Status(t.Context()); ended.Streams != 0 || ended.LostBytes != last.DroppedBytes || ended.WrittenBytes != int64(len(data))-last.DroppedBytes+int64(len("again\n")) {
		t.Errorf("status after the end of the streams %+v; %d bytes were written", ended, len(data))
	}
	if !last.WritingResumed || last.DroppedBytes != int64(len(data))-kept {
		t.Errorf("loss %+v; %d bytes were written and %d kept", last, len(data), kept)
	}
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("[nomad-lite: %d bytes of output lost: no space left on device]\nagain\n", last.DroppedBytes)
	if !bytes.HasPrefix(b, data[:kept]) || !bytes.HasSuffix(b, []byte(want)) {
		t.Errorf("the file ends with %q, want %q", b[max(0, len(b)-100):], want)
	}
}

// If a task ends while the disk is full, its log ends with the number of lost bytes, although there is no room for a line.
func TestTaskEndsOnFullFileSystem(t *testing.T) {
	if testing.Short() {
		t.Skip("waits two seconds for the report of lost output")
	}
	t.Parallel()
	s, losses, out, data := fillLogDir(t)
	if first := nextOutputLoss(t, losses); first.WritingResumed || s.collector.Losses().Err() == nil {
		t.Errorf("loss %+v, %v", first, s.collector.Losses().Err())
	}
	out.Close()
	s.stopTask()
	last := nextOutputLoss(t, losses)
	b, err := os.ReadFile(filepath.Join(s.logDir, "web.stdout.0"))
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("0123456\n[nomad-lite: %d bytes of output lost: no space left on device]\n", last.DroppedBytes)
	kept := bytes.LastIndexByte(b[:max(0, len(b)-1)], '\n') + 1
	if last.WritingResumed || last.DroppedBytes != int64(len(data)-kept) || !bytes.HasSuffix(b, []byte(want)) {
		t.Errorf("loss %+v, %d of %d bytes kept, the file ends with %q, want %q", last, kept, len(data), b[max(0, len(b)-100):], want)
	}
	if err := s.collector.Losses().Err(); err != nil {
		t.Errorf("after the end of the task: %v", err)
	}
}

// fillLogDir starts a task. Its written data has no room in its log directory. out is the task's standard output.
func fillLogDir(t *testing.T) (s *fixture, losses <-chan OutputLoss, out *os.File, data []byte) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounts a tmpfs: needs root")
	}
	received := make(chan OutputLoss, 10)
	s = newFixture(t, Config{})
	s.collector.Losses().Handle(func(l OutputLoss) { received <- l })
	if err := unix.Mount("tmpfs", s.logDir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skip("cannot mount a tmpfs:", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(s.logDir, unix.MNT_DETACH) })
	stdout, _ := s.startTask(StreamLimits{MaxFiles: 10, MaxFileBytes: 10 << 20})
	out = s.openFIFO(stdout)
	data = bytes.Repeat([]byte("0123456\n"), 1<<18) // 2 MiB
	if _, err := out.Write(data); err != nil {
		t.Fatal(err)
	}
	return s, received, out, data
}

func nextOutputLoss(t *testing.T, losses <-chan OutputLoss) OutputLoss {
	t.Helper()
	select {
	case l := <-losses:
		return l
	case <-time.After(time.Minute):
		t.Fatal("no loss is told")
		return OutputLoss{}
	}
}

func TestOutputOfTwoTasksIsNotMixed(t *testing.T) {
	t.Parallel()
	s := newFixture(t, Config{})
	var wg sync.WaitGroup
	for _, name := range []string{"one", "two", "one.stdout"} {
		stdout, stderr, err := s.collector.Start(t.Context(), Task{
			AllocID: "a1", Name: name, LogDir: s.logDir,
			StdoutLimits: StreamLimits{MaxFiles: 5, MaxFileBytes: 1 << 20}, StderrLimits: StreamLimits{MaxFiles: 5, MaxFileBytes: 1 << 20},
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{stdout, stderr} {
			out := s.openFIFO(path)
			wg.Go(func() {
				for i := range 1000 {
					fmt.Fprintf(out, "%s %d\n", path, i)
				}
				out.Close()
			})
		}
	}
	wg.Wait()
	for _, name := range []string{"one", "two", "one.stdout"} {
		if err := s.collector.Stop(t.Context(), "a1", name, true); err != nil {
			t.Fatal(err)
		}
		for _, stream := range bothStreams {
			b, err := os.ReadFile(filepath.Join(s.logDir, name+"."+string(stream)+".0"))
			if err != nil {
				t.Fatal(err)
			}
			var want strings.Builder
			for i := range 1000 {
				fmt.Fprintf(&want, "%s/.%s.%s.fifo %d\n", fifoDir(s.logDir), name, stream, i)
			}
			if string(b) != want.String() {
				t.Errorf("%s of %s is not what it wrote", stream, name)
			}
		}
	}
}

func TestProcessStartsWithoutTask(t *testing.T) {
	t.Parallel()
	s := newFixture(t, Config{StartProcessWithoutTask: true})
	if _, err := s.collector.processConns.WaitForConn(t.Context()); err != nil {
		t.Fatal(err)
	}
	first := s.collector.LastProcess()
	stdout, _ := s.startTask(StreamLimits{MaxFiles: 5, MaxFileBytes: 1 << 20})
	out := s.openFIFO(stdout)
	defer out.Close()
	s.writeText(out, "collected\n")
	s.awaitOutput(Stdout, "collected\n")
	if p := s.collector.LastProcess(); p != first {
		t.Errorf("the process is %v after the start of a task, want %v", p, first)
	}
}

func TestIdleCollectorEnds(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	s := &fixture{t: t, runDir: filepath.Join(base, "run"), logDir: filepath.Join(base, "alloc", "alloc", "logs")}
	if err := os.MkdirAll(s.logDir, 0o777); err != nil {
		t.Fatal(err)
	}
	s.newCollector(Config{LingerTimeout: 100 * time.Millisecond}, false)
	stdout, _ := s.startTask(StreamLimits{MaxFiles: 5, MaxFileBytes: 1 << 20})
	out := s.openFIFO(stdout)
	p := s.collector.LastProcess()
	s.collector.Close()
	s.writeText(out, "nobody looks\n")
	s.awaitOutput(Stdout, "nobody looks\n")
	time.Sleep(300 * time.Millisecond)
	if !p.Alive() {
		t.Fatal("the collector ended although a task can write")
	}
	out.Close()
	if st, err := s.keeper.Wait(t.Context(), p); err != nil || st != (osprocess.ExitStatus{}) {
		t.Errorf("the collector ended with %v, %v", st, err)
	}
	if _, err := os.Stat(filepath.Join(helperdir.SocketDir(s.runDir), collectorwire.SocketName)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its socket is left behind: %v", err)
	}
}

// A machine that shuts down sends SIGTERM to the collector and to tasks at once. The tasks' output in response is collected.
func TestTerminatedCollectorWaitsForOutput(t *testing.T) {
	t.Parallel()
	s := newPersistentFixture(t, Config{})
	stdout, _ := s.startTask(StreamLimits{MaxFiles: 5, MaxFileBytes: 1 << 20})
	out := s.openFIFO(stdout)
	p := s.collector.LastProcess()
	s.collector.Close()
	if err := p.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		s.writeText(out, "end\n")
	}
	s.awaitOutput(Stdout, "end\nend\nend\n")
	out.Close()
	if st, err := s.keeper.Wait(t.Context(), p); err != nil || st != (osprocess.ExitStatus{}) {
		t.Errorf("the collector ended with %v, %v", st, err)
	}
}

func TestServeRejectsManualStart(t *testing.T) {
	if err := collector.Serve(t.Context(), collectorwire.ProtocolVersion); err == nil || !strings.Contains(err.Error(), "by hand") {
		t.Errorf("Serve error %v", err)
	}
}

// followCall collects a follower's output.
type followCall struct {
	mu   sync.Mutex
	data []byte
	done chan error

	cancel context.CancelFunc
}

func (fi *fixture) startFollow(req FollowRequest) *followCall {
	ctx, cancel := context.WithCancel(fi.t.Context())
	f := &followCall{done: make(chan error, 1), cancel: cancel}
	req.AllocID, req.Task, req.LogDir = "a1", "web", fi.logDir
	if req.Stream == "" {
		req.Stream = Stdout
	}
	go func() {
		f.done <- fi.collector.Follow(ctx, req, func(c OutputChunk) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.data = append(f.data, c.Data...)
			return nil
		})
	}()
	return f
}

func (f *followCall) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return string(f.data)
}

func (f *followCall) awaitOutput(t *testing.T, want string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); f.String() != want; time.Sleep(100 * time.Microsecond) {
		if time.Now().After(end) {
			t.Fatalf("the follower has %.200q, want %.200q", f.String(), want)
		}
	}
}

func TestFollow(t *testing.T) {
	t.Parallel()
	s := newFixture(t, Config{})
	stdout, _ := s.startTask(StreamLimits{MaxFiles: 1000, MaxFileBytes: 64 << 10})
	out := s.openFIFO(stdout)
	followers := []*followCall{s.startFollow(FollowRequest{}), s.startFollow(FollowRequest{})}
	want := ""
	write := func(text string) {
		t.Helper()
		s.writeText(out, text)
		want += text
	}
	write("no line end yet")
	followers[0].awaitOutput(t, want)
	write(", now there is\n")
	for _, f := range followers {
		f.awaitOutput(t, want)
	}
	for i := range 5 { // each round writes several files and kills the collector process
		for range 300 {
			write(strings.Repeat(string(rune('a'+i)), 500) + "\n")
		}
		killProcess(t, s.collector.LastProcess())
		write("after a death\n")
		for _, f := range followers {
			f.awaitOutput(t, want)
		}
	}
	followers = append(followers, s.startFollow(FollowRequest{}))
	write("last byte")
	out.Close()
	s.stopTask()
	for i, f := range followers {
		if err := <-f.done; err != nil {
			t.Errorf("follower %d: %v", i, err)
		}
		if f.String() != want {
			t.Errorf("follower %d has %d bytes, want %d", i, len(f.String()), len(want))
		}
	}
	late := s.startFollow(FollowRequest{}) // this follower is started after the stream's end
	if err := <-late.done; err != nil || late.String() != want {
		t.Errorf("a late follower has %d bytes and %v", len(late.String()), err)
	}
}

// A follower with AcrossRestarts waits for the task's next run.
func TestFollowOverRestarts(t *testing.T) {
	t.Parallel()
	s := newFixture(t, Config{})
	ask := FollowRequest{AllocID: "a1", Task: "web", Stream: Stdout, LogDir: s.logDir}
	if kept, err := s.collector.HasLogsOrIsCollected(ask); kept || err != nil {
		t.Errorf("a task that was never started has logs: %v, %v", kept, err)
	}
	f := s.startFollow(FollowRequest{AcrossRestarts: true})
	want := ""
	for run := range 3 {
		stdout, _ := s.startTask(StreamLimits{MaxFiles: 1000, MaxFileBytes: 64 << 10})
		if kept, err := s.collector.HasLogsOrIsCollected(ask); !kept || err != nil {
			t.Errorf("a task that runs has no logs: %v", err)
		}
		out := s.openFIFO(stdout)
		text := fmt.Sprintf("run %d\n", run)
		s.writeText(out, text)
		want += text
		f.awaitOutput(t, want)
		s.writeText(out, "end\n")
		want += "end\n"
		out.Close()
		s.stopTask()
		f.awaitOutput(t, want)
	}
	if kept, err := s.collector.HasLogsOrIsCollected(ask); !kept || err != nil {
		t.Errorf("a task that has ended has no logs: %v", err)
	}
	f.cancel()
	if err := <-f.done; !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v", err)
	}
}

func TestFollowFromAnOffset(t *testing.T) {
	t.Parallel()
	s := newFixture(t, Config{})
	for i, text := range []string{"01234", "56789", "abcde"} {
		if err := os.WriteFile(filepath.Join(s.logDir, fmt.Sprintf("web.stdout.%d", i+3)), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	tests := []struct {
		name   string
		origin FollowOrigin
		offset int64
		want   string
	}{
		{"all of it", FromStart, 0, "0123456789abcde"},
		{"from within the first file", FromStart, 2, "23456789abcde"},
		{"from the start of the second file", FromStart, 5, "56789abcde"},
		{"from within the last file", FromStart, 13, "de"},
		{"from beyond the end", FromStart, 100, ""},
		{"the end alone", FromEnd, 0, ""},
		{"the last bytes", FromEnd, 3, "cde"},
		{"the last file", FromEnd, 5, "abcde"},
		{"across files", FromEnd, 7, "89abcde"},
		{"more than there is", FromEnd, 100, "0123456789abcde"},
		{"the newest file", FromNewestFile, 0, "abcde"},
	}
	for _, tt := range tests {
		f := s.startFollow(FollowRequest{Origin: tt.origin, OffsetFromOrigin: tt.offset, StopAtEnd: true})
		if err := <-f.done; err != nil || f.String() != tt.want {
			t.Errorf("%s: %q, %v; want %q", tt.name, f.String(), err, tt.want)
		}
	}
}

// A follower never leaves the directory, whatever files a task creates.
func TestFollowPassesOverForeignFiles(t *testing.T) {
	t.Parallel()
	s := newFixture(t, Config{})
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := errors.Join(
		os.WriteFile(filepath.Join(s.logDir, "web.stdout.0"), []byte("one "), 0o644),
		os.Symlink(secret, filepath.Join(s.logDir, "web.stdout.1")),
		os.Link(secret, filepath.Join(s.logDir, "web.stdout.2")),
		unix.Mkfifo(filepath.Join(s.logDir, "web.stdout.3"), 0o644),
		os.Mkdir(filepath.Join(s.logDir, "web.stdout.4"), 0o755),
		os.WriteFile(filepath.Join(s.logDir, "web.stdout.9"), []byte("two"), 0o644),
	)
	if err != nil {
		t.Fatal(err)
	}
	f := s.startFollow(FollowRequest{StopAtEnd: true})
	if err := <-f.done; err != nil || f.String() != "one two" {
		t.Errorf("the follower has %q and %v", f.String(), err)
	}
}

// Tasks beyond the descriptor limit are rejected until one stops. A task with descriptors from an earlier agent is accepted.
func TestLimitOfDescriptors(t *testing.T) {
	t.Parallel()
	s := newFixture(t, Config{MaxDescriptorsPerProcess: descriptors.Reserved + 2*descriptors.PerTask})
	limits := StreamLimits{MaxFiles: 3, MaxFileBytes: 1 << 20}
	start := func(name string) error {
		_, _, err := s.collector.Start(t.Context(), Task{AllocID: "a1", Name: name, LogDir: s.logDir, StdoutLimits: limits, StderrLimits: limits})
		return err
	}
	if err := errors.Join(start("one"), start("two"), start("one")); err != nil {
		t.Fatal(err)
	}
	var tooManyTasksErr *TooManyTasksError
	if err := start("three"); !errors.As(err, &tooManyTasksErr) {
		t.Fatalf("a third task: %v", err)
	}
	if want := "2 tasks run, and the limit of 76 open files (ulimit -n) has room for no more"; tooManyTasksErr.Error() != want {
		t.Errorf("got %q, want %q", tooManyTasksErr, want)
	}
	next, err := New(Config{Keeper: s.keeper, DataDir: s.runDir, CollectorArgv: []string{"nomad-lite", "log-collector"}, MaxDescriptorsPerProcess: 1})
	if err != nil {
		t.Fatal(err)
	}
	first := s.collector
	s.collector = next
	if err := start("three"); !errors.As(err, new(*TooManyTasksError)) {
		t.Errorf("a third task before the other tasks are restored: %v", err)
	}
	if err := errors.Join(start("one"), start("two")); err != nil {
		t.Errorf("another agent with a lower limit: %v", err)
	}
	if err := start("three"); !errors.As(err, new(*TooManyTasksError)) {
		t.Errorf("a third task: %v", err)
	}
	next.Close()
	s.collector = first
	if err := s.collector.Stop(t.Context(), "a1", "two", true); err != nil {
		t.Fatal(err)
	}
	<-tooManyTasksErr.DescriptorsFreed
	if err := start("three"); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"one", "three"} {
		if err := s.collector.Stop(t.Context(), "a1", name, true); err != nil {
			t.Error(err)
		}
	}
}

// An agent with a higher limit than the one before it gives its limit to the collector process. If it must not do that, it starts
// no more tasks than the process has descriptors for. The earlier agent's tasks count before they are restored.
func TestLimitOfEarlierCollectorProcess(t *testing.T) {
	t.Parallel()
	s := newFixture(t, Config{})
	limits := StreamLimits{MaxFiles: 3, MaxFileBytes: 1 << 20}
	start := func(name string) error {
		_, _, err := s.collector.Start(t.Context(), Task{AllocID: "a1", Name: name, LogDir: s.logDir, StdoutLimits: limits, StderrLimits: limits})
		return err
	}
	if err := errors.Join(start("one"), start("two")); err != nil {
		t.Fatal(err)
	}
	low := unix.Rlimit{Cur: descriptors.Reserved + 2*descriptors.PerTask, Max: descriptors.Reserved + 2*descriptors.PerTask}
	if err := unix.Prlimit(s.collector.LastProcess().PID, unix.RLIMIT_NOFILE, &low, nil); err != nil {
		t.Fatal(err)
	}
	next, err := New(Config{Keeper: s.keeper, DataDir: s.runDir, CollectorArgv: []string{"nomad-lite", "log-collector"}})
	if err != nil {
		t.Fatal(err)
	}
	first := s.collector
	s.collector = next
	if _, err := next.processConns.WaitForConn(t.Context()); err != nil {
		t.Fatal(err)
	}
	var now unix.Rlimit
	if err := unix.Prlimit(next.LastProcess().PID, unix.RLIMIT_NOFILE, nil, &now); err != nil {
		t.Fatal(err)
	}
	err = start("three")
	var tooManyTasksErr *TooManyTasksError
	if raised := now != low; raised && err != nil || !raised && (!errors.As(err, &tooManyTasksErr) || tooManyTasksErr.CollectedTasks != 2) {
		t.Errorf("a third task with the limit %+v of the process: %v", now, err)
	}
	next.Close()
	s.collector = first
	for _, name := range []string{"one", "two", "three"} {
		if err := s.collector.Stop(t.Context(), "a1", name, true); err != nil {
			t.Error(err)
		}
	}
}

// A process without free descriptors replies with an error, and its streams continue.
func TestProcessWithoutDescriptors(t *testing.T) {
	t.Parallel()
	s := newFixture(t, Config{})
	stdout, _ := s.startTask(StreamLimits{MaxFiles: 3, MaxFileBytes: 1 << 20})
	out := s.openFIFO(stdout)
	s.writeText(out, "a\n")
	s.awaitOutput(Stdout, "a\n")
	p := s.collector.LastProcess()
	var was unix.Rlimit
	if err := unix.Prlimit(p.PID, unix.RLIMIT_NOFILE, nil, &was); err != nil {
		t.Fatal(err)
	}
	if err := unix.Prlimit(p.PID, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: was.Max}, nil); err != nil {
		t.Fatal(err)
	}
	limits := StreamLimits{MaxFiles: 3, MaxFileBytes: 1 << 20}
	more := Task{AllocID: "a1", Name: "more", LogDir: s.logDir, StdoutLimits: limits, StderrLimits: limits}
	if _, _, err := s.collector.Start(t.Context(), more); err == nil || !strings.Contains(err.Error(), "no free file descriptors") {
		t.Errorf("another task: %v", err)
	}
	s.writeText(out, "b\n")
	s.awaitOutput(Stdout, "a\nb\n")
	if err := unix.Prlimit(p.PID, unix.RLIMIT_NOFILE, &was, nil); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.collector.Start(t.Context(), more); err != nil {
		t.Error(err)
	}
	if err := s.collector.Stop(t.Context(), "a1", "more", true); err != nil {
		t.Error(err)
	}
	if s.collector.LastProcess() != p {
		t.Error("it is another process")
	}
}

// After its file was truncated by hand, a follower continues with new output.
func TestFollowOfATruncatedFile(t *testing.T) {
	t.Parallel()
	s := newFixture(t, Config{})
	stdout, _ := s.startTask(StreamLimits{MaxFiles: 3, MaxFileBytes: 1 << 20})
	out := s.openFIFO(stdout)
	s.writeText(out, "a long line before\n")
	s.awaitOutput(Stdout, "a long line before\n")
	chunks := make(chan string, 10)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		done <- s.collector.Follow(ctx, FollowRequest{AllocID: "a1", Task: "web", Stream: Stdout, LogDir: s.logDir}, func(c OutputChunk) error {
			chunks <- string(c.Data)
			return nil
		})
	}()
	if got := <-chunks; got != "a long line before\n" {
		t.Errorf("got %q", got)
	}
	if err := os.Truncate(filepath.Join(s.logDir, "web.stdout.0"), 0); err != nil {
		t.Fatal(err)
	}
	s.writeText(out, "after\n")
	if got := <-chunks; got != "after\n" {
		t.Errorf("got %q", got)
	}
	s.awaitOutput(Stdout, "after\n")
	cancel()
	<-done
}

// A slow follower misses deleted files, gets the rest in order, and does not slow down the task or
// other followers.
func TestSlowFollower(t *testing.T) {
	t.Parallel()
	s := newFixture(t, Config{})
	stdout, _ := s.startTask(StreamLimits{MaxFiles: 2, MaxFileBytes: 64 << 10})
	out := s.openFIFO(stdout)
	hold := make(chan struct{})
	var receivedChunks []string
	done := make(chan error, 1)
	go func() {
		done <- s.collector.Follow(t.Context(), FollowRequest{AllocID: "a1", Task: "web", LogDir: s.logDir, Stream: Stdout}, func(c OutputChunk) error {
			<-hold
			if len(receivedChunks) == 0 || receivedChunks[len(receivedChunks)-1] != c.FileName {
				receivedChunks = append(receivedChunks, c.FileName)
			}
			return nil
		})
	}()
	for i := range 1 << 14 {
		s.writeText(out, fmt.Sprintf("%099d\n", i))
	}
	out.Close()
	s.stopTask()
	close(hold)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	names, _ := s.readFiles(Stdout)
	if len(receivedChunks) > 3 || receivedChunks[len(receivedChunks)-1] != names[1] || !slices.IsSorted(receivedChunks[1:]) {
		t.Errorf("saw %v, and %v are left", receivedChunks, names)
	}
}

func TestFollowEndsWithTheErrorOfItsReader(t *testing.T) {
	t.Parallel()
	s := newFixture(t, Config{})
	stdout, _ := s.startTask(StreamLimits{MaxFiles: 2, MaxFileBytes: 64 << 10})
	s.writeText(s.openFIFO(stdout), "x")
	err := s.collector.Follow(t.Context(), FollowRequest{AllocID: "a1", Task: "web", LogDir: s.logDir, Stream: Stdout}, func(OutputChunk) error { return io.ErrClosedPipe })
	if !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("Follow error %v", err)
	}
}

// The collector process runs while there are tasks, and until its idle timeout after
// that.
func TestProcessEndsWithoutTasks(t *testing.T) {
	t.Parallel()
	limits := StreamLimits{MaxFiles: 3, MaxFileBytes: 1 << 20}
	s := newFixture(t, Config{idleProcessTimeout: 20 * time.Millisecond})
	var want string
	var lastProcess osprocess.ID
	for round := range 3 {
		if p := s.collector.LastProcess(); p != lastProcess {
			t.Fatalf("round %d: process %v without a task", round, p)
		}
		stdout, _ := s.startTask(limits)
		p := s.collector.LastProcess()
		if p == lastProcess || !p.Alive() {
			t.Fatalf("round %d: process %v, before %v", round, p, lastProcess)
		}
		f := s.openFIFO(stdout)
		time.Sleep(50 * time.Millisecond) // the collector process must not exit during this time
		line := fmt.Sprintln("round", round)
		want += line
		s.writeText(f, line)
		s.awaitOutput(Stdout, want)
		f.Close()
		if !p.Alive() {
			t.Errorf("round %d: the process ended before its task", round)
		}
		if err := s.collector.Stop(t.Context(), "a1", "web", true); err != nil {
			t.Fatal(err)
		}
		awaitProcessExit(t, p)
		lastProcess = p
	}
}

// TestNextAgentConnectsToProcess adds an earlier agent's tasks late: their process is running, and is not stopped although it has
// no tasks from this agent yet.
func TestNextAgentConnectsToProcess(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	s := &fixture{t: t, runDir: filepath.Join(base, "run"), logDir: filepath.Join(base, "alloc", "alloc", "logs")}
	if err := os.MkdirAll(s.logDir, 0o777); err != nil {
		t.Fatal(err)
	}
	s.newCollector(Config{}, false)
	limits := StreamLimits{MaxFiles: 3, MaxFileBytes: 1 << 20}
	stdout, _ := s.startTask(limits)
	f := s.openFIFO(stdout)
	p := s.collector.LastProcess()
	s.collector.Close()

	var err error
	var logged bytes.Buffer
	s.collector, err = New(Config{
		Keeper: s.keeper, DataDir: s.runDir, CollectorArgv: []string{"nomad-lite", "log-collector"}, idleProcessTimeout: 20 * time.Millisecond,
		Logger: hclog.New(&hclog.LoggerOptions{Output: &logged, Level: hclog.Debug}),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.collector.Close()
	for began := time.Now(); s.collector.LastProcess() != p; time.Sleep(time.Millisecond) {
		if time.Since(began) > time.Minute {
			s.collector.Close() // nothing is logged after it
			t.Fatalf("the collector has process %v, not %v:\n%s", s.collector.LastProcess(), p, &logged)
		}
	}
	for s.collector.processConns.CurrentConn() != nil {
		time.Sleep(time.Millisecond) // waits until idleProcessTimeout has passed
	}
	s.writeText(f, "before the next agent knows of me\n")
	s.awaitOutput(Stdout, "before the next agent knows of me\n")
	s.startTask(limits)
	if now := s.collector.LastProcess(); now != p || !p.Alive() {
		t.Errorf("the task has process %v, had %v", now, p)
	}
	f.Close()
	s.stopTask()
	if _, err := s.keeper.Wait(t.Context(), p); err != nil {
		t.Error(err)
	}
}
