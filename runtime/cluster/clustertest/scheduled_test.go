package clustertest

import (
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/cluster/protocol"
)

// An allocation that a scheduler changes keeps what its node has reported, except the health in an earlier deployment.
func TestAllocOfSchedulerKeepsReports(t *testing.T) {
	s := Start(t, Config{})
	c := connect(t, s.Addr())
	c.mustJoin()
	scheduled := &api.Allocation{
		ID: newID(), Name: "web.g[0]", Namespace: "default", JobID: "web", TaskGroup: "g", NodeID: c.id, Job: scenarioJob(),
		DesiredStatus: "run", ClientStatus: "pending", DeploymentID: newID(),
	}
	index := uint64(0)
	put := func() protocol.Allocation {
		t.Helper()
		if err := s.PutAlloc(scheduled); err != nil {
			t.Fatal(err)
		}
		changed, last, err := s.AllocsAfter(c.id, index)
		if err != nil || len(changed) != 1 {
			t.Fatalf("changed allocations %v, %v", changed, err)
		}
		index = last
		return changed[0]
	}
	placed := put()
	if placed.ClientStatus != "pending" || placed.SignedIdentities["t"] == "" || placed.CreateIndex != placed.AllocModifyIndex {
		t.Errorf("placed: %+v", placed)
	}
	if changed, _, err := s.AllocsAfter(c.id, index); err != nil || len(changed) > 0 {
		t.Errorf("without a change: %v, %v", changed, err)
	}

	c.mustCall("Node.UpdateAlloc", object{"Alloc": []object{{
		"ID": placed.ID, "NodeID": c.id, "ClientStatus": "running", "TaskStates": object{"t": object{"State": "running"}}, "DeploymentStatus": object{"Healthy": true},
	}}})
	scheduled.DesiredStatus = "stop"
	scheduled.DeploymentStatus = &api.AllocDeploymentStatus{Canary: true}
	stopped := put()
	if stopped.DesiredStatus != "stop" || stopped.ClientStatus != "running" || stopped.TaskStates["t"] == nil || stopped.TaskStates["t"].State != "running" {
		t.Errorf("stopped: %+v", stopped)
	}
	if health := stopped.DeploymentStatus; health == nil || health.Healthy == nil || !*health.Healthy || !health.Canary {
		t.Errorf("health in the deployment: %+v", health)
	}
	if stopped.SignedIdentities["t"] != placed.SignedIdentities["t"] || stopped.CreateIndex != placed.CreateIndex || stopped.AllocModifyIndex <= placed.AllocModifyIndex {
		t.Errorf("placed %+v, stopped %+v", placed, stopped)
	}
	scheduled.DeploymentID, scheduled.DeploymentStatus = newID(), nil
	if updated := put(); updated.DeploymentStatus != nil {
		t.Errorf("health in a new deployment: %+v", updated.DeploymentStatus)
	}

	poll := object{"NodeID": c.id, "SecretID": c.secret}
	if allocs := c.mustCall("Node.GetClientAllocs", poll)["Allocs"].(object); len(allocs) != 1 {
		t.Errorf("allocations of the node: %v", allocs)
	}
	s.RemoveAlloc(placed.ID)
	if allocs := c.mustCall("Node.GetClientAllocs", poll)["Allocs"].(object); len(allocs) != 0 {
		t.Errorf("after the removal: %v", allocs)
	}
	scheduled.TaskGroup = "other"
	if err := s.PutAlloc(scheduled); err == nil {
		t.Error("a group that the job does not have was accepted")
	}
}
