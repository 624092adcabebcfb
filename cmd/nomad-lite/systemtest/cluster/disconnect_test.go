package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"
)

// TestDisconnectedNode stops a node with SIGSTOP until the servers miss its heartbeats. Allocations with disconnect.lost_after
// continue, allocations without it are replaced.
func TestDisconnectedNode(t *testing.T) {
	c := startCluster(t, serverOptions{})
	n := c.startNode(t, "lite")
	l := newLedger(t)
	c.register(l.newJob("patient", 2, func(g *api.TaskGroup) {
		g.Disconnect = &api.DisconnectStrategy{LostAfter: new(time.Hour), Replace: new(true)}
	}))
	c.register(l.newJob("impatient", 2))
	patient, impatient := c.awaitRunning(l, "patient", 2), c.awaitRunning(l, "impatient", 2)

	signalAgent := func(s unix.Signal) {
		t.Helper()
		if err := n.process.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
	signalAgent(unix.SIGSTOP)
	n.awaitStatus("disconnected")
	c.eventually("the allocations are unknown", func() error {
		list, err := c.allocs("patient")
		for _, a := range list {
			if _, old := patient[a.ID]; old && a.ClientStatus != "unknown" {
				err = fmt.Errorf("%s is %s", a.ID, a.ClientStatus)
			}
		}
		return err
	})
	signalAgent(unix.SIGCONT)
	n.awaitStatus("ready")
	replacements := c.awaitRunning(l, "impatient", 2)
	for id := range impatient {
		if _, kept := replacements[id]; kept {
			t.Errorf("allocation %s, which the servers had given up, runs", id)
		}
	}
	after := c.awaitRunning(l, "patient", 2)
	l.checkOnce()
	for id := range patient {
		a := after[id]
		if a == nil {
			t.Errorf("allocation %s no longer runs", id)
			continue
		}
		if state := a.TaskStates["t"]; state.Restarts != 0 || state.Events[len(state.Events)-1].Type != api.TaskClientReconnected {
			t.Errorf("allocation %s has the events %s", id, eventsOf(a))
		}
	}
	for id := range impatient {
		if runs := l.runsOf(id); len(runs) != 1 || !runs[0].ended {
			t.Errorf("allocation %s has the runs %+v", id, runs)
		}
	}
}

// TestStopOnClientAfter stops allocations while servers are away, and not before their time, also if the agent is killed meanwhile.
func TestStopOnClientAfter(t *testing.T) {
	c := startCluster(t, serverOptions{})
	n := c.startNode(t, "lite")
	l := newLedger(t)
	stopAfter := func(d time.Duration) func(*api.TaskGroup) {
		return func(g *api.TaskGroup) {
			g.Disconnect = &api.DisconnectStrategy{StopOnClientAfter: &d, Replace: new(true)}
		}
	}
	c.register(l.newJob("short", 1, stopAfter(5*time.Second)))
	c.register(l.newJob("long", 1, stopAfter(time.Hour)))
	c.register(l.newJob("never", 1))
	short, long, never := c.awaitRunning(l, "short", 1), c.awaitRunning(l, "long", 1), c.awaitRunning(l, "never", 1)

	c.servers[0].kill()
	n.killAndRestart()
	for id := range short {
		c.eventually("the allocation is stopped without servers", func() error {
			if runs := l.runsOf(id); !runs[0].ended || runs[0].alive() {
				return fmt.Errorf("%+v", runs)
			}
			return nil
		})
	}
	n.killAndRestart() // the next agent must not start the allocation again
	c.servers[0].start()
	c.awaitLeader()
	n.awaitStatus("ready")
	for id := range short {
		c.eventually("the servers know the end", func() error {
			a, _, err := c.api().Allocations().Info(id, nil)
			if err == nil && a.ClientStatus != "failed" {
				err = fmt.Errorf("the allocation is %s", a.ClientStatus)
			}
			return err
		})
	}
	n.checkUntouched(l, "after the outage", long)
	n.checkUntouched(l, "after the outage", never)
}

// TestPurgeOfNode purges a node from the servers: it registers again, its allocations end, and each is replaced once.
func TestPurgeOfNode(t *testing.T) {
	c := startCluster(t, serverOptions{})
	n := c.startNode(t, "lite")
	l := newLedger(t)
	c.register(l.newJob("web", 2))
	before := c.awaitRunning(l, "web", 2)
	_, _, err := c.api().Nodes().Purge(n.id, nil)
	c.check(err)
	n.awaitStatus("ready")
	after := c.awaitRunning(l, "web", 2)
	l.checkOnce()
	for id := range before {
		if after[id] != nil {
			t.Errorf("allocation %s of the purged node runs", id)
		}
		if runs := l.runsOf(id); len(runs) != 1 || !runs[0].ended {
			t.Errorf("allocation %s has the runs %+v", id, runs)
		}
	}
}

// TestPurgeOfJob purges running jobs: their tasks are stopped, and their directories are removed, also if the agent was away.
func TestPurgeOfJob(t *testing.T) {
	c := startCluster(t, serverOptions{})
	n := c.startNode(t, "lite")
	l := newLedger(t)
	for _, id := range []string{"first", "second", "kept"} {
		c.register(l.newJob(id, 2))
	}
	kept := c.awaitRunning(l, "kept", 2)
	gone := map[string]bool{}
	purge := func(id string) {
		t.Helper()
		for allocID := range c.awaitRunning(l, id, 2) {
			gone[allocID] = true
		}
		_, _, err := c.api().Jobs().Deregister(id, true, nil)
		c.check(err)
		// The collection removes what has a purged job, so that the allocations are missing in the next list while they run.
		c.check(c.api().System().GarbageCollect())
	}
	awaitGone := func() {
		t.Helper()
		c.eventually("the purged allocations are removed", func() error {
			for id := range gone {
				if runs := l.runsOf(id); len(runs) != 1 || !runs[0].ended || runs[0].alive() {
					return fmt.Errorf("allocation %s has the runs %+v", id, runs)
				}
				if _, err := os.Lstat(filepath.Join(n.dataDir, "alloc", id)); !os.IsNotExist(err) {
					c.check(c.api().System().GarbageCollect())
					return fmt.Errorf("directory of %s: %v", id, err)
				}
			}
			return nil
		})
	}
	purge("first")
	awaitGone()
	n.end(unix.SIGKILL)
	purge("second")
	n.start()
	awaitGone()
	n.checkUntouched(l, "after the purges", kept)
	for id := range kept {
		n.checkReachable("after the purges", id)
	}
}

// TestAgentWithoutServers restarts the agent while servers are away: it restores its tasks, and reports what has happened when the
// servers return.
func TestAgentWithoutServers(t *testing.T) {
	c := startCluster(t, serverOptions{})
	n := c.startNode(t, "lite")
	l := newLedger(t)
	c.register(l.newJob("steady", 2))
	failing := l.newJob("failing", 1, func(g *api.TaskGroup) {
		g.Tasks[0].SetConfig("args", []string{"-c", "while [ ! -e $LEDGER/fail ]; do sleep 0.2; done; exit 3"})
	})
	c.register(failing)
	steady := c.awaitRunning(l, "steady", 2)
	c.eventually("the other task runs", func() error {
		list, err := c.allocs("failing")
		if err == nil && (len(list) != 1 || list[0].ClientStatus != "running") {
			err = fmt.Errorf("%d allocations", len(list))
		}
		return err
	})
	c.servers[0].kill()
	n.killAndRestart()
	if err := os.WriteFile(filepath.Join(l.dir, "fail"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	n.end(unix.SIGTERM)
	n.start()
	c.servers[0].start()
	c.awaitLeader()
	n.awaitStatus("ready")
	c.eventually("the servers know the exit", func() error {
		list, err := c.allocs("failing")
		if err == nil && (len(list) != 1 || list[0].ClientStatus != "failed") {
			err = fmt.Errorf("%d allocations, the first is %s: %s", len(list), list[0].ClientStatus, eventsOf(list[0]))
		}
		return err
	})
	n.checkUntouched(l, "after the outage", steady)
}

// TestServersRestoreSnapshot lets servers go back to an earlier state, with lower indexes than the node has seen. The node must end
// what they do not have, report again what they have forgotten, and take their next changes.
func TestServersRestoreSnapshot(t *testing.T) {
	c := startCluster(t, serverOptions{})
	n := c.startNode(t, "lite")
	l := newLedger(t)
	kept, ending := l.newJob("kept", 1, func(g *api.TaskGroup) { g.Services = []*api.Service{{Name: "kept", Provider: "nomad"}} }), l.newJob("ending", 1, func(g *api.TaskGroup) {
		g.Tasks[0].SetConfig("args", []string{"-c", "while [ ! -e $LEDGER/end ]; do sleep 0.2; done"})
		g.Update = nil
	})
	ending.Type = new("batch")
	c.register(kept)
	c.register(ending)
	awaitEnding := func(status string) {
		t.Helper()
		c.eventually("the batch job is "+status, func() error {
			list, err := c.allocs("ending")
			if err == nil && (len(list) != 1 || list[0].ClientStatus != status) {
				err = fmt.Errorf("%d allocations: %s", len(list), eventsOf(list[0]))
			}
			return err
		})
	}
	before := c.awaitRunning(l, "kept", 1)
	awaitEnding("running")
	// The snapshot lacks a service of the node, as one that was made before the node has registered the service.
	registered := c.awaitServices("kept", 1)
	_, err := c.api().Services().Delete("kept", registered[0].ID, nil)
	c.check(err)
	c.awaitServices("kept", 0)
	snapshot, err := c.api().Operator().Snapshot(nil)
	c.check(err)
	saved, err := io.ReadAll(snapshot)
	c.check(errors.Join(err, snapshot.Close()))

	n.killAndRestart() // the next agent registers all services
	c.awaitServices("kept", 1)
	for priority := range 10 { // updates in place, each of which gives the allocation a higher index
		kept.Priority = new(60 + priority)
		c.register(kept)
	}
	c.eventually("the allocation has the last priority", func() error {
		for id := range before {
			a, _, err := c.api().Allocations().Info(id, nil)
			if err == nil && *a.Job.Priority != *kept.Priority {
				err = fmt.Errorf("priority %d", *a.Job.Priority)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err := os.WriteFile(filepath.Join(l.dir, "end"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	awaitEnding("complete")
	c.register(l.newJob("later", 1))
	later := c.awaitRunning(l, "later", 1)

	_, err = c.api().Operator().SnapshotRestore(bytes.NewReader(saved), nil)
	c.check(err)
	n.awaitStatus("ready")
	c.awaitServices("kept", 1)
	c.eventually("the allocation that the servers no longer have has ended", func() error {
		for id := range later {
			if runs := l.runsOf(id); !runs[0].ended {
				return fmt.Errorf("%+v", runs)
			}
		}
		return nil
	})
	awaitEnding("complete")
	n.checkUntouched(l, "after the restore", before)
	_, _, err = c.api().Jobs().Deregister("kept", false, nil)
	c.check(err)
	c.eventually("the kept allocation is stopped", func() error {
		for id := range before {
			if runs := l.runsOf(id); !runs[0].ended {
				return fmt.Errorf("%+v", runs)
			}
		}
		return nil
	})
}
