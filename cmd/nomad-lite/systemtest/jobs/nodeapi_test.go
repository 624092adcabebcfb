package jobs

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/clustertest"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/protocol"
)

// The servers of a cluster use the tasks and the files of a node; a command in a task without isolation needs the capability
// alloc-node-exec.
func TestServersOfClusterCallNode(t *testing.T) {
	server := clustertest.Start(t, clustertest.Config{AccessControl: true})
	cluster := server.Cluster
	s := systemtest.StartTestAgent(t, false, "client { servers = [\""+server.Addr()+"\"] }\nacl { enabled = true }\n")
	if _, err := cluster.WaitNode(t.Context(), s.NodeID, func(n clustertest.Node) bool { return n.Status == "ready" }); err != nil {
		t.Fatal(err)
	}
	job := api.NewServiceJob("web", "web", api.GlobalRegion, 50).AddTaskGroup(
		api.NewTaskGroup("g", 1).AddTask(systemtest.NewRawExecShellTask("t", systemtest.SleepForeverScript)))
	allocID := cluster.PlaceAlloc(s.NodeID, job, "g")
	if _, err := cluster.WaitAlloc(t.Context(), allocID, func(a protocol.Allocation) bool { return a.ClientStatus == api.AllocClientStatusRunning }); err != nil {
		t.Fatal(err)
	}

	var stats protocol.AllocStatsResponse
	if err := cluster.Call(t.Context(), s.NodeID, protocol.MethodAllocStats, &protocol.AllocStatsRequest{AllocID: allocID}, &stats); err != nil || stats.Stats.ResourceUsage.MemoryStats == nil {
		t.Errorf("statistics: got %+v, %v", stats.Stats, err)
	}
	var identity protocol.NodeIdentityResponse
	if err := cluster.Call(t.Context(), s.NodeID, protocol.MethodGetNodeIdentity, &protocol.NodeRequest{}, &identity); err != nil || identity.Claims["nomad_node_id"] != s.NodeID {
		t.Errorf("identity: got %v, %v", identity.Claims, err)
	}

	cluster.AddPolicy(clustertest.Policy{Name: "exec", Namespaces: []clustertest.NamespaceRule{{Name: "default", Capabilities: []string{"alloc-exec"}}}})
	cluster.AddPolicy(clustertest.Policy{Name: "node-exec", Namespaces: []clustertest.NamespaceRule{{Name: "default", Capabilities: []string{"alloc-exec", "alloc-node-exec"}}}})
	for token, want := range map[string]string{
		cluster.AddToken("a", []string{"exec"}, nil):      "error Permission denied",
		cluster.AddToken("b", []string{"node-exec"}, nil): `{"stdout":{"data":"cmFuCg=="}}`, // ran
		cluster.ManagementToken():                         `{"stdout":{"data":"cmFuCg=="}}`,
	} {
		stream, err := cluster.OpenStream(t.Context(), s.NodeID, protocol.MethodExec, &protocol.ExecRequest{
			AllocID: allocID, Task: "t", Cmd: []string{"echo", "ran"}, ReadOptions: protocol.ReadOptions{AuthToken: token},
		})
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for {
			var m protocol.StreamMessage
			if err := stream.Receive(&m); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			if m.Error != nil {
				got += "error " + m.Error.Message
			}
			got += string(m.Payload)
		}
		stream.Close()
		if !strings.HasPrefix(got, want) {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
