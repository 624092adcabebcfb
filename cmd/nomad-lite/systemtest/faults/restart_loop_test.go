package faults

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest/programs"
)

const restartLoopJob = `
job "churn" {
  group "g" {
    update {
      max_parallel = 0
    }
    restart {
      attempts = 1000000
      interval = "24h"
      delay    = "0s"
    }
    task "churn" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
      resources {
        cpu    = 20
        memory = 10
      }
    }
  }
}
`

// TestRestartLoopLeaksNoResources makes a task start again and again. The processes of the node must
// release all resources of each run.
func TestRestartLoopLeaksNoResources(t *testing.T) {
	t.Parallel()
	testRestartLoop(t, 100)
}

func testRestartLoop(t *testing.T, runs uint64) {
	n := newNodeAsRoot(t)
	n.startAgent()
	n.registerJob(restartLoopJob)
	restarts := func(least uint64) func(programs.AllocReport) bool {
		return func(s programs.AllocReport) bool {
			a := s.FindAlloc("churn", func(*api.Allocation) bool { return true })
			return a != nil && a.TaskStates["churn"] != nil && a.TaskStates["churn"].Restarts >= least
		}
	}
	n.waitAllocReport("it has warmed up", restarts(runs/5))
	before := n.countDescriptorsByKind()
	n.waitAllocReport("it has run often", restarts(runs/5+runs))
	after := n.countDescriptorsByKind()
	for _, kind := range slices.Sorted(maps.Keys(before)) {
		// Some descriptors are open only during a run.
		if growth := after[kind] - before[kind]; growth > 16 {
			t.Errorf("%s has %d more descriptors open after %d runs: %d, then %d", kind, growth, runs, before[kind], after[kind])
		}
	}
	n.do("purge churn", new(string))
	n.waitAllocReport("it is gone", func(s programs.AllocReport) bool { return len(s.Allocs) == 0 && len(s.AllocIDsWithRunnerRecords) == 0 })
	n.agent.SendExitCommandAndWait("stop")
}

// countDescriptorsByKind counts the open descriptors of the processes of the node.
func (n *faultNode) countDescriptorsByKind() map[string]int {
	count := map[string]int{"agent": countDescriptors(n.T, n.agent.Cmd.Process.Pid)}
	for _, kind := range []string{"keeper", "log-collector", "plugin"} {
		for _, p := range n.processesByKind()[kind] {
			count[kind] = countDescriptors(n.T, p.PID)
		}
	}
	return count
}

func countDescriptors(t *testing.T, pid int) int {
	t.Helper()
	fds, err := os.ReadDir(filepath.Join("/proc", fmt.Sprint(pid), "fd"))
	if err != nil {
		t.Fatal(err)
	}
	return len(fds)
}
