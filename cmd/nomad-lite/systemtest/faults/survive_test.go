package faults

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

const endingJob = `
job %q {
  type = "batch"
  group "g" {
    count = 3
    restart {
      attempts = 0
      mode     = "fail"
    }
    reschedule {
      attempts  = 0
      unlimited = false
    }
    task "wait" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "while [ ! -e %s ]; do sleep 0.02; done; exit 4"]
      }
      resources {
        cpu    = 20
        memory = 10
      }
    }
    task "after" {
      driver = "raw_exec"
      lifecycle { hook = "poststop" }
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

const lifecycleStagesJob = `
job "stages" {
  group "g" {
    task "before" {
      driver = "raw_exec"
      lifecycle { hook = "prestart" }
      config { command = "/bin/true" }
      resources {
        cpu    = 20
        memory = 10
      }
    }
    task "side" {
      driver = "raw_exec"
      lifecycle {
        hook    = "prestart"
        sidecar = true
      }
      config {
        command = "/bin/sleep"
        args    = ["1000"]
      }
      resources {
        cpu    = 20
        memory = 10
      }
    }
    task "main" {
      driver = "raw_exec"
      config {
        command = "/bin/sleep"
        args    = ["1000"]
      }
      resources {
        cpu    = 20
        memory = 10
      }
    }
  }
}
`

// nodeFailure is a failure of a node: its agent exits, and other processes are killed.
type nodeFailure struct {
	name             string
	victimKinds      []string // victims besides the agent
	gracefulShutdown bool     // the agent is stopped in order, and not killed
	upgradesAgent    bool     // the next agent is another build of the program
}

var helperProcessKinds = []string{"keeper", "log-collector", "plugin"}

// TestTasksSurviveDeaths injects one failure after the other into a node with services. Tasks exit
// while no agent runs, and the test checks the report of the next agent.
func TestTasksSurviveDeaths(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to have task directories like an agent's")
	}
	services := 100
	if !slowtest.Enabled() {
		services = 10
	}
	for _, test := range []struct {
		name     string
		services int
		deaths   []nodeFailure
	}{
		{fmt.Sprintf("of %d services", services), services, []nodeFailure{
			{name: "agent"},
			{name: "agent and collector", victimKinds: []string{"log-collector"}},
			{name: "agent in good order", gracefulShutdown: true},
			{name: "agent and plugin", victimKinds: []string{"plugin"}},
			{name: "agent, and the next one is another build", upgradesAgent: true},
		}},
		// The keeper is killed in a test of its own, because without it the exit of a task whose
		// plugin is killed later is not recorded.
		{"with the keeper", 3, []nodeFailure{{name: "agent and keeper", victimKinds: []string{"keeper"}}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			testTasksSurvive(t, test.services, test.deaths)
		})
	}
}

func testTasksSurvive(t *testing.T, services int, deaths []nodeFailure) {
	dir := systemtest.NewLeakCheckedAgentDir(t)
	data, program := filepath.Join(dir, "data"), "/proc/self/exe"
	m := systemtest.StartKillableAgent(t, program, data)
	m.RegisterJobs(dir, fmt.Sprintf(systemtest.ManyTasksJob, services), lifecycleStagesJob)
	stay := services + 2 // the count includes the two running tasks of lifecycleStagesJob
	killed := map[string]bool{}
	for round, death := range deaths {
		ends, flag := fmt.Sprint("ends-", round), filepath.Join(dir, fmt.Sprint("go-", round))
		m.RegisterJobs(dir, fmt.Sprintf(endingJob, ends, flag))
		before := m.WaitTaskReport("all tasks run", func(v systemtest.TaskReport) bool {
			return v.TasksWithProcess == stay+3 && v.RunningTaskCount() == stay+3 && taskIsDead(v, "stages", "before")
		})
		processes := systemtest.GroupProcessesByKind(systemtest.FindDataDirProcesses(data))

		if death.gracefulShutdown {
			m.SendExitCommandAndWait("leave")
		} else {
			m.KillAndWait()
		}
		for _, kind := range death.victimKinds {
			for _, p := range processes[kind] {
				if err := p.Signal(syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
			}
		}
		var victimAllocID string
		for id, alloc := range before.AllocByID {
			if alloc.JobID == "many" && !killed[id] {
				victimAllocID = id
			}
		}
		killed[victimAllocID] = true
		if err := processes[victimAllocID+"/loop"][0].Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(flag, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		time.Sleep(200 * time.Millisecond)

		if death.upgradesAgent {
			program = systemtest.CopyBinaryAsOtherBuild(t)
		}
		begin := time.Now()
		m = systemtest.StartKillableAgent(t, program, data)
		after := m.WaitTaskReport("all is as it should be", func(v systemtest.TaskReport) bool {
			return v.TasksWithProcess == stay && v.RunningTaskCount() == stay && taskIsDead(v, ends, "after") && v.AllocByID[victimAllocID].TaskStates["loop"].Restarts == 1
		})
		t.Logf("%s: all tasks owned after %v", death.name, time.Since(begin))
		now := systemtest.GroupProcessesByKind(systemtest.FindDataDirProcesses(data))
		several := func(kind string) bool { return len(now[kind]) != 1 }
		// A keeper or log collector of the old build exits when its successor has taken over.
		for limit := time.Now().Add(systemtest.WaitTimeout); slices.ContainsFunc(helperProcessKinds, several) && time.Now().Before(limit); {
			time.Sleep(10 * time.Millisecond)
			now = systemtest.GroupProcessesByKind(systemtest.FindDataDirProcesses(data))
		}
		if len(after.AllocByID) != len(before.AllocByID) {
			t.Errorf("%s: %d allocations, before %d", death.name, len(after.AllocByID), len(before.AllocByID))
		}
		for kind, was := range processes {
			id, task, isTask := strings.Cut(kind, "/")
			if !isTask || before.AllocByID[id].JobID == ends {
				continue
			}
			is, events := now[kind], after.AllocByID[id].TaskStates[task].Events
			switch {
			case len(is) != 1:
				t.Errorf("%s: %s has processes %v", death.name, kind, is)
			case id == victimAllocID:
				want := "[Received Task Setup Started Terminated Restarting Started]"
				if got := fmt.Sprint(systemtest.EventTypesWithoutLimitWarnings(events)); got != want || events[3].DisplayMessage != "Exit Code: 137, Signal: 9" {
					t.Errorf("%s: killed task: %s, %q", death.name, got, events[min(3, len(events)-1)].DisplayMessage)
				}
			case is[0] != was[0]:
				t.Errorf("%s: %s is process %v, was %v", death.name, kind, is, was)
			case fmt.Sprint(systemtest.EventTypesWithoutLimitWarnings(events)) != fmt.Sprint(systemtest.EventTypesWithoutLimitWarnings(before.AllocByID[id].TaskStates[task].Events)):
				t.Errorf("%s: %s has new events: %v", death.name, kind, systemtest.EventTypesWithoutLimitWarnings(events))
			}
		}
		var logFiles []string
		for id, alloc := range after.AllocByID {
			want := api.AllocClientStatusRunning
			switch {
			case alloc.JobID == ends:
				want = api.AllocClientStatusFailed
				events := alloc.TaskStates["wait"].Events
				if got := fmt.Sprint(systemtest.EventTypesWithoutLimitWarnings(events)); got != "[Received Task Setup Started Terminated Not Restarting]" || events[3].DisplayMessage != "Exit Code: 4" {
					t.Errorf("%s: task that ended: %s, %q", death.name, got, events[min(3, len(events)-1)].DisplayMessage)
				}
			case strings.HasPrefix(alloc.JobID, "ends"):
				want = api.AllocClientStatusFailed
			case alloc.JobID == "many" && !killed[id]:
				logFiles = append(logFiles, filepath.Join(data, "alloc", id, "alloc", "logs", "loop.stdout.0"))
			}
			if alloc.ClientStatus != want {
				t.Errorf("%s: allocation %s is %s, want %s", death.name, alloc.Name, alloc.ClientStatus, want)
			}
		}
		assertConsecutiveOutput(t, logFiles)
		for _, kind := range helperProcessKinds {
			if len(now[kind]) != 1 {
				t.Fatalf("%s: %s is %v, was %v", death.name, kind, now[kind], processes[kind])
			}
			survives := !slices.Contains(death.victimKinds, kind) && (!death.upgradesAgent || kind == "keeper")
			if survives != (now[kind][0] == processes[kind][0]) {
				t.Errorf("%s: %s is %v, was %v", death.name, kind, now[kind], processes[kind])
			}
			if !death.upgradesAgent {
				continue
			}
			file, err := os.Open(program)
			if err != nil {
				t.Fatal(err)
			}
			if same, err := now[kind][0].SameExecutable(file); !same || err != nil {
				t.Errorf("%s is not of the new build: %v", kind, err)
			}
			file.Close()
		}
	}
	m.SendExitCommandAndWait("stop")
}

// TestTaskWithUnstoredHandle removes the handle of a running task from the state, as if the agent had been killed before
// it could store the handle. The next agent adopts the process.
func TestTaskWithUnstoredHandle(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to have task directories like an agent's")
	}
	for _, victim := range []string{"", "plugin"} {
		t.Run("victim "+victim, func(t *testing.T) {
			t.Parallel()
			dir := systemtest.NewLeakCheckedAgentDir(t)
			data := filepath.Join(dir, "data")
			m := systemtest.StartKillableAgent(t, "/proc/self/exe", data)
			m.RegisterJobs(dir, fmt.Sprintf(systemtest.ManyTasksJob, 1))
			runs := func(v systemtest.TaskReport) bool { return v.TasksWithProcess == 1 && v.RunningTaskCount() == 1 }
			before := m.WaitTaskReport("the task runs", runs)
			m.KillAndWait()
			processes := systemtest.GroupProcessesByKind(systemtest.FindDataDirProcesses(data))
			for _, p := range processes[victim] {
				_ = p.Signal(syscall.SIGKILL)
			}

			s, err := store.Open(t.Context(), store.Config{StateFilePath: filepath.Join(data, "state.db"), Logger: hclog.NewNullLogger()})
			if err != nil {
				t.Fatal(err)
			}
			id := ""
			for id = range before.AllocByID {
			}
			local, _, err := s.Snapshot().TaskFields(id, "loop")
			if err != nil {
				t.Fatal(err)
			}
			status, err := s.Snapshot().TaskState(id, "loop")
			if err != nil {
				t.Fatal(err)
			}
			local.Handle = nil
			status.State, status.Events = model.TaskPending, status.Events[:2]
			if err := errors.Join(s.PutTask(id, "loop", local, status, state.DurabilitySync)(), s.Close()); err != nil {
				t.Fatal(err)
			}

			m = systemtest.StartKillableAgent(t, "/proc/self/exe", data)
			after := m.WaitTaskReport("the task runs", func(v systemtest.TaskReport) bool {
				return runs(v) && len(v.AllocByID[id].TaskStates["loop"].Events) > 2
			})
			if got := fmt.Sprint(systemtest.EventTypesWithoutLimitWarnings(after.AllocByID[id].TaskStates["loop"].Events)); got != "[Received Task Setup Started]" {
				t.Errorf("events %s", got)
			}
			kind := id + "/loop"
			if now := systemtest.GroupProcessesByKind(systemtest.FindDataDirProcesses(data))[kind]; len(now) != 1 || now[0] != processes[kind][0] {
				t.Errorf("processes %v, before %v", now, processes[kind])
			}
			m.SendExitCommandAndWait("stop")
		})
	}
}

// taskIsDead reports whether the named task is dead in all allocations of a job.
func taskIsDead(v systemtest.TaskReport, job, task string) bool {
	found := false
	for _, alloc := range v.AllocByID {
		if alloc.JobID == job {
			found = true
			if s := alloc.TaskStates[task]; s == nil || s.State != model.TaskDead {
				return false
			}
		}
	}
	return found
}

// eventTimes returns the times of events, in nanoseconds since the Unix epoch.
func eventTimes(events []*api.TaskEvent) (list []int64) {
	for _, e := range events {
		list = append(list, e.Time)
	}
	return list
}

// assertConsecutiveOutput asserts that each file of task output has the lines 1, 2, 3 … and still
// grows.
func assertConsecutiveOutput(t *testing.T, files []string) {
	t.Helper()
	read := func(file string) (lines int) {
		text, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, os.ErrNotExist) { // the task may not have written its first output yet
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if lines++; line != fmt.Sprintln(lines) {
				t.Fatalf("%s: line %d is %q", file, lines, line)
			}
		}
		return lines
	}
	begin := map[string]int{}
	for _, file := range files {
		begin[file] = read(file)
	}
	deadline := time.Now().Add(systemtest.WaitTimeout)
	for file, lines := range begin {
		for read(file) < lines+2 {
			if time.Now().After(deadline) {
				t.Fatalf("%s: the output does not grow", file)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}
