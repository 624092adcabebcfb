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

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
	"github.com/nomad-lite/nomad-lite/plugins/host/helperdir"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/allocdir"
)

// relocatedNode is a node whose data directory is moved, or reached by another path.
type relocatedNode struct {
	*testing.T
	dir, dataPath, runtimeDir string
	uid                       int
	checkCount                int
	agent                     *systemtest.KillableAgent
}

// start starts an agent on the current path of the data directory.
func (n *relocatedNode) start() {
	n.Helper()
	n.agent = startKillableAgentAs(n.T, n.uid, n.dataPath, "XDG_RUNTIME_DIR="+n.runtimeDir)
}

// startKillableAgentAs starts an agent of a user, with additional environment variables.
func startKillableAgentAs(t *testing.T, uid int, data string, env ...string) *systemtest.KillableAgent {
	t.Helper()
	cmd := agentEnvironment{uid: uint32(uid)}.newCommand("mortal-agent", data)
	cmd.Stderr = os.Stderr
	cmd.Env = append(cmd.Env, env...)
	return systemtest.StartKillableAgentCommand(t, cmd)
}

// newRuntimeDir creates a new directory for XDG_RUNTIME_DIR.
func (n *relocatedNode) newRuntimeDir() {
	n.Helper()
	n.runtimeDir = filepath.Join(n.dir, fmt.Sprint("xdg-", n.checkCount))
	n.makeDir(n.runtimeDir)
}

func (n *relocatedNode) makeDir(path string) {
	n.Helper()
	if err := os.Mkdir(path, 0o700); err != nil {
		n.Fatal(err)
	}
	if err := os.Chown(path, n.uid, n.uid); err != nil {
		n.Fatal(err)
	}
}

// removeSocketDirs removes the directories with the node's sockets: the directory in the data
// directory, and the directories that a user session or a cleaner of temporary files can remove. A
// running agent recreates them at once, so a removal can fail because a directory is not empty.
func (n *relocatedNode) removeSocketDirs() {
	n.Helper()
	links, _ := filepath.Glob("/run/nomad-lite/*")
	for _, path := range append(links, n.runtimeDir, helperdir.SocketDir(n.dataPath)) {
		if err := os.RemoveAll(path); err != nil && !errors.Is(err, syscall.ENOTEMPTY) {
			n.Fatal(err)
		}
	}
}

// processesByKind returns the processes of the node by kind, whichever path of the data directory
// they were started with.
func (n *relocatedNode) processesByKind() map[string][]osprocess.ID {
	return systemtest.GroupProcessesByKind(systemtest.FindDataDirProcesses(n.dir))
}

// assertOneProcessOfEachKind asserts that the node has exactly one keeper, one log collector and one
// plugin process, and that the keeper and the tasks still have their processes.
func (n *relocatedNode) assertOneProcessOfEachKind(what string, before map[string][]osprocess.ID) {
	n.Helper()
	now := n.processesByKind()
	several := func(kind string) bool { return len(now[kind]) != 1 }
	for limit := time.Now().Add(systemtest.WaitTimeout); slices.ContainsFunc(helperProcessKinds, several) && time.Now().Before(limit); {
		time.Sleep(10 * time.Millisecond) // a replaced process needs time to exit
		now = n.processesByKind()
	}
	for kind, was := range before {
		if is := now[kind]; (kind == "keeper" || strings.HasSuffix(kind, "/loop")) && !slices.Equal(is, was) {
			n.Errorf("%s: %s is %v, was %v", what, kind, is, was)
		}
	}
	for _, kind := range helperProcessKinds {
		if len(now[kind]) != 1 {
			n.Errorf("%s: %s is %v", what, kind, now[kind])
		}
	}
}

