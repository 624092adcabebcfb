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

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
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
	lite := c.startNode(t, "lite", fmt.Sprintf("ports {\n  http = %d\n}\nadvertise {\n  http = \"127.0.0.1\"\n}\n", systemtest.FindFreePorts(t, 1)[0]))
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
	drain(lite)
	onNode(map[string]int{"stock": count})
	makeEligible(lite)
	drain(stock)
	onNode(map[string]int{"lite": count})
	makeEligible(stock)
	drain(lite)
	onNode(map[string]int{"stock": count})
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
