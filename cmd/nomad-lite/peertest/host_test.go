package peertest

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/peers"
)

// waitTimeout limits how long an agent can take to become ready, a task to reach a status, and so on.
const waitTimeout = 2 * time.Minute

// host is a running agent: the stock Nomad agent or nomad-lite.
type host struct {
	*api.Client
	name    string // "Nomad" or "nomad-lite"
	address string
	dir     string // directory of the agent, with its data and its log
	nodeID  string

	cmd      *exec.Cmd
	mu       sync.Mutex
	allocIDs []string // allocations that the tests have waited for; guarded by mu
	cpuset   string   // cgroup that the agent sees as the root of the hierarchy cpuset; empty without such a hierarchy
}

const cpusetRoot = "/sys/fs/cgroup/cpuset"

// makeCPUSet makes a cgroup of the hierarchy cpuset of cgroups v1. Each agent divides all cores that it sees among its own
// tasks, so agents of tests that run at the same time must not share a cgroup.
func makeCPUSet() (string, error) {
	if _, err := os.Stat(filepath.Join(cpusetRoot, "cpuset.cpus")); err != nil {
		return "", nil // the machine has only cgroups v2
	}
	path, err := os.MkdirTemp(cpusetRoot, "peertest")
	if err != nil {
		return "", err
	}
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		text, err := os.ReadFile(filepath.Join(cpusetRoot, file))
		if err == nil {
			err = os.WriteFile(filepath.Join(path, file), text, 0)
		}
		if err != nil {
			return "", errors.Join(err, os.Remove(path))
		}
	}
	return path, nil
}

// removeCPUSet removes a cgroup with its descendants, which have no processes.
func removeCPUSet(path string) error {
	if path == "" {
		return nil
	}
	children, err := filepath.Glob(filepath.Join(path, "*/"))
	errs := []error{err}
	for _, child := range children {
		if info, err := os.Stat(child); err == nil && info.IsDir() {
			errs = append(errs, removeCPUSet(child))
		}
	}
	err = os.Remove(path)
	if errors.Is(err, syscall.EBUSY) {
		pids, _ := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		for _, pid := range strings.Fields(string(pids)) {
			command, _ := os.ReadFile(filepath.Join("/proc", pid, "cmdline"))
			err = fmt.Errorf("%w: process %s %q", err, pid, command)
		}
	}
	return errors.Join(append(errs, err)...)
}

// hostConfig is the part of an agent's configuration that both agents read. DIR is replaced by the directory of the agent.
type hostConfig struct {
	text    string            // further configuration
	plugins map[string]string // program of each file in the plugin directory
}

const commonConfig = `
name       = "peer"
datacenter = "dc-peer"
region     = "global"
log_level  = "debug"
bind_addr  = "127.0.0.1"
plugin_dir = "DIR/plugins"
client {
  cpu_total_compute = 100000
  memory_total_mb   = 100000
  disk_total_mb     = 100000
  client_min_port   = 14100
  client_max_port   = 14400
  cni_path          = "/usr/lib/cni"
  cni_config_dir    = "DIR/cni"
  reserved {
    cpu = 300
  }
  host_volume "shared" {
    path = "DIR/volume"
    allow_bidirectional = true
  }
}
telemetry {
  collection_interval        = "1s"
  publish_allocation_metrics = true
}
`

const nomadConfig = `
ports {
  http = HTTP
  rpc  = RPC
  serf = SERF
}
advertise {
  http = "127.0.0.1"
  rpc  = "127.0.0.1"
  serf = "127.0.0.1"
}
client {
  options = {
    "fingerprint.denylist" = "env_aws,env_gce,env_azure,env_digitalocean"
  }
}
`

const liteConfig = `
ports {
  http = 0
}
acl {
  enabled = false
}
`

// probeNetwork is the network "cni/probe" of the tests.
const probeNetwork = `{
  "cniVersion": "1.0.0",
  "name": "probe",
  "plugins": [{"type": "ptp", "ipam": {"type": "host-local", "subnet": "192.0.2.0/28", "dataDir": "DIR/cni-state"}}]
}
`

// startNomad starts the stock agent, which is server and client.
func startNomad(program string, config hostConfig) (*host, error) {
	h := &host{name: "Nomad"}
	ports, err := freePorts(3)
	if err != nil {
		return nil, err
	}
	h.address = "http://127.0.0.1:" + ports[0]
	text := strings.NewReplacer("HTTP", ports[0], "RPC", ports[1], "SERF", ports[2]).Replace(nomadConfig)
	if err := h.start(program, text, config); err != nil {
		return nil, err
	}
	return h.ready()
}