const runOnceJob = `
job %q {
  type = "batch"
  group "g" {
    restart {
      attempts = 0
      mode     = "fail"
    }
    task "once" {
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

// checkTasks asserts that the agent has all tasks, that none of their output is lost or duplicated,
// and that a plugin and a task can be started.
func (n *relocatedNode) checkTasks(what string, before map[string][]osprocess.ID) {
	n.Helper()
	v := n.agent.WaitTaskReport(what+": all tasks are owned", func(v systemtest.TaskReport) bool { return v.TasksWithProcess == relocatedTaskCount })
	n.assertOneProcessOfEachKind(what, before)
	var logFiles []string
	for id, alloc := range v.AllocByID {
		if alloc.JobID == "many" {
			logFiles = append(logFiles, filepath.Join(n.dataPath, "alloc", id, "alloc", "logs", "loop.stdout.0"))
		}
	}
	assertConsecutiveOutput(n.T, logFiles)

	plugins := n.processesByKind()["plugin"]
	for _, p := range plugins {
		_ = p.Signal(syscall.SIGKILL) // an error means that another plugin process has just replaced this one
	}
	n.checkCount++
	job := fmt.Sprint("once-", n.checkCount)
	n.agent.RegisterJobs(n.dir, fmt.Sprintf(runOnceJob, job))
	n.agent.WaitTaskReport(what+": a task starts after the plugin was killed", func(v systemtest.TaskReport) bool {
		for _, alloc := range v.AllocByID {
			if alloc.JobID == job {
				return alloc.ClientStatus == api.AllocClientStatusComplete
			}
		}
		return false
	})
	n.agent.WaitTaskReport(what+": all tasks are owned", func(v systemtest.TaskReport) bool { return v.TasksWithProcess == relocatedTaskCount })
	n.assertOneProcessOfEachKind(what, before)
	assertConsecutiveOutput(n.T, logFiles)
}

const relocatedTaskCount = 3

// TestDataDirectoryIsFoundByEveryPath changes the path of a data directory with running tasks, and
// removes the directories of the sockets, both with and without a running agent.
func TestDataDirectoryIsFoundByEveryPath(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to be other users")
	}
	for _, test := range []struct {
		name string
		uid  int
		data string // name of the data directory
	}{
		{"root", 0, "data"},
		{"root with a long path", 0, strings.Repeat("data-", 30)},
		{"user", 4711, "data"},
		{"user with a long path", 4711, strings.Repeat("data-", 30)},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.uid != 0 || test.data == "data" {
				slowtest.Skip(t, "is like the test of root with a long path")
			}
			dir, err := os.MkdirTemp("", "paths")
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			n := &relocatedNode{T: t, dir: dir, dataPath: filepath.Join(dir, test.data), uid: test.uid}
			t.Cleanup(func() {
				systemtest.AssertDataDirProcessesExit(t, dir)
				if err := allocdir.UnmountAndRemoveOwnDir(dir); err != nil {
					t.Error(err)
				}
			})
			n.newRuntimeDir()
			n.makeDir(n.dataPath)
			n.start()
			n.agent.RegisterJobs(dir, fmt.Sprintf(systemtest.ManyTasksJob, relocatedTaskCount))
			n.agent.WaitTaskReport("all tasks run", func(v systemtest.TaskReport) bool { return v.TasksWithProcess == relocatedTaskCount })
			first := map[string][]osprocess.ID{}
			for kind, processes := range n.processesByKind() {
				first[kind] = processes
			}
			link := filepath.Join(dir, "link")
			for _, step := range []struct {
				name  string
				alive bool // the agent is running during the change
				do    func() error
			}{
				{"sockets removed while the agent runs", true, func() error { n.removeSocketDirs(); return nil }},
				{"another XDG_RUNTIME_DIR", false, func() error { n.newRuntimeDir(); return nil }},
				{"a symbolic link", false, func() error {
					real := n.dataPath
					n.dataPath = link
					return os.Symlink(real, link)
				}},
				{"a directory that was moved", false, func() error {
					real, err := os.Readlink(link)
					if err != nil {
						return err
					}
					n.dataPath = filepath.Join(dir, "moved-"+test.data)
					return os.Rename(real, n.dataPath)
				}},
				{"sockets removed while no agent runs", false, func() error { n.removeSocketDirs(); return nil }},
			} {
				if !step.alive {
					n.agent.KillAndWait()
				}
				if err := step.do(); err != nil {
					t.Fatal(err)
				}
				if !step.alive {
					n.start()
				}
				n.checkTasks(step.name, first)
				if t.Failed() {
					break
				}
			}
			n.agent.SendExitCommandAndWait("stop")
			if left, _ := filepath.Glob(filepath.Join(n.runtimeDir, "nomad-lite", "*")); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
			if left, _ := filepath.Glob(helperdir.SocketDir(n.dataPath)); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}
