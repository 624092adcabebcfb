package faults

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest/programs"
	"github.com/nomad-lite/nomad-lite/internal/cgroup"
	osprocess "github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/runtime/agent"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
)

func init() {
	programs.KillableAgentCommands["deregister"] = func(ctx context.Context, a *agent.Agent, job string) any {
		_, err := a.Scheduler().DeregisterJob(ctx, scheduler.JobKey{Namespace: "default", ID: job}, scheduler.DeregisterOptions{})
		return fmt.Sprint(err)
	}
	programs.KillableAgentCommands["relaunch"] = func(ctx context.Context, a *agent.Agent, plugin string) any {
		return fmt.Sprint(a.Supervisor().Restart(ctx, plugin))
	}
}

// driverOutageNode is a node whose driver plugin can be made unavailable.
type driverOutageNode struct {
	*testing.T
	*systemtest.KillableAgent
	dir, dataDir, pluginDir string
	driverName              string // "raw_exec" or "shell"
	withoutCgroups          bool
}

func newDriverOutageNode(t *testing.T, driver string, withoutCgroups bool) *driverOutageNode {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to have task directories like an agent's")
	}
	dir := systemtest.NewLeakCheckedAgentDir(t)
	n := &driverOutageNode{
		T: t, dir: dir, dataDir: filepath.Join(dir, "data"), pluginDir: filepath.Join(dir, "plugins"),
		driverName: driver, withoutCgroups: withoutCgroups,
	}
	if err := os.Mkdir(n.pluginDir, 0o755); err != nil {
		t.Fatal(err)
	}
	if driver == "shell" {
		program, err := exec.LookPath("shell-driver")
		if err != nil {
			t.Fatal(err)
		}
		script := fmt.Appendf(nil, "#!/bin/sh\n[ ! -e %s/broken ] || exit 3\nexec %s %s\n", dir, program, n.dataDir)
		if err := os.WriteFile(filepath.Join(n.pluginDir, "shell-driver"), script, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	n.startAgent()
	return n
}

// startAgent starts an agent.
func (n *driverOutageNode) startAgent() {
	n.Helper()
	cmd := agentEnvironment{noCgroups: n.withoutCgroups}.newCommand("mortal-agent", n.dataDir, n.pluginDir)
	cmd.Stderr = os.Stderr
	n.KillableAgent = systemtest.StartKillableAgentCommand(n.T, cmd)
}

func (n *driverOutageNode) pluginProcessKind() string {
	if n.driverName == "shell" {
		return "shell-driver"
	}
	return "plugin"
}

// waitNewPluginProcess waits for a plugin process of the driver other than before.
func (n *driverOutageNode) waitNewPluginProcess(before osprocess.ID) osprocess.ID {
	n.Helper()
	var pluginProcesses []osprocess.ID
	for deadline := time.Now().Add(systemtest.WaitTimeout); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		if pluginProcesses = systemtest.GroupProcessesByKind(systemtest.FindDataDirProcesses(n.dataDir))[n.pluginProcessKind()]; len(pluginProcesses) == 1 && pluginProcesses[0] != before {
			return pluginProcesses[0]
		}
	}
	n.Fatalf("plugin processes: %v", pluginProcesses)
	return osprocess.ID{}
}

// breakDriver makes the driver unavailable: an external driver until repairDriver, a builtin driver
// for the back-off of five seconds after the second exit of its plugin.
func (n *driverOutageNode) breakDriver() {
	n.Helper()
	if n.driverName == "shell" {
		if err := os.WriteFile(n.dir+"/broken", nil, 0o644); err != nil {
			n.Fatal(err)
		}
		n.killProcess(n.waitNewPluginProcess(osprocess.ID{}))
		return
	}
	n.killPluginTwice()
}

// repairDriver makes the driver available again. The agent would launch its plugin again after the back-off.
func (n *driverOutageNode) repairDriver() {
	n.Helper()
	if err := os.RemoveAll(n.dir + "/broken"); err != nil {
		n.Fatal(err)
	}
	plugin := n.driverName
	if plugin == "shell" {
		plugin = "shell-driver" // name of its file
	}
	var text string
	if n.SendCommand("relaunch "+plugin, &text); text != fmt.Sprint(nil) {
		n.Fatal(text)
	}
}

