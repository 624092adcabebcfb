package cluster

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/clustertest"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/protocol"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/alloccopy"
)

// lostStateTest is a node with a running allocation, whose agent was killed, and whose state file was removed.
type lostStateTest struct {
	*testing.T
	server  *clustertest.Server
	node    *systemtest.PersistentAgent
	allocID string
	pid     int // of the task
}

func newLostStateTest(t *testing.T) *lostStateTest {
	t.Helper()
	s := &lostStateTest{T: t, server: clustertest.Start(t, clustertest.Config{})}
	s.node = systemtest.StartClusterNode(t, s.server.Addr())
	s.awaitReady(s.server)
	job := api.NewServiceJob("kept", "kept", api.GlobalRegion, 50)
	group := api.NewTaskGroup("g", 1)
	group.AddTask(systemtest.NewRawExecShellTask("t", "echo $$ >$NOMAD_ALLOC_DIR/pid; exec sleep 1000"))
	job.AddTaskGroup(group)
	s.allocID = s.server.PlaceAlloc(s.node.NodeID, job, "g")
	s.awaitAlloc("running", func(a protocol.Allocation) bool { return a.ClientStatus == api.AllocClientStatusRunning })
	s.pid = s.readPID()
	s.node.SignalAndWait(unix.SIGKILL)
	if err := os.Remove(filepath.Join(s.node.DataDir, "state.db")); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *lostStateTest) awaitReady(server *clustertest.Server) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), systemtest.WaitTimeout)
	defer cancel()
	if _, err := server.WaitNode(ctx, s.node.NodeID, func(n clustertest.Node) bool { return n.Status == api.NodeStatusReady }); err != nil {
		s.Fatal(err)
	}
}

func (s *lostStateTest) awaitAlloc(description string, match func(protocol.Allocation) bool) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), systemtest.WaitTimeout)
	defer cancel()
	if _, err := s.server.WaitAlloc(ctx, s.allocID, match); err != nil {
		s.Fatalf("%s: %v", description, err)
	}
}

func (s *lostStateTest) readPID() (pid int) {
	s.Helper()
	path := filepath.Join(s.node.DataDir, "alloc", s.allocID, "alloc", "pid")
	s.node.WaitUntil("the task has written its pid", func() (string, bool) {
		text, err := os.ReadFile(path)
		if err != nil {
			return err.Error(), false
		}
		for _, c := range strings.TrimSpace(string(text)) {
			pid = pid*10 + int(c-'0')
		}
		return string(text), pid > 0
	})
	return pid
}

func (s *lostStateTest) isRunning() bool { return unix.Kill(s.pid, 0) == nil }

// useServers makes the next agent join other servers.
func (s *lostStateTest) useServers(old, other *clustertest.Server) {
	s.Helper()
	path := filepath.Join(filepath.Dir(s.node.DataDir), "agent.hcl")
	text, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, []byte(strings.ReplaceAll(string(text), old.Addr(), other.Addr())), 0o600)
	}
	if err != nil {
		s.Fatal(err)
	}
}

// stopAlloc stops the allocation by the servers, and waits until its task has ended.
func (s *lostStateTest) stopAlloc() {
	s.Helper()
	s.server.StopAlloc(s.allocID)
	s.node.WaitUntil("the task has ended", func() (string, bool) { return "it runs", !s.isRunning() })
}

// TestNodeWithoutStateKeepsItsTasks removes the state file of a node: the node has its id and its credentials in another file, and
// adopts the allocations that it has on the disk. The servers decide about them as before.
func TestNodeWithoutStateKeepsItsTasks(t *testing.T) {
	t.Parallel()
	s := newLostStateTest(t)
	s.node.StartAndWaitReady()
	s.awaitReady(s.server)
	self, err := s.node.Agent().Self()
	if err != nil {
		t.Fatal(err)
	}
	if id := self.Stats["client"]["node_id"]; id != s.node.NodeID {
		t.Errorf("the node has the id %s, had %s", id, s.node.NodeID)
	}
	s.awaitAlloc("adopted", func(a protocol.Allocation) bool {
		return a.TaskStates["t"] != nil && strings.Contains(systemtest.FormatEvents(a.TaskStates["t"]), "Adopted")
	})
	if pid := s.readPID(); pid != s.pid || !s.isRunning() {
		t.Errorf("the task has the pid %d, had %d, which runs: %v", pid, s.pid, s.isRunning())
	}
	s.stopAlloc()
}

