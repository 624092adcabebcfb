package scheduler

import (
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
)

// nodeWithNetworks has the host networks public, and same with the node's address.
func nodeWithNetworks() *api.Node {
	return &api.Node{
		ID: "node", Name: "box", Datacenter: "dc1", NodePool: "default", SchedulingEligibility: api.NodeSchedulingEligible,
		Attributes: map[string]string{"unique.network.ip-address": "10.0.0.1", "kernel.name": "linux"},
		Drivers:    map[string]*api.DriverInfo{"d": {Detected: true, Healthy: true}},
		HostNetworks: map[string]*api.HostNetworkInfo{
			"public": {Name: "public", CIDR: "203.0.113.0/24", ReservedPorts: "22"},
			"same":   {Name: "same", Interface: "eth0", CIDR: "10.0.0.0/8"},
			"gone":   {Name: "gone", Interface: "eth9"},
		},
		NodeResources: &api.NodeResources{
			MinDynamicPort: 20000, MaxDynamicPort: 20001,
			Networks: []*api.NetworkResource{
				{Mode: "host", IP: "10.0.0.1"}, {Mode: "host", Device: "eth1", IP: "203.0.113.7"}, {Mode: "host", Device: "eth0", IP: "10.0.0.1"}, {Mode: "bridge"},
			},
		},
		ReservedResources: &api.NodeReservedResources{Networks: api.NodeReservedNetworkResources{ReservedHostPorts: "25"}},
	}
}

func jobWithPorts(id string, static, dynamic []api.Port) *api.Job {
	return newJobFixture(func(f *jobFixture) {
		f.job.ID = &id
		f.group.Networks = []*api.NetworkResource{{ReservedPorts: static, DynamicPorts: dynamic}}
	}).job
}

// A port on a host network has the network's address, and the same number on the default network is another port.
func TestPortsOfHostNetworks(t *testing.T) {
	node := PlacementNodeOf(nodeWithNetworks())
	usage := NewEmptyNodeUsage(node)
	env := testEnv()
	busy := HostPort{Address: "203.0.113.7", Port: 443}
	env.IsPortFree = func(p HostPort) bool { return p != busy }
	place := func(id string, static, dynamic []api.Port) ([]api.PortMapping, error) {
		job := jobWithPorts(id, static, dynamic)
		p := newAllocPlacer(job, node, env, usage)
		allocs, err := p.placeGroup(job.TaskGroups[0], 1)
		if err != nil {
			return nil, err
		}
		return allocs[0].AllocatedResources.Shared.Ports, nil
	}
	port := func(label, network string, number int) api.Port {
		return api.Port{Label: label, Value: number, HostNetwork: network}
	}
	got, err := place("one", []api.Port{port("a", "", 80), port("b", "public", 80)}, []api.Port{port("c", "", 0), port("d", "public", 0)})
	if err != nil {
		t.Fatal(err)
	}
	if want := []api.PortMapping{
		{Label: "a", Value: 80, HostIP: "10.0.0.1"}, {Label: "b", Value: 80, HostIP: "203.0.113.7"},
		{Label: "c", Value: 20000, HostIP: "10.0.0.1"}, {Label: "d", Value: 20000, HostIP: "203.0.113.7"},
	}; !slices.Equal(got, want) {
		t.Errorf("ports %+v, want %+v", got, want)
	}
	// Another job gets the next dynamic ports, because the first one holds its own.
	if got, err = place("two", nil, []api.Port{port("c", "same", 0), port("d", "public", 0)}); err != nil || got[0].Value != 20001 || got[0].HostIP != "10.0.0.1" || got[1].Value != 20001 {
		t.Errorf("ports %+v, %v, want 20001", got, err)
	}
	for _, c := range []struct {
		name string
		port api.Port
		want string
	}{
		{"held on the network", port("x", "public", 80), `reserved port collision x=80: allocation "one.g[0]" of job "one" has it`},
		{"held on another network with the address", port("x", "same", 80), `reserved port collision x=80: allocation "one.g[0]" of job "one" has it`},
		{"free on the network", port("x", "public", 81), ""},
		{"reserved on the network", port("x", "public", 22), `the configuration of the agent reserves it`},
		{"reserved on another network", port("x", "", 22), ""},
		{"reserved on all networks", port("x", "public", 25), `the configuration of the agent reserves it`},
		{"a program listens on the address", port("x", "public", 443), `a process listens there`},
		{"a program listens on another address", port("x", "", 443), ""},
		{"a network without an address", port("x", "gone", 90), `missing host network "gone" for port "x"`},
	} {
		_, err := place("three", []api.Port{c.port}, nil)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
		for _, reservations := range usage.reservationsByAllocName {
			if reservations.key.jobID == "three" {
				usage.RemoveAlloc(&api.Allocation{ID: reservations.reservations[0].allocID, Namespace: "default", JobID: "three", Name: reservations.key.allocName})
			}
		}
	}
	unmet := node.UnmetNetworks(jobWithPorts("four", []api.Port{port("x", "zz", 90)}, nil).TaskGroups[0])
	if len(unmet) != 1 || unmet[0].MetricName != `missing host network "zz" for port "x"` {
		t.Errorf("unmet networks %+v", unmet)
	}
}