// killPluginTwice kills the plugin, and then its next plugin process as soon as that process
// exists.
func (n *driverOutageNode) killPluginTwice() {
	n.Helper()
	first := n.waitNewPluginProcess(osprocess.ID{})
	n.killProcess(first)
	n.killProcess(n.waitNewPluginProcess(first))
}

// killProcess kills a process, which can have exited already.
func (n *driverOutageNode) killProcess(p osprocess.ID) {
	n.Helper()
	if err := p.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		n.Fatal(err)
	}
}

// waitTask waits until ok accepts the state of a job's task, and returns the id of the allocation.
func (n *driverOutageNode) waitTask(what, job string, ok func(*api.TaskState) bool) string {
	n.Helper()
	id := ""
	n.WaitTaskReport(what, func(v systemtest.TaskReport) bool {
		alloc, state := v.OnlyTaskOfJob(job)
		if state == nil || !ok(state) {
			return false
		}
		id = alloc.ID
		return true
	})
	return id
}

func taskHasState(state string) func(*api.TaskState) bool {
	return func(s *api.TaskState) bool { return s.State == state }
}

func taskHasEventText(text string) func(*api.TaskState) bool {
	return func(s *api.TaskState) bool { return systemtest.HasEventText(s, text) }
}

// taskProcesses returns the processes of an allocation's task.
func (n *driverOutageNode) taskProcesses(id string) []osprocess.ID {
	return systemtest.GroupProcessesByKind(systemtest.FindDataDirProcesses(n.dataDir))[id+"/task"]
}

// waitTaskProcess returns the process of an allocation's task. A task is running shortly before its process has the variables
// by which it is found.
func (n *driverOutageNode) waitTaskProcess(id string) (found []osprocess.ID) {
	n.Helper()
	n.WaitTaskReport("the task has one process", func(systemtest.TaskReport) bool {
		found = n.taskProcesses(id)
		return len(found) == 1
	})
	return found
}

// assertSameTaskProcess asserts that a task still has the same single process.
func (n *driverOutageNode) assertSameTaskProcess(id string, was []osprocess.ID) {
	n.Helper()
	if now := n.taskProcesses(id); len(was) != 1 || !slices.Equal(now, was) {
		n.Errorf("processes %v, before %v", now, was)
	}
}

const driverOutageJob = `
job %q {
  type = %q
  group "g" {
    restart {
      attempts = 0
      mode     = "fail"
    }
    reschedule {
      attempts       = 10
      interval       = "1h"
      delay          = "5s"
      delay_function = "constant"
      unlimited      = false
    }
    task "task" {
      driver       = %q
      kill_timeout = "200ms"
      config {
        command = "/bin/sh"
        args    = ["-c", %q]
        %s
      }
      resources {
        cpu    = 20
        memory = 10
      }
    }
  }
}
`

func (n *driverOutageNode) job(name, typ, script, more string) string {
	return fmt.Sprintf(driverOutageJob, name, typ, n.driverName, script, more)
}

// ignoreSignalsScript ignores the signal with which a driver stops a task.
const ignoreSignalsScript = "trap '' INT; while :; do sleep 1 & wait; done"

// forEachDriver runs a test with a builtin and an external driver, with and without
// cgroups.
func forEachDriver(t *testing.T, test func(*driverOutageNode)) {
	t.Helper()
	for _, driver := range []string{"raw_exec", "shell"} {
		for _, without := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, without cgroups %v", driver, without), func(t *testing.T) {
				t.Parallel()
				test(newDriverOutageNode(t, driver, without))
			})
		}
	}
}