// ready waits until the agent is ready. If it does not become ready, it is stopped.
func (h *host) ready() (*host, error) {
	if err := h.waitReady(); err != nil {
		return nil, errors.Join(fmt.Errorf("%w\n%s", err, h.log()), h.stop())
	}
	return h, nil
}

// startLite starts nomad-lite.
func startLite(config hostConfig) (*host, error) {
	h := &host{name: "nomad-lite"}
	if err := h.start("nomad-lite", liteConfig, config); err != nil {
		return nil, err
	}
	return h.ready()
}

// readyLine is the line with which nomad-lite prints its address.
var readyLine = regexp.MustCompile(`agent is ready: (http://[^,\s]+)`)

// freePorts returns free TCP ports.
func freePorts(count int) ([]string, error) {
	var ports []string
	for range count {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer listener.Close()
		_, port, err := net.SplitHostPort(listener.Addr().String())
		if err != nil {
			return nil, err
		}
		ports = append(ports, port)
	}
	return ports, nil
}

// start starts the program of an agent with a configuration in a new directory. On an error, nothing remains.
func (h *host) start(program, text string, config hostConfig) (err error) {
	if h.dir, err = os.MkdirTemp("", "peertest"); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, removeCPUSet(h.cpuset), os.RemoveAll(h.dir))
		}
	}()
	if err := os.Chmod(h.dir, 0o755); err != nil {
		return err
	}
	for _, dir := range []string{"volume", "devices", "cni"} {
		if err := os.Mkdir(filepath.Join(h.dir, dir), 0o755); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(h.dir, "devices", "file-device"), nil, 0o644); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(h.dir, "cni", "probe.conflist"), []byte(strings.ReplaceAll(probeNetwork, "DIR", h.dir)), 0o644); err != nil {
		return err
	}
	if err := linkPlugins(filepath.Join(h.dir, "plugins"), config.plugins); err != nil {
		return err
	}
	var paths []string
	for name, text := range map[string]string{"common.hcl": commonConfig, "host.hcl": text, "test.hcl": config.text} {
		path := filepath.Join(h.dir, name)
		paths = append(paths, "-config", path)
		if err := os.WriteFile(path, []byte(strings.ReplaceAll(text, "DIR", h.dir)), 0o600); err != nil {
			return err
		}
	}
	log, err := os.Create(h.logPath())
	if err != nil {
		return err
	}
	defer log.Close()
	arguments := append([]string{program, "agent", "-dev"}, paths...)
	if h.cpuset, err = makeCPUSet(); err != nil {
		return err
	}
	if h.cpuset != "" {
		arguments = append([]string{"unshare", "--mount", "--propagation", "slave", "/bin/sh", "-c", `mount --bind "$0" ` + cpusetRoot + ` && exec "$@"`, h.cpuset}, arguments...)
	}
	h.cmd = exec.Command(arguments[0], arguments[1:]...)
	h.cmd.Dir = h.dir
	h.cmd.Stdout, h.cmd.Stderr = log, log
	h.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C in a terminal would interrupt the stock agent's plugins, too
	return h.cmd.Start()
}

func (h *host) logPath() string { return filepath.Join(h.dir, "agent.log") }

