package faults

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
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

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/agent"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/agentsocket"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// agentStartFixture is a node whose tasks must not be affected when its agents exit.
type agentStartFixture struct {
	*testing.T
	agentEnvironment
	dir, dataDir, pluginDir, configFile string

	startCount           int
	log                  string                     // log file of the agent that was started last
	processesBeforeStart map[string][]osprocess.ID  // all processes of the node except the agent, by kind
	allocs               map[string]*api.Allocation // allocations as reported by the first agent, by id
}

const agentStartTestConfig = `
client {
  gc_disk_usage_threshold  = 100
  gc_inode_usage_threshold = 100
  cpu_total_compute        = 100000
  memory_total_mb          = 1000000
}
ports {
  http = 0
}
plugin "raw_exec" {
  config {
    enabled = true
  }
}
plugin "shell-driver" {}
`

const agentStartTestJobHCL = `
job "steady" {
%s}
`

const agentStartTestGroupHCL = `
  group %[1]q {
    count = %[2]d
    ephemeral_disk {
      size = 10
    }
    task "life" {
      driver = %[1]q
      logs {
        max_files     = 1
        max_file_size = 1
      }
      config {
        command = "/bin/sleep"
        args    = ["100000"]
      }
      resources {
        cpu    = 1
        memory = 10
      }
    }
  }
`

// newAgentStartFixture starts tasks of a builtin driver and of an external one, and stops their
// agent. The data directory is a tmpfsDisk.
func newAgentStartFixture(t *testing.T, s agentEnvironment, count int) *agentStartFixture {
	t.Helper()
	return newAgentStartFixtureOn(t, s, count, func(dir string) error { return tmpfsDisk(dir).mount(s) })
}

