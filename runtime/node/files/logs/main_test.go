package logs

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/logfile"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper/keeperserver"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper/keeperwire"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs/collector"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs/collectorwire"
)

// TestMain also runs the tests' programs: keeper, collector, a task that writes numbered lines, and an agent
// that can be killed.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		var err error
		switch os.Args[1] {
		case "keeper":
			err = keeperserver.Serve(context.Background(), keeperwire.ProtocolVersion)
		case "log-collector":
			err = collector.Serve(context.Background(), versionOf(os.Args[2:]))
		case "foreign-collector":
			err = foreignCollectorMain(os.Args[2])
		case "lines":
			err = writeLines(os.Args[2:])
		case "blocks":
			err = writeBlocks(os.Args[2:])
		case "agent":
			err = agentMain(os.Args[2:])
		case "halting-agent":
			err = haltingAgentMain(os.Args[2:])
		default:
			os.Exit(runTests(m))
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	// A race-enabled process otherwise sleeps for a second before it exits.
	os.Setenv("GORACE", "atexit_sleep_ms=0")
	// Orphans become this process's children instead of init's.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	// The runtime opens its poller with the first pipe, and keeps it open.
	if r, w, err := os.Pipe(); err == nil {
		r.Close()
		w.Close()
	}
	before := countOpenFiles()
	// Most tests wait for processes and use no CPU time.
	_ = flag.Set("test.parallel", "8")
	code := m.Run()
	if err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil); err != unix.ECHILD {
		b, _ := os.ReadFile("/proc/self/task/" + strconv.Itoa(os.Getpid()) + "/children")
		for _, pid := range strings.Fields(string(b)) {
			args, _ := os.ReadFile("/proc/" + pid + "/cmdline")
			fmt.Fprintf(os.Stderr, "process %s is left behind: %q\n", pid, args)
		}
		code = 1
	}
	if after := countOpenFiles(); after > before {
		fmt.Fprintf(os.Stderr, "%d descriptors at the start, %d at the end\n", before, after)
		code = 1
	}
	return code
}

func countOpenFiles() int {
	entries, _ := os.ReadDir("/proc/self/fd")
	return len(entries)
}

// numberedLine returns a writer's n-th line: its length and content depend on the number.
func numberedLine(n int) string {
	text := strconv.Itoa(n)
	return text + " " + strings.Repeat(text[len(text)-1:], n*7919%990) + "\n"
}

// writeLines writes a number of bytes in numbered lines for each byte on stdin.
func writeLines(args []string) error {
	path, limit := args[0], args[1]
	bytes, err := strconv.Atoi(limit)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	w := bufio.NewWriterSize(f, 4096)
	total := 0
	for n, round := 0, 1; ; round++ {
		if _, err := os.Stdin.Read(make([]byte, 1)); err != nil {
			return w.Flush()
		}
		for ; total < round*bytes; n++ {
			m, err := w.WriteString(numberedLine(n))
			if err != nil {
				return err
			}
			total += m
		}
	}
}

// versionOf returns the protocol version in a program's arguments, or this program's version.
func versionOf(args []string) int {
	if len(args) == 0 {
		return collectorwire.ProtocolVersion
	}
	version, err := strconv.Atoi(args[0])
	if err != nil {
		panic(err)
	}
	return version
}

// agentMain is an agent that collects one task's output and waits to be killed. Its collector process has the
// protocol version in args.
func agentMain(args []string) error {
	run, dir, version := args[0], args[1], args[2:]
	k, err := keeper.ConnectOrStart(context.Background(), keeper.Config{DataDir: run, KeeperArgv: []string{"nomad-lite", "keeper"}})
	if err != nil {
		return err
	}
	c, err := New(Config{Keeper: k, DataDir: run, CollectorArgv: append([]string{"nomad-lite", "log-collector"}, version...), testProtocolVersion: versionOf(version)})
	if err != nil {
		return err
	}
	if _, _, err := c.Start(context.Background(), newTask(dir, StreamLimits{MaxFiles: 1000, MaxFileBytes: 1 << 20})); err != nil {
		return err
	}
	fmt.Println(k.Status().KeeperProcess.PID, c.LastProcess().PID)
	select {}
}

func newTask(dir string, limits StreamLimits) Task {
	return Task{AllocID: "a1", Name: "web", LogDir: dir, StdoutLimits: limits, StderrLimits: limits}
}

// fixture has a keeper, a collector and an allocation's log directory.
type fixture struct {
	t              *testing.T
	runDir, logDir string
	keeper         *keeper.Client
	wrapKeeper     func(*keeper.Client) keeperClient // nil: the CollectorClient uses keeper
	collector      *CollectorClient
}

func newFixture(t *testing.T, conf Config) *fixture {
	t.Helper()
	s := newEmptyFixture(t)
	s.newCollector(conf, true)
	return s
}

// newPersistentFixture is newFixture with a keeper that outlives its agent. The test must call
// makeKeeperEphemeral at its end.
func newPersistentFixture(t *testing.T, conf Config) *fixture {
	t.Helper()
	s := newEmptyFixture(t)
	s.newCollector(conf, false)
	return s
}

// makeKeeperEphemeral makes the keeper stop its processes when the current agent exits.
func (fi *fixture) makeKeeperEphemeral() {
	if err := fi.keeper.SetEphemeral(context.WithoutCancel(fi.t.Context())); err != nil {
		fi.t.Error(err)
	}
}

