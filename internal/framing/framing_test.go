package framing

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/internal/osprocess/processtest"
)

var testLimits = Limits{MaxSize: 1 << 20, MaxDescriptors: 2}

// socketPair returns the two ends of a connection.
func socketPair(t testing.TB) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ends := make([]*net.UnixConn, 2)
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socket")
		conn, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		ends[i] = conn.(*net.UnixConn)
		t.Cleanup(func() { conn.Close() })
	}
	return ends[0], ends[1]
}

func frame(body string) string {
	return string(binary.BigEndian.AppendUint32(nil, uint32(len(body)))) + body
}

func countDescriptors(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

type testMessage struct {
	ID   int
	Text string `json:",omitempty"`
}

func TestReceive(t *testing.T) {
	for _, tt := range []struct {
		name, in string
		want     testMessage
		err      string // part of the error
	}{
		{"a message is decoded", frame(`{"ID":1,"Text":"a"}`), testMessage{1, "a"}, ""},
		{"unknown fields are ignored", frame(`{"ID":1,"Later":{"A":[1]}}`), testMessage{1, ""}, ""},
		{"a long message is decoded", frame(`{"Text":"` + strings.Repeat("x", 100_000) + `"}`), testMessage{0, strings.Repeat("x", 100_000)}, ""},
		{"the end between messages is an end", "", testMessage{}, "EOF"},
		{"the end within a header is not", "\x00\x00", testMessage{}, "unexpected EOF"},
		{"the end within a message is not", frame(`{"ID":1}`)[:7], testMessage{}, "unexpected EOF"},
		{"a message over the limit is rejected", "\xff\xff\xff\xff", testMessage{}, "over the limit"},
		{"an empty message is rejected", frame(""), testMessage{}, "unexpected end of JSON"},
		{"a message that is no object is rejected", frame(`[1]`), testMessage{}, "cannot unmarshal"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, b := socketPair(t)
			go func() {
				_, _ = a.Write([]byte(tt.in)) // Write fails when the receiver rejects the message
				a.CloseWrite()
			}()
			var got testMessage
			_, err := NewConn(b, testLimits).Receive(&got)
			if got != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("got %.60v, %v; want %.60v, %s", got, err, tt.want, tt.err)
			}
		})
	}
}

// A message in pieces of one byte is complete after its last byte, and its descriptors belong to it
// and not to the message before it.
func TestReceiveNow(t *testing.T) {
	a, b := socketPair(t)
	raw, err := b.File()
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	r := NewReceiver(testLimits)
	first, second := frame(`{"ID":1}`), frame(`{"ID":2}`)
	for i, c := range []byte(first) {
		if _, err := r.ReceiveNow(int(raw.Fd()), &testMessage{}); !errors.Is(err, unix.EAGAIN) {
			t.Fatalf("after %d bytes: %v", i, err)
		}
		if _, err := a.Write([]byte{c}); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := a.WriteMsgUnix([]byte(second), unix.UnixRights(int(raw.Fd())), nil); err != nil {
		t.Fatal(err)
	}
	for want := 1; want <= 2; want++ {
		var got testMessage
		fds, err := r.ReceiveNow(int(raw.Fd()), &got)
		if err != nil || got.ID != want || len(fds) != want-1 {
			t.Errorf("message %d: %+v with %d descriptors, %v", want, got, len(fds), err)
		}
		CloseAll(fds)
	}
}

// The descriptors of a message that is rejected, or that does not come as a whole, are closed.
func TestDescriptorsOfRejectedMessages(t *testing.T) {
	for name, tt := range map[string]struct {
		in  string
		fds int
	}{
		"no JSON":              {frame("hello"), 2},
		"an incomplete one":    {frame("{}")[:5], 1},
		"too long":             {"\xff\xff\xff\xff", 1},
		"too many descriptors": {frame("{}"), 7},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := socketPair(t)
			before := countDescriptors(t)
			if _, _, err := a.WriteMsgUnix([]byte(tt.in), unix.UnixRights(make([]int, tt.fds)...), nil); err != nil {
				t.Fatal(err)
			}
			a.CloseWrite()
			if fds, err := NewConn(b, testLimits).Receive(&testMessage{}); err == nil || len(fds) > 0 {
				t.Errorf("%d descriptors, %v", len(fds), err)
			}
			if after := countDescriptors(t); after != before {
				t.Errorf("%d descriptors before, %d after", before, after)
			}
		})
	}
}

// A process without free descriptors gets the message and an error, and the connection stays.
func TestNoFreeDescriptors(t *testing.T) {
	a, b := socketPair(t)
	client, server := NewConn(a, testLimits), NewConn(b, testLimits)
	if err := errors.Join(client.Send(testMessage{ID: 1}, 0, 0), client.Send(testMessage{ID: 2}, 0)); err != nil {
		t.Fatal(err)
	}
	restore := processtest.LimitDescriptors(t, 1)
	var got testMessage
	_, err := server.Receive(&got)
	restore()
	if !errors.Is(err, ErrNoFreeDescriptors) || !osprocess.IsResourceExhausted(fmt.Errorf("receive: %w", err)) || got.ID != 1 {
		t.Errorf("got %+v, %v", got, err)
	}
	fds, err := server.Receive(&got)
	CloseAll(fds)
	if err != nil || got.ID != 2 || len(fds) != 1 {
		t.Errorf("the next message: %+v with %d descriptors, %v", got, len(fds), err)
	}
}