// newAgentStartFixtureOn is newAgentStartFixture with a function that mounts the disk of the data directory.
func newAgentStartFixtureOn(t *testing.T, s agentEnvironment, count int, mount func(dataDir string) error) *agentStartFixture {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to start agents of several users")
	}
	dir, err := os.MkdirTemp("", "steady")
	if err != nil {
		t.Fatal(err)
	}
	n := &agentStartFixture{
		T: t, agentEnvironment: s, dir: dir, dataDir: filepath.Join(dir, "data"),
		pluginDir: filepath.Join(dir, "plugins"), configFile: filepath.Join(dir, "agent.hcl"),
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, p := range systemtest.FindDataDirProcesses(n.dataDir) {
				_ = p.Signal(syscall.SIGKILL)
			}
		}
		systemtest.AssertDataDirProcessesExit(t, n.dataDir)
		if t.Failed() {
			t.Logf("the last agent said:\n%s", n.readLog())
		}
		if err := s.remove(dir); err != nil {
			t.Error(err)
		}
	})
	err = errors.Join(
		os.Mkdir(n.dataDir, 0o711), os.Mkdir(n.pluginDir, 0o755), s.chown(dir),
		os.WriteFile(n.configFile, []byte(agentStartTestConfig), 0o644), linkProgram("shell-driver", n.shellDriverPath()),
		mount(n.dataDir),
	)
	if err != nil {
		t.Fatal(err)
	}
	agent := n.startAgent()
	client := n.waitReady(agent)
	job, err := client.Jobs().ParseHCL(fmt.Sprintf(agentStartTestJobHCL, fmt.Sprintf(agentStartTestGroupHCL, "raw_exec", count)+fmt.Sprintf(agentStartTestGroupHCL, "shell", count)), true)
	if err == nil {
		_, _, err = client.Jobs().Register(job, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	n.allocs = n.waitTasksRunning(client, 2*count)
	n.processesBeforeStart = n.processesByKind()
	n.end(agent, syscall.SIGKILL)
	n.assertSameProcesses("the first agent was killed")
	return n
}

func (f *agentStartFixture) shellDriverPath() string {
	return filepath.Join(f.pluginDir, "shell-driver")
}

func (f *agentStartFixture) readLog() string {
	text, _ := os.ReadFile(f.log)
	return string(text)
}

// startAgent starts an agent.
func (f *agentStartFixture) startAgent(more ...string) *exec.Cmd {
	f.Helper()
	f.startCount++
	f.log = filepath.Join(f.dir, fmt.Sprintf("log-%d", f.startCount))
	log, err := os.Create(f.log)
	if err != nil {
		f.Fatal(err)
	}
	defer log.Close()
	cmd := f.newCommand("nomad-lite", append([]string{"agent", "-config", f.configFile, "-data-dir", f.dataDir, "-plugin-dir", f.pluginDir}, more...)...)
	cmd.Dir, cmd.Stderr = f.dir, log
	if err := cmd.Start(); err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		if cmd.ProcessState == nil { // the test has failed
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	return cmd
}

// waitReady waits until an agent is ready, and returns a client of it.
func (f *agentStartFixture) waitReady(agent *exec.Cmd) *api.Client {
	f.Helper()
	for deadline := time.Now().Add(systemtest.WaitTimeout); !strings.Contains(f.readLog(), "agent is ready"); time.Sleep(5 * time.Millisecond) {
		if p, err := osprocess.LookupID(agent.Process.Pid); err != nil || !p.Alive() || time.Now().After(deadline) {
			f.Fatalf("the agent does not become ready: %v", err)
		}
	}
	client, err := api.NewClient(&api.Config{Address: "unix://" + filepath.Join(f.dataDir, agentsocket.FileName)})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(client.Close)
	return client
}

// end sends a signal to an agent and waits until the agent exits.
func (f *agentStartFixture) end(agent *exec.Cmd, signal syscall.Signal) {
	f.Helper()
	_ = agent.Process.Signal(signal) // the agent can have exited
	f.waitExit(agent)
}

// waitExit waits until an agent exits, and returns its error.
func (f *agentStartFixture) waitExit(agent *exec.Cmd) error {
	f.Helper()
	ended := make(chan error, 1)
	go func() { ended <- agent.Wait() }()
	select {
	case err := <-ended:
		return err
	case <-time.After(systemtest.WaitTimeout):
		_ = agent.Process.Signal(syscall.SIGQUIT)
		<-ended
		f.Fatal("the agent does not end")
		return nil
	}
}

// processesByKind returns the keeper, the log collector, the plugins and the tasks of the node,
// by kind. It leaves out the agent, the parser of job files and the plugins that run on demand.
func (f *agentStartFixture) processesByKind() map[string][]osprocess.ID {
	all := systemtest.GroupProcessesByKind(systemtest.FindDataDirProcesses(f.dataDir))
	maps.DeleteFunc(all, func(kind string, _ []osprocess.ID) bool {
		return kind == "agent" || kind == agent.JobParserCommand || kind == systemtest.OnDemandPluginKind
	})
	return all
}

// assertSameProcesses asserts that tasks, plugins, log collector and keeper are still the same
// processes.
func (f *agentStartFixture) assertSameProcesses(after string) {
	f.Helper()
	if now := f.processesByKind(); !maps.EqualFunc(now, f.processesBeforeStart, slices.Equal) {
		f.Fatalf("after %s, processes are\n%v\nwere\n%v", after, now, f.processesBeforeStart)
	}
}

// assertSameTasks asserts that the tasks still have the same processes.
func (f *agentStartFixture) assertSameTasks(after string) {
	f.Helper()
	tasks := func(all map[string][]osprocess.ID) map[string][]osprocess.ID {
		maps.DeleteFunc(all, func(kind string, _ []osprocess.ID) bool { return !isTaskProcessKind(kind) })
		return all
	}
	if now, before := tasks(f.processesByKind()), tasks(maps.Clone(f.processesBeforeStart)); !maps.EqualFunc(now, before, slices.Equal) {
		f.Fatalf("after %s, tasks are\n%v\nwere\n%v", after, now, before)
	}
}

// waitTasksRunning waits until the agent reports count running tasks.
func (f *agentStartFixture) waitTasksRunning(client *api.Client, count int) map[string]*api.Allocation {
	f.Helper()
	var lastStatus any
	for deadline := time.Now().Add(systemtest.WaitTimeout); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		stubs, _, err := client.Jobs().Allocations("steady", false, nil)
		lastStatus = err
		allocs := map[string]*api.Allocation{}
		for _, stub := range stubs {
			alloc, _, err := client.Allocations().Info(stub.ID, nil)
			if err != nil {
				f.Fatal(err)
			}
			lastStatus = stub.TaskStates
			if allTasksRunning(alloc) {
				allocs[alloc.ID] = alloc
			}
		}
		if len(stubs) == count && len(allocs) == count {
			return allocs
		}
	}
	f.Fatalf("tasks do not run: %+v", lastStatus)
	return nil
}

// recoverTasksAndStop starts an agent, which must recover all tasks. Their only new events can be of the
// expected types. Then it stops the tasks, and asserts that the node leaves nothing behind.
func (f *agentStartFixture) recoverTasksAndStop(expected ...string) {
	f.Helper()
	agent := f.startAgent()
	client := f.waitReady(agent)
	for id, alloc := range f.waitTasksRunning(client, len(f.allocs)) {
		before := f.allocs[id]
		if before == nil {
			f.Fatalf("allocation %s is new", id)
		}
		// An exec session succeeds only when the task runner has recovered its task.
		runs := func() (code int, err error) {
			ctx, cancel := context.WithTimeout(f.Context(), systemtest.WaitTimeout)
			defer cancel()
			return client.Allocations().Exec(ctx, alloc, "life", false, []string{"/bin/true"}, strings.NewReader(""), nopWriter{}, nopWriter{}, nil, nil)
		}
		code, err := runs()
		for deadline := time.Now().Add(systemtest.WaitTimeout); err != nil && time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
			code, err = runs() // exec can fail at first: the restored state shows the task as running before it is recovered
		}
		if code != 0 || err != nil {
			f.Errorf("allocation %s: exec: %d, %v", id, code, err)
		}
		lifecycle := func(a *api.Allocation) []string {
			return systemtest.EventTypesWithoutLimitWarnings(slices.DeleteFunc(slices.Clone(a.TaskStates["life"].Events), func(e *api.TaskEvent) bool {
				return systemtest.IsUnenforcedLimitEvent(e) || slices.Contains(expected, e.Type)
			}))
		}
		events, was := lifecycle(alloc), lifecycle(before)
		if len(alloc.TaskStates["life"].Events) == 10 {
			was = was[max(0, len(was)-len(events)):]
		}
		if !slices.Equal(events, was) || alloc.TaskStates["life"].Restarts != 0 {
			f.Errorf("allocation %s: events %v, were %v", id, events, was)
		}
	}
	f.assertSameTasks("the last agent has recovered them")
	if _, _, err := client.Jobs().Deregister("steady", true, nil); err != nil {
		f.Fatal(err)
	}
	for deadline := time.Now().Add(systemtest.WaitTimeout); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		left := slices.DeleteFunc(slices.Collect(maps.Keys(f.processesByKind())), func(kind string) bool { return !isTaskProcessKind(kind) })
		dirs, err := os.ReadDir(filepath.Join(f.dataDir, "alloc"))
		if err == nil && len(left)+len(dirs) == 0 {
			break
		}
	}
	f.end(agent, syscall.SIGTERM)
}

