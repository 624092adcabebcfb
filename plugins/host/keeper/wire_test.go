package keeper

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/framing"
	"github.com/nomad-lite/nomad-lite/internal/memtrim"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
)

func newFrame(body string) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
}

// introduce exchanges the hello messages on a connection, as an agent.
func introduce(t *testing.T, socket *net.UnixConn) {
	t.Helper()
	if _, err := framing.NewConn(socket, messageLimits).ExchangeHello(t.Context(), framing.NewHello(framing.RoleAgent, protocolVersion)); err != nil {
		t.Fatal(err)
	}
}

// Invalid input from a client does not end the keeper, and the keeper closes the received
// descriptors.
func TestHostileClients(t *testing.T) {
	t.Parallel()
	c := startClient(t, Config{Ephemeral: true})
	open := func() int {
		entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", c.Status().KeeperProcess.PID))
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	connect := func() *net.UnixConn {
		conn, err := c.dialKeeper()
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	before := open()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	many := make([]int, 200)
	for i := range many {
		many[i] = int(null.Fd())
	}

	t.Run("garbage ends the connection", func(t *testing.T) {
		for name, in := range map[string][]byte{
			"huge header":   {0xff, 0xff, 0xff, 0xff, 1},
			"no JSON":       newFrame("hello"),
			"another JSON":  newFrame(`[1,2]`),
			"deep nesting":  newFrame(strings.Repeat(`{"Spawn":`, 20000)),
			"wrong types":   newFrame(`{"ID":"x","Op":7}`),
			"negative id":   newFrame(`{"ID":-1}`),
			"many zeros":    make([]byte, 3), // an incomplete header at the end of the connection
			"pid too large": newFrame(`{"Op":"Wait","Process":{"PID":99999999999999999999}}`),
		} {
			conn := connect()
			introduce(t, conn)
			if _, _, err := conn.WriteMsgUnix(in, unix.UnixRights(many[:3]...), nil); err != nil {
				t.Fatal(err)
			}
			if err := conn.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
			if n, err := conn.Read(make([]byte, 100)); err == nil {
				t.Errorf("%s: got %d bytes as an answer", name, n)
			} else if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%s: the connection stays", name)
			}
			conn.Close()
		}
	})
	t.Run("too many descriptors end the connection", func(t *testing.T) {
		conn := connect()
		defer conn.Close()
		if _, _, err := conn.WriteMsgUnix(newFrame(`{"Role":"Agent"}`), unix.UnixRights(many...), nil); err != nil {
			t.Fatal(err)
		}
		_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := conn.Read(make([]byte, 100)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("read: %v", err)
		}
	})
	t.Run("requests that make no sense are answered", func(t *testing.T) {
		conn := connect()
		l, err := newClientConn(t.Context(), conn, c.hello())
		if err != nil {
			t.Fatal(err)
		}
		defer l.closeAndWait()
		for name, req := range map[string]*request{
			"spawn without a command":            {Op: opSpawn},
			"spawn without announced files":      {Op: opSpawn, Spawn: &spawnParams{Path: "/bin/true", HasStdin: true}},
			"hold without a descriptor":          {Op: opStoreFD, Keys: []string{"a"}},
			"hold of one under two keys":         {Op: opStoreFD, Keys: []string{"a", "b"}},
			"take of nothing that is there":      {Op: opGetFDs, Keys: []string{"no"}},
			"take of too many":                   {Op: opGetFDs, Keys: make([]string, maxMessageFDs+1)},
			"an operation that nobody knows":     {Op: "reboot"},
			"spawn with descriptors to spare":    {Op: opSpawn, Spawn: &spawnParams{Path: "/bin/true"}},
			"spawn of a path with a NUL in it":   {Op: opSpawn, Spawn: &spawnParams{Path: "/bin/true\x00"}},
			"spawn with a NUL in an environment": {Op: opSpawn, Spawn: &spawnParams{Path: "/bin/true", Env: []string{"A=\x00"}}},
		} {
			var fds []int
			if strings.Contains(name, "to spare") || strings.Contains(name, "two keys") {
				fds = many[:1]
			}
			resp, got, err := l.call(t.Context(), req, fds...)
			if err != nil || resp.err() == nil || len(got) != 0 {
				t.Errorf("%s: %+v, %v", name, resp, err)
			}
		}
	})
	for end := time.Now().Add(time.Minute); open() > before; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the keeper had %d descriptors and has %d", before, open())
		}
	}
	p, err := c.Spawn(t.Context(), sh("exit 4"))
	if err != nil {
		t.Fatal(err)
	}
	if st, err := c.Wait(t.Context(), p); err != nil || st.ExitCode != 4 {
		t.Errorf("Wait = %v, %v", st, err)
	}
}

