package faults

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
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

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest/programs"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// stateDamage is a way to damage a state file while no agent is running.
type stateDamage struct {
	name string
	do   func(path string) error

	losesState bool // no record can be read
}

const (
	stateBlockSize = 4096
	usualStateSize = 32 * stateBlockSize
)

// newStateDamages returns damages for a state file of the usual size. The sizes of the truncated files are multiples of step.
func newStateDamages(step int64) []stateDamage {
	all := []stateDamage{
		{"empty", func(path string) error { return os.Truncate(path, 0) }, true},
		{"missing", os.Remove, true},
		{"text", func(path string) error {
			return os.WriteFile(path, []byte(strings.Repeat("this is not a state file\n", 1000)), 0o600)
		}, true},
	}
	for at := int64(stateBlockSize); at <= usualStateSize/2; at += step {
		all = append(all, stateDamage{name: fmt.Sprintf("truncated at %d", at), do: func(path string) error { return os.Truncate(path, at) }})
	}
	return all
}

// newBitFlips returns a damage that inverts some bits of the file.
func newBitFlips(random *rand.Rand) stateDamage {
	return stateDamage{name: "bits flipped", do: func(path string) error { return flipBits(path, random) }}
}

func flipBits(path string, random *rand.Rand) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for range 1 + random.IntN(16) {
		b[random.IntN(len(b))] ^= 1 << random.IntN(8)
	}
	return os.WriteFile(path, b, 0o600)
}

// TestDamagedState damages the state of a killed agent whose tasks continue. The next agent continues with the readable
// rest: the tasks continue, and belong to their job if the state still has it. If the whole state is lost, the tasks
// continue until the operator orders their end.
func TestDamagedState(t *testing.T) {
	damages := newStateDamages(10 * stateBlockSize)
	for seed := range uint64(3) {
		damages = append(damages, newBitFlips(rand.New(rand.NewPCG(seed, 0))))
	}
	for _, d := range damages {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			testDamagedState(t, d)
		})
	}
}

func testDamagedState(t *testing.T, d stateDamage) {
	n := newRunningNode(t)
	before := n.taskProcesses()
	n.agent.KillAndWait()
	if err := d.do(n.stateFile()); err != nil {
		t.Fatal(err)
	}
	n.lastAllocs = map[string]*api.Allocation{} // after damage, the agent can have lost all allocations
	n.startAgent()
	n.awaitRegistration()
	const unknown = "task of an unknown allocation runs, and continues"
	isLost := strings.Contains(n.readLog(), unknown)
	if !isLost && d.losesState {
		t.Errorf("the agent does not say that the tasks are unknown")
	}
	if !isLost {
		n.waitAllocReport("it continues, once", n.jobIsRunning(func(a *api.Allocation) bool { return n.isOnlyRunningAlloc(a.ID) }))
	}
	n.agent.SendExitCommandAndWait("leave")
	n.startAgent()
	n.awaitRegistration()
	if now := n.taskProcesses(); !slices.Equal(now, before) {
		t.Errorf("tasks are %v after two agents, were %v", now, before)
	}
	if isLost {
		n.agent.KillAndWait()
		n.startAgent(programs.EndUnknownEnv + "=1")
		n.awaitRegistration()
		if now := n.taskProcesses(); len(now) > 0 {
			t.Errorf("tasks %v were not ended", now)
		}
		n.registerJob(n.jobSpec("1s", "one"))
		n.waitAllocReport("it runs again, once", n.jobIsRunning(func(a *api.Allocation) bool { return n.isOnlyRunningAlloc(a.ID) }))
	}
	n.end()
}

func (n *faultNode) awaitRegistration() {
	n.Helper()
	n.do("await-registration", new(string))
}

