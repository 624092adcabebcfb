package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/peers"
)

// diskScript is ledgerScript for a task that keeps a history on its ephemeral disk, in the directory of the allocation and in that of
// the task. When the task starts, it compares both with the copy of its instance in the ledger, and it extends all three when it
// starts and when it ends.
const diskScript = `
copy=$LEDGER/disk.$NOMAD_ALLOC_INDEX
histories="$NOMAD_ALLOC_DIR/data/history $NOMAD_TASK_DIR/history"
[ -e $copy ] || touch $copy $histories
for history in $histories; do
  cmp -s $history $copy || echo "$history of $NOMAD_ALLOC_ID" >>$LEDGER/damages
done
extend() { (echo "$1 $NOMAD_ALLOC_ID"; head -c 30000 /dev/urandom | base64 -w 0; echo) | tee -a $histories >>$copy; }
extend start
finish() { extend end; }
` + ledgerLoop

// TestDrainBetweenStockClientAndNode moves the allocations of a job, which are spread over a stock client and a node, by drains to
// one of them and back. Each instance finds the data of its ephemeral disk after each move.
func TestDrainBetweenStockClientAndNode(t *testing.T) {
	c := startCluster(t, serverOptions{})
	// Other nodes fetch data from an address that the node announces.
	lite := c.startNode(t, "lite", fmt.Sprintf("ports {\n  http = %d\n}\nadvertise {\n  http = \"127.0.0.1\"\n}\n", peers.FindFreePorts(t, 1)[0]))
	c.startStockClient("stock")
	stock := &node{t: t, cluster: c, name: "stock"}
	stock.awaitStatus("ready")
	l := newLedger(t)
	const count = 10
	c.register(l.newJob("moving", count, func(g *api.TaskGroup) {
		g.Spreads = []*api.Spread{{Attribute: "${node.unique.name}", Weight: new(int8(100))}}
		g.Migrate = &api.MigrateStrategy{MaxParallel: new(3), HealthCheck: new("task_states"), MinHealthyTime: new(100 * time.Millisecond), HealthyDeadline: new(time.Minute)}
		g.EphemeralDisk.Migrate = new(true)
		g.Tasks[0].SetConfig("args", []string{"-c", diskScript})
	}))
	onNode := func(want map[string]int) {
		t.Helper()
		got := map[string]int{}
		var running map[string]*api.AllocationListStub
		c.eventually(fmt.Sprintf("allocations are at %v", want), func() error {
			clear(got)
			running = c.awaitRunning(l, "moving", count)
			for _, a := range running {
				got[a.NodeName]++
			}
			for name, n := range want {
				if got[name] != n {
					return fmt.Errorf("they are at %v", got)
				}
			}
			return nil
		})
		l.checkOnce()
		for _, a := range running {
			c.checkDisk(l, a)
		}
	}
	onNode(map[string]int{"lite": count / 2, "stock": count / 2})
	drain := func(n *node) {
		t.Helper()
		_, err := c.api().Nodes().UpdateDrainOpts(n.id, &api.DrainOptions{DrainSpec: &api.DrainSpec{Deadline: time.Hour}}, nil)
		c.check(err)
		c.eventually("the drain of "+n.name+" is complete", func() error {
			info, _, err := c.api().Nodes().Info(n.id, nil)
			if err == nil && info.DrainStrategy != nil {
				err = fmt.Errorf("the drain is %+v", info.DrainStrategy)
			}
			return err
		})
	}
	makeEligible := func(n *node) {
		t.Helper()
		_, err := c.api().Nodes().ToggleEligibility(n.id, true, nil)
		c.check(err)
	}
	drain(stock)
	onNode(map[string]int{"lite": count})
	makeEligible(stock)
	drain(lite)
	onNode(map[string]int{"stock": count})
	makeEligible(lite)
	drain(stock) // a stock client that is killed with tasks leaves their cgroups
	onNode(map[string]int{"lite": count})
	if moves := len(l.runs()) - count; moves != count/2+2*count {
		t.Errorf("the allocations have moved %d times", moves)
	}
	for _, r := range l.runs() {
		if !r.alive() && !r.ended {
			t.Errorf("run %+v was not stopped in order", r)
		}
	}
}