type nopWriter struct{}

func (nopWriter) Write(p []byte) (int, error) { return len(p), nil }

// stoppedStart is a start of an agent to which a signal is sent.
type stoppedStart struct {
	signal syscall.Signal
	delay  float64 // time from the start to the signal, in durations of a complete start
}

var startSignals = []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGKILL}

// randomStoppedStarts returns starts that are stopped at random times.
func randomStoppedStarts(random *rand.Rand, count int) (starts []stoppedStart) {
	for range count {
		starts = append(starts, stoppedStart{startSignals[random.IntN(len(startSignals))], 1.5 * random.Float64()})
	}
	return starts
}

// TestStoppedStartLeavesTasks sends each of three signals to agents at various times of their
// start, while tasks of a builtin driver and of an external one run. No process of the node
// except the agent may exit, and the last agent must recover all tasks.
func TestStoppedStartLeavesTasks(t *testing.T) {
	for i, s := range allAgentEnvironments {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			points := 8
			if !slowtest.Enabled() {
				points = 4
			}
			var starts []stoppedStart
			for point := range points {
				for j, signal := range startSignals {
					if (point+i+j)%2 != 0 {
						starts = append(starts, stoppedStart{signal, 1.25 * float64(point) / float64(points)})
					}
				}
			}
			testStoppedStarts(t, s, starts)
		})
	}
}

