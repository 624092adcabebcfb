package cluster

import (
	"fmt"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
)

// TestDrainBetweenStockClientAndNode moves the allocations of a job between a stock client and a node by drains, in both directions.
func TestDrainBetweenStockClientAndNode(t *testing.T) {
	c := startCluster(t, serverOptions{})
	lite := c.startNode(t, "lite")
	c.startStockClient("stock")
	stock := &node{t: t, cluster: c, name: "stock"}
	stock.awaitStatus("ready")
	l := newLedger(t)
	const count = 10
	c.register(l.newJob("moving", count, func(g *api.TaskGroup) {
		g.Spreads = []*api.Spread{{Attribute: "${node.unique.name}", Weight: new(int8(100))}}
		g.Migrate = &api.MigrateStrategy{MaxParallel: new(3), HealthCheck: new("task_states"), MinHealthyTime: new(100 * time.Millisecond), HealthyDeadline: new(time.Minute)}
	}))
	onNode := func(want map[string]int) {
		t.Helper()
		got := map[string]int{}
		c.eventually(fmt.Sprintf("allocations are at %v", want), func() error {
			clear(got)
			for _, a := range c.awaitRunning(l, "moving", count) {
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
	for _, r := range l.runs() {
		if !r.alive() && !r.ended {
			t.Errorf("run %+v was not stopped in order", r)
		}
	}
}