func TestPluginKilledTwiceLeavesItsTasksRunning(t *testing.T) {
	forEachDriver(t, func(n *driverOutageNode) {
		n.RegisterJobs(n.dir, n.job("service", "service", ignoreSignalsScript, ""))
		id := n.waitTask("it runs", "service", taskHasState(model.TaskRunning))
		was := n.waitTaskProcess(id)
		n.killPluginTwice()
		n.waitTask("the outage is an event", "service", taskHasEventText("driver unavailable, the task may still run: "))
		n.assertSameTaskProcess(id, was)
		v := n.WaitTaskReport("the end of the outage is an event", func(v systemtest.TaskReport) bool {
			_, s := v.OnlyTaskOfJob("service")
			if s.State != model.TaskRunning || s.Failed {
				n.Fatalf("the task is %s, events %v", s.State, systemtest.EventTypesWithoutLimitWarnings(s.Events))
			}
			return systemtest.HasEventText(s, "driver available again")
		})
		n.assertSameTaskProcess(id, was)
		if len(v.AllocByID) != 1 {
			n.Errorf("%d allocations", len(v.AllocByID))
		}
		count := map[string]int{}
		_, state := v.OnlyTaskOfJob("service")
		for _, e := range state.Events {
			text, _, _ := strings.Cut(e.DisplayMessage, ",")
			count[e.Type]++
			count[text]++
		}
		if count["driver unavailable"] != 1 || count["driver available again"] != 1 || count[api.TaskStarted] != 1 || count[api.TaskTerminated] != 0 {
			n.Errorf("events %v, %v", systemtest.EventTypesWithoutLimitWarnings(state.Events), count)
		}
		n.SendExitCommandAndWait("stop")
	})
}

func TestStopDuringAnOutageOfTheDriver(t *testing.T) {
	forEachDriver(t, func(n *driverOutageNode) {
		n.RegisterJobs(n.dir, n.job("service", "service", ignoreSignalsScript, ""))
		id := n.waitTask("it runs", "service", taskHasState(model.TaskRunning))
		was := n.waitTaskProcess(id)
		n.breakDriver()
		n.waitTask("the outage is an event", "service", taskHasEventText("driver unavailable"))
		n.SendCommand("deregister service", new(string))
		n.waitTask("the stop is pending", "service", taskHasEventText("stop is pending, driver unavailable: "))
		if n.driverName == "shell" {
			// Only the external driver can stop the task, so the next agent must wait for the
			// driver again.
			n.assertSameTaskProcess(id, was)
			n.SendExitCommandAndWait("leave")
			n.assertSameTaskProcess(id, was)
			n.startAgent()
			n.waitTask("the stop is pending again", "service", func(s *api.TaskState) bool {
				return len(slices.DeleteFunc(slices.Clone(s.Events), func(e *api.TaskEvent) bool {
					return !strings.Contains(e.DisplayMessage, "stop is pending, driver unavailable: ")
				})) == 2
			})
			n.waitTask("the plugin is named", "service", taskHasEventText(n.pluginDir+"/shell-driver"))
			n.assertSameTaskProcess(id, was)
			n.repairDriver()
		}
		v := n.WaitTaskReport("it is dead", func(v systemtest.TaskReport) bool {
			_, s := v.OnlyTaskOfJob("service")
			return s.State == model.TaskDead
		})
		if left := n.taskProcesses(id); len(left) > 0 {
			n.Errorf("left: %v", left)
		}
		alloc, s := v.OnlyTaskOfJob("service")
		if alloc.ClientStatus != api.AllocClientStatusComplete || !systemtest.HasEventText(s, "Exit Code: 137, Signal: 9") {
			n.Errorf("alloc %s, events %v", alloc.ClientStatus, systemtest.EventTypesWithoutLimitWarnings(s.Events))
		}
		if plugins := systemtest.GroupProcessesByKind(systemtest.FindDataDirProcesses(n.dataDir))[n.pluginProcessKind()]; n.driverName == "raw_exec" && len(plugins) > 0 {
			n.Error("the task was not ended before its driver came back")
		}
		n.SendExitCommandAndWait("stop")
	})
}

func TestPurgeDuringAnOutageOfTheDriver(t *testing.T) {
	forEachDriver(t, func(n *driverOutageNode) {
		n.RegisterJobs(n.dir, n.job("service", "service", ignoreSignalsScript, ""))
		id := n.waitTask("it runs", "service", taskHasState(model.TaskRunning))
		n.breakDriver()
		n.waitTask("the outage is an event", "service", taskHasEventText("driver unavailable"))
		n.SendCommand("deregister service", new(string)) // the job is stopped first, because a purge must also work for a stopped job
		n.waitTask("the stop is pending", "service", taskHasEventText("stop is pending"))
		n.SendCommand("purge service", new(string))
		seen := false
		n.WaitTaskReport("it has ended", func(v systemtest.TaskReport) bool {
			alloc, s := v.OnlyTaskOfJob("service")
			if alloc == nil {
				return true // an allocation is removed only after its tasks are dead
			}
			seen = seen || systemtest.HasEventText(s, "exit status unknown")
			return s.State == model.TaskDead
		})
		if left := n.taskProcesses(id); len(left) > 0 {
			n.Errorf("left: %v", left)
		}
		if n.driverName == "shell" {
			if !seen {
				n.Error("there is no event that the exit status is unknown")
			}
			n.repairDriver()
		}
		n.WaitTaskReport("the allocation is gone", func(v systemtest.TaskReport) bool { return len(v.AllocByID) == 0 })
		n.SendExitCommandAndWait("stop")
	})
}

