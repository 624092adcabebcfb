package peertest

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/peers"
)

const movedJob = `
job "moved" {
  datacenters = ["dc-peer"]
  group "g" {
    ephemeral_disk {
      migrate = true
      sticky  = true
    }
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "for d in $NOMAD_ALLOC_DIR/data $NOMAD_TASK_DIR; do echo $NOMAD_ALLOC_ID >> $d/history; ln -sf history $d/link; done; exec sleep 1000"]
      }
      resources {
        cpu    = 10
        memory = 10
      }
    }
  }
}
`

// startNodeOfStock starts nomad-lite as a node of the cluster of the stock agent.
func startNodeOfStock(t *testing.T, stock *host) *host {
	t.Helper()
	servers, err := stock.Status().Leader()
	if err != nil {
		t.Fatal(err)
	}
	ports, err := freePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	h := &host{name: "nomad-lite", address: "http://127.0.0.1:" + ports[0]}
	config := fmt.Sprintf("ports { http = %s }\nadvertise { http = \"127.0.0.1:%[1]s\" }\nclient {\n servers = [%q]\n server_http_addr = %q\n}\n", ports[0], servers, stock.address)
	if err := h.start("nomad-lite", config, hostConfig{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.stop(); err != nil {
			t.Error(err)
		}
	})
	if h.Client, err = api.NewClient(&api.Config{Address: h.address}); err != nil {
		t.Fatal(err)
	}
	err = waitFor("nomad-lite as a node of the stock agent", func() bool {
		self, err := h.Agent().Self()
		if err != nil {
			return false
		}
		h.nodeID = self.Stats["client"]["node_id"]
		node, _, err := stock.Nodes().Info(h.nodeID, nil)
		return err == nil && node.Status == api.NodeStatusReady
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, h.log())
	}
	return h
}

// The data of a job moves with it between a stock client and nomad-lite, in both directions. All requests go to nomad-lite, which
// forwards them.
func TestDataMovesBetweenNodesOfStockServer(t *testing.T) {
	stock, err := startNomad(peers.ProgramOrSkip(t, "nomad"), hostConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer stock.stop()
	lite := startNodeOfStock(t, stock)
	setEligible := func(nodeID string, eligible bool) {
		t.Helper()
		if _, err := lite.Nodes().ToggleEligibility(nodeID, eligible, nil); err != nil {
			t.Fatal(err)
		}
	}
	setEligible(stock.nodeID, false)
	job, err := lite.Jobs().ParseHCL(movedJob, true)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := lite.Jobs().Register(job, nil); err != nil {
		t.Fatal(err)
	}
	defer lite.Jobs().Deregister("moved", true, nil)

	var history string
	for i, nodeID := range []string{lite.nodeID, stock.nodeID, lite.nodeID} {
		if i > 0 {
			setEligible(nodeID, true)
			from := map[string]string{stock.nodeID: lite.nodeID, lite.nodeID: stock.nodeID}[nodeID]
			if _, err := lite.Nodes().UpdateDrain(from, &api.DrainSpec{Deadline: time.Minute}, false, nil); err != nil {
				t.Fatal(err)
			}
		}
		var stub *api.AllocationListStub
		err := waitFor("the job on node "+nodeID, func() bool {
			stubs, _, err := lite.Jobs().Allocations("moved", true, nil)
			for _, s := range stubs {
				if s.NodeID == nodeID && s.ClientStatus == api.AllocClientStatusRunning && s.DesiredStatus == api.AllocDesiredStatusRun {
					stub = s
				}
			}
			return err == nil && stub != nil
		})
		if err != nil {
			t.Fatalf("%v\n%s", err, lite.log())
		}
		history += stub.ID + "\n"
		alloc, _, err := lite.Allocations().Info(stub.ID, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{"alloc/data/history", "alloc/data/link", "t/local/history"} {
			var got string
			err := waitFor(path, func() bool {
				file, err := lite.AllocFS().Cat(alloc, path, nil)
				if err != nil {
					return false
				}
				defer file.Close()
				text, err := io.ReadAll(file)
				got = string(text)
				return err == nil && strings.HasSuffix(got, stub.ID+"\n")
			})
			if err != nil || got != history {
				t.Errorf("move %d: %s has %q, want %q; %v\n%v", i, path, got, history, err, alloc.TaskStates["t"].Events)
			}
		}
	}
}