// checkDisk checks that the ephemeral disk of a running allocation, whose task executes diskScript, has the entries of the allocation
// and of all that the servers name as its predecessors.
func (c *cluster) checkDisk(l *ledger, stub *api.AllocationListStub) {
	c.t.Helper()
	entries := []string{"start " + stub.ID}
	alloc, _, err := c.api().Allocations().Info(stub.ID, nil)
	for c.check(err); alloc.PreviousAllocation != ""; c.check(err) {
		entries = append([]string{"start " + alloc.PreviousAllocation, "end " + alloc.PreviousAllocation}, entries...)
		alloc, _, err = c.api().Allocations().Info(alloc.PreviousAllocation, nil)
	}
	index := strings.TrimRight(stub.Name[strings.LastIndexByte(stub.Name, '[')+1:], "]")
	want, err := os.ReadFile(filepath.Join(l.dir, "disk."+index))
	if err != nil {
		c.t.Fatal(err)
	}
	var recorded []string
	for line := range strings.Lines(string(want)) {
		if strings.Contains(line, " ") { // the lines between have random data
			recorded = append(recorded, strings.TrimSpace(line))
		}
	}
	if !slices.Equal(recorded, entries) {
		c.t.Errorf("instance %s has the entries %q, its allocations are %q", stub.Name, recorded, entries)
	}
	for _, path := range []string{"alloc/data/history", "t/local/history"} {
		c.eventually(path+" of "+stub.ID+" can be read", func() error {
			file, err := c.api().AllocFS().Cat(&api.Allocation{ID: stub.ID}, path, nil)
			if err != nil {
				return err
			}
			defer file.Close()
			got, err := io.ReadAll(file)
			if err == nil && !bytes.Equal(got, want) {
				c.t.Errorf("%s of allocation %s on %s has %d bytes, which differ from the %d bytes in the ledger: %s", path, stub.ID, stub.NodeName, len(got), len(want), eventsOf(stub))
			}
			return err
		})
	}
	if damages, err := os.ReadFile(filepath.Join(l.dir, "damages")); !errors.Is(err, os.ErrNotExist) {
		c.t.Fatalf("tasks have found other data than the ledger has: %s, %v", damages, err)
	}
}

// TestDrainOnShutdown ends an agent whose configuration has drain_on_shutdown. The servers move its allocations to another node before
// the agent exits. The allocation of a system job, which the drain ignores, continues without an agent.
func TestDrainOnShutdown(t *testing.T) {
	c := startCluster(t, serverOptions{})
	leaving := c.startNode(t, "leaving", `
leave_on_terminate = true
client {
  drain_on_shutdown {
    deadline           = "5m"
    ignore_system_jobs = true
  }
}`)
	l := newLedger(t)
	const count = 2
	c.register(l.newJob("moving", count, func(g *api.TaskGroup) {
		g.Migrate = &api.MigrateStrategy{HealthCheck: new("task_states"), MinHealthyTime: new(100 * time.Millisecond), HealthyDeadline: new(time.Minute)}
	}))
	system := l.newJob("system", 1, func(g *api.TaskGroup) {
		g.ReschedulePolicy, g.Update = nil, nil
		g.Constrain(api.NewConstraint("${node.unique.name}", "=", "leaving"))
	})
	system.Type = new("system")
	c.register(system)
	before := c.awaitRunning(l, "moving", count)
	ignored := c.awaitRunning(l, "system", 1)
	other := c.startNode(t, "other")

	leaving.end(unix.SIGTERM)
	for id, a := range before {
		if run := l.runsOf(id)[0]; a.NodeID != leaving.id || run.alive() || !run.ended {
			t.Errorf("allocation %s of node %s has the run %+v after the agent of %s has exited", id, a.NodeName, run, leaving.id)
		}
		if stub, _, err := c.api().Allocations().Info(id, nil); err != nil || stub.ClientStatus != api.AllocClientStatusComplete {
			t.Errorf("the servers have allocation %s as %s (%v) after the agent has exited", id, stub.ClientStatus, err)
		}
	}
	for id, a := range c.awaitRunning(l, "moving", count) {
		if a.NodeID != other.id {
			t.Errorf("allocation %s runs on node %s", id, a.NodeName)
		}
	}
	l.checkOnce()
	info, _, err := c.api().Nodes().Info(leaving.id, nil)
	c.check(err)
	if last := info.LastDrain; info.DrainStrategy != nil || last == nil || last.Status != api.DrainStatusComplete || last.Meta["message"] != "shutting down" || info.SchedulingEligibility != api.NodeSchedulingIneligible {
		t.Errorf("the node is %s, its drain %+v, its last drain %+v", info.SchedulingEligibility, info.DrainStrategy, last)
	}
	leaving.start()
	leaving.awaitStatus("ready")
	leaving.checkUntouched(l, "after the next start", ignored)
}

// TestSecondSignalEndsDrain ends an agent twice while no other node can take its allocations: the agent exits, and its tasks continue.
func TestSecondSignalEndsDrain(t *testing.T) {
	c := startCluster(t, serverOptions{})
	n := c.startNode(t, "lite", `
leave_on_terminate = true
client {
  drain_on_shutdown {
    deadline = "1h"
  }
}`)
	l := newLedger(t)
	// A batch job is moved at the deadline only.
	job := l.newJob("batch", 1, func(g *api.TaskGroup) { g.Update = nil })
	job.Type = new("batch")
	c.register(job)
	before := c.awaitRunning(l, "batch", 1)
	if err := n.process.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	c.eventually("the servers drain the node", func() error {
		info, _, err := c.api().Nodes().Info(n.id, nil)
		if err == nil && info.DrainStrategy == nil {
			err = errors.New("they do not")
		}
		return err
	})
	n.end(unix.SIGTERM)
	_, err := c.api().Nodes().UpdateDrainOpts(n.id, &api.DrainOptions{MarkEligible: true}, nil)
	c.check(err)
	n.start()
	n.awaitStatus("ready")
	n.checkUntouched(l, "after the next start", before)
}
