package faults

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/builtin/docker/dockertest"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/agentsocket"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
)

// killNode is a node whose processes are killed while its tasks run.
type killNode struct {
	*testing.T
	in         agentEnvironment
	dir        string // directory of all files of the node
	configFile string
	log        *os.File
	client     *api.Client
	agent      *exec.Cmd
	docker     *dockertest.Engine // nil without an engine
	podman     *dockertest.Engine // nil without an engine
	fileServer string             // address of the server of artifacts
}

// The bridge has a name and addresses of its own, so that it is not shared with other agents of the machine.
const killNodeConfig = `
data_dir   = %q
plugin_dir = %q
log_level  = "debug"
ports {
  http = 0
}
client {
  cpu_total_compute        = 1000000
  memory_total_mb          = 1000000
  disk_total_mb            = 10000000
  gc_disk_usage_threshold  = 100
  gc_inode_usage_threshold = 100
  gc_max_allocs            = 100000
  bridge_network_name      = "nlkills"
  bridge_network_subnet    = "172.27.208.0/20"
  options = {
    "driver.denylist" = "qemu"
  }
}
plugin "raw_exec" {
  config {
    enabled = true
  }
}
`

// newKillNode makes a node without an agent. The user of the environment owns its directory, which the users of tasks can
// search.
func newKillNode(t *testing.T, in agentEnvironment) *killNode {
	t.Helper()
	dir, err := os.MkdirTemp("", "kills")
	if err != nil {
		t.Fatal(err)
	}
	n := &killNode{T: t, in: in, dir: dir, configFile: filepath.Join(dir, "agent.hcl")}
	t.Cleanup(func() {
		n.killProcessesIfFailed()
		systemtest.AssertDataDirProcessesExit(t, n.dataDir())
		if err := in.remove(dir); err != nil {
			t.Error(err)
		}
	})
	for _, d := range []string{"", "bin", "plugins", "ledgers"} {
		if d != "" {
			err = errors.Join(err, os.Mkdir(n.path(d), 0o755))
		}
		err = errors.Join(err, in.chown(n.path(d)), os.Chmod(n.path(d), 0o755))
	}
	if err == nil {
		err = os.WriteFile(n.configFile, fmt.Appendf(nil, killNodeConfig, n.dataDir(), n.path("plugins")), 0o644)
	}
	if err == nil {
		n.log, err = os.Create(n.path("log"))
	}
	if err == nil {
		n.client, err = api.NewClient(&api.Config{Address: "unix://" + filepath.Join(n.dataDir(), agentsocket.FileName)})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			n.keepLog()
		}
		n.client.Close()
		n.log.Close()
	})
	n.serveFiles()
	return n
}

// killProcessesIfFailed kills the processes of the node after a failure, because they do not exit by themselves.
func (n *killNode) killProcessesIfFailed() {
	if n.Failed() {
		for _, p := range systemtest.FindDataDirProcesses(n.dataDir()) {
			_ = p.Signal(syscall.SIGKILL) // an error means that the process has exited
		}
	}
}

func (n *killNode) path(name string) string { return filepath.Join(n.dir, name) }

func (n *killNode) dataDir() string { return n.path("data") }

// allocPath returns the path of a file in the directory that the tasks of an allocation share.
func (n *killNode) allocPath(allocID, name string) string {
	return filepath.Join(n.dataDir(), "alloc", allocID, "alloc", name)
}

// addPluginConfig appends the block of a plugin to the configuration. A plugin without a configuration must not be given an
// empty one.
func (n *killNode) addPluginConfig(name, config string) {
	n.Helper()
	if config != "" {
		config = "config {\n" + config + "}\n"
	}
	file, err := os.OpenFile(n.configFile, os.O_WRONLY|os.O_APPEND, 0)
	if err == nil {
		_, err = fmt.Fprintf(file, "plugin %q {\n%s}\n", name, config)
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		n.Fatal(err)
	}
}

// installPlugin installs a program of this package as a plugin: the file with the name of the plugin executes it with
// the arguments. The text config is in its block of the configuration.
func (n *killNode) installPlugin(name, config, program string, args ...string) {
	n.Helper()
	path := n.path("bin/" + program)
	if err := linkProgram(program, path); err != nil {
		n.Fatal(err)
	}
	n.installPluginFile(name, config, path, args...)
}

// installPluginFile installs an existing program as a plugin.
func (n *killNode) installPluginFile(name, config, path string, args ...string) {
	n.Helper()
	text := fmt.Sprintf("#!/bin/sh\nexec %s %s\n", path, strings.Join(args, " "))
	if err := os.WriteFile(n.path("plugins/"+name), []byte(text), 0o755); err != nil {
		n.Fatal(err)
	}
	n.addPluginConfig(name, config)
}

