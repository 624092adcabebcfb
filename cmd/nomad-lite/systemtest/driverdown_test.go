package systemtest

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

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	osprocess "github.com/nomad-lite/nomad-lite/plugins/process"
	"github.com/nomad-lite/nomad-lite/runtime/agent"
	"github.com/nomad-lite/nomad-lite/runtime/model"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/sdk"
	"github.com/nomad-lite/nomad-lite/sdk/process"
)

// shellDriver is an external driver made with the SDK. A task with crash set makes the
// plugin process exit at its start.
func shellDriver() { sdk.ServeDriver(&shellPlugin{}) }

type shellPlugin struct{}

func (*shellPlugin) Info() sdk.DriverInfo {
	return sdk.DriverInfo{
		Name: "shell", Version: "0.1.0",
		TaskSchema: hclspec.Object(map[string]*hclspec.Spec{
			"command": hclspec.Attr("command", "string", true),
			"args":    hclspec.Attr("args", "list(string)", false),
			"crash":   hclspec.Attr("crash", "bool", false),
		}),
		Capabilities: driver.Capabilities{SendSignals: true, Exec: true},
	}
}

func (*shellPlugin) Start(ctx context.Context, start *sdk.StartRequest) (*process.Process, error) {
	var config struct {
		Command string   `codec:"command"`
		Args    []string `codec:"args"`
		Crash   bool     `codec:"crash"`
	}
	if err := start.Config(&config); err != nil {
		return nil, err
	}
	if config.Crash {
		os.Exit(3)
	}
	return process.Start(ctx, start, process.Command{Path: config.Command, Args: config.Args})
}

func (*shellPlugin) Recover(ctx context.Context, start *sdk.StartRequest) (*process.Process, error) {
	var s process.State
	if err := start.State(&s); err != nil {
		return nil, err
	}
	return process.Recover(ctx, start, s)
}

func init() {
	agentCommands["deregister"] = func(ctx context.Context, a *agent.Agent, job string) any {
		_, err := a.Scheduler().Deregister(ctx, scheduler.JobKey{Namespace: "default", ID: job}, scheduler.DeregisterOptions{})
		return fmt.Sprint(err)
	}
}

// outageNode is a node whose driver plugin can be made to fail.
type outageNode struct {
	*testing.T
	*killableAgent
	dir, data, plugins string
	driver             string // "raw_exec" or "shell"
	withoutCgroups     bool
}

func newOutageNode(t *testing.T, driver string, withoutCgroups bool) *outageNode {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to have task directories like an agent's")
	}
	dir := survivalDir(t)
	n := &outageNode{
		T: t, dir: dir, data: filepath.Join(dir, "data"), plugins: filepath.Join(dir, "plugins"),
		driver: driver, withoutCgroups: withoutCgroups,
	}
	if err := os.Mkdir(n.plugins, 0o755); err != nil {
		t.Fatal(err)
	}
	if driver == "shell" {
		program, err := exec.LookPath("shell-driver")
		if err != nil {
			t.Fatal(err)
		}
		script := fmt.Appendf(nil, "#!/bin/sh\n[ ! -e %s/broken ] || exit 3\nexec %s %s\n", dir, program, n.data)
		if err := os.WriteFile(filepath.Join(n.plugins, "shell-driver"), script, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	n.start()
	return n
}

// start starts an agent.
func (n *outageNode) start() {
	n.Helper()
	cmd := environment{noCgroups: n.withoutCgroups}.command("mortal-agent", n.data, n.plugins)
	cmd.Stderr = os.Stderr
	n.killableAgent = launchKillableAgent(n.T, cmd)
}

func (n *outageNode) pluginKind() string {
	if n.driver == "shell" {
		return "shell-driver"
	}
	return "plugin"
}

// plugin waits for a plugin process of the driver other than before.
func (n *outageNode) plugin(before osprocess.ID) osprocess.ID {
	n.Helper()
	var found []osprocess.ID
	for deadline := time.Now().Add(allowance); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		if found = byKind(nodeProcesses(n.data))[n.pluginKind()]; len(found) == 1 && found[0] != before {
			return found[0]
		}
	}
	n.Fatalf("plugin processes: %v", found)
	return osprocess.ID{}
}

