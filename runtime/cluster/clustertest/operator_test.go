package clustertest

import (
	"fmt"
	"testing"

	"github.com/nomad-lite/nomad-lite/runtime/cluster/protocol"
)

func TestChangesOfTheOperatorReachTheNode(t *testing.T) {
	s := Start(t, Config{AccessControl: true})
	c := connect(t, s.Addr())
	c.mustJoin()
	id := s.PlaceAlloc(c.id, scenarioJob(), "g")

	s.SetEligibility(c.id, "ineligible")
	if response, err := c.heartbeat(); err != nil || response["SchedulingEligibility"] != "ineligible" {
		t.Errorf("eligibility: %v, %v", response, err)
	}

	s.PutVariable("default", "nomad/jobs/web", map[string]string{"pw": "one"})
	variable := object{"Path": "nomad/jobs/web", "AuthToken": s.TaskToken(id, "t"), "AllowStale": true}
	first := c.mustCall("Variables.Read", variable)
	variable["MinQueryIndex"] = first["Index"]
	blocked := c.start("Variables.Read", variable)
	waitReceived(t, s.Cluster, "Variables.Read", 2)
	s.PutVariable("default", "nomad/jobs/web", map[string]string{"pw": "two"})
	second := <-blocked
	if second.err != nil || second.response["Data"].(object)["Items"].(object)["pw"] != "two" {
		t.Errorf("changed variable: %v, %v", second.response, second.err)
	}
	variable["MinQueryIndex"] = second.response["Index"]
	blocked = c.start("Variables.Read", variable)
	waitReceived(t, s.Cluster, "Variables.Read", 3)
	s.DeleteVariable("default", "nomad/jobs/web")
	if third := <-blocked; third.err != nil || third.response["Data"] != nil {
		t.Errorf("deleted variable: %v, %v", third.response, third.err)
	}

	c.mustCall("ServiceRegistration.Upsert", object{"Services": []object{{"ID": "one", "ServiceName": "web", "Namespace": "default", "NodeID": c.id, "AllocID": id}}})
	if services := s.Services("default"); len(services) != 1 || services[0].ServiceName != "web" || services[0].ModifyIndex == 0 {
		t.Errorf("services %v", services)
	}

	token := s.AddToken("user", nil, nil)
	if _, err := c.call("ACL.WhoAmI", object{"AuthToken": token}); err != nil {
		t.Error(err)
	}
	s.RevokeToken(token)
	if _, err := c.call("ACL.WhoAmI", object{"AuthToken": token}); fmt.Sprint(err) != "Permission denied" {
		t.Errorf("revoked token: %v", err)
	}

	before, _ := s.Alloc(id)
	s.SetDesired(id, "evict", "preempted")
	after, err := s.WaitAlloc(t.Context(), id, func(a protocol.Allocation) bool { return a.AllocModifyIndex > before.AllocModifyIndex })
	if err != nil || after.DesiredStatus != "evict" {
		t.Errorf("desired status %s, %v", after.DesiredStatus, err)
	}
}

func TestNodesThatNoSchedulerUses(t *testing.T) {
	s := Start(t, Config{Profile: Version16})
	for _, test := range []struct {
		name   string
		change func(record object)
		want   string
	}{
		{"complete record", func(object) {}, ""},
		{"no resources", func(r object) { delete(r, "NodeResources") }, "it has no processors"},
		{"processors that the version ignores", func(r object) {
			delete(r["NodeResources"].(object), "Cpu")
			r["NodeResources"].(object)["Processors"] = object{"Topology": object{"Cores": []object{{"BaseSpeed": 1000}}}}
		}, "it has no processors"},
		{"no memory", func(r object) { delete(r["NodeResources"].(object), "Memory") }, "it has no memory"},
		{"no driver", func(r object) { delete(r, "Drivers") }, `driver "raw_exec" is not healthy`},
		{"not eligible", func(r object) { r["SchedulingEligibility"] = "ineligible" }, "it is not eligible"},
	} {
		c := connect(t, s.Addr())
		record := c.record()
		test.change(record)
		c.mustCall("Node.Register", object{"Node": record, "AuthToken": ""})
		group := &taskGroup{Tasks: []*task{{Driver: "raw_exec"}}}
		rejects := func() string {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.nodes[c.id].rejects(group)
		}
		if got := rejects(); got != "its status is initializing" {
			t.Errorf("%s, before a heartbeat: %q", test.name, got)
		}
		if _, err := c.heartbeat(); err != nil {
			t.Fatal(err)
		}
		if got := rejects(); got != test.want {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
	}
}

func TestPoliciesAreWrittenAsText(t *testing.T) {
	got := Policy{
		Name: "p", Node: "read", Agent: "write",
		Namespaces: []NamespaceRule{{Name: "prod-*", Policy: "read", Capabilities: []string{"alloc-exec", "alloc-node-exec"}, ReadVariables: []string{"a/*"}}},
	}.Text()
	want := `namespace "prod-*" {
  policy = "read"
  capabilities = ["alloc-exec", "alloc-node-exec"]
  variables {
    path "a/*" {
      capabilities = ["read"]
    }
  }
}
node {
  policy = "read"
}
agent {
  policy = "write"
}
`
	if got != want {
		t.Errorf("got:\n%s", got)
	}
}
