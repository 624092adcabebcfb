package systemtest

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/nomad/api"
)

// resourceUsage is the resource usage of an agent: the descriptors of all its processes, and the
// goroutines and the heap of the agent process.
type resourceUsage struct {
	descriptors int
	goroutines  float64
	heap        float64
}

func (s *testAgent) readResourceUsage() resourceUsage {
	s.t.Helper()
	var l resourceUsage
	for pid, command := range scriptProcesses(s.workDir) {
		if !strings.HasPrefix(command, "nomad-lite") {
			continue
		}
		open, _ := os.ReadDir(filepath.Join("/proc", fmt.Sprint(pid), "fd"))
		l.descriptors += len(open)
	}
	var metrics api.MetricsSummary
	if _, err := s.Raw().Query("/v1/metrics", &metrics, nil); err != nil {
		s.t.Fatal(err)
	}
	for _, g := range metrics.Gauges {
		switch {
		case strings.HasSuffix(g.Name, "runtime.num_goroutines"):
			l.goroutines = float64(g.Value)
		case strings.HasSuffix(g.Name, "runtime.alloc_bytes"):
			l.heap = float64(g.Value)
		}
	}
	return l
}

// disconnectAfterText opens a stream over a new connection, reads until a line contains the text,
// and resets the connection.
func (s *testAgent) disconnectAfterText(path, until string) error {
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.address, "http://"))
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path); err != nil {
		return err
	}
	seen := bufio.NewScanner(conn)
	seen.Split(bufio.ScanLines)
	for seen.Scan() {
		if strings.Contains(seen.Text(), until) {
			return conn.(*net.TCPConn).SetLinger(0)
		}
	}
	return fmt.Errorf("the stream ended: %v", seen.Err())
}

// 500 followers of one log and 100 terminals connect at once, and half of them close the connection
// without a message. All of them get their output, and the agent releases all their resources.
func TestManyClients(t *testing.T) {
	const followerCount, execSessionCount = 500, 100
	t.Parallel()
	// These clients are still connected when the agent shuts down.
	var clientsUntilShutdown sync.WaitGroup
	t.Cleanup(clientsUntilShutdown.Wait)
	s := startTestAgent(t, false)
	alloc := s.run("crowd", api.JobTypeService, "running", newShellTask("web", "n=0; while :; do n=$((n+1)); echo line $n; sleep 0.2; done",
		func(task *api.Task) { task.Resources.MemoryMB = new(200) })) // the commands of all sessions count against the task's memory limit
	logs := "/v1/client/fs/logs/" + alloc.ID + "?task=web&type=stdout&follow=true&plain=true&origin=end"
	file := "/v1/client/fs/stream/" + alloc.ID + "?path=alloc/logs/web.stdout.0&origin=end"
	connectClients := func(followerCount, execSessionCount int) {
		var all sync.WaitGroup
		for i := range followerCount {
			all.Go(func() {
				path, until := logs, "9"
				if i%10 == 0 {
					path, until = file, `"Data"`
				}
				if err := s.disconnectAfterText(path, until); err != nil {
					t.Error("follower: ", err)
				}
			})
		}
		for i := range execSessionCount {
			all.Go(func() {
				ctx, vanish := context.WithCancel(t.Context())
				defer vanish()
				var out bytes.Buffer
				script, stdin := "read x; echo $x", io.Reader(strings.NewReader(fmt.Sprint("input ", i, "\n")))
				if i%2 == 0 {
					script, stdin = "echo here; exec cat", endlessReader{}
				}
				code, err := s.Allocations().Exec(ctx, alloc, "web", i%4 > 1, []string{"/bin/sh", "-c", script}, stdin, &disconnectingTerminal{out: &out, disconnect: vanish, triggerWord: "here"}, io.Discard, nil, nil)
				if i%2 == 1 && (err != nil || code != 0 || !strings.Contains(out.String(), fmt.Sprint("input ", i))) {
					t.Errorf("session %d: %d %q, %v", i, code, out.String(), err)
				}
			})
		}
		all.Wait()
	}
	connectClients(20, 8) // the first clients make the agent allocate memory and descriptors that it does not release
	before := s.readResourceUsage()
	connectClients(followerCount, execSessionCount)
	s.waitUntil("nothing is left of the crowd", func() (string, bool) {
		now := s.readResourceUsage()
		return fmt.Sprintf("%+v, before %+v", now, before),
			now.descriptors <= before.descriptors+8 && now.goroutines <= before.goroutines+8 && now.heap <= before.heap+8<<20
	})
	t.Logf("before %+v, after %+v", before, s.readResourceUsage())
	for _, path := range []string{logs, file} {
		clientsUntilShutdown.Go(func() {
			if err := s.disconnectAfterText(path, "what never comes"); err == nil {
				t.Error("the agent has ended, and a stream has not")
			}
		})
	}
	clientsUntilShutdown.Go(func() {
		keys, _ := io.Pipe()
		code, err := s.Allocations().Exec(context.Background(), alloc, "web", true, []string{"sleep", "1000"}, keys, io.Discard, io.Discard, nil, nil)
		if err == nil && code == 0 {
			t.Error("the agent has ended, and a command has ended well")
		}
	})
}

// disconnectingTerminal is the output of a session. It disconnects the client after it has received
// a text.
type disconnectingTerminal struct {
	out         *bytes.Buffer
	disconnect  func()
	triggerWord string
}

func (v *disconnectingTerminal) Write(p []byte) (int, error) {
	n, err := v.out.Write(p)
	if strings.Contains(v.out.String(), v.triggerWord) {
		v.disconnect()
	}
	return n, err
}
