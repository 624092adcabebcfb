package collector

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs/collectorwire"
)

func FuzzRequests(f *testing.F) {
	k := collectorwire.StreamKey{AllocID: "a1", Task: "web", Stream: collectorwire.Stdout}
	for _, m := range []collectorwire.Message{
		{Op: collectorwire.OpStart, ID: 2, StreamKey: k, Limits: map[collectorwire.Stream]collectorwire.StreamLimits{collectorwire.Stdout: {MaxFiles: 2, MaxFileBytes: 3}}},
		{Op: collectorwire.OpStart, ID: 2, StreamKey: k, Limits: map[collectorwire.Stream]collectorwire.StreamLimits{collectorwire.Stdout: {MaxFiles: 2, MaxFileBytes: 3}, collectorwire.Stderr: {}}},
		{Op: collectorwire.OpStop, ID: 3, StreamKey: k, GraceMillis: 5}, {Op: collectorwire.OpSubscribe, StreamKey: k, FileIndex: 1, FileOffset: 2}, {Op: collectorwire.OpReply, ID: 1},
	} {
		b, err := json.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, b)
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, first, second []byte) {
		listen, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		p, err := newServer(collectorwire.Setup{LingerTimeout: time.Minute}, nil, listen, collectorwire.ProtocolVersion)
		if err != nil {
			t.Fatal(err)
		}
		defer p.close()
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(pair[1])
		client := newAgentConn(pair[0])
		p.agentsByFD[int32(pair[0])] = client
		for _, b := range [][]byte{first, second} {
			m := &collectorwire.Message{}
			if json.Unmarshal(b, m) != nil {
				continue
			}
			m.StreamKey.Task = "web" // one task name avoids thousands of files in one directory
			for stream, limits := range m.Limits {
				limits.MaxFiles = min(limits.MaxFiles, 4)
				m.Limits[stream] = limits
			}
			var fds []int
			for range min(max(len(m.Limits), 1), collectorwire.MaxMessageFDs-1) {
				fifo := make([]int, 2)
				if err := unix.Pipe2(fifo, unix.O_CLOEXEC); err != nil {
					t.Fatal(err)
				}
				_, _ = unix.Write(fifo[1], b[:min(len(b), 4096)])
				unix.Close(fifo[1])
				fds = append(fds, fifo[0])
			}
			d, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			p.executeRequest(client, m, append(fds, d))
			for e := range p.readyStreams {
				p.moveOutputAndReplyToStops(e, time.Now())
			}
			p.epollTimeoutMillis()
		}
	})
}

// testTask is a task with two streams in a server.
type testTask struct {
	server         *collectorServer
	dir            string
	stdout, stderr *os.File // the FIFOs' write ends
}

func (t *testTask) key(stream collectorwire.Stream) collectorwire.StreamKey {
	return collectorwire.StreamKey{AllocID: "a1", Task: "web", Stream: stream}
}

// newFIFO returns a FIFO's read end, and its write end as a file.
func newFIFO(tb testing.TB) (readEnd int, w *os.File) {
	tb.Helper()
	fifo := make([]int, 2)
	if err := unix.Pipe2(fifo, unix.O_CLOEXEC); err != nil {
		tb.Fatal(err)
	}
	w = os.NewFile(uintptr(fifo[1]), "fifo")
	tb.Cleanup(func() { unix.Close(fifo[0]); w.Close() })
	return fifo[0], w
}

// start sends the server the streams with the given read ends.
func (t *testTask) start(tb testing.TB, readEnds map[collectorwire.Stream]int) error {
	tb.Helper()
	m := &collectorwire.Message{StreamKey: t.key(""), Limits: make(map[collectorwire.Stream]collectorwire.StreamLimits)}
	var fds []int
	for _, stream := range slices.Sorted(maps.Keys(readEnds)) {
		m.Limits[stream] = collectorwire.StreamLimits{MaxFiles: 3, MaxFileBytes: 1 << 20}
		dup, err := unix.FcntlInt(uintptr(readEnds[stream]), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			tb.Fatal(err)
		}
		fds = append(fds, dup)
	}
	d, err := unix.Open(t.dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		tb.Fatal(err)
	}
	return t.server.startStreams(m, append(fds, d))
}

