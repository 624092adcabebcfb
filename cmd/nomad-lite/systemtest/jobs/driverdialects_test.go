package jobs

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/plugins/driver/drivertest"
)

// dialectNode is an agent with a driver that was written for the wire format alone, and the driver's only
// task.
type dialectNode struct {
	*systemtest.PersistentAgent
	dialect drivertest.ProtocolDialect
	alloc   *api.Allocation
	task    []int // the processes of the task
}

// Drivers that were built with other SDKs, in different years, run unmodified: each goes
// through the life of a task, with a plugin and an agent that are killed meanwhile.
func TestDriversOfEachDialect(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root, for tasks with users and root directories of their own")
	}
	for _, dialect := range drivertest.Dialects() {
		t.Run(string(dialect), func(t *testing.T) {
			t.Parallel()
			n := &dialectNode{
				// The name of the file differs from the name of the driver.
				PersistentAgent: systemtest.StartPersistentAgent(t, map[string]string{"antique-" + string(dialect): "wire-driver " + string(dialect)}),
				dialect:         dialect,
			}
			t.Cleanup(func() {
				if text, err := os.ReadFile(n.LogFile); t.Failed() && err == nil {
					t.Logf("agents said:\n%s", text)
				}
			})
			n.testLife()
		})
	}
}

func (n *dialectNode) testLife() {
	task := api.NewTask("main", n.dialect.DriverName()).SetConfig("script", systemtest.DialectScript)
	task.Resources = &api.Resources{CPU: new(1), MemoryMB: new(10)}
	if n.dialect == drivertest.Newest {
		task.User = "nomad-81234" // the driver runs no task without a user of this form
	}
	group := api.NewTaskGroup("g", 1).AddTask(task)
	group.RestartPolicy = &api.RestartPolicy{Attempts: new(0), Mode: new("fail")} // the driver must start the task once
	n.alloc = n.RunGroupUntilStatus("life", "service", api.AllocClientStatusRunning, group)
	n.waitOutput("hello from main", 1)
	n.task = n.taskProcesses()
	if len(n.task) == 0 {
		n.T.Fatal("the task has no process")
	}
	n.assertTaskIsReachable("after its start")
	n.signalAndWait(1)

	plugin := n.pluginProcess()
	if err := syscall.Kill(plugin, syscall.SIGKILL); err != nil {
		n.T.Fatal(err)
	}
	n.WaitUntil("another plugin process", func() (string, bool) {
		now := n.pluginProcess()
		return fmt.Sprint(now), now != 0 && now != plugin
	})
	n.assertTaskIsReachable("after the plugin was killed")
	n.signalAndWait(2)

	n.SignalAndWait(unix.SIGKILL)
	n.StartAndWaitReady()
	n.assertTaskIsReachable("after the agent was killed")
	n.signalAndWait(3)

	// An orderly end replaces the plugin.
	n.SignalAndWait(unix.SIGTERM)
	n.StartAndWaitReady()
	n.assertTaskIsReachable("after the agent was replaced")
	n.signalAndWait(4)

	plugin = n.pluginProcess()
	if _, _, err := n.Jobs().Deregister("life", false, nil); err != nil {
		n.T.Fatal(err)
	}
	n.WaitAllocStatus("life", api.AllocClientStatusComplete)
	n.waitOutput("stopping", 1)
	n.WaitUntil("the task has no process", func() (string, bool) {
		left := n.taskProcesses()
		return fmt.Sprint(left), len(left) == 0
	})
	if now := n.pluginProcess(); now != plugin {
		n.T.Errorf("plugin process %d, %d before the stop", now, plugin)
	}
	n.WaitUntil("the directory of the allocation is removed", func() (string, bool) {
		// A collection leaves out allocations whose cleanup is not complete.
		if err := n.System().GarbageCollect(); err != nil {
			n.T.Fatal(err)
		}
		_, err := os.Stat(filepath.Join(n.DataDir, "alloc", n.alloc.ID))
		return fmt.Sprint(err), os.IsNotExist(err)
	})
}

// pluginProcess returns the process of the plugin, 0 if there is none.
func (n *dialectNode) pluginProcess() int {
	for pid, command := range systemtest.ScriptCommandLineByPID(n.ProcessMarkerDir) {
		if strings.HasSuffix(command, "wire-driver "+string(n.dialect)) {
			return pid
		}
	}
	return 0
}

// taskProcesses returns the processes of the task, without the children of its script.
func (n *dialectNode) taskProcesses() []int {
	return slices.DeleteFunc(systemtest.PIDsOfAlloc(n.T.(*testing.T), n.alloc.ID), func(pid int) bool {
		sid, err := unix.Getsid(pid)
		return err != nil || sid != pid
	})
}

// assertTaskIsReachable waits until a command in the task succeeds, and asserts that the task has
// neither restarted nor been replaced.
func (n *dialectNode) assertTaskIsReachable(when string) {
	n.T.Helper()
	n.WaitUntil("a command in the task, "+when, func() (string, bool) {
		var stdout, stderr bytes.Buffer
		command := []string{"/bin/sh", "-c", `echo "in $NOMAD_TASK_NAME"; exit 7`}
		code, err := n.Allocations().Exec(n.T.Context(), n.alloc, "main", false, command, strings.NewReader(""), &stdout, &stderr, nil, nil)
		return fmt.Sprintf("exit code %d, %q, %q, %v", code, stdout.String(), stderr.String(), err), code == 7 && stdout.String() == "in main\n"
	})
	n.WaitUntil("the same task runs, "+when, func() (string, bool) {
		state := n.ReadAlloc(n.alloc.ID).TaskStates["main"]
		return fmt.Sprintf("%s, %d restarts, events %v", state.State, state.Restarts, systemtest.EventTypesWithoutLimitWarnings(state.Events)),
			state.State == "running" && !state.Failed && state.Restarts == 0
	})
	if now := n.taskProcesses(); !slices.Equal(now, n.task) {
		n.T.Errorf("processes of the task %s: %v, want %v", when, now, n.task)
	}
}

// signalAndWait sends a signal to the task, whose output then has a number of lines for the signals
// so far.
func (n *dialectNode) signalAndWait(count int) {
	n.T.Helper()
	if err := n.Allocations().Signal(n.alloc, nil, "main", "SIGHUP"); err != nil {
		n.T.Fatal(err)
	}
	n.waitOutput("hangup", count)
}

// waitOutput waits until a line is a number of times in the logs of the task.
func (n *dialectNode) waitOutput(line string, count int) {
	n.T.Helper()
	n.WaitUntil(fmt.Sprintf("%d lines %q in the logs", count, line), func() (string, bool) {
		text, err := n.readLogs()
		return fmt.Sprintf("%q, %v", text, err), strings.Count(text, line+"\n") == count
	})
}

func (n *dialectNode) readLogs() (string, error) {
	response, err := n.Raw().Response("/v1/client/fs/logs/"+n.alloc.ID+"?task=main&type=stdout&plain=true", nil)
	if err != nil {
		return "", err
	}
	defer response.Close()
	text, err := io.ReadAll(response)
	return string(text), err
}
