package cluster

import (
	"fmt"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/endurance"
)

// TestTasksSurviveOutages kills the leader of three servers, all servers, the agent, plugins and the log collector of a node while
// tasks run, and replaces the program of the agent. No task may restart. Then the node is away until the servers have given up its
// allocations: these end, and each replacement starts once.
//
// A long run (make test-cluster) has 200 tasks, and the servers are away for ten minutes.
func TestTasksSurviveOutages(t *testing.T) {
	tasks, outage := 10, missedHeartbeatTime
	if endurance.CurrentMode() != endurance.Sample {
		tasks, outage = 200, 10*time.Minute
	}
	stockProgram(t)
	runs := endurance.Start(t, endurance.Config{Sample: 1, Unit: "allocations", Load: fmt.Sprintf("%d tasks, servers away for %v", tasks, outage)})
	runs.Each(func(uint64) error {
		t.Run("", func(t *testing.T) { testOutages(t, tasks, outage) })
		runs.Add(2 * tasks)
		return nil
	})
}

func testOutages(t *testing.T, tasks int, outage time.Duration) {
	c := startCluster(t, serverOptions{count: 3})
	n := c.startNode(t, "lite")
	l := newLedger(t)
	c.register(l.newJob("steady", tasks, func(g *api.TaskGroup) {
		g.Tasks[0].Env["PAUSE"] = fmt.Sprint(max(1, tasks/20)) // each pause forks a process
	}))
	before := c.awaitRunning(l, "steady", tasks)
	check := func(when string) {
		t.Helper()
		n.awaitStatus("ready")
		n.checkUntouched(l, when, before)
		for id := range before {
			n.checkReachable(when, id)
			break
		}
		t.Logf("%s: checked", when)
	}
	check("at the start")

	for range 2 { // the node may be connected to the leader or to another server
		leader := c.leader()
		leader.kill()
		c.awaitLeader()
		check("a leader was killed")
		leader.start()
		c.awaitLeader()
	}

	n.killAndRestart()
	check("the agent was killed")

	if killed := n.killAll(func(kind string) bool { return kind == "plugin" || kind == "log-collector" }); killed < 2 {
		t.Errorf("%d processes were killed", killed)
	}
	check("the plugins and the log collector were killed")

	for _, s := range c.servers {
		s.kill()
	}
	n.killAndRestart() // tasks are restored without servers
	time.Sleep(outage)
	n.end(unix.SIGTERM)
	n.program = systemtest.CopyBinaryAsOtherBuild(t)
	n.start()
	for _, s := range c.servers {
		s.start()
	}
	c.awaitLeader()
	check("the servers were away, and the program of the agent was replaced")

	n.end(unix.SIGKILL)
	n.awaitStatus("down")
	n.start()
	after := c.awaitRunning(l, "steady", tasks)
	for id := range before {
		if _, kept := after[id]; kept {
			t.Errorf("allocation %s, which the servers had given up, runs", id)
		}
	}
	before = after
	check("the node was away")
}

// TestLostTasksAreNotStartedTwice ends tasks together with the agent. The servers move them to another node, and the tasks must not
// start again when the agent returns before it has reached a server.
func TestLostTasksAreNotStartedTwice(t *testing.T) {
	c := startCluster(t, serverOptions{})
	first := c.startNode(t, "first")
	l := newLedger(t)
	restarting := func(g *api.TaskGroup) {
		g.RestartPolicy = &api.RestartPolicy{Attempts: new(3), Mode: new("fail"), Delay: new(time.Duration(0))}
	}
	c.register(l.newJob("moved", 3, restarting))
	before := c.awaitRunning(l, "moved", 3)

	first.end(unix.SIGKILL)
	if killed := first.killAll(func(string) bool { return true }); killed < 3 {
		t.Fatalf("%d processes were killed", killed)
	}
	second := c.startNode(t, "second")
	after := c.awaitRunning(l, "moved", 3)

	server := c.servers[0]
	server.kill()
	first.start()
	first.awaitLog("task waits for the servers of the cluster")
	server.start()
	c.awaitLeader()
	first.awaitStatus("ready")
	second.awaitStatus("ready")
	c.eventually("the servers know the end of the allocations", func() error {
		list, err := c.allocs("moved")
		for _, a := range list {
			if _, old := before[a.ID]; old && a.ClientStatus != "complete" && a.ClientStatus != "failed" {
				err = fmt.Errorf("%s is %s", a.ID, a.ClientStatus)
			}
		}
		return err
	})
	second.checkUntouched(l, "the first node has returned", after)
}