func (t *testTask) mustStart(tb testing.TB, readEnds map[collectorwire.Stream]int) {
	tb.Helper()
	if err := t.start(tb, readEnds); err != nil {
		tb.Fatal(err)
	}
}

// turn moves all streams' output, and checks for idle files, at the given time.
func (t *testTask) turn(now time.Time) {
	for _, e := range t.server.streamByKey {
		t.server.moveOutputAndReplyToStops(e, now)
	}
	t.server.closeIdleFiles(now)
}

func newTestTask(t *testing.T) (task *testTask, readEnds map[collectorwire.Stream]int) {
	t.Helper()
	listen, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	server, err := newServer(collectorwire.Setup{LingerTimeout: time.Minute}, nil, listen, collectorwire.ProtocolVersion)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.close)
	task = &testTask{server: server, dir: t.TempDir()}
	readEnds = make(map[collectorwire.Stream]int)
	readEnds[collectorwire.Stdout], task.stdout = newFIFO(t)
	readEnds[collectorwire.Stderr], task.stderr = newFIFO(t)
	task.mustStart(t, readEnds)
	return task, readEnds
}

// countOpenUnder returns how many of this process's descriptors refer to the directory or to files in it.
func countOpenUnder(t *testing.T, dir string) (n int) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if target, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && (target == dir || strings.HasPrefix(target, dir+"/")) {
			n++
		}
	}
	return n
}

// A writer that fills its FIFO while it is drained gets no more than its share while other streams are ready.
func TestReadyStreamsShareATurn(t *testing.T) {
	task, _ := newTestTask(t)
	e := task.server.streamByKey[task.key(collectorwire.Stdout)]
	if _, err := unix.FcntlInt(task.stdout.Fd(), unix.F_SETPIPE_SZ, largePipeSize); err != nil {
		t.Fatal(err)
	}
	if _, err := task.stdout.Write(make([]byte, largePipeSize)); err != nil {
		t.Fatal(err)
	}
	for range 100 {
		task.server.readyStreams[new(serverStream)] = true
	}
	for turn := range 3 {
		task.server.moveOutputAndReplyToStops(e, time.Now())
		if want := int64(turn+1) * minDrainBytes; e.fifoReadBytes != want || !task.server.readyStreams[e] {
			t.Fatalf("%d bytes after turn %d, want %d; ready: %v", e.fifoReadBytes, turn, want, task.server.readyStreams[e])
		}
	}
	task.server.readyStreams = map[*serverStream]bool{e: true}
	task.server.moveOutputAndReplyToStops(e, time.Now())
	if e.fifoReadBytes != largePipeSize || task.server.readyStreams[e] {
		t.Fatalf("%d bytes when no other stream is ready, want %d; ready: %v", e.fifoReadBytes, largePipeSize, task.server.readyStreams[e])
	}
}

