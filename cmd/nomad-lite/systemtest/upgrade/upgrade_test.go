package upgrade

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/builtin/docker/dockertest"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/netns"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
)

// fullEnvVar enables TestUpgrade.
const fullEnvVar = "NOMAD_LITE_UPGRADE"

// TestUpgradeSample replaces the program once and goes back, with a task of each kind that needs nothing but the machine.
func TestUpgradeSample(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to have task directories like an agent's")
	}
	if testing.Short() {
		t.Skip("takes ten seconds")
	}
	builds := [2]string{systemtest.CopyBinaryAsOtherBuild(t), "/proc/self/exe"}
	n := newNode(t, "0.1")
	t.Cleanup(n.cleanUp)
	testUpgrade(n, builds, map[*taskKind]int{&rawExec: 1, &sdkDriver: 1, &hook: 1, &token: 1, &device: 2, &lease: 1, &ending: 4})
}

// TestUpgrade replaces the program of the last release by that of this commit, and goes back, while 100 tasks run.
func TestUpgrade(t *testing.T) {
	if os.Getenv(fullEnvVar) == "" {
		t.Skipf("runs 100 tasks, for minutes; %s=1, as in make test-upgrade, runs it", fullEnvVar)
	}
	counts := map[*taskKind]int{&rawExec: 10, &sdkDriver: 10, &hook: 10, &token: 10, &device: 10, &lease: 10, &ending: 12}
	isRoot := os.Geteuid() == 0
	if isRoot {
		maps.Copy(counts, map[*taskKind]int{&execKind: 10, &bridge: 10, &volume: 10})
		if engine := startEngine(t); engine != nil {
			counts[&docker] = 10
			t.Setenv("DOCKER_HOST", engine.Host)
		}
	}
	n := newNode(t, "1")
	t.Cleanup(n.cleanUp)
	if n.installThirdPartyDriver() {
		counts[&thirdParty] = 10
		n.addConfig("plugin \"hello-driver\" {}\n")
	}
	if _, err := exec.LookPath("javac"); !isRoot {
		t.Log("without exec, java, containers, bridges and volumes, which need root")
	} else if err == nil {
		counts[&java] = 10
		n.addConfig("client {\n  options = {\n    \"driver.denylist\" = \"qemu\"\n  }\n}\n")
	} else {
		t.Logf("without Java: %v", err)
	}
	total := 0
	for _, count := range counts {
		total += count
	}
	counts[&rawExec] += max(0, 100-total)
	testUpgrade(n, packTwoReleases(t), counts)
}

// TestUpgradePodman is TestUpgrade for containers of podman, which need a node of their own.
func TestUpgradePodman(t *testing.T) {
	if os.Getenv(fullEnvVar) == "" {
		t.Skipf("packs two releases; %s=1, as in make test-upgrade, runs it", fullEnvVar)
	}
	t.Setenv("DOCKER_HOST", dockertest.StartPodmanOrSkip(t).Host)
	n := newNode(t, "1")
	t.Cleanup(n.cleanUp)
	// The plugins of the kinds hook and sdk stay in an upgrade because they have tasks.
	counts := map[*taskKind]int{&podman: 10, &sdkDriver: 1, &hook: 1, &ending: 4}
	testUpgrade(n, packTwoReleases(t), counts)
}

// startEngine starts a Docker engine, or returns nil if that is impossible on this machine.
func startEngine(t *testing.T) *dockertest.Engine {
	for _, program := range []string{"dockerd", "busybox"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Logf("without containers: %v", err)
			return nil
		}
	}
	return dockertest.StartOrSkip(t)
}

// addConfig appends to the configuration of the next agents.
func (n *node) addConfig(text string) {
	n.T.Helper()
	config, err := os.ReadFile(n.configFile)
	if err == nil {
		err = os.WriteFile(n.configFile, append(config, text...), 0o600)
	}
	if err != nil {
		n.T.Fatal(err)
	}
}

// world is what a test knows of the tasks of its node, from their own records.
type world struct {
	*node
	kinds     map[string]*taskKind // by name
	allocs    []*api.Allocation    // as first seen running
	processes map[string][]osprocess.ID
	goes      []string       // files that end the ending tasks that still run
	ended     map[string]int // allocations of ended tasks, by the number of the phase in which they ended
}