// log returns the log of the agent.
func (h *host) log() string {
	text, err := os.ReadFile(h.logPath())
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// waitReady waits until the node of the agent is ready, and lets tasks use memory_max.
func (h *host) waitReady() (err error) {
	if h.address == "" {
		err := waitFor("the address of "+h.name, func() bool {
			found := readyLine.FindStringSubmatch(h.log())
			if found != nil {
				h.address = found[1]
			}
			return found != nil
		})
		if err != nil {
			return err
		}
	}
	if h.Client, err = api.NewClient(&api.Config{Address: h.address, Namespace: api.DefaultNamespace}); err != nil {
		return err
	}
	err = waitFor("the node of "+h.name, func() bool {
		nodes, _, err := h.Nodes().List(nil)
		if err != nil || len(nodes) != 1 || nodes[0].Status != api.NodeStatusReady {
			return false
		}
		h.nodeID = nodes[0].ID
		return true
	})
	if err != nil {
		return err
	}
	current, _, err := h.Operator().SchedulerGetConfiguration(nil)
	if err != nil {
		return err
	}
	current.SchedulerConfig.MemoryOversubscriptionEnabled = true
	_, _, err = h.Operator().SchedulerSetConfiguration(current.SchedulerConfig, nil)
	return err
}

// stop interrupts the agent, which stops its jobs because of -dev, and removes its directory.
func (h *host) stop() error {
	if h.Client != nil {
		h.Close()
	}
	if err := h.cmd.Process.Signal(syscall.SIGINT); err != nil {
		return fmt.Errorf("interrupt %s: %w", h.name, err)
	}
	kill := time.AfterFunc(waitTimeout, func() { _ = h.cmd.Process.Kill() }) // an error means that it has exited
	defer kill.Stop()
	err := h.cmd.Wait()
	if h.name == "Nomad" {
		err = nil // its exit code after SIGINT is 1
	}
	if err != nil {
		err = fmt.Errorf("%s: %w\n%s", h.name, err, h.log())
	}
	if i := strings.Index(h.log(), "panic:"); i >= 0 && h.name != "Nomad" {
		err = errors.Join(err, errors.New(h.log()[i:]))
	}
	if left := processesOf(h.dir); len(left) > 0 && h.name != "Nomad" {
		err = errors.Join(err, fmt.Errorf("plugins or tasks of %s remain: %v", h.name, left))
	}
	for _, id := range h.allocIDs {
		for _, pattern := range []string{"/sys/fs/cgroup/*/nomad/" + id + ".*", "/sys/fs/cgroup/nomad.slice/*/" + id + ".*"} {
			groups, _ := filepath.Glob(pattern) // the pattern is valid
			for _, group := range groups {
				if h.name != "Nomad" {
					err = errors.Join(err, fmt.Errorf("the cgroup %s of %s remains", group, h.name))
				} else if removeErr := os.Remove(group); removeErr != nil { // the stock agent leaves the cgroups of its last allocation
					err = errors.Join(err, removeErr)
				}
			}
		}
	}
	var cpusetErr error
	err = errors.Join(err, waitFor("the cgroup of the agent has no processes", func() bool {
		cpusetErr = removeCPUSet(h.cpuset)
		if errors.Is(cpusetErr, syscall.EBUSY) && h.name == "Nomad" {
			h.killLeftProcesses()
		}
		return !errors.Is(cpusetErr, syscall.EBUSY)
	}))
	return errors.Join(err, cpusetErr, os.RemoveAll(h.dir))
}

// killLeftProcesses kills the processes in the cgroups of the agent: the stock agent can exit before its plugins and tasks, and does
// not always end them.
func (h *host) killLeftProcesses() {
	_ = filepath.WalkDir(h.cpuset, func(path string, _ fs.DirEntry, err error) error { // the caller tries again
		if err != nil || filepath.Base(path) != "cgroup.procs" {
			return nil
		}
		pids, _ := os.ReadFile(path) // the same
		for _, text := range strings.Fields(string(pids)) {
			if pid, err := strconv.Atoi(text); err == nil {
				_ = syscall.Kill(pid, syscall.SIGKILL) // an error means that it has exited
			}
		}
		return nil
	})
}

// sharedHost is an agent that all tests of the package use. The first test that needs the agent starts it.
type sharedHost struct {
	once  sync.Once
	start func(t testing.TB) (*host, error)
	host  *host
	err   error
}

func (s *sharedHost) get(t testing.TB) *host {
	t.Helper()
	peers.ProgramOrSkip(t, "nomad") // a skipped test must not consume the Once
	if os.Geteuid() != 0 {
		t.Skip("the stock agent and its drivers need root")
	}
	s.once.Do(func() { s.host, s.err = s.start(t) })
	if s.err != nil {
		t.Fatal(s.err)
	}
	return s.host
}

func (s *sharedHost) stop() error {
	if s.host == nil {
		return nil
	}
	return s.host.stop()
}

var (
	sharedNomad = &sharedHost{start: func(t testing.TB) (*host, error) {
		return startNomad(peers.ProgramOrSkip(t, "nomad"), sharedConfig(t, false))
	}}
	sharedLite = &sharedHost{start: func(t testing.TB) (*host, error) { return startLite(sharedConfig(t, true)) }}
)

// nomadHost returns the stock agent that the tests share.
func nomadHost(t testing.TB) *host { t.Helper(); return sharedNomad.get(t) }

// liteHost returns the nomad-lite agent that the tests share. Its drivers raw_exec, exec and mock_driver are Nomad's.
func liteHost(t testing.TB) *host { t.Helper(); return sharedLite.get(t) }

// forEachHost runs a test with both agents.
func forEachHost(t *testing.T, test func(t *testing.T, h *host)) {
	for _, h := range []*host{nomadHost(t), liteHost(t)} {
		t.Run(h.name, func(t *testing.T) { test(t, h) })
	}
}

// waitFor waits until the condition holds.
func waitFor(what string, condition func() bool) error {
	for deadline := time.Now().Add(waitTimeout); !condition(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("waited %v for %s", waitTimeout, what)
		}
	}
	return nil
}

