package faults

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest/programs"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/runtime/agent"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

func init() {
	programs.KillableAgentCommands["collect"] = func(ctx context.Context, a *agent.Agent, alloc string) any {
		return fmt.Sprint(a.Allocs().RemoveDirOfEndedAlloc(ctx, alloc))
	}
}

// installDriverScript replaces the executable of the external driver by a script, and returns the
// previous executable.
func (n *driverOutageNode) installDriverScript(script string) (before []byte) {
	n.Helper()
	file := filepath.Join(n.pluginDir, "shell-driver")
	before, err := os.ReadFile(file)
	if err != nil {
		n.Fatal(err)
	}
	if err := os.WriteFile(n.dir+"/build", []byte(script), 0o755); err != nil {
		n.Fatal(err)
	}
	if err := os.Rename(n.dir+"/build", file); err != nil {
		n.Fatal(err)
	}
	return before
}

// The driver plugin is updated to a build that does not start. The next agent stops the plugin of
// the previous build, but the tasks continue, also after that agent has exited, until a working
// build recovers them.
func TestTasksOutliveADriverBuildThatDoesNotStart(t *testing.T) {
	for name, broken := range map[string]string{
		"it exits":                           "#!/bin/sh\nexit 3\n",
		"it does not complete its handshake": "#!/bin/sh\nexec sleep 1000\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newDriverOutageNode(t, "shell", false)
			jobs := []string{"one", "two"}
			ids, was := map[string]string{}, map[string][]osprocess.ID{}
			for i, job := range jobs {
				n.RegisterJobs(n.dir, n.job(job, "batch", fmt.Sprintf("while [ ! -e %s/done ]; do sleep 0.05; done; exit %d", n.dir, i+7), ""))
				ids[job] = n.waitTask(job+" runs", job, taskHasState(model.TaskRunning))
				was[job] = n.waitTaskProcess(ids[job])
			}
			expect := func(when string) {
				t.Helper()
				t.Log(when)
				for _, job := range jobs {
					n.assertSameTaskProcess(ids[job], was[job])
				}
			}
			plugin := n.waitNewPluginProcess(osprocess.ID{})
			n.SendExitCommandAndWait("leave")
			good := n.installDriverScript(broken)
			for range 2 { // the first agent stops the plugin process, the second agent finds none
				n.startAgent()
				n.WaitTaskReport("the plugin of the build before has ended, and the tasks run", func(v systemtest.TaskReport) bool {
					return !plugin.Alive() && v.RunningTaskCount() == len(jobs)
				})
				time.Sleep(500 * time.Millisecond) // if the agent acted on the missing driver, it would do so within this time
				v := n.WaitTaskReport("the tasks run", func(systemtest.TaskReport) bool { return true })
				for _, job := range jobs {
					if _, s := v.OnlyTaskOfJob(job); s == nil || s.State != model.TaskRunning || s.Failed || s.Restarts != 0 {
						t.Errorf("%s without a driver: %+v", job, s)
					}
				}
				expect("with a build that does not start")
				n.SendExitCommandAndWait("leave")
				expect("after the end of the agent")
			}
			n.installDriverScript(string(good) + "# repaired\n")
			n.startAgent()
			n.WaitTaskReport("the repaired build has the tasks", func(v systemtest.TaskReport) bool { return v.TasksWithProcess == len(jobs) })
			expect("with the repaired build")
			if err := os.WriteFile(n.dir+"/done", nil, 0o644); err != nil {
				t.Fatal(err)
			}
			for i, job := range jobs {
				want := fmt.Sprintf("Exit Code: %d", i+7)
				n.waitTask(job+" has ended with its own status", job, func(s *api.TaskState) bool {
					return s.State == model.TaskDead && systemtest.HasEventText(s, want)
				})
			}
			n.SendExitCommandAndWait("stop")
		})
	}
}