func TestAgentThatStopsDuringAnOutageLeavesItsTasks(t *testing.T) {
	forEachDriver(t, func(n *driverOutageNode) {
		if n.withoutCgroups {
			n.Skip("the next agent would have other mounts")
		}
		n.RegisterJobs(n.dir, n.job("service", "service", ignoreSignalsScript, ""))
		id := n.waitTask("it runs", "service", taskHasState(model.TaskRunning))
		was := n.waitTaskProcess(id)
		n.breakDriver()
		n.waitTask("the outage is an event", "service", taskHasEventText("driver unavailable"))
		n.SendExitCommandAndWait("leave")
		n.assertSameTaskProcess(id, was)
		n.startAgent()
		if n.driverName == "shell" {
			n.waitTask("the next agent waits", "service", func(s *api.TaskState) bool {
				return s.State == model.TaskRunning && len(s.Events) > 4
			})
			n.assertSameTaskProcess(id, was)
			n.repairDriver()
			n.waitTask("it is recovered", "service", taskHasEventText("driver available again"))
		} else {
			n.waitNewPluginProcess(osprocess.ID{})
		}
		n.WaitTaskReport("it is owned", func(v systemtest.TaskReport) bool { return v.TasksWithProcess == 1 })
		n.assertSameTaskProcess(id, was)
		n.SendExitCommandAndWait("stop")
	})
}

func TestExitStatusSurvivesDriverOutage(t *testing.T) {
	forEachDriver(t, func(n *driverOutageNode) {
		n.RegisterJobs(n.dir, n.job("work", "batch", fmt.Sprintf("while [ ! -e %s/done ]; do sleep 0.02; done", n.dir), ""))
		id := n.waitTask("it runs", "work", taskHasState(model.TaskRunning))
		n.breakDriver()
		n.waitTask("the outage is an event", "work", taskHasEventText("driver unavailable"))
		if err := os.WriteFile(n.dir+"/done", nil, 0o644); err != nil {
			n.Fatal(err)
		}
		for len(n.taskProcesses(id)) > 0 {
			time.Sleep(5 * time.Millisecond)
		}
		n.repairDriver()
		v := n.WaitTaskReport("it is dead", func(v systemtest.TaskReport) bool {
			_, s := v.OnlyTaskOfJob("work")
			return s.State == model.TaskDead
		})
		alloc, s := v.OnlyTaskOfJob("work")
		if alloc.ClientStatus != api.AllocClientStatusComplete || s.Failed || !systemtest.HasEventText(s, "Exit Code: 0") {
			n.Errorf("alloc %s, events %v", alloc.ClientStatus, systemtest.EventTypesWithoutLimitWarnings(s.Events))
		}
		n.SendExitCommandAndWait("stop")
	})
}