// Memory is not allocated for bytes that the header announces and that do not come.
func TestMemoryOfAnnouncedBytes(t *testing.T) {
	r := NewReceiver(Limits{MaxSize: 4 << 20})
	r.header = binary.BigEndian.AppendUint32(r.header, 4<<20)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 10 {
		if _, err := r.nextReadBuffer(); err != nil {
			t.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	if per := (after.TotalAlloc - before.TotalAlloc) / 10; per > 64<<10 {
		t.Errorf("%d bytes for an empty body", per)
	}
}

func TestSendOverTheLimits(t *testing.T) {
	a, b := socketPair(t)
	conn := NewConn(a, testLimits)
	for _, err := range []error{conn.Send(testMessage{Text: strings.Repeat("x", testLimits.MaxSize)}), conn.Send(testMessage{}, 0, 0, 0), conn.Send(func() {})} {
		if err == nil || errors.Is(err, ErrDown) {
			t.Errorf("got %v, want an error of the message", err)
		}
	}
	var got testMessage
	if err := conn.Send(testMessage{ID: 3}); err != nil {
		t.Fatal(err)
	}
	if _, err := NewConn(b, testLimits).Receive(&got); err != nil || got.ID != 3 {
		t.Errorf("the connection is unusable after a rejected message: %+v, %v", got, err)
	}
	b.Close()
	if err := conn.Send(testMessage{}); !errors.Is(err, ErrDown) {
		t.Errorf("got %v, want %v", err, ErrDown)
	}
}

// The form of a hello message is the same in all versions. This test must not be changed.
func TestHelloForm(t *testing.T) {
	const text = `{"Version":7,"Build":"v1.2.3 abc","Role":"Keeper","Process":{"PID":11,"StartTime":22}}`
	hello := Hello{Version: 7, Build: "v1.2.3 abc", Role: RoleKeeper, Process: osprocess.ID{PID: 11, StartTime: 22}}
	if sent, err := testLimits.Encode(hello); err != nil || string(sent) != frame(text) {
		t.Errorf("sent as %q, %v; want %q", sent, err, frame(text))
	}
	a, b := socketPair(t)
	if _, err := a.Write([]byte(frame(strings.Replace(text, "{", `{"Later":true,`, 1)))); err != nil {
		t.Fatal(err)
	}
	var got Hello
	if _, err := NewConn(b, testLimits).Receive(&got); err != nil || got != hello {
		t.Errorf("received as %+v, %v; want %+v", got, err, hello)
	}
}

func TestExchangeHello(t *testing.T) {
	t.Run("both sides get the hello of the other", func(t *testing.T) {
		a, b := socketPair(t)
		server := NewConn(b, testLimits)
		received := make(chan Hello)
		go func() {
			var h Hello
			_, _ = server.Receive(&h)
			_ = server.Send(NewHello(RoleKeeper, 2))
			received <- h
		}()
		got, err := NewConn(a, testLimits).ExchangeHello(t.Context(), NewHello(RolePlugin, 3))
		if err != nil || got.Role != RoleKeeper || got.Version != 2 || got.Build == "" {
			t.Errorf("got %+v, %v", got, err)
		}
		if h := <-received; h.Role != RolePlugin || h.Version != 3 {
			t.Errorf("the server got %+v", h)
		}
	})
	t.Run("the context ends the wait", func(t *testing.T) {
		a, _ := socketPair(t)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if _, err := NewConn(a, testLimits).ExchangeHello(ctx, NewHello(RoleAgent, 1)); err == nil {
			t.Error("no error")
		}
	})
	t.Run("the end of the connection ends the wait", func(t *testing.T) {
		a, b := socketPair(t)
		b.CloseWrite()
		if _, err := NewConn(a, testLimits).ExchangeHello(t.Context(), NewHello(RoleAgent, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("got %v", err)
		}
	})
}

func FuzzReceive(f *testing.F) {
	f.Add([]byte(frame(`{"ID":1}`)), 3)
	f.Add([]byte{0, 0, 0, 4, 'a'}, 1)
	f.Add([]byte{0xff, 0xff, 0xff, 0xff}, 1)
	f.Fuzz(func(t *testing.T, in []byte, piece int) {
		piece = max(1, min(piece, 1000))
		rest := in
		r := NewReceiver(testLimits)
		var got any
		_, err := r.receive(func(p, _ []byte) (n, oobn, flags int, err error) {
			n = copy(p, rest[:min(piece, len(rest))])
			rest = rest[n:]
			return n, 0, 0, nil
		}, &got)
		if err != nil {
			return
		}
		used := in[:len(in)-len(rest)]
		if !bytes.HasPrefix(used, binary.BigEndian.AppendUint32(nil, uint32(len(used)-headerSize))) {
			t.Errorf("%q was read as a message", used)
		}
	})
}

// The build in a hello message is that of debug.ReadBuildInfo, which this package does not call.
func TestBuildVersion(t *testing.T) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		t.Fatal("the test has no build information")
	}
	want := cmp.Or(info.Main.Version, "(devel)")
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			want += " " + s.Value
		}
	}
	if got := parseBuildVersion(buildInfo()); got != want {
		t.Errorf("build is %q, want %q", got, want)
	}
	const released = "0123456789abcdefpath\texample.org/p\nmod\texample.org\tv1.2.3\th1:sum=\ndep\texample.com\tv9.9.9\th1:sum=\nbuild\tvcs.revision=abc\nbuild\tvcs.modified=false\n0123456789abcdef"
	if got := parseBuildVersion(released); got != "v1.2.3 abc" {
		t.Errorf("build of a release is %q", got)
	}
}