// breakDriver makes the driver unavailable: a builtin one for the back-off of five seconds
// after its second death, an external one until repairDriver.
func (n *outageNode) breakDriver() {
	n.Helper()
	if n.driver == "shell" {
		if err := os.WriteFile(n.dir+"/broken", nil, 0o644); err != nil {
			n.Fatal(err)
		}
		n.killProcess(n.plugin(osprocess.ID{}))
		return
	}
	n.killTwice()
}

func (n *outageNode) repairDriver() {
	n.Helper()
	if err := os.RemoveAll(n.dir + "/broken"); err != nil {
		n.Fatal(err)
	}
}

// killTwice kills the plugin, and the next plugin process as soon as it exists.
func (n *outageNode) killTwice() {
	n.Helper()
	first := n.plugin(osprocess.ID{})
	n.killProcess(first)
	n.killProcess(n.plugin(first))
}

// killProcess kills a process, which may have ended by itself.
func (n *outageNode) killProcess(p osprocess.ID) {
	n.Helper()
	if err := p.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		n.Fatal(err)
	}
}

// task returns the state of the only task of a job, nil if there is none.
func (v taskReport) task(job string) (alloc *api.Allocation, task *api.TaskState) {
	for _, a := range v.Allocs {
		if a.JobID == job {
			for _, s := range a.TaskStates {
				return a, s
			}
		}
	}
	return nil, nil
}

func said(s *api.TaskState, text string) bool {
	return s != nil && slices.ContainsFunc(s.Events, func(e *api.TaskEvent) bool { return strings.Contains(e.DisplayMessage, text) })
}

// awaitTask waits until ok accepts the task of a job, and returns its allocation.
func (n *outageNode) awaitTask(what, job string, ok func(*api.TaskState) bool) string {
	n.Helper()
	id := ""
	n.await(what, func(v taskReport) bool {
		alloc, state := v.task(job)
		if state == nil || !ok(state) {
			return false
		}
		id = alloc.ID
		return true
	})
	return id
}

func taskStateIs(state string) func(*api.TaskState) bool {
	return func(s *api.TaskState) bool { return s.State == state }
}

func says(text string) func(*api.TaskState) bool {
	return func(s *api.TaskState) bool { return said(s, text) }
}

// taskProcesses returns the processes of an allocation's task.
func (n *outageNode) taskProcesses(id string) []osprocess.ID {
	return byKind(nodeProcesses(n.data))[id+"/task"]
}

// expect asserts that a task still has the same single process.
func (n *outageNode) expect(id string, was []osprocess.ID) {
	n.Helper()
	if now := n.taskProcesses(id); len(was) != 1 || !slices.Equal(now, was) {
		n.Errorf("processes %v, before %v", now, was)
	}
}