func TestStreamWithoutOutputClosesItsFile(t *testing.T) {
	task, _ := newTestTask(t)
	e := task.server.streamByKey[task.key(collectorwire.Stdout)]
	log := filepath.Join(task.dir, "web.stdout.0")
	write := func(text string) {
		t.Helper()
		if _, err := task.stdout.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	want := func(when string, descriptors int, output string) {
		t.Helper()
		if got := countOpenUnder(t, task.dir); got != descriptors {
			t.Errorf("%s: %d descriptors of the log directory and its files, want %d", when, got, descriptors)
		}
		if b, err := os.ReadFile(log); err != nil || string(b) != output {
			t.Errorf("%s: the log has %q (%v), want %q", when, b, err, output)
		}
	}
	now := time.Now()
	write("a\n")
	task.turn(now)
	want("after output", 3, "a\n")
	task.server.closeIdleFiles(now.Add(fileIdleTimeout))
	want("after the first check", 3, "a\n")
	write("b\n")
	task.server.moveOutputAndReplyToStops(e, now.Add(fileIdleTimeout))
	task.server.closeIdleFiles(now.Add(2 * fileIdleTimeout))
	want("when only stderr had no output", 2, "a\nb\n")
	task.server.closeIdleFiles(now.Add(3 * fileIdleTimeout))
	want("without output", 1, "a\nb\n")
	if timeout := task.server.epollTimeoutMillis(); len(task.server.readyStreams) > 0 && timeout != 0 {
		t.Errorf("timeout %d with ready streams", timeout)
	}
	if !task.server.nextFileCheck.IsZero() {
		t.Error("the server checks for files although none is open")
	}
	write("c\n")
	task.server.moveOutputAndReplyToStops(e, now.Add(4*fileIdleTimeout))
	want("after further output", 2, "a\nb\nc\n")
}

func TestClosedFileThatWasReplacedIsNotWritten(t *testing.T) {
	task, _ := newTestTask(t)
	now := time.Now()
	task.turn(now)
	task.server.closeIdleFiles(now.Add(fileIdleTimeout))
	task.server.closeIdleFiles(now.Add(2 * fileIdleTimeout))
	target := filepath.Join(t.TempDir(), "secret")
	log := filepath.Join(task.dir, "web.stdout.0")
	if err := errors.Join(os.WriteFile(target, []byte("secret"), 0o600), os.Remove(log), os.Symlink(target, log)); err != nil {
		t.Fatal(err)
	}
	if _, err := task.stdout.WriteString("a\n"); err != nil {
		t.Fatal(err)
	}
	task.turn(now.Add(3 * fileIdleTimeout))
	if b, err := os.ReadFile(target); err != nil || string(b) != "secret" {
		t.Errorf("the file that the task has linked has %q (%v)", b, err)
	}
	if b, err := os.ReadFile(filepath.Join(task.dir, "web.stdout.1")); err != nil || string(b) != "a\n" {
		t.Errorf("the next file has %q (%v)", b, err)
	}
}

func TestStreamKeepsFileWhileFileSystemRejectsOutput(t *testing.T) {
	task, _ := newTestTask(t)
	now := time.Now()
	task.turn(now)
	e := task.server.streamByKey[task.key(collectorwire.Stdout)]
	e.recordFailure(unix.ENOSPC, now)
	for i := range 3 {
		task.server.closeIdleFiles(now.Add(time.Duration(i+1) * fileIdleTimeout))
	}
	if e.fileFD < 0 {
		t.Error("the file is closed")
	}
	if other := task.server.streamByKey[task.key(collectorwire.Stderr)]; other.fileFD >= 0 {
		t.Error("the file of the other stream is open")
	}
}

func TestStreamsOfTaskShareLogDir(t *testing.T) {
	task, readEnds := newTestTask(t)
	onlyStdout := map[collectorwire.Stream]int{collectorwire.Stdout: readEnds[collectorwire.Stdout]}
	se := task.server
	stdout, stderr := se.streamByKey[task.key(collectorwire.Stdout)], se.streamByKey[task.key(collectorwire.Stderr)]
	want := func(when string, descriptors int) {
		t.Helper()
		if got := countOpenUnder(t, task.dir); got != descriptors {
			t.Errorf("%s: %d descriptors of the log directory, want %d", when, got, descriptors)
		}
	}
	want("at first", 1)
	task.mustStart(t, readEnds)
	want("when the task was started again", 1)
	former := task.dir
	task.dir = t.TempDir()
	task.mustStart(t, onlyStdout)
	want("with another directory for one stream", 1)
	if got := countOpenUnder(t, former); got != 1 {
		t.Errorf("the other stream has %d descriptors of the former directory, want 1", got)
	}
	null, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(null)
	if err := task.start(t, map[collectorwire.Stream]int{collectorwire.Stdout: null}); err == nil {
		t.Error("a stream was started without a FIFO")
	}
	want("after a start that was rejected", 1)
	if err := task.start(t, map[collectorwire.Stream]int{collectorwire.Stdout: onlyStdout[collectorwire.Stdout], collectorwire.Stderr: null}); err == nil {
		t.Error("a stream was started without a FIFO")
	}
	want("after a start of which half was rejected", 1)
	if err := unix.Fstat(stdout.logDirFD, new(unix.Stat_t)); err != nil {
		t.Errorf("directory of the accepted stream: %v", err)
	}
	task.dir = former
	task.mustStart(t, readEnds)
	want("when both streams have the former directory", 1)
	se.removeStream(stdout, "")
	want("when one stream has ended", 1)
	if err := unix.Fstat(stderr.logDirFD, new(unix.Stat_t)); err != nil {
		t.Errorf("directory of the other stream: %v", err)
	}
	se.removeStream(stderr, "")
	want("when both streams have ended", 0)
}
