package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// exitsJob has tasks that exit one after the other, each with a code of its own. A task records its code before it exits.
const exitsJob = `
job "exits" {
  type = "batch"
  group "g" {
    count = %d
    restart {
      attempts = 0
      mode     = "fail"
    }
    reschedule {
      attempts  = 0
      unlimited = false
    }
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", <<-EOF
          i=$NOMAD_ALLOC_INDEX
          while [ ! -e %s ]; do sleep 0.02; done
          sleep $((i / 10)).$((i %% 10))
          echo $((i + 1)) >>%s/$NOMAD_ALLOC_ID
          exit $((i + 1))
        EOF
        ]
      }
      resources {
        cpu    = 20
        memory = 10
      }
    }
  }
}
`

// TestExitsAreReportedOnceDespiteKills kills the plugin, the agent, and both, while tasks exit. The node reports each exit
// once, with the code that the task has recorded.
func TestExitsAreReportedOnceDespiteKills(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to have task directories like an agent's")
	}
	t.Parallel()
	const tasks = 40
	dir := systemtest.NewLeakCheckedAgentDir(t)
	data, records, flag := filepath.Join(dir, "data"), filepath.Join(dir, "records"), filepath.Join(dir, "go")
	if err := os.Mkdir(records, 0o777); err != nil {
		t.Fatal(err)
	}
	m := systemtest.StartKillableAgent(t, "/proc/self/exe", data)
	m.RegisterJobs(dir, fmt.Sprintf(exitsJob, tasks, flag, records))
	m.WaitTaskReport("all tasks run", func(v systemtest.TaskReport) bool { return v.RunningTaskCount() == tasks })
	if err := os.WriteFile(flag, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for i, kills := range []struct{ plugin, agent bool }{{plugin: true}, {agent: true}, {plugin: true, agent: true}, {plugin: true}} {
		waitRecords(t, records, (i+1)*tasks/6)
		if kills.plugin {
			for _, p := range systemtest.GroupProcessesByKind(systemtest.FindDataDirProcesses(data))["plugin"] {
				_ = p.Signal(syscall.SIGKILL) // an error means that the process has exited
			}
		}
		if kills.agent {
			m.KillAndWait()
			m = systemtest.StartKillableAgent(t, "/proc/self/exe", data)
		}
	}
	report := m.WaitTaskReport("all tasks are dead", func(v systemtest.TaskReport) bool {
		dead := 0
		for _, alloc := range v.AllocByID {
			if s := alloc.TaskStates["t"]; s != nil && s.State == model.TaskDead {
				dead++
			}
		}
		return dead == tasks
	})
	for id, alloc := range report.AllocByID {
		recorded, err := os.ReadFile(filepath.Join(records, id))
		if err != nil {
			t.Error(err)
			continue
		}
		reported := ""
		for _, event := range alloc.TaskStates["t"].Events {
			if event.Type == api.TaskTerminated {
				reported += event.DisplayMessage + "\n"
			}
		}
		if want := "Exit Code: " + string(recorded); reported != want {
			t.Errorf("%s: reported %q, want %q", alloc.Name, reported, want)
		}
	}
	m.SendExitCommandAndWait("stop")
}

// waitRecords blocks until at least n tasks have recorded their exit.
func waitRecords(t *testing.T, dir string, n int) {
	t.Helper()
	for deadline := time.Now().Add(systemtest.WaitTimeout); ; time.Sleep(5 * time.Millisecond) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		if len(entries) >= n {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d tasks have exited", len(entries), n)
		}
	}
}