const outageJob = `
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

func (n *outageNode) job(name, typ, script, more string) string {
	return fmt.Sprintf(outageJob, name, typ, n.driver, script, more)
}

// sleepScript ignores the signals with which a driver stops a task.
const sleepScript = "trap '' INT; while :; do sleep 1 & wait; done"

// eachDriver runs a test with a builtin and an external driver, with and without
// cgroups.
func eachDriver(t *testing.T, test func(*outageNode)) {
	t.Helper()
	for _, driver := range []string{"raw_exec", "shell"} {
		for _, without := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, without cgroups %v", driver, without), func(t *testing.T) {
				t.Parallel()
				test(newOutageNode(t, driver, without))
			})
		}
	}
}

func TestPluginKilledTwiceLeavesItsTasksRunning(t *testing.T) {
	eachDriver(t, func(n *outageNode) {
		n.submit(n.dir, n.job("service", "service", sleepScript, ""))
		id := n.awaitTask("it runs", "service", taskStateIs(model.TaskRunning))
		was := n.taskProcesses(id)
		n.killTwice()
		n.awaitTask("the outage is an event", "service", says("driver unavailable, the task may still run: "))
		n.expect(id, was)
		v := n.await("the end of the outage is an event", func(v taskReport) bool {
			_, s := v.task("service")
			if s.State != model.TaskRunning || s.Failed {
				n.Fatalf("the task is %s, events %v", s.State, types(s.Events))
			}
			return said(s, "driver available again")
		})
		n.expect(id, was)
		if len(v.Allocs) != 1 {
			n.Errorf("%d allocations", len(v.Allocs))
		}
		count := map[string]int{}
		_, state := v.task("service")
		for _, e := range state.Events {
			text, _, _ := strings.Cut(e.DisplayMessage, ",")
			count[e.Type]++
			count[text]++
		}
		if count["driver unavailable"] != 1 || count["driver available again"] != 1 || count[api.TaskStarted] != 1 || count[api.TaskTerminated] != 0 {
			n.Errorf("events %v, %v", types(state.Events), count)
		}
		n.end("stop")
	})
}

func TestStopDuringAnOutageOfTheDriver(t *testing.T) {
	eachDriver(t, func(n *outageNode) {
		n.submit(n.dir, n.job("service", "service", sleepScript, ""))
		id := n.awaitTask("it runs", "service", taskStateIs(model.TaskRunning))
		was := n.taskProcesses(id)
		n.breakDriver()
		n.awaitTask("the outage is an event", "service", says("driver unavailable"))
		n.ask("deregister service", new(string))
		n.awaitTask("the stop is pending", "service", says("stop is pending, driver unavailable: "))
		if n.driver == "shell" {
			// Only the driver can end the task, and the next agent waits again.
			n.expect(id, was)
			n.end("leave")
			n.expect(id, was)
			n.start()
			n.awaitTask("the stop is pending again", "service", func(s *api.TaskState) bool {
				return len(slices.DeleteFunc(slices.Clone(s.Events), func(e *api.TaskEvent) bool {
					return !strings.Contains(e.DisplayMessage, "stop is pending, driver unavailable: ")
				})) == 2
			})
			n.awaitTask("the plugin is named", "service", says(n.plugins+"/shell-driver"))
			n.expect(id, was)
			n.repairDriver()
		}
		v := n.await("it is dead", func(v taskReport) bool {
			_, s := v.task("service")
			return s.State == model.TaskDead
		})
		if left := n.taskProcesses(id); len(left) > 0 {
			n.Errorf("left: %v", left)
		}
		alloc, s := v.task("service")
		if alloc.ClientStatus != api.AllocClientStatusComplete || !said(s, "Exit Code: 137, Signal: 9") {
			n.Errorf("alloc %s, events %v", alloc.ClientStatus, types(s.Events))
		}
		if plugins := byKind(nodeProcesses(n.data))[n.pluginKind()]; n.driver == "raw_exec" && len(plugins) > 0 {
			n.Error("the task was not ended before its driver came back")
		}
		n.end("stop")
	})
}

func TestPurgeDuringAnOutageOfTheDriver(t *testing.T) {
	eachDriver(t, func(n *outageNode) {
		n.submit(n.dir, n.job("service", "service", sleepScript, ""))
		id := n.awaitTask("it runs", "service", taskStateIs(model.TaskRunning))
		n.breakDriver()
		n.awaitTask("the outage is an event", "service", says("driver unavailable"))
		n.ask("deregister service", new(string)) // the purge must also work after a stop
		n.awaitTask("the stop is pending", "service", says("stop is pending"))
		n.ask("purge service", new(string))
		seen := false
		n.await("it has ended", func(v taskReport) bool {
			alloc, s := v.task("service")
			if alloc == nil {
				return true // the allocation is gone, and was dead before
			}
			seen = seen || said(s, "exit status unknown")
			return s.State == model.TaskDead
		})
		if left := n.taskProcesses(id); len(left) > 0 {
			n.Errorf("left: %v", left)
		}
		if n.driver == "shell" {
			if !seen {
				n.Error("there is no event that the exit status is unknown")
			}
			n.repairDriver()
		}
		n.await("the allocation is gone", func(v taskReport) bool { return len(v.Allocs) == 0 })
		n.end("stop")
	})
}

func TestAgentThatStopsDuringAnOutageLeavesItsTasks(t *testing.T) {
	eachDriver(t, func(n *outageNode) {
		if n.withoutCgroups {
			n.Skip("the next agent would have other mounts")
		}
		n.submit(n.dir, n.job("service", "service", sleepScript, ""))
		id := n.awaitTask("it runs", "service", taskStateIs(model.TaskRunning))
		was := n.taskProcesses(id)
		n.breakDriver()
		n.awaitTask("the outage is an event", "service", says("driver unavailable"))
		n.end("leave")
		n.expect(id, was)
		n.start()
		if n.driver == "shell" {
			n.awaitTask("the next agent waits", "service", func(s *api.TaskState) bool {
				return s.State == model.TaskRunning && len(s.Events) > 4
			})
			n.expect(id, was)
			n.repairDriver()
			n.awaitTask("it is recovered", "service", says("driver available again"))
		} else {
			n.plugin(osprocess.ID{})
		}
		n.await("it is owned", func(v taskReport) bool { return v.Owned == 1 })
		n.expect(id, was)
		n.end("stop")
	})
}

func TestExitStatusSurvivesDriverOutage(t *testing.T) {
	eachDriver(t, func(n *outageNode) {
		n.submit(n.dir, n.job("work", "batch", fmt.Sprintf("while [ ! -e %s/done ]; do sleep 0.02; done", n.dir), ""))
		id := n.awaitTask("it runs", "work", taskStateIs(model.TaskRunning))
		n.breakDriver()
		n.awaitTask("the outage is an event", "work", says("driver unavailable"))
		if err := os.WriteFile(n.dir+"/done", nil, 0o644); err != nil {
			n.Fatal(err)
		}
		for len(n.taskProcesses(id)) > 0 {
			time.Sleep(5 * time.Millisecond)
		}
		n.repairDriver()
		v := n.await("it is dead", func(v taskReport) bool {
			_, s := v.task("work")
			return s.State == model.TaskDead
		})
		alloc, s := v.task("work")
		if alloc.ClientStatus != api.AllocClientStatusComplete || s.Failed || !said(s, "Exit Code: 0") {
			n.Errorf("alloc %s, events %v", alloc.ClientStatus, types(s.Events))
		}
		n.end("stop")
	})
}

// A start that makes the plugin process exit does not disturb the running tasks.
func TestStartThatEndsThePluginLeavesOtherTasksRunning(t *testing.T) {
	for _, without := range []bool{false, true} {
		t.Run(fmt.Sprintf("without cgroups %v", without), func(t *testing.T) {
			t.Parallel()
			n := newOutageNode(t, "shell", without)
			n.submit(n.dir, n.job("service", "service", sleepScript, ""))
			id := n.awaitTask("it runs", "service", taskStateIs(model.TaskRunning))
			was := n.taskProcesses(id)
			n.submit(n.dir, n.job("bad", "batch", "exit 0", "crash = true"))
			n.awaitTask("the start has failed", "bad", func(s *api.TaskState) bool { return s.Failed })
			n.ask("purge bad", new(string))
			n.awaitTask("it runs on", "service", says("driver available again"))
			n.expect(id, was)
			v := n.await("the bad one is gone", func(v taskReport) bool { return len(v.Allocs) == 1 })
			if _, s := v.task("service"); s.State != model.TaskRunning || s.Restarts != 0 {
				n.Errorf("state %s, restarts %d", s.State, s.Restarts)
			}
			n.end("stop")
		})
	}
}

// A batch job that must not be repeated, and whose exit status is unknown, has failed.
func TestUnknownEndOfABatchJobIsNotRunAgain(t *testing.T) {
	n := newOutageNode(t, "raw_exec", false)
	runs := n.dir + "/runs"
	n.submit(n.dir, strings.Replace(n.job("work", "batch", fmt.Sprintf("echo run >>%s; sleep 1000", runs), ""), "attempts       = 10", "attempts       = 0", 1))
	id := n.awaitTask("it runs", "work", taskStateIs(model.TaskRunning))
	tasks := n.taskProcesses(id)
	n.kill()
	for _, p := range nodeProcesses(n.data) { // the keeper first: no process may see the exit of another one
		if p.kind == "keeper" {
			n.killProcess(p.ID)
		}
	}
	for _, p := range nodeProcesses(n.data) {
		n.killProcess(p.ID)
	}
	// A zombie still has the exit status.
	for _, p := range tasks {
		for err := error(nil); err == nil; _, err = os.Stat(fmt.Sprintf("/proc/%d", p.PID)) {
			time.Sleep(5 * time.Millisecond)
		}
	}
	n.start()
	v := n.await("it is dead", func(v taskReport) bool {
		_, s := v.task("work")
		return s.State == model.TaskDead
	})
	alloc, s := v.task("work")
	if alloc.ClientStatus != api.AllocClientStatusFailed || fmt.Sprint(types(s.Events)) != "[Received Task Setup Started Failed Restoring Task Not Restarting]" {
		n.Errorf("alloc %s, events %v", alloc.ClientStatus, types(s.Events))
	}
	if !said(s, "exit status unknown") {
		n.Errorf("event %q", s.Events[3].DisplayMessage)
	}
	if text, err := os.ReadFile(runs); err != nil || string(text) != "run\n" {
		n.Errorf("runs: %q, %v", text, err)
	}
	n.end("stop")
}
