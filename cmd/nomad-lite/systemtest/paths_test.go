package systemtest

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

	"github.com/nomad-lite/nomad-lite/plugins/keeper"
	"github.com/nomad-lite/nomad-lite/plugins/process"
	"github.com/nomad-lite/nomad-lite/runtime/allocdir"
)

// pathNode is a node whose data directory, or the path to it, changes.
type pathNode struct {
	*testing.T
	dir, data, xdg string
	uid            int
	round          int
	agent          *killableAgent
}

// start starts an agent on the current path of the data directory.
func (n *pathNode) start() {
	n.Helper()
	n.agent = startKillableAgentAs(n.T, n.uid, n.data, "XDG_RUNTIME_DIR="+n.xdg)
}

// startKillableAgentAs starts an agent of a user, with another environment.
func startKillableAgentAs(t *testing.T, uid int, data string, env ...string) *killableAgent {
	t.Helper()
	cmd := environment{user: uint32(uid)}.command("mortal-agent", data)
	cmd.Stderr = os.Stderr
	cmd.Env = append(cmd.Env, env...)
	return launchKillableAgent(t, cmd)
}

// newRuntimeDir creates another directory for XDG_RUNTIME_DIR.
func (n *pathNode) newRuntimeDir() {
	n.Helper()
	n.xdg = filepath.Join(n.dir, fmt.Sprint("xdg-", n.round))
	n.makeDir(n.xdg)
}

func (n *pathNode) makeDir(path string) {
	n.Helper()
	if err := os.Mkdir(path, 0o700); err != nil {
		n.Fatal(err)
	}
	if err := os.Chown(path, n.uid, n.uid); err != nil {
		n.Fatal(err)
	}
}

// remove removes the directories with the node's sockets: the one in the data directory,
// and the directories that the user's session and cleaners of temporary directories can
// remove. A running agent creates them again at once, so that the removal can fail half
// way.
func (n *pathNode) remove() {
	n.Helper()
	links, _ := filepath.Glob("/run/nomad-lite/*")
	for _, path := range append(links, n.xdg, keeper.SocketDir(n.data)) {
		if err := os.RemoveAll(path); err != nil && !errors.Is(err, syscall.ENOTEMPTY) {
			n.Fatal(err)
		}
	}
}

// processes returns the processes of the node by kind, for every path of the data directory
// under which they were started.
func (n *pathNode) processes() map[string][]process.ID { return byKind(nodeProcesses(n.dir)) }

// oneOfEach asserts that one keeper, one log collector and one plugin serve the node, and
// that the keeper is still the same process.
func (n *pathNode) oneOfEach(what string, before map[string][]process.ID) {
	n.Helper()
	now := n.processes()
	several := func(kind string) bool { return len(now[kind]) != 1 }
	for limit := time.Now().Add(allowance); slices.ContainsFunc(helpers, several) && time.Now().Before(limit); {
		time.Sleep(10 * time.Millisecond) // a replaced process needs time to exit
		now = n.processes()
	}
	for kind, was := range before {
		if is := now[kind]; (kind == "keeper" || strings.HasSuffix(kind, "/loop")) && !slices.Equal(is, was) {
			n.Errorf("%s: %s is %v, was %v", what, kind, is, was)
		}
	}
	for _, kind := range helpers {
		if len(now[kind]) != 1 {
			n.Errorf("%s: %s is %v", what, kind, now[kind])
		}
	}
}

const onceJob = `
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

// check asserts that all tasks are owned, that none of their output is lost or doubled, and
// that a plugin and a task can be started.
func (n *pathNode) check(what string, before map[string][]process.ID) {
	n.Helper()
	v := n.agent.await(what+": all tasks are owned", func(v taskReport) bool { return v.Owned == pathTasks })
	n.oneOfEach(what, before)
	var logs []string
	for id, alloc := range v.Allocs {
		if alloc.JobID == "many" {
			logs = append(logs, filepath.Join(n.data, "alloc", id, "alloc", "logs", "loop.stdout.0"))
		}
	}
	checkCounts(n.T, logs)

	plugins := n.processes()["plugin"]
	for _, p := range plugins {
		_ = p.Signal(syscall.SIGKILL) // the process can just have been replaced
	}
	n.round++
	job := fmt.Sprint("once-", n.round)
	n.agent.submit(n.dir, fmt.Sprintf(onceJob, job))
	n.agent.await(what+": a task starts after the plugin was killed", func(v taskReport) bool {
		for _, alloc := range v.Allocs {
			if alloc.JobID == job {
				return alloc.ClientStatus == api.AllocClientStatusComplete
			}
		}
		return false
	})
	n.agent.await(what+": all tasks are owned", func(v taskReport) bool { return v.Owned == pathTasks })
	n.oneOfEach(what, before)
	checkCounts(n.T, logs)
}

const pathTasks = 3

// TestDataDirectoryIsFoundByEveryPath changes the path to a data directory with running
// tasks, and removes the directories for sockets, both with and without a running agent.
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
			dir, err := os.MkdirTemp("", "paths")
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			n := &pathNode{T: t, dir: dir, data: filepath.Join(dir, test.data), uid: test.uid}
			t.Cleanup(func() {
				expectNobody(t, dir)
				if err := allocdir.Sweep(dir); err != nil {
					t.Error(err)
				}
			})
			n.newRuntimeDir()
			n.makeDir(n.data)
			n.start()
			n.agent.submit(dir, fmt.Sprintf(manyJob, pathTasks))
			n.agent.await("all tasks run", func(v taskReport) bool { return v.Owned == pathTasks })
			first := map[string][]process.ID{}
			for kind, processes := range n.processes() {
				first[kind] = processes
			}
			link := filepath.Join(dir, "link")
			for _, step := range []struct {
				name  string
				alive bool // the agent runs during the change
				do    func() error
			}{
				{"sockets removed while the agent runs", true, func() error { n.remove(); return nil }},
				{"another XDG_RUNTIME_DIR", false, func() error { n.newRuntimeDir(); return nil }},
				{"a symbolic link", false, func() error {
					real := n.data
					n.data = link
					return os.Symlink(real, link)
				}},
				{"a directory that was moved", false, func() error {
					real, err := os.Readlink(link)
					if err != nil {
						return err
					}
					n.data = filepath.Join(dir, "moved-"+test.data)
					return os.Rename(real, n.data)
				}},
				{"sockets removed while no agent runs", false, func() error { n.remove(); return nil }},
			} {
				if !step.alive {
					n.agent.kill()
				}
				if err := step.do(); err != nil {
					t.Fatal(err)
				}
				if !step.alive {
					n.start()
				}
				n.check(step.name, first)
				if t.Failed() {
					break
				}
			}
			n.agent.end("stop")
			if left, _ := filepath.Glob(filepath.Join(n.xdg, "nomad-lite", "*")); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
			if left, _ := filepath.Glob(keeper.SocketDir(n.data)); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}
