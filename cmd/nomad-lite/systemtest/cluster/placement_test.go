package cluster

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
)

// TestHostNetworksAndCores runs jobs that servers place only on nodes with a host network, and with cores that tasks can reserve.
func TestHostNetworksAndCores(t *testing.T) {
	c := startCluster(t, serverOptions{})
	c.startNode(t, "lite", `
client {
  host_network "public" {
    cidr = "127.0.0.0/8"
  }
}`)
	l := newLedger(t)
	c.register(l.newJob("named", 1, func(g *api.TaskGroup) {
		g.Networks = []*api.NetworkResource{{DynamicPorts: []api.Port{{Label: "x", HostNetwork: "public"}, {Label: "y"}}}}
	}))
	for id := range c.awaitRunning(l, "named", 1) {
		a, _, err := c.api().Allocations().Info(id, nil)
		c.check(err)
		addresses := map[string]string{}
		for _, p := range a.AllocatedResources.Shared.Ports {
			addresses[p.Label] = p.HostIP
		}
		if addresses["x"] != "127.0.0.1" || addresses["y"] == "" || addresses["y"] == "127.0.0.1" {
			t.Errorf("the ports have the addresses %v", addresses)
		}
	}
	c.register(l.newJob("unknown", 1, func(g *api.TaskGroup) {
		g.Networks = []*api.NetworkResource{{DynamicPorts: []api.Port{{Label: "x", HostNetwork: "private"}}}}
	}))
	c.awaitBlocked("unknown", "missing host network")

	c.register(l.newJob("cores", 1, func(g *api.TaskGroup) {
		g.Tasks[0].Resources = &api.Resources{Cores: new(1), MemoryMB: new(10)}
	}))
	for id := range c.awaitRunning(l, "cores", 1) {
		cpus, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", l.runsOf(id)[0].pid))
		if err != nil || !strings.Contains(string(cpus), "Cpus_allowed_list:\t0\n") && !strings.Contains(string(cpus), "Cpus_allowed_list:\t1\n") {
			t.Errorf("%v: the task can use other cores than one:\n%s", err, cpus)
		}
	}
	c.register(l.newJob("many", 1, func(g *api.TaskGroup) {
		g.Tasks[0].Resources = &api.Resources{Cores: new(1000), MemoryMB: new(10)}
	}))
	c.awaitBlocked("many", "cores")
}

// awaitBlocked waits until the servers cannot place a job for a reason.
func (c *cluster) awaitBlocked(jobID, reason string) {
	c.t.Helper()
	c.eventually("job "+jobID+" is not placed: "+reason, func() error {
		evals, _, err := c.api().Jobs().Evaluations(jobID, nil)
		for _, e := range evals {
			for _, m := range e.FailedTGAllocs {
				if text := fmt.Sprint(m.ConstraintFiltered, m.DimensionExhausted); strings.Contains(text, reason) {
					return nil
				} else if err == nil {
					err = errors.New(text)
				}
			}
		}
		return errors.Join(err, errors.New("no evaluation has the reason"))
	})
}
