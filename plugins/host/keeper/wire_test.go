package keeper

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/framing"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper/keeperwire"
)

func newFrame(body string) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
}

// introduce exchanges the hello messages on a connection, as an agent.
func introduce(t *testing.T, socket *net.UnixConn) {
	t.Helper()
	if _, err := framing.NewConn(socket, keeperwire.MessageLimits).ExchangeHello(t.Context(), framing.NewHello(framing.RoleAgent, keeperwire.ProtocolVersion)); err != nil {
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
		for name, req := range map[string]*keeperwire.Request{
			"spawn without a command":            {Op: keeperwire.OpSpawn},
			"spawn without announced files":      {Op: keeperwire.OpSpawn, Spawn: &keeperwire.SpawnParams{Path: "/bin/true", HasStdin: true}},
			"hold without a descriptor":          {Op: keeperwire.OpStoreFD, Keys: []string{"a"}},
			"hold of one under two keys":         {Op: keeperwire.OpStoreFD, Keys: []string{"a", "b"}},
			"take of nothing that is there":      {Op: keeperwire.OpGetFDs, Keys: []string{"no"}},
			"take of too many":                   {Op: keeperwire.OpGetFDs, Keys: make([]string, keeperwire.MaxMessageFDs+1)},
			"an operation that nobody knows":     {Op: "reboot"},
			"spawn with descriptors to spare":    {Op: keeperwire.OpSpawn, Spawn: &keeperwire.SpawnParams{Path: "/bin/true"}},
			"spawn of a path with a NUL in it":   {Op: keeperwire.OpSpawn, Spawn: &keeperwire.SpawnParams{Path: "/bin/true\x00"}},
			"spawn with a NUL in an environment": {Op: keeperwire.OpSpawn, Spawn: &keeperwire.SpawnParams{Path: "/bin/true", Env: []string{"A=\x00"}}},
		} {
			var fds []int
			if strings.Contains(name, "to spare") || strings.Contains(name, "two keys") {
				fds = many[:1]
			}
			resp, got, err := l.call(t.Context(), req, fds...)
			if err != nil || resp.Err() == nil || len(got) != 0 {
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
