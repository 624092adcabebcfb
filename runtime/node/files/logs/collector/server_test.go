package collector

import (
	"encoding/json"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs/collectorwire"
)

func FuzzRequests(f *testing.F) {
	k := collectorwire.StreamKey{AllocID: "a1", Task: "web", Stream: collectorwire.Stdout}
	for _, m := range []collectorwire.Message{
		{Op: collectorwire.OpStart, ID: 2, StreamKey: k, Limits: collectorwire.StreamLimits{MaxFiles: 2, MaxFileBytes: 3}},
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
