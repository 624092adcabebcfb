package keeperserver

import (
	"encoding/json"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/framing"
	"github.com/nomad-lite/nomad-lite/internal/memtrim"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper/keeperwire"
)

// FuzzRequests passes requests to a keeper in the test process.
func FuzzRequests(f *testing.F) {
	for _, req := range []keeperwire.Request{
		{Op: keeperwire.OpWait, Process: osprocess.ID{PID: 1, StartTime: 2}}, {Op: keeperwire.OpCancelWait, ID: 3},
		{Op: keeperwire.OpStoreFD, Keys: []string{"a"}, DrainWithoutAgent: []bool{true}}, {Op: keeperwire.OpGetFDs, Keys: []string{"a"}}, {Op: keeperwire.OpRemoveFD, Keys: []string{"a"}}, {Op: keeperwire.OpListFDs}, {Op: keeperwire.OpSpawn},
	} {
		f.Add(mustJSON(req), 1)
	}
	f.Fuzz(func(t *testing.T, b []byte, files int) {
		var req keeperwire.Request
		if json.Unmarshal(b, &req) != nil {
			return
		}
		if req.Op == keeperwire.OpSpawn {
			req.Spawn = nil // the fuzzer must not start programs
		}
		k := newServer(keeperwire.Setup{IdleTimeout: time.Minute}, framing.Hello{})
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

func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}