// testUpgrade starts tasks under the first build, replaces it by the second one and goes back. The agent is first stopped, then
// killed. Some tasks end while no agent runs, others under each agent.
func testUpgrade(n *node, builds [2]string, counts map[*taskKind]int) {
	w := &world{node: n, kinds: map[string]*taskKind{}, ended: map[string]int{}}
	n.install(builds[0])
	n.start()
	volumeID := ""
	if counts[&volume] > 0 {
		volumeID = n.createVolume()
	}
	n.setVariable("first")
	total := 0
	for kind, count := range counts {
		w.kinds[kind.name] = kind
		n.register(*kind, count)
		total += count
	}
	w.awaitRunning(total)
	helpers := n.awaitHelpers()
	w.check("before")

	for phase, upgrade := range []struct {
		name  string
		build string
		how   unix.Signal
	}{{"upgrade", builds[1], unix.SIGTERM}, {"return", builds[0], unix.SIGKILL}} {
		n.install(upgrade.build)
		n.end(upgrade.how)
		w.endSome(2 * phase)
		for _, alloc := range w.allocs { // the tasks write output while no agent runs
			if w.kinds[alloc.JobID].script != endingScript {
				if problem := grows(w.record(alloc, "counts"), fileSize(w.record(alloc, "counts"))); problem != "" {
					n.T.Error(problem)
				}
				break
			}
		}
		begin := time.Now()
		n.start()
		now := n.awaitHelpers()
		n.T.Logf("%s: all helper processes replaced after %v", upgrade.name, time.Since(begin).Round(time.Millisecond))
		n.compareHelpers(helpers, now)
		helpers = now
		w.endSome(2*phase + 1)
		n.setVariable(upgrade.name)
		w.check(upgrade.name)
	}
	w.stop(volumeID)
}

// record returns a path of a task's own record.
func (w *world) record(alloc *api.Allocation, file string) string {
	return filepath.Join(w.dataDir, "alloc", alloc.ID, "alloc", "data", alloc.JobID+"."+file)
}

// awaitRunning waits until all allocations run, and remembers them.
func (w *world) awaitRunning(total int) {
	w.T.Helper()
	w.WaitUntil("all tasks run", func() (string, bool) {
		stubs, _, err := w.Allocations().List(nil)
		running := 0
		for _, stub := range stubs {
			if stub.ClientStatus == api.AllocClientStatusRunning {
				running++
			} else if stub.ClientStatus == api.AllocClientStatusFailed {
				w.T.Fatalf("%s fails: %+v", stub.JobID, stub.TaskStates[stub.JobID])
			}
		}
		return fmt.Sprintf("%d of %d, %v", running, total, err), running == total && len(stubs) == total
	})
	stubs, _, err := w.Allocations().List(nil)
	if err != nil {
		w.T.Fatal(err)
	}
	for _, stub := range stubs {
		alloc := w.ReadAlloc(stub.ID)
		w.allocs = append(w.allocs, alloc)
		if alloc.JobID == ending.name {
			w.goes = append(w.goes, alloc.ID)
		}
	}
	for _, alloc := range w.allocs {
		w.WaitUntil("the task of "+alloc.JobID+" has started", func() (string, bool) {
			text, err := os.ReadFile(w.record(alloc, "starts"))
			return fmt.Sprintf("%q, %v", text, err), len(text) > 0
		})
	}
	w.processes = w.taskProcesses()
}

// taskProcesses returns the processes of the tasks.
func (w *world) taskProcesses() map[string][]osprocess.ID {
	found := systemtest.GroupProcessesByKind(systemtest.FindDataDirProcesses(w.dataDir))
	for kind, list := range found {
		if !strings.Contains(kind, "/") {
			delete(found, kind)
			continue
		}
		slices.SortFunc(list, func(a, b osprocess.ID) int { return a.PID - b.PID })
	}
	return found
}

// endSome lets a quarter of the ending tasks exit.
func (w *world) endSome(quarter int) {
	w.T.Helper()
	count := len(w.goes) / (4 - quarter)
	for _, id := range w.goes[:count] {
		if err := os.WriteFile(filepath.Join(w.dataDir, "alloc", id, "alloc", "data", "go"), nil, 0o644); err != nil {
			w.T.Fatal(err)
		}
		w.ended[id] = quarter
	}
	w.goes = w.goes[count:]
}