// serveFiles serves the files of the directory "files", and artifacts that take seconds.
func (n *killNode) serveFiles() {
	n.Helper()
	if err := os.Mkdir(n.path("files"), 0o755); err != nil {
		n.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		n.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/files/", http.StripPrefix("/files/", http.FileServer(http.Dir(n.path("files")))))
	mux.HandleFunc("/slow/", serveSlowly)
	server := &http.Server{Handler: mux}
	go func() { _ = server.Serve(listener) }() // the error is that the server was closed
	n.Cleanup(func() { server.Close() })
	n.fileServer = "http://" + listener.Addr().String()
}

// keepLog keeps the log of the agents in the temporary directory.
func (n *killNode) keepLog() {
	text, err := os.ReadFile(n.log.Name())
	if err != nil {
		n.Error(err)
		return
	}
	kept := filepath.Join(os.TempDir(), "random-kills.log")
	if err := os.WriteFile(kept, text, 0o600); err != nil {
		n.Error(err)
	}
	n.Logf("the log of the agents is in %s", kept)
}

// startAgent starts an agent and does not wait until it is ready.
func (n *killNode) startAgent() {
	n.Helper()
	n.agent = n.in.newCommand("nomad-lite", "agent", "-config", n.configFile)
	n.agent.Dir, n.agent.Stdout, n.agent.Stderr = n.dir, n.log, n.log
	startAgentProcess(n.T, n.agent)
}

// startAgentProcess starts an agent, which is killed at the end of the test if it still runs.
func startAgentProcess(t *testing.T, agent *exec.Cmd) {
	t.Helper()
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = agent.Process.Kill() }) // an error means that the agent has exited
}

// end sends a signal to the agent and waits until the agent exits.
func (n *killNode) end(signal syscall.Signal) {
	n.Helper()
	endAgentProcess(n.T, n.agent, signal)
}

// endAgentProcess sends a signal to an agent and waits until the agent exits.
func endAgentProcess(t *testing.T, agent *exec.Cmd, signal syscall.Signal) {
	t.Helper()
	if err := agent.Process.Signal(signal); err != nil {
		t.Errorf("the agent has exited before the signal %v: %v", signal, err)
	}
	err := agent.Wait()
	if status := (*exec.ExitError)(nil); errors.As(err, &status) && status.Sys().(syscall.WaitStatus).Signal() == signal {
		return // the signal was SIGKILL, or arrived before the agent handled signals
	}
	if err != nil {
		t.Errorf("agent, ended by %v: %v", signal, err)
	}
}

// processes returns the processes of the node by kind, with a kind for each plugin of the binary, see servedPluginKind.
func (n *killNode) processes() map[string][]osprocess.ID {
	all := map[string][]osprocess.ID{}
	for _, p := range systemtest.FindDataDirProcesses(n.dataDir()) {
		if p.Kind == "plugin" || p.Kind == systemtest.OnDemandPluginKind {
			args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID))
			argv := strings.Split(string(args), "\x00")
			if err != nil || len(argv) < 4 {
				continue // the process has exited
			}
			p.Kind = servedPluginKind(argv[3])
		}
		all[p.Kind] = append(all[p.Kind], p.ID)
	}
	return all
}

// servedPluginKind returns the kind of the processes of a plugin that is a part of the binary.
func servedPluginKind(name string) string { return "plugin " + name }

// innermostPID returns the id of a process in its own pid namespace.
func innermostPID(pid int) string {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)) // an error means that the process has exited
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "NSpid:"); ok {
			fields := strings.Fields(rest)
			return fields[len(fields)-1]
		}
	}
	return ""
}

// waitNoError calls look repeatedly until it returns nil.
func (n *killNode) waitNoError(what string, look func() error) {
	n.Helper()
	var err error
	for deadline := time.Now().Add(killWaitTimeout); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		if err = look(); err == nil {
			return
		}
	}
	n.Fatalf("%s: not within %v: %v", what, killWaitTimeout, err)
}

// register registers a job.
func (n *killNode) register(job *api.Job) error {
	_, _, err := n.client.Jobs().Register(job, nil)
	return err
}

// purge stops a job, and waits until the directories of its allocations are removed.
func (n *killNode) purge(job string) {
	n.Helper()
	var ids []string
	n.waitNoError("the job "+job+" is stopped", func() error {
		list, _, err := n.client.Jobs().Allocations(job, true, nil)
		if err != nil {
			return err
		}
		ids = ids[:0]
		for _, a := range list {
			ids = append(ids, a.ID)
		}
		_, _, err = n.client.Jobs().Deregister(job, true, nil)
		return err
	})
	n.waitNoError("the allocations of "+job+" are removed", func() error {
		err := n.client.System().GarbageCollect()
		for _, id := range ids {
			if _, statErr := os.Stat(filepath.Join(n.dataDir(), "alloc", id)); !errors.Is(statErr, os.ErrNotExist) {
				err = errors.Join(err, fmt.Errorf("directory of %s: %w", id, statErr))
			}
		}
		return err
	})
	for _, id := range ids {
		n.checkNothingLeft(id)
	}
}

// checkNothingLeft checks that a removed allocation has left neither cgroups nor mounts.
func (n *killNode) checkNothingLeft(allocID string) {
	n.Helper()
	groups, _ := filepath.Glob("/sys/fs/cgroup/*/nomad/" + allocID + ".*")
	scopes, _ := filepath.Glob("/sys/fs/cgroup/nomad.slice/*/" + allocID + ".*")
	if len(groups)+len(scopes) > 0 {
		n.Errorf("cgroups of %s are left: %v", allocID, append(groups, scopes...))
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		n.Fatal(err)
	}
	if strings.Contains(string(mounts), allocID) {
		n.Errorf("mounts of %s are left", allocID)
	}
}
