package upgrade

import (
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
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/agentsocket"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
)

// node is a node whose program is replaced while tasks run.
type node struct {
	*systemtest.TestAgent
	dir, dataDir string
	configFile   string
	agent        *exec.Cmd
	starts       int    // agents that were started
	pause        string // seconds between two numbers that a task writes

	devices map[string]string // allocations by their devices
	locks   map[string]string // ids of locks by the allocation for which checkLease has acquired them
}

// The bridge has a name and addresses of its own, so that it is not shared with other agents of the machine.
const agentConfig = `
data_dir   = %q
plugin_dir = %q
ports {
  http = 0
}
client {
  cpu_total_compute     = 1000000
  memory_total_mb       = 1000000
  disk_total_mb         = 10000000
  gc_max_allocs         = 1000
  bridge_network_name   = "nlupgrade"
  bridge_network_subnet = "172.27.224.0/20"
}
plugin "raw_exec" {
  config {
    enabled = true
  }
}
plugin "docker" {
  config {
    gc {
      image = false
    }
  }
}
plugin "dying" {}
plugin "widget" {}
plugin "shell-driver" {}
`

// newNode makes a node without an agent. Tasks of other users can enter its directory.
func newNode(t *testing.T, pause string) *node {
	t.Helper()
	dir := systemtest.NewLeakCheckedAgentDir(t)
	n := &node{
		TestAgent: &systemtest.TestAgent{T: t, ProcessMarkerDir: dir}, dir: dir, dataDir: filepath.Join(dir, "data"), configFile: filepath.Join(dir, "agent.hcl"), pause: pause,
		devices: map[string]string{}, locks: map[string]string{},
	}
	text := fmt.Sprintf(agentConfig, n.dataDir, filepath.Join(dir, "plugins"))
	err := errors.Join(os.Chmod(dir, 0o755), os.Mkdir(filepath.Join(dir, "plugins"), 0o755), os.Mkdir(filepath.Join(dir, "bin"), 0o755), os.WriteFile(n.configFile, []byte(text), 0o600))
	if err == nil {
		err = errors.Join(n.link("shell-driver", "plugins/shell-driver"), n.link("dying-hook", "bin/dying-hook"), n.link("test-device", "bin/test-device"),
			os.WriteFile(filepath.Join(dir, "plugins", "widget"), fmt.Appendf(nil, "#!/bin/sh\ncd %s; exec %s widget twelve\n", dir, filepath.Join(dir, "bin", "test-device")), 0o755),
			os.WriteFile(filepath.Join(dir, "plugins", "dying"), fmt.Appendf(nil, "#!/bin/sh\nexec %s dying\n", filepath.Join(dir, "bin", "dying-hook")), 0o755))
	}
	if err != nil {
		t.Fatal(err)
	}
	if n.Client, err = api.NewClient(&api.Config{Address: "unix://" + filepath.Join(n.dataDir, agentsocket.FileName)}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Client.Close)
	return n
}

// link puts a program of the test below the directory of the node.
func (n *node) link(program, path string) error {
	from, err := exec.LookPath(program)
	if err != nil {
		return err
	}
	return copyFile(from, filepath.Join(n.dir, path))
}

// copyFile makes a hard link to a program, or a copy on another file system. No child is started meanwhile: a child that
// inherits the copy while it is open for writing makes its execution fail with ETXTBSY.
func copyFile(from, to string) error {
	from, err := filepath.EvalSymlinks(from)
	if err != nil {
		return err
	}
	if err := os.Link(from, to); !errors.Is(err, syscall.EXDEV) {
		return err
	}
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, text, 0o755)
}

// program is the path of the installed program.
func (n *node) program() string { return filepath.Join(n.dir, "bin", "nomad-lite") }

// install replaces the installed program, as a package manager does it.
func (n *node) install(build string) {
	n.T.Helper()
	next := n.program() + ".new"
	if err := errors.Join(copyFile(build, next), os.Rename(next, n.program())); err != nil {
		n.T.Fatal(err)
	}
}

func (n *node) logFile() string { return filepath.Join(n.dir, "log") }

