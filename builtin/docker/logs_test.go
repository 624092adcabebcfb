package docker

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// logMessage is a message in the log of a fake engine.
type logMessage struct {
	stream int
	at     time.Time
	text   string
}

// encode returns the message as the engine sends it.
func (m logMessage) encode(tty bool) []byte {
	body := m.at.UTC().Format("2006-01-02T15:04:05.000000000Z07:00") + " " + m.text
	if tty {
		return []byte(body)
	}
	header := make([]byte, 8, 8+len(body))
	header[0] = byte(m.stream + 1)
	binary.BigEndian.PutUint32(header[4:], uint32(len(body)))
	return append(header, body...)
}

// logsHandler sends the messages from the first that is not older than the time of the
// request. It breaks off after a random number of bytes, except for a request that does not
// follow.
func logsHandler(messages []logMessage, tty bool, random *rand.Rand) http.HandlerFunc {
	var mu sync.Mutex
	return func(w http.ResponseWriter, r *http.Request) {
		var body bytes.Buffer
		since := requestedSince(r)
		first := slices.IndexFunc(messages, func(m logMessage) bool { return !m.at.Before(since) })
		for _, m := range messages[max(0, first):] {
			body.Write(m.encode(tty))
		}
		data := body.Bytes()
		if r.URL.Query().Get("follow") == "1" {
			mu.Lock()
			data = data[:random.IntN(len(data)+1)]
			mu.Unlock()
			w.Write(data)
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}
		w.Write(data)
	}
}

// requestedSince returns the time from which a request wants the log.
func requestedSince(r *http.Request) time.Time {
	text := r.URL.Query().Get("since")
	if text == "" {
		return time.Unix(0, 0)
	}
	var seconds, nanoseconds int64
	if _, err := fmt.Sscanf(text, "%d.%d", &seconds, &nanoseconds); err != nil {
		panic(err)
	}
	return time.Unix(seconds, nanoseconds)
}

// newPump returns a pump whose task has FIFOs, and functions that return what arrived in
// them.
func newPump(t *testing.T, d *Driver, tty bool) (newProcess func() *logPump, output [2]func() string) {
	t.Helper()
	start := newTestStart(t, map[string]any{"image": "app:1"})
	if err := os.MkdirAll(start.TaskDir(), 0o755); err != nil {
		t.Fatal(err)
	}
	start.StdoutPath, start.StderrPath = filepath.Join(start.AllocDir, "stdout"), filepath.Join(start.AllocDir, "stderr")
	for i, path := range []string{start.StdoutPath, start.StderrPath} {
		if err := unix.Mkfifo(path, 0o600); err != nil {
			t.Fatal(err)
		}
		// The reader is also a writer, so that the FIFO has no end while the pump is replaced.
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		var got bytes.Buffer
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = io.Copy(&got, f) // ends when the file is closed
		}()
		output[i] = func() string {
			if got := unixPending(t, f); got > 0 {
				t.Fatalf("%d bytes are not read", got)
			}
			f.Close()
			<-done
			return got.String()
		}
	}
	dir, err := os.OpenRoot(start.TaskDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dir.Close() })
	return func() *logPump {
		positions, err := openPositionFile(dir, "positions")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(positions.unmap)
		return &logPump{engine: d.engine, containerID: "c1", hasTTY: tty, start: start, positionFile: positions, bootTimeNanos: bootUnixNanos}
	}, output
}