func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

func TestExitStatusCacheIsLimited(t *testing.T) {
	t.Parallel()
	var s exitStatusCache
	s.add(osprocess.ID{PID: 1}, recordedExit{status: osprocess.ExitStatus{ExitCode: 1}}, true)
	for i := range 10 * maxNonSessionLeaderStatuses { // orphans of one task
		s.add(osprocess.ID{PID: 100 + i}, recordedExit{}, false)
	}
	if st, ok := s.get(osprocess.ID{PID: 1}); !ok || st.ExitCode != 1 {
		t.Error("orphans push out the status of a session leader")
	}
	if _, ok := s.get(osprocess.ID{PID: 100}); ok {
		t.Error("orphans are remembered without a limit")
	}
	if _, ok := s.get(osprocess.ID{PID: 100 + 10*maxNonSessionLeaderStatuses - 1}); !ok {
		t.Error("the last orphan is forgotten")
	}
	for i := range maxSessionLeaderStatuses {
		s.add(osprocess.ID{PID: 100_000 + i}, recordedExit{}, true)
	}
	if _, ok := s.get(osprocess.ID{PID: 1}); ok {
		t.Error("leaders are remembered without a limit")
	}
	if n := len(s.sessionLeaders.exitByProc) + len(s.nonSessionLeaders.exitByProc); n != maxSessionLeaderStatuses+maxNonSessionLeaderStatuses {
		t.Errorf("%d statuses are kept, want %d", n, maxSessionLeaderStatuses+maxNonSessionLeaderStatuses)
	}
}

// FuzzRequests passes requests to a keeper in the test process.
func FuzzRequests(f *testing.F) {
	for _, req := range []request{
		{Op: opWait, Process: osprocess.ID{PID: 1, StartTime: 2}}, {Op: opCancelWait, ID: 3},
		{Op: opStoreFD, Keys: []string{"a"}, DrainWithoutAgent: []bool{true}}, {Op: opGetFDs, Keys: []string{"a"}}, {Op: opRemoveFD, Keys: []string{"a"}}, {Op: opListFDs}, {Op: opSpawn},
	} {
		f.Add(mustJSON(req), 1)
	}
	f.Fuzz(func(t *testing.T, b []byte, files int) {
		var req request
		if json.Unmarshal(b, &req) != nil {
			return
		}
		if req.Op == opSpawn {
			req.Spawn = nil // the fuzzer must not start programs
		}
		k := newServer(keeperSetup{IdleTimeout: time.Minute}, framing.Hello{})
		k.memoryTrimmer = memtrim.New()
		defer k.memoryTrimmer.Stop()
		c := &serverConn{server: k, clientHello: framing.Hello{Role: framing.RoleAgent}, procByWaitRequestID: map[uint64]osprocess.ID{}, responseReady: make(chan struct{}, 1)}
		var fds []int
		for range files % 4 {
			fd, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			fds = append(fds, fd)
		}
		c.handleRequest(&req, fds)
		k.mu.Lock()
		defer k.mu.Unlock()
		for _, a := range c.responseQueue {
			mustJSON(a.response)
			framing.CloseAll(a.fds)
		}
		for id, p := range c.procByWaitRequestID {
			k.removeWaiterLocked(c, id, p)
		}
		for key := range k.storedFDByKey {
			k.removeFDLocked(key)
		}
	})
}