// The agent, which asks the keeper for the exit status during an outage, finds out that memory was the reason.
func TestOOMKillDuringDriverOutage(t *testing.T) {
	t.Parallel()
	n := newDriverOutageNode(t, "raw_exec", false)
	if reason := cgroup.Open(cgroup.Options{}).UnavailableReason(); reason != "" {
		t.Skip(reason)
	}
	script := fmt.Sprintf("while [ ! -e %s/exceed ]; do sleep 0.02; done; x=$(head -c 200000000 /dev/zero | tr '\\0' x)", n.dir)
	n.RegisterJobs(n.dir, n.job("work", "batch", script, ""))
	n.waitTask("it runs", "work", taskHasState(model.TaskRunning))
	n.breakDriver()
	n.waitTask("the outage is an event", "work", taskHasEventText("driver unavailable"))
	if err := os.WriteFile(n.dir+"/exceed", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	report := n.WaitTaskReport("the task has ended", func(v systemtest.TaskReport) bool {
		_, s := v.OnlyTaskOfJob("work")
		return systemtest.HasEventText(s, "Exit Code: ")
	})
	if _, s := report.OnlyTaskOfJob("work"); !systemtest.HasEventText(s, `Exit Code: 137, Signal: 9, Exit Message: "OOM Killed"`) {
		t.Errorf("no event says that memory was the reason: %q", eventMessages(s))
	}
	n.SendExitCommandAndWait("stop")
}

// A task whose start makes the plugin process exit does not disturb the running tasks.
func TestPluginCrashInStartTaskLeavesOtherTasksRunning(t *testing.T) {
	for _, without := range []bool{false, true} {
		t.Run(fmt.Sprintf("without cgroups %v", without), func(t *testing.T) {
			t.Parallel()
			n := newDriverOutageNode(t, "shell", without)
			n.RegisterJobs(n.dir, n.job("service", "service", ignoreSignalsScript, ""))
			id := n.waitTask("it runs", "service", taskHasState(model.TaskRunning))
			was := n.waitTaskProcess(id)
			n.RegisterJobs(n.dir, n.job("bad", "batch", "exit 0", "crash = true"))
			n.waitTask("the start has failed", "bad", func(s *api.TaskState) bool { return s.Failed })
			n.SendCommand("purge bad", new(string))
			n.repairDriver()
			n.waitTask("it runs on", "service", taskHasEventText("driver available again"))
			n.assertSameTaskProcess(id, was)
			v := n.WaitTaskReport("the bad one is gone", func(v systemtest.TaskReport) bool { return len(v.AllocByID) == 1 })
			if _, s := v.OnlyTaskOfJob("service"); s.State != model.TaskRunning || s.Restarts != 0 {
				n.Errorf("state %s, restarts %d", s.State, s.Restarts)
			}
			n.SendExitCommandAndWait("stop")
		})
	}
}

// A batch task that its restart policy does not repeat has failed if its exit status is unknown.
func TestBatchJobWithUnknownExitStatusIsNotRerun(t *testing.T) {
	n := newDriverOutageNode(t, "raw_exec", false)
	runs := n.dir + "/runs"
	n.RegisterJobs(n.dir, strings.Replace(n.job("work", "batch", fmt.Sprintf("echo run >>%s; sleep 1000", runs), ""), "attempts       = 10", "attempts       = 0", 1))
	id := n.waitTask("it runs", "work", taskHasState(model.TaskRunning))
	tasks := n.waitTaskProcess(id)
	for deadline := time.Now().Add(systemtest.WaitTimeout); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if text, err := os.ReadFile(runs); err == nil && len(text) > 0 {
			break // the command has run; a task is reported as running before that
		}
	}
	n.KillAndWait()
	for _, p := range systemtest.FindDataDirProcesses(n.dataDir) { // the keeper is killed first, so that no process observes the exit of another one
		if p.Kind == "keeper" {
			n.killProcess(p.ID)
		}
	}
	for _, p := range systemtest.FindDataDirProcesses(n.dataDir) {
		n.killProcess(p.ID)
	}
	// A zombie still has its exit status, so the test waits until no process of the task is left.
	deadline := time.Now().Add(systemtest.WaitTimeout)
	for _, p := range tasks {
		for err := error(nil); err == nil; _, err = os.Stat(fmt.Sprintf("/proc/%d", p.PID)) {
			if time.Now().After(deadline) {
				n.Fatalf("process %d is still there: does process 1 of this machine reap?", p.PID)
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	n.startAgent()
	v := n.WaitTaskReport("it is dead", func(v systemtest.TaskReport) bool {
		_, s := v.OnlyTaskOfJob("work")
		return s.State == model.TaskDead
	})
	alloc, s := v.OnlyTaskOfJob("work")
	if alloc.ClientStatus != api.AllocClientStatusFailed || fmt.Sprint(systemtest.EventTypesWithoutLimitWarnings(s.Events)) != "[Received Task Setup Started Failed Restoring Task Not Restarting]" {
		n.Errorf("alloc %s, events %v", alloc.ClientStatus, systemtest.EventTypesWithoutLimitWarnings(s.Events))
	}
	if !systemtest.HasEventText(s, "exit status unknown") {
		n.Errorf("event %q", s.Events[3].DisplayMessage)
	}
	if text, err := os.ReadFile(runs); err != nil || string(text) != "run\n" {
		n.Errorf("runs: %q, %v", text, err)
	}
	n.SendExitCommandAndWait("stop")
}
