package faults

import (
	"context"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest/programs"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/clustertest"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/protocol"
	"github.com/nomad-lite/nomad-lite/runtime/job/jobspec"
)

// assigningServers is a server of a cluster that assigns the allocations of one node.
type assigningServers struct {
	*clustertest.Cluster
	addr       string
	jobs       map[string]*api.Job
	allocByJob map[string]string // newest allocation of each job
}

// startAssigningServers starts a server. It misses no heartbeat, because agents are slow on a busy machine.
func startAssigningServers(t *testing.T) *assigningServers {
	t.Helper()
	server := clustertest.Start(t, clustertest.Config{HeartbeatGrace: time.Hour})
	return &assigningServers{server.Cluster, server.Addr(), make(map[string]*api.Job), make(map[string]string)}
}

// register registers a job with one group "g" and one allocation, as the scheduler of an agent does: it updates the allocation
// in place if the environment of the task is the same, and else replaces it.
func (s *assigningServers) register(t *testing.T, text string) {
	t.Helper()
	file, diags := jobspec.Parse(jobspec.ParseInput{DiagnosticFileName: "job.nomad.hcl", Text: []byte(text)})
	if diags.HasErrors() {
		t.Fatal(diags)
	}
	job := file.Job
	id := *job.ID
	old, previous := s.jobs[id], s.allocByJob[id]
	s.jobs[id] = job
	// Servers do not know yet that a plugin was killed.
	placement := clustertest.Placement{NodeID: s.awaitReadyNode(t), Job: job, Group: "g", Previous: previous, Force: true}
	switch {
	case old == nil:
	case reflect.DeepEqual(old.TaskGroups[0].Tasks[0].Env, job.TaskGroups[0].Tasks[0].Env):
		s.UpdateJob(job)
		return
	default:
		s.StopAlloc(previous)
		s.UpdateJob(job)
	}
	s.allocByJob[id] = s.Place(placement)
}

// awaitReadyNode waits until the node is ready, and returns its id.
func (s *assigningServers) awaitReadyNode(t *testing.T) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), systemtest.WaitTimeout)
	defer cancel()
	beat, err := s.WaitCall(ctx, func(c clustertest.Call) bool {
		return c.Method == protocol.MethodUpdateNodeStatus && c.Done() && c.Error == ""
	})
	if err != nil {
		t.Fatal(err)
	}
	id, _ := beat.Request["NodeID"].(string)
	if _, err := s.WaitNode(ctx, id, func(n clustertest.Node) bool { return n.Status == api.NodeStatusReady && len(n.Record.Drivers) > 0 }); err != nil {
		t.Fatal(err)
	}
	return id
}

// haveStates reports whether the server has the states of the allocations of the node, and all their events.
func (s *assigningServers) haveStates(report programs.AllocReport) bool {
	for _, is := range report.Allocs {
		was, known := s.Alloc(is.ID)
		if !known || was.ClientStatus != is.ClientStatus {
			return false
		}
		for name, state := range is.TaskStates {
			sent := was.TaskStates[name]
			if sent == nil || sent.State != state.State || sent.Restarts != state.Restarts || !slices.EqualFunc(sent.Events, state.Events, func(a, b *api.TaskEvent) bool {
				return a.Type == b.Type && a.Time == b.Time
			}) {
				return false
			}
		}
	}
	return true
}
