package hostile

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
)

// 500 followers of one log and 100 terminals connect at once, and half of them close the connection
// without a message. All of them get their output, and the agent releases all their resources.
func TestManyClients(t *testing.T) {
	const followerCount, execSessionCount = 500, 100
	t.Parallel()
	// These clients are still connected when the agent shuts down.
	var clientsUntilShutdown sync.WaitGroup
	t.Cleanup(clientsUntilShutdown.Wait)
	s := systemtest.StartTestAgent(t, false)
	alloc := s.RunJobUntilStatus("crowd", api.JobTypeService, "running", systemtest.NewRawExecShellTask("web", "n=0; while :; do n=$((n+1)); echo line $n; sleep 0.2; done",
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
				if err := s.RequestAndResetAfterText(path, until); err != nil {
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
					script, stdin = "echo here; exec cat", systemtest.EndlessReader{}
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
	before := s.ReadResourceUsage()
	connectClients(followerCount, execSessionCount)
	s.WaitUntil("nothing is left of the crowd", func() (string, bool) {
		now := s.ReadResourceUsage()
		return fmt.Sprintf("%+v, before %+v", now, before),
			now.OpenDescriptors <= before.OpenDescriptors+8 && now.Goroutines <= before.Goroutines+8 && now.HeapBytes <= before.HeapBytes+8<<20
	})
	t.Logf("before %+v, after %+v", before, s.ReadResourceUsage())
	for _, path := range []string{logs, file} {
		clientsUntilShutdown.Go(func() {
			if err := s.RequestAndResetAfterText(path, "what never comes"); err == nil {
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

func (d *disconnectingTerminal) Write(p []byte) (int, error) {
	n, err := d.out.Write(p)
	if strings.Contains(d.out.String(), d.triggerWord) {
		d.disconnect()
	}
	return n, err
}