// TestNodeWithoutStateAndCopiesStartsNothingTwice removes the copy of the allocation as well, so that the node cannot adopt it: the
// servers assign the allocation again, and it starts when its former task has ended.
func TestNodeWithoutStateAndCopiesStartsNothingTwice(t *testing.T) {
	t.Parallel()
	s := newLostStateTest(t)
	if err := os.Remove(filepath.Join(s.node.DataDir, "alloc", s.allocID, alloccopy.FileName)); err != nil {
		t.Fatal(err)
	}
	s.node.StartAndWaitReady()
	s.awaitReady(s.server)
	s.awaitAlloc("the task waits", func(a protocol.Allocation) bool {
		return a.TaskStates["t"] != nil && strings.Contains(systemtest.FormatEvents(a.TaskStates["t"]), "without records of the agent")
	})
	if pid := s.readPID(); pid != s.pid || !s.isRunning() {
		t.Fatalf("the task has the pid %d, had %d, which runs: %v", pid, s.pid, s.isRunning())
	}
	if err := unix.Kill(s.pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s.awaitAlloc("running", func(a protocol.Allocation) bool { return a.ClientStatus == api.AllocClientStatusRunning })
	s.node.WaitUntil("another task has written its pid", func() (string, bool) { pid := s.readPID(); return strconv.Itoa(pid), pid != s.pid })
	s.pid = s.readPID()
	s.stopAlloc()
}

// TestNodeWithoutStateEndsTasksOfPurgedNode removes the state file of a node, and the servers purge it meanwhile: they accept the
// identity that they have signed, and have no allocation for the node.
func TestNodeWithoutStateEndsTasksOfPurgedNode(t *testing.T) {
	t.Parallel()
	s := newLostStateTest(t)
	s.server.PurgeNode(s.node.NodeID)
	s.server.PurgeJob(api.DefaultNamespace, "kept")
	s.server.GC()
	s.node.StartAndWaitReady()
	s.awaitReady(s.server)
	s.node.WaitUntil("the task has ended", func() (string, bool) { return "it runs", !s.isRunning() })
}

// TestNodeWithoutStateEndsNothingAtWrongServers removes the state file of a node, and starts the node with the servers of another
// cluster. With its own servers, it is as before.
func TestNodeWithoutStateEndsNothingAtWrongServers(t *testing.T) {
	t.Parallel()
	s := newLostStateTest(t)
	other := clustertest.Start(t, clustertest.Config{})
	s.useServers(s.server, other)
	s.node.StartAndWaitReady()
	s.awaitReady(other)
	if err := other.WaitCalls(t.Context(), protocol.MethodGetClientAllocs, 2); err != nil { // the first one is answered
		t.Fatal(err)
	}
	time.Sleep(time.Second) // a stop of the task would take less
	if !s.isRunning() {
		t.Fatal("the task has ended")
	}
	s.node.SignalAndWait(unix.SIGTERM)
	s.useServers(other, s.server)
	s.node.StartAndWaitReady()
	s.awaitReady(s.server)
	s.awaitAlloc("running", func(a protocol.Allocation) bool { return a.ClientStatus == api.AllocClientStatusRunning })
	if pid := s.readPID(); pid != s.pid || !s.isRunning() {
		t.Errorf("the task has the pid %d, had %d, which runs: %v", pid, s.pid, s.isRunning())
	}
	s.stopAlloc()
}