// start starts an agent of the installed program and waits until it is ready.
func (n *node) start() {
	n.T.Helper()
	log, err := os.OpenFile(n.logFile(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		n.T.Fatal(err)
	}
	defer log.Close()
	n.agent = exec.Command(n.program(), "agent", "-config", filepath.Join(systemtest.RepositoryDir(), "cmd/nomad-lite/systemtest/testdata/roomy.hcl"), "-config", n.configFile)
	n.agent.Env = append(os.Environ(), systemtest.WorkDirEnvVar+"="+n.dir)
	n.agent.Stderr = log
	n.agent.Dir = n.dir // the third-party driver writes the file cgroup.procs into its working directory
	n.agent.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := n.agent.Start(); err != nil {
		n.T.Fatal(err)
	}
	n.starts++
	n.WaitUntil("the agent is ready", func() (string, bool) {
		text, err := os.ReadFile(n.logFile())
		return fmt.Sprint(err, "\n", string(text)), strings.Count(string(text), "agent is ready") == n.starts
	})
}

// end sends a signal to the agent and waits until the agent exits.
func (n *node) end(how unix.Signal) {
	n.T.Helper()
	if n.agent == nil {
		return
	}
	if err := n.agent.Process.Signal(how); err != nil {
		n.T.Errorf("the agent has ended before it was told to: %v", err)
	}
	if err := n.agent.Wait(); err != nil && how != unix.SIGKILL {
		n.T.Error("the agent: ", err)
	}
	n.agent = nil
}

// cleanUp ends all processes of a node whose test has failed.
func (n *node) cleanUp() {
	if !n.T.Failed() {
		return
	}
	text, _ := os.ReadFile(n.logFile()) // the agent may not have been started
	n.T.Logf("agents said:\n%s", text)
	if n.agent != nil {
		jobs, _, _ := n.Jobs().List(nil)
		for _, job := range jobs {
			_, _, _ = n.Jobs().Deregister(job.ID, true, nil)
		}
		for limit := time.Now().Add(20 * time.Second); time.Now().Before(limit); time.Sleep(100 * time.Millisecond) {
			if dirs, _ := os.ReadDir(filepath.Join(n.dataDir, "alloc")); len(dirs) == 0 {
				break
			}
		}
		n.end(unix.SIGTERM)
	}
	for _, p := range systemtest.FindDataDirProcesses(n.dataDir) {
		_ = p.Signal(unix.SIGKILL) // the process can have exited
	}
}

// helpers are the processes of a node that are not tasks, by their kinds.
func (n *node) helpers() map[string][]osprocess.ID {
	found := map[string][]osprocess.ID{}
	for _, p := range systemtest.FindDataDirProcesses(n.dataDir) {
		if !strings.Contains(p.Kind, "/") {
			found[p.Kind] = append(found[p.Kind], p.ID)
		}
	}
	return found
}

// replacedHelpers are the kinds of processes that execute the program of the agent.
var replacedHelpers = []string{"keeper", "log-collector", "plugin", systemtest.OnDemandPluginKind}

// awaitHelpers waits until all helper processes execute the installed program. Plugins are replaced one after the other.
func (n *node) awaitHelpers() map[string][]osprocess.ID {
	n.T.Helper()
	program, err := os.Open(n.program())
	if err != nil {
		n.T.Fatal(err)
	}
	defer program.Close()
	var found map[string][]osprocess.ID
	n.WaitUntil("all helper processes execute the installed program", func() (string, bool) {
		found = n.helpers()
		for _, kind := range replacedHelpers {
			for _, p := range found[kind] {
				if same, err := p.SameExecutable(program); !same || err != nil {
					return fmt.Sprintf("%s %d: %v", kind, p.PID, err), false
				}
			}
		}
		single := len(found["keeper"]) == 1 && len(found["log-collector"]) == 1 && len(found["shell-driver"]) == 1 && len(found["dying-hook"]) == 1
		return fmt.Sprint(found), single && len(found["plugin"]) > 0
	})
	return found
}

// compareHelpers checks which helper processes an upgrade has replaced: the keeper executes the other build in its own process,
// and plugins whose files have not changed stay under the new agent.
func (n *node) compareHelpers(before, after map[string][]osprocess.ID) {
	n.T.Helper()
	for kind, stays := range map[string]bool{"keeper": true, "log-collector": false, "plugin": false, "shell-driver": true, "dying-hook": true} {
		kept := slices.ContainsFunc(after[kind], func(p osprocess.ID) bool { return slices.Contains(before[kind], p) })
		if kept != stays {
			n.T.Errorf("processes of %s are %v, were %v", kind, after[kind], before[kind])
		}
	}
}