func TestLockedState(t *testing.T) {
	t.Parallel()
	n := newRunningNode(t)
	before := n.taskProcesses()
	n.agent.KillAndWait()
	file, err := os.Open(n.stateFile())
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	n.startAgent()
	if err := n.agent.Cmd.Wait(); err == nil {
		t.Error("an agent runs on a state that another process has locked")
	}
	if want := fmt.Sprintf("state file %s is in use by process %d", n.stateFile(), os.Getpid()); !strings.Contains(n.readLog(), want) {
		t.Errorf("the agent does not say that the %s", want)
	}
	// A process that another test starts at this moment has the descriptor until it executes its program.
	if err := unix.Flock(int(file.Fd()), unix.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	n.startAgent()
	n.waitAllocReport("it runs", n.jobIsRunning(func(a *api.Allocation) bool { return true }))
	if now := n.taskProcesses(); !slices.Equal(now, before) {
		t.Errorf("tasks are %v, were %v", now, before)
	}
	n.end()
}

func TestStateDeletedWhileOpen(t *testing.T) {
	t.Parallel()
	n := newRunningNode(t)
	before := n.taskProcesses()
	if err := os.Remove(n.stateFile()); err != nil {
		t.Fatal(err)
	}
	n.registerJob(n.jobSpec("2s", "one"))
	n.waitAllocReport("it is updated", n.jobIsRunning(func(a *api.Allocation) bool { return *a.Job.Version == 1 }))
	n.agent.KillAndWait()
	n.startAgent()
	n.waitAllocReport("the update is not lost", n.jobIsRunning(func(a *api.Allocation) bool { return *a.Job.Version == 1 }))
	if now := n.taskProcesses(); !slices.Equal(now, before) {
		t.Errorf("tasks are %v, were %v", now, before)
	}
	n.end()
}

// TestFullDisk fills the disk of a node. New jobs are rejected, running tasks continue, an
// agent can be started, and pending state writes are made when there is room again.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	n := newNodeAsRoot(t)
	if err := os.Mkdir(n.dataDir, 0o711); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", n.dataDir, "tmpfs", 0, "size=16m,mode=0711"); err != nil {
		t.Fatal(err)
	}
	n.startLifecycleJob()
	before := n.taskProcesses()

	ballast := filepath.Join(n.dataDir, "ballast")
	fillDisk(t, ballast)
	if err := os.WriteFile(filepath.Join(n.dir, "two.nomad.hcl"), []byte(n.jobSpec("2s", "one")), 0o644); err != nil {
		t.Fatal(err)
	}
	var registerResult string
	n.do("register "+filepath.Join(n.dir, "two.nomad.hcl"), &registerResult)
	if !strings.Contains(registerResult, "no space left on device") {
		t.Errorf("a job is registered on a full disk: %s", registerResult)
	}
	n.agent.KillAndWait()
	n.startAgent()
	n.waitAllocReport("it runs on", n.jobIsRunning(func(a *api.Allocation) bool { return *a.Job.Version == 0 }))
	if now := n.taskProcesses(); !slices.Equal(now, before) {
		t.Errorf("tasks are %v, were %v", now, before)
	}
	for _, p := range before {
		if err := p.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	n.waitAllocReport("its end is seen", func(programs.AllocReport) bool { return !slices.Equal(n.taskProcesses(), before) })

	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	n.registerJob(n.jobSpec("2s", "one"))
	n.waitAllocReport("it runs again", n.jobIsRunning(func(a *api.Allocation) bool { return *a.Job.Version == 1 && n.isOnlyRunningAlloc(a.ID) }))

	// The job is purged on a full disk. Then no helper process runs, and the next agent starts its own.
	n.agent.KillAndWait()
	n.startAgent() // it reserves space again
	n.waitAllocReport("it runs on", n.jobIsRunning(func(a *api.Allocation) bool { return *a.Job.Version == 1 }))
	fillDisk(t, ballast)
	n.end()
	n.startAgent()
	n.do("register "+filepath.Join(n.dir, "two.nomad.hcl"), &registerResult)
	if !strings.Contains(registerResult, "no space left on device") {
		t.Errorf("a job is registered on a full disk: %s", registerResult)
	}
	n.agent.SendExitCommandAndWait("stop")
}