// check compares what the agent reports with the records of the tasks.
func (w *world) check(when string) {
	w.T.Helper()
	w.awaitEnded(when)
	processes := w.taskProcesses()
	execChecked := map[string]bool{}
	sizes := map[string]int64{}
	for _, alloc := range w.allocs {
		sizes[alloc.ID] = fileSize(w.record(alloc, "counts"))
	}
	for _, was := range w.allocs {
		kind := w.kinds[was.JobID]
		fail := func(format string, args ...any) {
			w.T.Helper()
			w.T.Errorf("%s: %s %s: %s", when, kind.name, was.ID, fmt.Sprintf(format, args...))
		}
		if text, err := os.ReadFile(w.record(was, "starts")); err != nil || string(text) != "start\n" {
			fail("the record of its starts is %q, %v", text, err)
		}
		if _, ended := w.ended[was.ID]; ended {
			w.checkEnded(was, fail)
			continue
		}
		alloc := w.ReadAlloc(was.ID)
		state := alloc.TaskStates[was.JobID]
		if alloc.ClientStatus != api.AllocClientStatusRunning || state == nil || state.State != "running" || state.Restarts != 0 || state.Failed {
			fail("status %s, %+v", alloc.ClientStatus, state)
			continue
		}
		if got, want := systemtest.EventTypesWithoutLimitWarnings(state.Events), systemtest.EventTypesWithoutLimitWarnings(was.TaskStates[was.JobID].Events); !slices.Equal(got, want) {
			fail("events %v, before %v", got, want)
		}
		name := was.ID + "/" + was.JobID
		if got, want := processes[name], w.processes[name]; !kind.hidden && (!slices.Equal(got, want) || len(got) == 0) {
			fail("processes %v, before %v", got, want)
		}
		if kind.script == endingScript {
			continue
		}
		w.checkOutput(was, sizes[was.ID], fail)
		if kind.exec && !execChecked[kind.name] {
			execChecked[kind.name] = true
			var out, stderr bytes.Buffer
			code, err := w.Allocations().Exec(w.T.Context(), alloc, was.JobID, false, []string{"/bin/sh", "-c", "echo $((6*7))"}, strings.NewReader(""), &out, &stderr, nil, nil)
			if err != nil || code != 0 || strings.TrimSpace(out.String()) != "42" {
				fail("exec: %d, %v, %q, %q", code, err, out.String(), stderr.String())
			}
		}
		if kind.check != nil {
			if problem := kind.check(w.node, alloc); problem != "" {
				fail("%s", problem)
			}
		}
	}
}

// awaitEnded waits until the agent reports the ended tasks.
func (w *world) awaitEnded(when string) {
	w.T.Helper()
	w.WaitUntil(when+": the ended tasks are reported", func() (string, bool) {
		stubs, _, err := w.Jobs().Allocations(ending.name, false, nil)
		reported := 0
		for _, stub := range stubs {
			if _, ended := w.ended[stub.ID]; ended && stub.ClientStatus != api.AllocClientStatusRunning {
				reported++
			}
		}
		return fmt.Sprintf("%d of %d, %v", reported, len(w.ended), err), reported == len(w.ended)
	})
}

// checkEnded checks the exit status and the output of a task that has ended.
func (w *world) checkEnded(was *api.Allocation, fail func(string, ...any)) {
	w.T.Helper()
	alloc := w.ReadAlloc(was.ID)
	state := alloc.TaskStates[was.JobID]
	if alloc.ClientStatus != api.AllocClientStatusFailed || state.Restarts != 0 {
		fail("ended in phase %d: status %s, %+v", w.ended[was.ID], alloc.ClientStatus, state)
	}
	if !slices.ContainsFunc(state.Events, func(e *api.TaskEvent) bool {
		return e.Type == api.TaskTerminated && e.DisplayMessage == "Exit Code: 4"
	}) {
		fail("ended in phase %d: events %v", w.ended[was.ID], systemtest.EventTypesWithoutLimitWarnings(state.Events))
	}
	var text []byte
	for limit := time.Now().Add(systemtest.WaitTimeout); time.Now().Before(limit) && string(text) != "1\n2\n"; time.Sleep(10 * time.Millisecond) {
		text, _ = os.ReadFile(filepath.Join(w.dataDir, "alloc", was.ID, "alloc", "logs", was.JobID+".stdout.0"))
	}
	if string(text) != "1\n2\n" {
		fail("ended in phase %d: output %q", w.ended[was.ID], text)
	}
}