func newEmptyFixture(t *testing.T) *fixture {
	t.Helper()
	base := t.TempDir()
	s := &fixture{t: t, runDir: filepath.Join(base, "run"), logDir: filepath.Join(base, "alloc", "alloc", "logs")}
	if err := os.MkdirAll(s.logDir, 0o777); err != nil {
		t.Fatal(err)
	}
	return s
}

// newCollector creates the CollectorClient.
func (fi *fixture) newCollector(conf Config, ephemeral bool) {
	fi.t.Helper()
	k, err := keeper.ConnectOrStart(fi.t.Context(), keeper.Config{DataDir: fi.runDir, KeeperArgv: []string{"nomad-lite", "keeper"}, Ephemeral: ephemeral})
	if err != nil {
		fi.t.Fatal(err)
	}
	fi.keeper = k
	fi.t.Cleanup(func() { stopKeeper(fi.t, k) })
	if testing.Verbose() {
		conf.Logger = hclog.New(&hclog.LoggerOptions{Output: os.Stderr, Level: hclog.Trace, TimeFormat: "05.000"})
	}
	conf.Keeper, conf.DataDir, conf.CollectorArgv = k, fi.runDir, []string{"nomad-lite", "log-collector"}
	if fi.wrapKeeper != nil {
		conf.Keeper = fi.wrapKeeper(k)
	}
	c, err := New(conf)
	if err != nil {
		fi.t.Fatal(err)
	}
	fi.collector = c
	fi.t.Cleanup(func() { c.Close() })
}

// stopKeeper waits until a keeper and all its descendants have exited.
func stopKeeper(t *testing.T, k *keeper.Client) {
	if err := k.Close(); err != nil {
		t.Error(err)
	}
	_ = k.Status().KeeperProcess.Signal(unix.SIGTERM) // the keeper can have exited
	awaitProcessExit(t, k.Status().KeeperProcess)
}

func awaitProcessExit(t *testing.T, p osprocess.ID) {
	t.Helper()
	for end := time.Now().Add(time.Minute); p.Alive(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Errorf("process %d does not end", p.PID)
			_ = p.Signal(unix.SIGKILL) // the process can have exited meanwhile
			return
		}
	}
	_, _ = unix.Wait4(p.PID, nil, 0, nil)
}

func (fi *fixture) startTask(limits StreamLimits) (stdout, stderr string) {
	fi.t.Helper()
	stdout, stderr, err := fi.collector.Start(fi.t.Context(), newTask(fi.logDir, limits))
	if err != nil {
		fi.t.Fatal(err)
	}
	return stdout, stderr
}

func (fi *fixture) stopTask() {
	fi.t.Helper()
	if err := fi.collector.Stop(fi.t.Context(), "a1", "web", true); err != nil {
		fi.t.Fatal(err)
	}
}

// openFIFO opens a FIFO for writing, as a driver does.
func (fi *fixture) openFIFO(path string) *os.File {
	fi.t.Helper()
	// The descriptor is blocking, as a task's descriptor is, and not in Go's poller.
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		fi.t.Fatalf("open %s: %v", path, err)
	}
	f := os.NewFile(uintptr(fd), path)
	fi.t.Cleanup(func() { f.Close() })
	return f
}

func (fi *fixture) writeText(f *os.File, text string) {
	fi.t.Helper()
	if _, err := f.WriteString(text); err != nil {
		fi.t.Fatal(err)
	}
}

// readFiles returns a stream's file names and their concatenated content.
func (fi *fixture) readFiles(stream Stream) (names []string, all []byte) {
	fi.t.Helper()
	dir, err := OpenLogDir(fi.logDir)
	if err != nil {
		fi.t.Fatal(err)
	}
	defer unix.Close(dir)
	prefix := collectorwire.StreamKey{Task: "web", Stream: stream}.FilePrefix()
	list, err := collectorwire.ListFileIndexes(dir, prefix)
	if err != nil {
		fi.t.Fatal(err)
	}
	for _, index := range list {
		name := logfile.Name(prefix, index)
		names = append(names, name)
		b, err := os.ReadFile(filepath.Join(fi.logDir, name))
		if err != nil {
			fi.t.Fatal(err)
		}
		all = append(all, b...)
	}
	return names, all
}

// awaitOutput waits until the stream's files have the expected content.
func (fi *fixture) awaitOutput(stream Stream, want string) {
	fi.t.Helper()
	var got []byte
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if _, got = fi.readFiles(stream); string(got) == want {
			return
		}
	}
	fi.t.Fatalf("%s holds %.200q, want %.200q", stream, got, want)
}

// checkLines checks that b has a writer's lines, without a lost or doubled line, up to at least atLeast
// bytes.
func checkLines(t *testing.T, b []byte, atLeast int) {
	t.Helper()
	if len(b) < atLeast {
		t.Errorf("%d bytes arrived, want %d", len(b), atLeast)
	}
	n := 0
	for len(b) > 0 {
		want := numberedLine(n)
		if !bytes.HasPrefix(b, []byte(want)) {
			t.Fatalf("line %d is %.60q, want %.60q", n, b[:min(len(b), 60)], want)
		}
		b = b[len(want):]
		n++
	}
}