// TestStartsOnFullDisk starts agents on a disk that is full again after each start, with tasks, also without the reserve, and
// then without tasks. All of them must become ready.
func TestStartsOnFullDisk(t *testing.T) {
	t.Parallel()
	for _, tool := range []string{"mkfs.ext4", "mount"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("the test needs %s", tool) // the test is skipped: in a virtual machine it lacks a tool
		}
	}
	n := newAgentStartFixtureOn(t, allAgentEnvironments[0], 1, mountExt4)
	ballasts := 0
	fill := func() {
		t.Helper()
		ballasts++
		fillDisk(t, filepath.Join(n.dataDir, fmt.Sprintf("ballast-%d", ballasts)))
	}
	free := func() {
		t.Helper()
		for ; ballasts > 0; ballasts-- {
			if err := os.Remove(filepath.Join(n.dataDir, fmt.Sprintf("ballast-%d", ballasts))); err != nil {
				t.Fatal(err)
			}
		}
	}
	start := func(what string) {
		t.Helper()
		fill()
		agent := n.startAgent()
		n.waitReady(agent)
		fill()
		n.end(agent, syscall.SIGTERM)
		if !strings.Contains(n.readLog(), "disk of the data directory is full") {
			t.Errorf("%s: the agent does not say that the disk is full", what)
		}
	}
	start("first start")
	start("second start")
	n.assertSameProcesses("two starts on a full disk")
	if err := os.Remove(filepath.Join(n.dataDir, "reserve")); err != nil {
		t.Fatal(err)
	}
	start("start without a reserve")
	start("second start without a reserve")
	n.assertSameProcesses("two starts on a full disk without a reserve")
	free()
	n.recoverTasksAndStop()
	start("start without tasks")
	start("second start without tasks")
	free()
}