func testStoppedStarts(t *testing.T, s agentEnvironment, starts []stoppedStart) {
	n := newAgentStartFixture(t, s, 3)
	began := time.Now()
	agent := n.startAgent()
	n.waitTasksRunning(n.waitReady(agent), len(n.allocs))
	start := time.Since(began)
	n.end(agent, syscall.SIGTERM)
	n.assertSameProcesses("an agent has ended")
	for _, stop := range starts {
		delay := time.Duration(stop.delay * float64(start))
		agent := n.startAgent()
		time.Sleep(delay)
		n.end(agent, stop.signal)
		n.assertSameProcesses(fmt.Sprintf("a start of %v that %v ended after %v", start, stop.signal, delay))
	}
	n.recoverTasksAndStop()
}

// TestTasksSurviveFailedAgentStart starts agents that cannot start, each because of another fault. The
// tasks, and the processes that the tasks need, must not be affected.
func TestTasksSurviveFailedAgentStart(t *testing.T) {
	t.Parallel()
	n := newAgentStartFixture(t, allAgentEnvironments[0], 2)
	sockets := filepath.Dir(n.keeperSocket())
	occupied, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer occupied.Close()
	takenPortConfig := filepath.Join(n.dir, "taken.hcl")
	broken := filepath.Join(n.dir, "broken.hcl")
	port := occupied.Addr().(*net.TCPAddr).Port
	err = errors.Join(
		os.WriteFile(takenPortConfig, fmt.Appendf(nil, "ports {\n  http = %d\n}\n", port), 0o600),
		os.WriteFile(broken, []byte("tls {\n  http      = true\n  cert_file = \"missing.pem\"\n  key_file  = \"missing.pem\"\n}\n"), 0o600),
	)
	if err != nil {
		t.Fatal(err)
	}

	for _, fault := range []struct {
		name string
		args []string
		make func() (undo func() error, err error)
		says string
		runs bool // the agent starts in spite of the fault
	}{
		{name: "the token is empty", make: newReplacePathFault(filepath.Join(n.dataDir, agent.TokenFile), func(path string) error { return os.WriteFile(path, nil, 0o600) }), says: "gets a new token", runs: true},
		{name: "the token cannot be read", make: newReplacePathFault(filepath.Join(n.dataDir, agent.TokenFile), makeNonEmptyDir), says: "read token"},
		{name: "the port is in use", args: []string{"-config", takenPortConfig}, says: "address already in use"},
		{name: "the place of the API's socket is taken", make: newReplacePathFault(filepath.Join(n.dataDir, agentsocket.FileName), makeNonEmptyDir), says: "make unix socket"},
		{name: "a certificate is missing", args: []string{"-config", broken}, says: "missing.pem"},
		{name: "the state is locked", make: func() (func() error, error) {
			file, err := os.Open(filepath.Join(n.dataDir, store.FileName))
			if err != nil {
				return nil, err
			}
			return file.Close, unix.Flock(int(file.Fd()), unix.LOCK_EX)
		}, says: "is in use by process"},
		{name: "the state is a directory", make: newReplacePathFault(filepath.Join(n.dataDir, store.FileName), makeNonEmptyDir), says: "open state"},
		{name: "the data directory is locked", make: func() (func() error, error) {
			file, err := os.Open(filepath.Join(n.dataDir, "lock"))
			if err != nil {
				return nil, err
			}
			return file.Close, unix.Flock(int(file.Fd()), unix.LOCK_EX)
		}, says: "in use by another nomad-lite"},
		{name: "others can write to the data directory", make: newChmodFault(n.dataDir, 0o777), says: "everybody may write"},
		{name: "the place of the directory for sockets is taken", make: newReplacePathFault(sockets, func(path string) error { return os.WriteFile(path, nil, 0o600) }), says: "make a directory for sockets"},
		{name: "others can write to the directory for sockets", make: newChmodFault(sockets, 0o722), says: "sockets"},
		{name: "the keeper's lock cannot be opened", make: newReplacePathFault(filepath.Join(n.dataDir, "keeper.lock"), makeNonEmptyDir), says: "start keeper"},
		{name: "the place of the hooks' socket is taken", make: newReplacePathFault(filepath.Join(sockets, "hooks.sock"), makeNonEmptyDir), says: "hooks"},
		{name: "the disk is full", make: func() (func() error, error) { return tmpfsDisk(n.dataDir).makeRoom, tmpfsDisk(n.dataDir).fill() }, says: "disk of the data directory is full, using the reserve", runs: true},
		{name: "the log collector cannot be started", make: newReplacePathFault(filepath.Join(n.dataDir, "collector.lock"), makeNonEmptyDir), says: "no log collector", runs: true},
	} {
		undo := func() error { return nil }
		if fault.make != nil {
			var err error
			if undo, err = fault.make(); err != nil {
				t.Fatalf("%s: %v", fault.name, err)
			}
		}
		agent := n.startAgent(fault.args...)
		if runs := !n.failsToStart(agent); runs != fault.runs {
			t.Errorf("%s: the agent starts: %v", fault.name, runs)
		} else if runs {
			n.waitLogText(fault.says)
			n.end(agent, syscall.SIGTERM)
		}
		if said := n.readLog(); !strings.Contains(said, fault.says) {
			t.Errorf("%s: the agent does not say that: %s", fault.name, said)
		}
		if err := undo(); err != nil {
			t.Fatalf("%s: %v", fault.name, err)
		}
		n.assertSameProcesses("a start while " + fault.name)
	}

	n.recoverTasksAndStop()
}