// checkOutput checks that a task counts on after its record had a size, and that its log has all numbers once.
func (w *world) checkOutput(was *api.Allocation, size int64, fail func(string, ...any)) {
	w.T.Helper()
	if problem := grows(w.record(was, "counts"), size); problem != "" {
		fail("the task does not count: %s", problem)
		return
	}
	counts, err := os.ReadFile(w.record(was, "counts"))
	if err != nil {
		fail("%v", err)
		return
	}
	want := strings.Count(string(counts), "\n")
	path := filepath.Join(w.dataDir, "alloc", was.ID, "alloc", "logs", was.JobID+".stdout.0")
	var log []string
	for limit := time.Now().Add(systemtest.WaitTimeout); time.Now().Before(limit) && len(log) < want; time.Sleep(10 * time.Millisecond) {
		text, err := os.ReadFile(path)
		if err != nil {
			fail("log: %v", err)
			return
		}
		log = strings.Fields(string(text[:bytes.LastIndexByte(text, '\n')+1]))
	}
	if len(log) < want {
		fail("the log has %d lines, want %d", len(log), want)
	}
	for i, line := range log {
		if line != strconv.Itoa(i+1) {
			fail("line %d of the log is %q", i+1, line)
			return
		}
	}
}

// stop stops all jobs and the agent, and checks the records of the hooks, and that nothing is left.
func (w *world) stop(volumeID string) {
	w.T.Helper()
	for name := range w.kinds {
		if _, _, err := w.Jobs().Deregister(name, true, nil); err != nil {
			w.T.Fatal(err)
		}
	}
	w.WaitUntil("all allocations are removed", func() (string, bool) {
		err := w.System().GarbageCollect()
		dirs, dirErr := os.ReadDir(filepath.Join(w.dataDir, "alloc"))
		return fmt.Sprint(len(dirs), errors.Join(err, dirErr)), err == nil && dirErr == nil && len(dirs) == 0
	})
	if volumeID != "" {
		if _, _, err := w.HostVolumes().Delete(&api.HostVolumeDeleteRequest{ID: volumeID}, nil); err != nil {
			w.T.Error(err)
		}
	}
	w.end(unix.SIGTERM)
	systemtest.AssertDataDirProcessesExit(w.T, w.dataDir)
	for _, alloc := range w.allocs {
		if alloc.JobID == hook.name {
			w.checkLedger(alloc)
		}
		if _, err := os.Lstat(netns.Path(alloc.ID)); !errors.Is(err, os.ErrNotExist) {
			w.T.Errorf("the network namespace of %s is left: %v", alloc.ID, err)
		}
		groups, _ := filepath.Glob("/sys/fs/cgroup/*/nomad/" + alloc.ID + ".*")
		scopes, _ := filepath.Glob("/sys/fs/cgroup/nomad.slice/*/" + alloc.ID + ".*")
		if left := append(groups, scopes...); len(left) > 0 {
			w.T.Errorf("cgroups are left: %v", left)
		}
	}
}

// checkLedger checks the calls of a hook, and that its stored state has reached its last call. Each agent calls prerun and
// poststart; a prestart that was done is not called again.
func (w *world) checkLedger(alloc *api.Allocation) {
	w.T.Helper()
	text, err := os.ReadFile(filepath.Join(w.dir, "ledger."+alloc.TaskGroup))
	if err != nil {
		w.T.Error(err)
		return
	}
	lines := slices.DeleteFunc(strings.Split(strings.TrimSpace(string(text)), "\n"), func(line string) bool {
		return strings.HasPrefix(line, "shutdown") // the first agent was stopped while the task ran
	})
	called := map[string]int{}
	for _, line := range lines {
		called[line]++
	}
	want := map[string]int{
		"prerun hook": w.starts, "prestart x": 1, "poststart x": w.starts, "pre_kill": 1, "pre_killing": 1, "exited code=0 restarts=false": 1,
		"stop x": 1, "postrun": 1, "destroy": 1,
	}
	if !maps.Equal(called, want) {
		w.T.Errorf("the hook of %s was called for %v, want %v: %q", alloc.ID, called, want, lines)
	}
}
