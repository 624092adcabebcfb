package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
)

// node is a nomad-lite agent that is a node of a cluster.
type node struct {
	t             testing.TB
	cluster       *cluster
	name, dir     string
	dataDir       string
	program       string // path of the program of the next agent
	process       *exec.Cmd
	id            string
	startedAgents int
}

const nodeConfig = `
name     = %q
data_dir = %q
ports {
  http = 0
}
client {
  servers           = %s
  cpu_total_compute = 1000000
  memory_total_mb   = 1000000
  disk_total_mb     = 10000000
  gc_max_allocs     = 1000
}
plugin "raw_exec" {
  config {
    enabled = true
  }
}
%s
`

// startNode starts an agent, and waits until the servers have it as a ready node.
func (c *cluster) startNode(t testing.TB, name string, config ...string) *node {
	t.Helper()
	n := c.newNode(t, name, config...)
	n.start()
	n.awaitStatus("ready")
	return n
}

// newNode returns a node whose agent is not started.
func (c *cluster) newNode(t testing.TB, name string, config ...string) *node {
	t.Helper()
	program, err := exec.LookPath("nomad-lite")
	if err != nil {
		t.Fatal(err)
	}
	dir := systemtest.NewLeakCheckedAgentDir(t)
	n := &node{t: t, cluster: c, name: name, dir: dir, dataDir: filepath.Join(dir, "data"), program: program}
	text := fmt.Sprintf(nodeConfig, name, n.dataDir, c.rpcAddrs(), strings.Join(config, "\n"))
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(n.configFile(), []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.cleanUp)
	return n
}

func (n *node) configFile() string { return filepath.Join(n.dir, "agent.hcl") }
func (n *node) logFile() string    { return filepath.Join(n.dir, "log") }

// start starts the agent and waits until it runs, which does not need servers.
func (n *node) start() {
	n.t.Helper()
	n.startProcess()
	n.cluster.eventually("the agent of "+n.name+" is ready", func() error {
		text, err := os.ReadFile(n.logFile())
		if err == nil && strings.Count(string(text), "agent is ready") < n.startedAgents {
			err = fmt.Errorf("the log is\n%s", lastLines(string(text), 20))
		}
		return err
	})
}

// startProcess starts the agent and does not wait for it.
func (n *node) startProcess() {
	n.t.Helper()
	log, err := os.OpenFile(n.logFile(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		n.t.Fatal(err)
	}
	defer log.Close()
	n.process = exec.Command(n.program, "agent", "-config", filepath.Join(systemtest.RepositoryDir(), "cmd/nomad-lite/systemtest/testdata/roomy.hcl"), "-config", n.configFile())
	n.process.Args[0] = "nomad-lite"
	n.process.Env = append(os.Environ(), systemtest.WorkDirEnvVar+"="+n.dir)
	n.process.Stderr = log
	n.process.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := n.process.Start(); err != nil {
		n.t.Fatal(err)
	}
	n.startedAgents++
}

// awaitLog waits until the log of the agents has a text.
func (n *node) awaitLog(text string) {
	n.t.Helper()
	n.cluster.eventually(fmt.Sprintf("the log of %s has %q", n.name, text), func() error {
		log, err := os.ReadFile(n.logFile())
		if err == nil && !strings.Contains(string(log), text) {
			err = fmt.Errorf("the log is\n%s", lastLines(string(log), 20))
		}
		return err
	})
}

func lastLines(text string, n int) string {
	lines := strings.Split(text, "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// end sends a signal to the agent and waits until the agent exits.
func (n *node) end(how unix.Signal) {
	n.t.Helper()
	if n.process == nil {
		return
	}
	if err := n.process.Process.Signal(how); err != nil {
		n.t.Errorf("the agent of %s has ended before: %v", n.name, err)
	}
	if err := n.process.Wait(); err != nil && how != unix.SIGKILL {
		n.t.Errorf("the agent of %s: %v", n.name, err)
	}
	n.process = nil
}

// killAndRestart kills the agent and starts the next one.
func (n *node) killAndRestart() {
	n.t.Helper()
	n.end(unix.SIGKILL)
	n.start()
}

// killAll kills the processes of the node of the given kinds, and returns their number.
func (n *node) killAll(kinds func(kind string) bool) (killed int) {
	for _, p := range systemtest.FindDataDirProcesses(n.dataDir) {
		if kinds(p.Kind) && p.Signal(unix.SIGKILL) == nil {
			killed++
		}
	}
	return killed
}

// record returns the node as the servers have it, nil if they do not have it.
func (n *node) record() (*api.NodeListStub, error) {
	list, _, err := n.cluster.api().Nodes().List(nil)
	for _, stub := range list {
		if stub.Name == n.name {
			n.id = stub.ID
			return stub, nil
		}
	}
	return nil, err
}

// awaitStatus waits until the servers have the node with this status.
func (n *node) awaitStatus(status string) {
	n.t.Helper()
	n.cluster.eventually(fmt.Sprintf("node %s is %s", n.name, status), func() error {
		stub, err := n.record()
		if err == nil && stub == nil {
			err = errors.New("the servers do not have the node")
		}
		if err == nil && stub.Status != status {
			err = fmt.Errorf("the node is %s", stub.Status)
		}
		return err
	})
}

// cleanUp ends all jobs and the agent.
func (n *node) cleanUp() {
	if n.process != nil && n.process.ProcessState == nil && !n.t.Failed() {
		jobs, _, err := n.cluster.api().Jobs().List(nil)
		n.cluster.check(err)
		for _, job := range jobs {
			_, _, err := n.cluster.api().Jobs().Deregister(job.ID, true, nil)
			n.cluster.check(err)
		}
		n.cluster.eventually("all allocations of "+n.name+" are removed", func() error {
			err := n.cluster.api().System().GarbageCollect()
			dirs, dirErr := os.ReadDir(filepath.Join(n.dataDir, "alloc"))
			if len(dirs) > 0 {
				err = fmt.Errorf("%d directories are left", len(dirs))
			}
			return errors.Join(err, dirErr)
		})
		n.end(unix.SIGTERM)
	}
	if n.process != nil {
		n.end(unix.SIGKILL)
	}
	text, _ := os.ReadFile(n.logFile()) // the agent may not have been started
	if n.t.Failed() {
		n.t.Logf("log of %s:\n%s", n.name, lastLines(string(text), 60))
		for range 3 { // the keeper starts no new processes, but a process can have been forked during the first round
			n.killAll(func(string) bool { return true })
			time.Sleep(100 * time.Millisecond)
		}
		return
	}
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "panic:") {
			n.t.Errorf("the agent of %s logs %s", n.name, line)
		}
	}
}
