package logs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/framing"
	"github.com/nomad-lite/nomad-lite/internal/logfile"
	"github.com/nomad-lite/nomad-lite/plugins/host/helperdir"
)

// The collector cannot start programs, and the thread that reads task output has only one
// capability.
func TestCollectorHasFewPrivileges(t *testing.T) {
	t.Parallel()
	s := newFixture(t, Config{})
	s.startTask(StreamLimits{MaxFiles: 3, MaxFileBytes: 1 << 20})
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", s.collector.LastProcess().PID))
	if err != nil || len(threads) == 0 {
		t.Fatalf("threads: %v, %v", threads, err)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var own [2]unix.CapUserData // capabilities of this process: root does not always have all of them
	if err := unix.Capget(&header, &own[0]); err != nil {
		t.Fatal(err)
	}
	want := fmt.Appendf(nil, "\nCapPrm:\t%016[1]x\nCapEff:\t%016[1]x\n", own[0].Permitted&(1<<unix.CAP_SYS_RESOURCE))
	few := 0
	for _, path := range threads {
		status, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue // the thread has exited
		}
		if err != nil {
			t.Fatal(err)
		}
		if runtime.GOARCH == "amd64" && (!bytes.Contains(status, []byte("\nSeccomp:\t2\n")) || !bytes.Contains(status, []byte("\nNoNewPrivs:\t1\n"))) {
			t.Errorf("a thread of the collector has no filter of system calls:\n%s", status)
		}
		if bytes.Contains(status, want) {
			few++
		}
	}
	if os.Geteuid() == 0 && few != 1 {
		t.Errorf("%d of %d threads of the collector have at most CAP_SYS_RESOURCE, want 1", few, len(threads))
	}
	s.stopTask()
}

// A client with the same user id sends arbitrary messages; the collector continues, and keeps none
// of the client's descriptors.
func TestHostileClients(t *testing.T) {
	t.Parallel()
	s := newFixture(t, Config{})
	stdout, _ := s.startTask(StreamLimits{MaxFiles: 3, MaxFileBytes: 1 << 20})
	out := s.openFIFO(stdout)
	for _, name := range []string{"web.stdout.0", "web.stderr.0"} { // the files are made after Start has returned
		for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			if _, err := os.Stat(filepath.Join(s.logDir, name)); err == nil {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%s does not come", name)
			}
		}
	}
	first := s.collector.LastProcess()
	open := func() int {
		entries, err := os.ReadDir(filepath.Join("/proc", jsonText(t, first.PID), "fd"))
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	before := open()
	null, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(null)
	connect := func() (*net.UnixConn, *framing.Conn) {
		conn, err := net.DialUnix(socketNetwork, nil, &net.UnixAddr{Net: socketNetwork, Name: filepath.Join(helperdir.SocketDir(s.runDir), socketName)})
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
		return conn, framing.NewConn(conn, framing.Limits{MaxSize: 1 << 20, MaxDescriptors: maxMessageFDs})
	}
	hello := framing.NewHello(framing.RoleAgent, protocolVersion)
	for name, in := range map[string]any{
		"another JSON": []int{1},
		"wrong types":  map[string]any{"Op": 1, "Version": "x"},
		"too large":    map[string]any{"Op": strings.Repeat("x", messageLimits.MaxSize)},
	} {
		for _, greeted := range []bool{false, true} {
			_, conn := connect()
			if greeted {
				if _, err := conn.ExchangeHello(t.Context(), hello); err != nil {
					t.Fatal(err)
				}
			}
			if err := conn.Send(in, null, null); err != nil {
				t.Fatal(err)
			}
			if _, err := conn.Receive(&message{}); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%s: %v; want the end of the connection", name, err)
			}
			conn.Close()
		}
	}
	limits := StreamLimits{MaxFiles: 1, MaxFileBytes: 1}
	for name, in := range map[string]message{
		"an operation that nobody knows":     {Op: "reboot"},
		"a start with no FIFO":               {Op: opStart, StreamKey: streamKey{"a", "b", Stdout}, Limits: limits},
		"a name that leaves the directory":   {Op: opStart, StreamKey: streamKey{"a", "../b", Stdout}, Limits: limits},
		"a stream that leaves the directory": {Op: opStart, StreamKey: streamKey{"a", "b", "/../../c"}, Limits: limits},
		"limits without room":                {Op: opStart, StreamKey: streamKey{"a", "b", Stdout}},
	} {
		_, conn := connect()
		if _, err := conn.ExchangeHello(t.Context(), hello); err != nil {
			t.Fatal(err)
		}
		in.ID = 7
		if err := conn.Send(in, null, null); err != nil {
			t.Fatal(err)
		}
		var reply message
		if _, err := conn.Receive(&reply); err != nil || reply.ID != 7 || reply.Error == "" {
			t.Errorf("%s: %+v, %v", name, reply, err)
		}
		conn.Close()
	}
	// A client subscribes to a stream repeatedly and never reads.
	socket, deaf := connect()
	defer deaf.Close()
	if _, err := deaf.ExchangeHello(t.Context(), hello); err != nil {
		t.Fatal(err)
	}
	subscribe, err := messageLimits.Encode(message{Op: opSubscribe, StreamKey: streamKey{"a1", "web", Stdout}, FileIndex: -1})
	if err != nil {
		t.Fatal(err)
	}
	want := ""
	for range 3000 {
		if _, err := socket.Write(subscribe); err != nil {
			break
		}
		s.writeText(out, "line\n")
		want += "line\n"
	}
	s.awaitOutput(Stdout, want)
	deaf.Close()
	for end := time.Now().Add(time.Minute); open() > before; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the collector had %d descriptors and has %d", before, open())
		}
	}
	if now := s.collector.LastProcess(); now != first {
		t.Error("the collector was replaced")
	}
}

func jsonText(t *testing.T, v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func FuzzRequests(f *testing.F) {
	k := streamKey{"a1", "web", Stdout}
	for _, m := range []message{
		{Op: opStart, ID: 2, StreamKey: k, Limits: StreamLimits{MaxFiles: 2, MaxFileBytes: 3}},
		{Op: opStop, ID: 3, StreamKey: k, GraceMillis: 5}, {Op: opSubscribe, StreamKey: k, FileIndex: 1, FileOffset: 2}, {Op: opReply, ID: 1},
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
		p, err := newServer(processSetup{LingerTimeout: time.Minute}, nil, listen, protocolVersion)
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
			m := &message{}
			if json.Unmarshal(b, m) != nil {
				continue
			}
			m.StreamKey.Task = "web" // one task name avoids thousands of files in one directory
			m.Limits.MaxFiles = min(m.Limits.MaxFiles, 4)
			fifo := make([]int, 2)
			if err := unix.Pipe2(fifo, unix.O_CLOEXEC); err != nil {
				t.Fatal(err)
			}
			_, _ = unix.Write(fifo[1], b[:min(len(b), 4096)])
			unix.Close(fifo[1])
			d, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			p.executeRequest(client, m, []int{fifo[0], d})
			for e := range p.readyStreams {
				p.moveOutputAndReplyToStops(e, time.Now())
			}
			p.epollTimeoutMillis()
		}
	})
}

func FuzzParseIndex(f *testing.F) {
	f.Add("web.stdout.0")
	f.Add("web.stdout.007")
	f.Add("web.stdout.18446744073709551616")
	f.Fuzz(func(t *testing.T, name string) {
		n, ok := logfile.Index(name, "web.stdout.")
		if ok && (n < 0 || logfile.Name("web.stdout.", n) != name) {
			t.Errorf("%q is read as %d", name, n)
		}
	})
}