// limitedStart is a start of an agent whose limit of descriptors is lowered.
type limitedStart struct {
	descriptors uint64
	delay       time.Duration // time from the start to the new limit
}

const (
	minDescriptors, maxDescriptors = 4, 64
	maxLimitDelay                  = 400 * time.Millisecond
)

// randomLimitedStarts returns starts with a random limit from the start, and starts with the lowest limit after a random time.
func randomLimitedStarts(random *rand.Rand, count int) (starts []limitedStart) {
	for range count {
		if random.IntN(2) == 0 {
			starts = append(starts, limitedStart{descriptors: minDescriptors + random.Uint64N(maxDescriptors-minDescriptors+1)})
		} else {
			starts = append(starts, limitedStart{minDescriptors, time.Duration(random.Int64N(int64(maxLimitDelay)))})
		}
	}
	return starts
}

// TestStartWithoutDescriptorsLeavesTasks starts agents that run out of descriptors, each at
// another step: before the state is restored, while plugins are reattached and tasks are
// recovered, or afterwards. Some agents start with a low limit of descriptors, and the limit of
// others is lowered while they start.
func TestStartWithoutDescriptorsLeavesTasks(t *testing.T) {
	t.Parallel()
	var starts []limitedStart
	step, delayStep := uint64(7), 50*time.Millisecond
	if !slowtest.Enabled() {
		step, delayStep = 20, 150*time.Millisecond
	}
	for descriptors := uint64(minDescriptors); descriptors <= maxDescriptors; descriptors += step {
		starts = append(starts, limitedStart{descriptors: descriptors})
	}
	for delay := 10 * time.Millisecond; delay <= maxLimitDelay; delay += delayStep {
		starts = append(starts, limitedStart{minDescriptors, delay})
	}
	testLimitedStarts(t, starts)
}

