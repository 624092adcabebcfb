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
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs/collectorwire"
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
		conn, err := net.DialUnix(socketNetwork, nil, &net.UnixAddr{Net: socketNetwork, Name: filepath.Join(helperdir.SocketDir(s.runDir), collectorwire.SocketName)})
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
		return conn, framing.NewConn(conn, framing.Limits{MaxSize: 1 << 20, MaxDescriptors: collectorwire.MaxMessageFDs})
	}
	hello := framing.NewHello(framing.RoleAgent, collectorwire.ProtocolVersion)
	for name, in := range map[string]any{
		"another JSON": []int{1},
		"wrong types":  map[string]any{"Op": 1, "Version": "x"},
		"too large":    map[string]any{"Op": strings.Repeat("x", collectorwire.MessageLimits.MaxSize)},
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
			if _, err := conn.Receive(&collectorwire.Message{}); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%s: %v; want the end of the connection", name, err)
			}
			conn.Close()
		}
	}
	limits := StreamLimits{MaxFiles: 1, MaxFileBytes: 1}
	start := func(task string, limits map[Stream]StreamLimits) collectorwire.Message {
		return collectorwire.Message{Op: collectorwire.OpStart, StreamKey: collectorwire.StreamKey{AllocID: "a", Task: task}, Limits: limits}
	}
	for name, in := range map[string]collectorwire.Message{
		"an operation that nobody knows":     {Op: "reboot"},
		"a start with no FIFO":               start("b", map[Stream]StreamLimits{Stdout: limits}),
		"a start without a stream":           start("b", nil),
		"more streams than descriptors":      start("b", map[Stream]StreamLimits{Stdout: limits, Stderr: limits}),
		"a name that leaves the directory":   start("../b", map[Stream]StreamLimits{Stdout: limits}),
		"a stream that leaves the directory": start("b", map[Stream]StreamLimits{"/../../c": limits}),
		"limits without room":                start("b", map[Stream]StreamLimits{Stdout: {}}),
	} {
		_, conn := connect()
		if _, err := conn.ExchangeHello(t.Context(), hello); err != nil {
			t.Fatal(err)
		}
		in.ID = 7
		if err := conn.Send(in, null, null); err != nil {
			t.Fatal(err)
		}
		var reply collectorwire.Message
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
	subscribe, err := collectorwire.MessageLimits.Encode(collectorwire.Message{Op: collectorwire.OpSubscribe, StreamKey: collectorwire.StreamKey{AllocID: "a1", Task: "web", Stream: Stdout}, FileIndex: -1})
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