// unixPending waits until a FIFO is empty, and returns what is left after a second.
func unixPending(t *testing.T, f *os.File) int {
	t.Helper()
	for deadline := time.Now().Add(time.Second); ; time.Sleep(time.Millisecond) {
		var pending int
		raw, err := f.SyscallConn()
		if err == nil {
			err = raw.Control(func(fd uintptr) { pending, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
		}
		if err != nil {
			t.Fatal(err)
		}
		if pending == 0 || time.Now().After(deadline) {
			return pending
		}
	}
}

// Output arrives once, although the engine's stream breaks off at any byte, the process is
// replaced at any time, messages have equal times, streams are not in order of time, and the
// clock is set forward and back.
func TestOutputArrivesOnce(t *testing.T) {
	for _, tty := range []bool{false, true} {
		t.Run(fmt.Sprintf("tty %v", tty), func(t *testing.T) {
			random := rand.New(rand.NewPCG(1, 2))
			var messages []logMessage
			var want [2]strings.Builder
			at := [2]time.Time{time.Unix(1700000000, 0), time.Unix(1700000000, 500)}
			for i := range 300 {
				stream := 0
				if !tty {
					stream = random.IntN(2)
				}
				if random.IntN(3) > 0 {
					at[stream] = at[stream].Add(time.Duration(random.IntN(1_000_000)))
				}
				if random.IntN(20) == 0 {
					step := time.Duration(random.IntN(20_000_000) - 10_000_000)
					at[0], at[1] = at[0].Add(step), at[1].Add(step)
				}
				text := fmt.Sprintf("%d %s\n", i, strings.Repeat("x", random.IntN(200)))
				if random.IntN(20) == 0 {
					text = fmt.Sprintf("%d %s\n", i, strings.Repeat("y", 3*maxAtomicWrite))
				}
				messages = append(messages, logMessage{stream, at[stream], text})
				want[stream].WriteString(text)
			}
			e := newFakeEngine(t)
			d := newTestDriver(t, e.host, nil)
			e.handle("GET /containers/c1/logs", logsHandler(messages, tty, rand.New(rand.NewPCG(3, 4))))
			newProcess, output := newPump(t, d, tty)
			for range 20 { // processes
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(random.IntN(20))*time.Millisecond)
				newProcess().copyUntilExit(ctx, func() bool { return false })
				cancel()
			}
			newProcess().copyUntilExit(t.Context(), func() bool { return true })
			for stream, got := range []string{output[0](), output[1]()} {
				if got != want[stream].String() {
					at := 0
					for at < len(got) && at < want[stream].Len() && got[at] == want[stream].String()[at] {
						at++
					}
					t.Errorf("stream %d differs at byte %d of %d, the engine has %d", stream, at, len(got), want[stream].Len())
				}
			}
		})
	}
}

// The clock is set back while the plugin is down, under an engine that leaves out each message that is older than the time of
// the request.
func TestOutputAfterClockWasSetBack(t *testing.T) {
	at := func(second int64) time.Time { return time.Unix(1700000000+second, 0) }
	messages := []logMessage{{0, at(10), "1\n"}, {0, at(30), "2\n"}}
	e := newFakeEngine(t)
	d := newTestDriver(t, e.host, nil)
	e.handle("GET /containers/c1/logs", func(w http.ResponseWriter, r *http.Request) {
		for _, m := range messages {
			if !m.at.Before(requestedSince(r)) {
				w.Write(m.encode(true))
			}
		}
	})
	newProcess, output := newPump(t, d, true) // a stream without messages would have no position, and the request no time
	boot := time.Duration(0)
	for range 2 {
		p := newProcess()
		p.bootTimeNanos = func() int64 { return int64(boot) }
		p.copyUntilExit(t.Context(), func() bool { return true })
		messages = append(messages, logMessage{0, at(18), "3\n"}, logMessage{0, at(31), "4\n"})
		boot -= 13 * time.Second
	}
	if got := output[0](); got != "1\n2\n3\n4\n" {
		t.Errorf("output %q", got)
	}
	output[1]()
}

// A log driver that cannot be read ends the copy, so that the task need not wait for it.
func TestUnreadableLog(t *testing.T) {
	e := newFakeEngine(t)
	d := newTestDriver(t, e.host, nil)
	e.handle("GET /containers/c1/logs", reply(http.StatusNotImplemented, map[string]any{"message": "configured logging driver does not support reading"}))
	newProcess, _ := newPump(t, d, false)
	newProcess().copyUntilExit(t.Context(), func() bool { return false })
	if n := e.count("GET /containers/c1/logs"); n != 1 {
		t.Errorf("the log was requested %d times, want 1", n)
	}
}

func TestPositionsSurviveProcess(t *testing.T) {
	dir, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	want := [2]streamPosition{{MessageTimeNanos: 1, WrittenMessagesAtTime: 2, WrittenBytesOfNextMessage: 3}, {MessageTimeNanos: 4}}
	first, err := openPositionFile(dir, "p")
	if err != nil {
		t.Fatal(err)
	}
	for stream, position := range want {
		first.storePosition(stream, streamPosition{MessageTimeNanos: 99})
		first.storePosition(stream, position)
	}
	// The first mapping stays, like the mapping of a process that was killed.
	second, err := openPositionFile(dir, "p")
	if err != nil {
		t.Fatal(err)
	}
	for stream := range want {
		if got := second.loadPosition(stream); got != want[stream] {
			t.Errorf("stream %d: %+v, want %+v", stream, got, want[stream])
		}
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(dir.Name(), "link")); err != nil {
		t.Fatal(err)
	}
	if _, err := openPositionFile(dir, "link"); err == nil {
		t.Error("a link to a file outside of the directory was opened")
	}
}