func testLimitedStarts(t *testing.T, starts []limitedStart) {
	n := newAgentStartFixture(t, allAgentEnvironments[0], 2)
	for _, s := range starts {
		agent := n.startAgent()
		time.Sleep(s.delay)
		// An error means that the agent has already exited.
		_ = unix.Prlimit(agent.Process.Pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: s.descriptors, Max: s.descriptors}, nil)
		if !n.failsToStart(agent) {
			time.Sleep(200 * time.Millisecond) // an agent that has started also needs descriptors for its next steps
			n.end(agent, syscall.SIGTERM)
		}
		n.assertSameProcesses(fmt.Sprintf("a start with %d descriptors after %v", s.descriptors, s.delay))
	}
	// An agent without descriptors cannot reach a driver or repeat a call of a hook. It reports
	// that in events of these types, which can displace earlier events.
	n.recoverTasksAndStop(api.TaskDriverMessage, model.TaskHookFailed, model.TaskHookMessage)
}

// waitLogText waits until the last agent has logged the text. The caller must check whether it has.
func (f *agentStartFixture) waitLogText(text string) {
	for deadline := time.Now().Add(systemtest.WaitTimeout); !strings.Contains(f.readLog(), text) && time.Now().Before(deadline); {
		time.Sleep(5 * time.Millisecond)
	}
}

// failsToStart waits until an agent has exited or is ready, and reports whether it has
// exited.
func (f *agentStartFixture) failsToStart(agent *exec.Cmd) bool {
	f.Helper()
	p, err := osprocess.LookupID(agent.Process.Pid)
	for deadline := time.Now().Add(systemtest.WaitTimeout); err == nil && p.Alive() && time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if strings.Contains(f.readLog(), "agent is ready") {
			return false
		}
	}
	_ = f.waitExit(agent)
	return true
}

// keeperSocket returns the socket on which the plugins of the node reach the keeper.
func (f *agentStartFixture) keeperSocket() string {
	f.Helper()
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", f.processesBeforeStart["plugin"][0].PID))
	if err != nil {
		f.Fatal(err)
	}
	for v := range strings.SplitSeq(string(environ), "\x00") {
		if path, ok := strings.CutPrefix(v, keeper.EnvSocket+"="); ok {
			return path
		}
	}
	f.Fatal("the plugin does not know where the keeper is")
	return ""
}

// newReplacePathFault returns a fault that replaces the file at a path, if there is one, by another
// file or directory.
func newReplacePathFault(path string, by func(string) error) func() (func() error, error) {
	return func() (undo func() error, err error) {
		aside := path + ".aside"
		err = os.Rename(path, aside)
		there := err == nil
		if errors.Is(err, os.ErrNotExist) {
			err = nil
		}
		if err == nil {
			err = by(path)
		}
		return func() error {
			err := os.RemoveAll(path)
			if there {
				err = errors.Join(err, os.Rename(aside, path))
			}
			return err
		}, err
	}
}

// makeNonEmptyDir makes a directory that is not empty.
func makeNonEmptyDir(path string) error {
	return os.MkdirAll(filepath.Join(path, "full"), 0o700)
}

// newChmodFault returns a fault that changes the mode of a path.
func newChmodFault(path string, mode os.FileMode) func() (func() error, error) {
	return func() (func() error, error) {
		info, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		return func() error { return os.Chmod(path, info.Mode()) }, os.Chmod(path, mode)
	}
}