// The children of a task, even in sessions of their own, are killed with the task, whether or not
// the keeper process that was running at their start still runs.
func TestChildrenEndWithTheirTaskWhenTheKeeperHasDied(t *testing.T) {
	forEachDriver(t, func(n *driverOutageNode) {
		script, count := "trap '' INT; sleep 1000 & setsid sleep 1000 & setsid sh -c 'sleep 1000 & (setsid sleep 1000 &); wait' & ", 6
		if !n.withoutCgroups { // without cgroups, a process is found only by the task's variables in its environment
			script, count = script+"env -i setsid sh -c ': '$NOMAD_ALLOC_ID'; while :; do sleep 1; done' & ", count+1
		}
		jobs := []string{"stopped", "purged", "collected"}
		ids := map[string]string{}
		for _, job := range jobs {
			fifo := filepath.Join(n.dir, job) // the task reads the FIFO, so that it waits without starting processes
			if err := errors.Join(syscall.Mkfifo(fifo, 0o600), os.Chmod(fifo, 0o666)); err != nil {
				n.Fatal(err)
			}
			n.RegisterJobs(n.dir, n.job(job, "batch", script+fmt.Sprintf("read x <%s || :", fifo), ""))
			ids[job] = n.waitTask(job+" runs", job, taskHasState(model.TaskRunning))
			n.WaitTaskReport(job+" has its children", func(systemtest.TaskReport) bool { return len(systemtest.PIDsOfAlloc(n.T, ids[job])) >= count })
		}
		first := systemtest.GroupProcessesByKind(systemtest.FindDataDirProcesses(n.dataDir))["keeper"]
		if len(first) != 1 {
			n.Fatalf("keepers: %v", first)
		}
		_ = first[0].Signal(syscall.SIGKILL)
		n.WaitTaskReport("there is another keeper", func(systemtest.TaskReport) bool {
			now := systemtest.GroupProcessesByKind(systemtest.FindDataDirProcesses(n.dataDir))["keeper"]
			return len(now) == 1 && now[0] != first[0]
		})
		for _, job := range jobs {
			// During exec a process has no environment for a moment, and is not found then.
			n.WaitTaskReport(job+" keeps its children", func(systemtest.TaskReport) bool { return len(systemtest.PIDsOfAlloc(n.T, ids[job])) >= count })
		}
		none := func(job string) {
			n.Helper()
			if left := systemtest.PIDsOfAlloc(n.T, ids[job]); len(left) > 0 {
				n.Errorf("%s: left: %v", job, left)
				for _, pid := range left {
					_ = syscall.Kill(pid, syscall.SIGKILL)
				}
			}
		}

		n.SendCommand("deregister stopped", new(string))
		n.waitTask("the stopped task is dead", "stopped", taskHasState(model.TaskDead))
		n.WaitTaskReport("its allocation is complete", func(v systemtest.TaskReport) bool {
			alloc, _ := v.OnlyTaskOfJob("stopped")
			return alloc.ClientStatus == api.AllocClientStatusComplete
		})
		none("stopped")

		n.SendCommand("purge purged", new(string))
		n.WaitTaskReport("the purged allocation is gone", func(v systemtest.TaskReport) bool { return v.AllocByID[ids["purged"]] == nil })
		none("purged")

		fifo, err := os.OpenFile(filepath.Join(n.dir, "collected"), os.O_WRONLY, 0)
		if err != nil {
			n.Fatal(err)
		}
		fifo.Close()
		n.WaitTaskReport("the task has ended by itself", func(v systemtest.TaskReport) bool {
			alloc, _ := v.OnlyTaskOfJob("collected")
			return alloc.ClientStatus == api.AllocClientStatusComplete
		})
		var collectResult string
		n.SendCommand("collect "+ids["collected"], &collectResult)
		if collectResult != "<nil>" {
			n.Errorf("collect: %s", collectResult)
		}
		dir := filepath.Join(n.dataDir, "alloc", ids["collected"])
		n.WaitTaskReport("its directory is gone", func(systemtest.TaskReport) bool { _, err := os.Stat(dir); return os.IsNotExist(err) })
		none("collected")
		n.SendExitCommandAndWait("stop")
	})
}