// TestDiskWithoutInodes uses all inodes of a node's disk. The agent's health has the cause, new jobs are rejected, killed helper processes
// return, and agents start.
func TestDiskWithoutInodes(t *testing.T) {
	t.Parallel()
	n := newAgentStartFixtureOn(t, allAgentEnvironments[0], 1, func(dir string) error {
		return unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1g,mode=0711,nr_inodes=2000")
	})
	agent := n.startAgent()
	client := n.waitReady(agent)
	fills := 0
	fill := func() {
		t.Helper()
		fills++
		for i := 0; ; i++ {
			err := os.WriteFile(filepath.Join(n.dataDir, fmt.Sprintf("ballast-%d-%d", fills, i)), nil, 0o600)
			if errors.Is(err, unix.ENOSPC) {
				return
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	waitFor := func(what string, isDone func() bool) {
		t.Helper()
		for deadline := time.Now().Add(systemtest.WaitTimeout); !isDone(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: processes are %v", what, n.processesByKind())
			}
		}
	}
	waitFor("inodes are not reserved", func() bool {
		files, _ := filepath.Glob(filepath.Join(n.dataDir, "reserve.inodes", "*"))
		return len(files) == 64
	})
	fill()

	waitFor("the health does not name the inodes", func() bool {
		health, err := client.Agent().Health()
		return err == nil && !health.Server.Ok && strings.Contains(health.Server.Message, "inodes")
	})
	job, err := client.Jobs().ParseHCL(fmt.Sprintf(agentStartTestJobHCL, fmt.Sprintf(agentStartTestGroupHCL, "raw_exec", 2)), true)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := client.Jobs().Register(job, nil); err == nil || !strings.Contains(err.Error(), "inodes") {
		t.Errorf("a job is registered: %v", err)
	}

	helpers := n.processesByKind()
	maps.DeleteFunc(helpers, func(kind string, _ []osprocess.ID) bool { return isTaskProcessKind(kind) })
	// The sockets of the killed processes are removed, and others take their inodes, before the agent starts the next ones.
	if err := agent.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for kind, processes := range helpers {
		for _, p := range processes {
			if err := errors.Join(p.Signal(syscall.SIGKILL), p.WaitEnd(t.Context())); err != nil {
				t.Fatalf("%s: %v", kind, err)
			}
		}
	}
	if err := os.RemoveAll(filepath.Join(n.dataDir, "sockets")); err != nil {
		t.Fatal(err)
	}
	fill()
	if err := agent.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	waitFor("killed helper processes do not return", func() bool {
		now := n.processesByKind()
		for kind, processes := range helpers {
			if len(now[kind]) != len(processes) || slices.ContainsFunc(now[kind], func(p osprocess.ID) bool { return slices.Contains(processes, p) }) {
				return false
			}
		}
		return true
	})
	n.assertSameTasks("helper processes were killed on a disk without inodes")

	n.end(agent, syscall.SIGKILL)
	for range 2 {
		fill()
		agent = n.startAgent()
		n.waitReady(agent)
		n.end(agent, syscall.SIGTERM)
	}
	n.assertSameTasks("starts on a disk without inodes")
	ballast, err := filepath.Glob(filepath.Join(n.dataDir, "ballast-*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range ballast {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	n.recoverTasksAndStop(api.TaskDriverMessage)
}

// TestRestartIsRefusedWhileStateCannotBeStored orders restarts while the state file cannot be written: the tasks would end, and could not
// start again.
func TestRestartIsRefusedWhileStateCannotBeStored(t *testing.T) {
	t.Parallel()
	n := newAgentStartFixture(t, allAgentEnvironments[0], 1)
	agent := n.startAgent()
	client := n.waitReady(agent)
	undo, err := newReplacePathFault(filepath.Join(n.dataDir, store.FileName), func(path string) error { return os.WriteFile(path, nil, 0o600) })()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), systemtest.WaitTimeout)
	defer cancel()
	q := (&api.QueryOptions{}).WithContext(ctx)
	for _, alloc := range n.allocs {
		for name, restart := range map[string]func() error{
			"one task":  func() error { return client.Allocations().Restart(alloc, "life", q) },
			"running":   func() error { return client.Allocations().Restart(alloc, "", q) },
			"all tasks": func() error { return client.Allocations().RestartAllTasks(alloc, q) },
		} {
			if err := restart(); err == nil || !strings.Contains(err.Error(), "nothing is restarted") {
				t.Errorf("restart of %s: %v", name, err)
			}
		}
	}
	n.assertSameTasks("restarts were ordered while the state cannot be stored")
	if err := undo(); err != nil {
		t.Fatal(err)
	}
	n.end(agent, syscall.SIGTERM)
	n.recoverTasksAndStop()
}

// fillDisk creates a file that fills the disk.
func fillDisk(t *testing.T, path string) {
	t.Helper()
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for size := 1 << 20; size > 0; {
		if _, err = file.Write(make([]byte, size)); err != nil {
			size /= 2
		}
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
}

func newNodeAsRoot(t *testing.T) *faultNode {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to have task directories like an agent's")
	}
	return newFaultNode(t, fault{step: -1})
}

// newRunningNode returns a node on which the lifecycle job runs.
func newRunningNode(t *testing.T) *faultNode {
	t.Helper()
	n := newNodeAsRoot(t)
	n.startLifecycleJob()
	return n
}

func (n *faultNode) startLifecycleJob() {
	n.Helper()
	n.startAgent()
	n.registerJob(n.jobSpec("1s", "one"))
	n.waitAllocReport("it runs", n.jobIsRunning(func(*api.Allocation) bool { return true }))
}

func (n *faultNode) stateFile() string { return filepath.Join(n.dataDir, store.FileName) }

// end purges the lifecycle job and stops the agent.
func (n *faultNode) end() {
	n.Helper()
	n.do("purge life", new(string))
	n.waitAllocReport("it is gone", func(s programs.AllocReport) bool { return n.isOnlyRunningAlloc("") })
	n.agent.SendExitCommandAndWait("stop")
}

// taskProcesses returns the processes of the lifecycle job's tasks.
func (n *faultNode) taskProcesses() (all []osprocess.ID) {
	for kind, processes := range n.processesByKind() {
		if isTaskProcessKind(kind) {
			all = append(all, processes...)
		}
	}
	return all
}

// isOnlyRunningAlloc reports whether no other allocation of the lifecycle job has a process. It
// fails the test if two allocations have run at the same time.
func (n *faultNode) isOnlyRunningAlloc(id string) bool {
	n.Helper()
	text, err := os.ReadFile(n.runHistoryFile)
	if err != nil {
		n.Fatal(err)
	}
	if strings.Contains(string(text), "double") {
		n.Fatalf("I1: two have run at once:\n%s", text)
	}
	for kind := range n.processesByKind() {
		if isTaskProcessKind(kind) && !strings.HasPrefix(kind, id+"/") {
			return false
		}
	}
	return true
}