// await waits until the condition holds, or ends the test.
func await(t testing.TB, what string, condition func() bool) {
	t.Helper()
	if err := waitFor(what, condition); err != nil {
		t.Fatal(err)
	}
}

// run registers a job, which is removed at the end of the test, and returns its newest allocation when the condition holds.
func (h *host) run(t testing.TB, job *api.Job, what string, condition func(*api.Allocation) bool) *api.Allocation {
	t.Helper()
	response, _, err := h.Jobs().Register(job, nil)
	if err != nil {
		t.Fatalf("%s: register job %q: %v", h.name, *job.ID, err)
	}
	if response.Warnings != "" {
		t.Logf("%s: job %q: %s", h.name, *job.ID, response.Warnings)
	}
	t.Cleanup(func() { h.remove(t, *job.ID) })
	var alloc *api.Allocation
	err = waitFor(fmt.Sprintf("%s: job %q: %s", h.name, *job.ID, what), func() bool {
		list, _, err := h.Jobs().Allocations(*job.ID, true, nil)
		if err != nil || len(list) == 0 {
			return false
		}
		if alloc, _, err = h.Allocations().Info(list[0].ID, nil); err != nil {
			t.Fatal(err)
		}
		return condition(alloc) || hasEnded(alloc)
	})
	if alloc != nil {
		h.mu.Lock()
		h.allocIDs = append(h.allocIDs, alloc.ID)
		h.mu.Unlock()
	}
	if err == nil && !condition(alloc) {
		err = fmt.Errorf("%s: job %q: the allocation has ended, want that %s", h.name, *job.ID, what)
	}
	if err != nil {
		var seen bytes.Buffer
		if alloc != nil {
			fmt.Fprintln(&seen, alloc.ClientStatus, alloc.ClientDescription)
			for name, state := range alloc.TaskStates {
				for _, event := range state.Events {
					fmt.Fprintln(&seen, name, event.Type, event.DisplayMessage)
				}
			}
		}
		t.Fatalf("%v\n%s", err, &seen)
	}
	return alloc
}

// remove stops and removes a job, and waits until its allocations have ended.
func (h *host) remove(t testing.TB, jobID string) {
	t.Helper()
	list, _, err := h.Jobs().Allocations(jobID, true, nil)
	if err != nil {
		t.Error(err)
	}
	if _, _, err := h.Jobs().Deregister(jobID, true, nil); err != nil {
		t.Errorf("%s: remove job %q: %v", h.name, jobID, err)
	}
	for _, stub := range list {
		err := waitFor(fmt.Sprintf("%s: allocation of job %q ends", h.name, jobID), func() bool {
			alloc, _, err := h.Allocations().Info(stub.ID, nil)
			return err != nil || alloc.ClientTerminalStatus()
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// isRunning reports whether all tasks of an allocation have started. An allocation is running when its first task is.
func isRunning(a *api.Allocation) bool {
	for _, task := range a.TaskStates {
		if task.State == "pending" {
			return false
		}
	}
	return a.ClientStatus == api.AllocClientStatusRunning
}

func hasEnded(a *api.Allocation) bool { return a.ClientTerminalStatus() }

// newJob returns a service job with one group of the given tasks, which neither restart nor move to other allocations.
func newJob(id string, tasks ...*api.Task) *api.Job {
	group := api.NewTaskGroup("group-of-"+id, 1)
	group.RestartPolicy = &api.RestartPolicy{Attempts: new(0), Mode: new("fail")}
	group.ReschedulePolicy = &api.ReschedulePolicy{Attempts: new(0), Unlimited: new(false)}
	for _, task := range tasks {
		if task.Config == nil {
			task.Config = map[string]any{"recoverable": false} // Nomad's client rejects a task without a config block
		}
		if task.Resources == nil {
			task.Resources = &api.Resources{CPU: new(50), MemoryMB: new(32)}
		}
		group.AddTask(task)
	}
	job := api.NewServiceJob(id, "name-of-"+id, "global", 50).AddTaskGroup(group)
	job.AddDatacenter("dc-peer")
	return job
}

// lastEvent returns the newest event of a kind of a task, or nil.
func lastEvent(a *api.Allocation, task, kind string) *api.TaskEvent {
	state := a.TaskStates[task]
	if state == nil {
		return nil
	}
	var last *api.TaskEvent
	for _, event := range state.Events {
		if event.Type == kind {
			last = event
		}
	}
	return last
}
