package faults

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/builtin/artifact"
	"github.com/nomad-lite/nomad-lite/builtin/docker/dockertest"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/endurance"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// artifactPlugin is the kind of the process that downloads artifacts.
var artifactPlugin = servedPluginKind(artifact.Name)

// killWaitTimeout is longer than the longest delay before a plugin is restarted.
const killWaitTimeout = 2 * systemtest.WaitTimeout

// randomKillsRun is one run of TestRandomKills.
type randomKillsRun struct {
	*killNode
	random    *rand.Rand          // random choices of the current iteration
	kinds     map[string]killKind // by name
	victims   []string            // kinds of the processes that are killed
	required  []string            // kinds of processes; a recovered node has exactly one process of each
	scenarios []killScenario

	allocIDs            []string            // ids of the allocations, sorted by name
	kindByAlloc         map[string]killKind // by allocation id
	requestedExitCounts map[string]int      // number of exits that the test has caused, by allocation id
	recentlyEndedAllocs map[string]bool     // allocations whose task the test has killed or stopped since the last check
	interruptedRuns     map[string][]int    // by allocation id: numbers of the runs that kills of the plugin or of the agent have repeated
	killCounts          map[string]int      // number of kills since the last check, by kind of process
	totalKillCounts     map[string]int      // number of kills, by kind of process
	keepersBeforeRun    map[string]int      // by allocation id: number of keepers that were certainly killed before the start of the latest run
	keepersBeforeCheck  int                 // number of keepers that were killed before the last check
	recentKills         []string            // times and kinds of the kills since the last check
}

// TestRandomKills kills random pairs of the processes of a node while its tasks start and exit, and while artifacts are
// downloaded, canaries are deployed, devices become unhealthy, tasks exceed their memory and the clock steps. It checks that no
// task, no exit status and no line of output is lost or duplicated, and that the node leaves nothing behind.
//
//	make test-kills
func TestRandomKills(t *testing.T) { testRandomKills(t, agentEnvironment{}) }

// TestRandomKillsOfUser is TestRandomKills with an agent that is not root, and the kinds of tasks that it can run.
func TestRandomKillsOfUser(t *testing.T) { testRandomKills(t, agentEnvironment{uid: 54321}) }

func testRandomKills(t *testing.T, in agentEnvironment) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to have cgroups and task directories like an agent's, and for an agent of another user")
	}
	long := endurance.CurrentMode() != endurance.Sample
	if !long {
		slowtest.Skip(t, "kills pairs of processes, and waits for the tasks after each")
		t.Parallel()
	}
	taskCount := 100
	if !long {
		taskCount = 12
	}
	load := fmt.Sprintf("%d tasks of all kinds", taskCount)
	run := endurance.Start(t, endurance.Config{Sample: 3, Unit: "pairs of kills", Load: load})
	n := newKillNode(t, in)
	if long {
		n.startEngines()
	}
	r := newRandomKillsRun(n, taskCount)
	if long {
		r.scenarios = append(r.scenarios, clockScenario)
	}
	run.Each(func(seed uint64) error {
		r.random = rand.New(rand.NewPCG(seed, 0))
		pairs := 3 + r.random.IntN(10)
		r.iterate(seed, pairs)
		run.Add(pairs)
		return nil
	})
	r.stopAndCheck()
}

// newRandomKillsRun starts the agent and the tasks of a run.
func newRandomKillsRun(n *killNode, taskCount int) *randomKillsRun {
	n.Helper()
	r := &randomKillsRun{
		killNode: n, kinds: map[string]killKind{}, kindByAlloc: map[string]killKind{}, requestedExitCounts: map[string]int{},
		recentlyEndedAllocs: map[string]bool{}, interruptedRuns: map[string][]int{}, killCounts: map[string]int{}, totalKillCounts: map[string]int{}, keepersBeforeRun: map[string]int{},
		victims:  []string{"agent", "agent", "stop", "keeper", "log-collector", "task", "task", "exit", "exit", artifactPlugin},
		required: []string{"keeper", "log-collector"},
	}
	kinds, counts := killKindCounts(n, taskCount)
	for _, kind := range kinds {
		r.kinds[kind.name] = kind
		if kind.install != nil {
			kind.install(n)
		}
		if !slices.Contains(r.required, kind.plugin) {
			r.victims, r.required = append(r.victims, kind.plugin), append(r.required, kind.plugin)
		}
	}
	for _, other := range []struct {
		kind    killKind
		process string
	}{{killHook, "dying-hook"}, {killDevices, killDeviceProcess}} {
		if counts[other.kind.name] > 0 {
			r.victims, r.required = append(r.victims, other.process), append(r.required, other.process)
		}
	}
	for _, s := range killScenarios {
		if s.needs == nil || s.needs(n) {
			r.scenarios = append(r.scenarios, s)
		}
	}
	r.startAgent()
	r.waitNoError("the agent answers", func() error {
		_, err := r.client.Status().Leader()
		return err
	})
	if counts[killVolumes.name] > 0 {
		r.waitNoError("the volume is created", func() error { return createKillVolume(n) })
	}
	pause := "4" // the sleep of each round is a process: 100 of them in a second keep a slow machine busy
	if taskCount < 100 {
		pause = "0.2"
	}
	for _, kind := range kinds {
		r.registerKind(kind, counts[kind.name], pause)
	}
	n.Logf("tasks of each kind: %v", counts)
	r.checkTasks()
	return r
}

// startEngines starts the engines that are on the machine, which the user of the environment can use.
func (n *killNode) startEngines() {
	n.Helper()
	for _, program := range []string{"dockerd", "podman", "busybox"} {
		if _, err := exec.LookPath(program); err != nil {
			n.Logf("without containers: %v", err)
			return
		}
	}
	n.docker, n.podman = dockertest.StartDockerAndPodmanOrSkip(n.T)
	n.Cleanup(n.killProcessesIfFailed) // before the engines remove their containers
	if n.in.uid != 0 {
		socket := strings.TrimPrefix(n.docker.Host, "unix://")
		if err := errors.Join(os.Chmod(filepath.Dir(socket), 0o711), os.Chown(socket, int(n.in.uid), int(n.in.uid))); err != nil {
			n.Fatal(err)
		}
	}
}

// registerKind registers the job of a kind and collects its allocations.
func (r *randomKillsRun) registerKind(kind killKind, count int, pause string) {
	r.Helper()
	// The fingerprints of drivers and devices come after the answer of the agent, and a job waits for them.
	if err := r.register(kind.newJob(r.killNode, count, pause)); err != nil {
		r.Fatalf("register %s: %v", kind.name, err)
	}
	r.waitNoError("all tasks of "+kind.name+" are placed", func() error {
		list, err := r.allocsOf(kind.name, count)
		if err != nil {
			return err
		}
		slices.SortFunc(list, func(a, b *api.AllocationListStub) int { return strings.Compare(a.Name, b.Name) })
		for _, a := range list {
			r.allocIDs = append(r.allocIDs, a.ID)
			r.kindByAlloc[a.ID] = kind
		}
		return nil
	})
}

// iterate kills pairs of processes while scenarios are under way, waits for their results and checks all tasks.
func (r *randomKillsRun) iterate(seed uint64, pairs int) {
	r.Helper()
	type result struct {
		job    string
		finish func() error
	}
	var results []result
	for _, i := range r.random.Perm(len(r.scenarios))[:1+r.random.IntN(2)] {
		s := r.scenarios[i]
		job := fmt.Sprintf("%s-%d", s.name, seed)
		r.recentKills = append(r.recentKills, "start of "+job)
		results = append(results, result{job, s.start(r.killNode, r.random, job)})
	}
	for range pairs {
		r.killVictimPair()
		r.sleepRandomly(2 * time.Second)
	}
	for _, s := range results {
		r.waitNoError("the result of "+s.job, s.finish)
	}
	for _, s := range results { // a purge collects ended allocations of other jobs, too
		if !strings.HasPrefix(s.job, clockScenario.name) {
			r.purge(s.job)
		}
	}
	r.checkTasks()
}

func (r *randomKillsRun) sleepRandomly(most time.Duration) {
	time.Sleep(time.Duration(r.random.Int64N(int64(most))))
}

// killVictimPair kills two victims shortly after each other. If one of them was the agent, it
// starts the next agent.
func (r *randomKillsRun) killVictimPair() {
	r.Helper()
	first := r.victims[r.random.IntN(len(r.victims))]
	second := r.victims[r.random.IntN(len(r.victims))]
	down := false
	for _, kind := range []string{first, second} {
		if kind == "agent" || kind == "stop" {
			if down { // the second victim is the next agent, which is killed during its start
				r.startAgent()
				r.sleepRandomly(150 * time.Millisecond)
			}
			down = true
		}
		r.killVictim(kind)
		if r.random.IntN(2) == 0 {
			r.sleepRandomly(time.Second)
		}
	}
	if down {
		r.startAgent()
	}
	r.waitFIFOReaders()
}

// waitFIFOReaders waits until the keeper and the log collector have opened the FIFOs of all tasks
// again. If a third process were killed before that, the FIFOs would have no reader.
func (r *randomKillsRun) waitFIFOReaders() {
	r.Helper()
	r.waitNoError("keeper and log collector hold the output of the tasks", func() error {
		if _, err := r.client.Status().Leader(); err != nil {
			return err
		}
		processes, want := r.processes(), 2*(len(r.allocIDs)-len(r.recentlyEndedAllocs))
		for _, kind := range []string{"keeper", "log-collector"} {
			if len(processes[kind]) != 1 {
				return fmt.Errorf("%d processes %s", len(processes[kind]), kind)
			}
			if got := countTaskFIFOs(processes[kind][0].PID); got < want {
				return fmt.Errorf("%s has %d FIFOs open, want %d", kind, got, want)
			}
		}
		return nil
	})
}

// countTaskFIFOs counts the open FIFOs of tasks in a process.
func countTaskFIFOs(pid int) (count int) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	fds, _ := os.ReadDir(dir) // an error means that the process has exited
	for _, fd := range fds {
		if path, err := os.Readlink(filepath.Join(dir, fd.Name())); err == nil && strings.HasSuffix(path, ".fifo") {
			count++
		}
	}
	return count
}

// killVictim kills a victim of the kind, if there is one. "stop" is an orderly shutdown of the agent, and "exit" is an exit of a
// task by itself.
func (r *randomKillsRun) killVictim(kind string) {
	r.Helper()
	r.recentKills = append(r.recentKills, fmt.Sprint(time.Now().Format("15:04:05.000 "), kind))
	switch kind {
	case "agent":
		r.countKill(kind)
		r.end(syscall.SIGKILL)
	case "stop":
		r.end(syscall.SIGTERM)
	case "task", "exit":
		r.endTask(kind)
	default:
		if kind == artifactPlugin && r.killCounts[kind] > 0 {
			return // a download fails if its plugin dies twice
		}
		for _, p := range r.processes()[kind] {
			_ = p.Signal(syscall.SIGKILL) // an error means that the process has exited
			r.countKill(kind)
		}
	}
}

func (r *randomKillsRun) countKill(kind string) {
	r.killCounts[kind]++
	r.totalKillCounts[kind]++
}

// endTask kills the process of a random task, or makes it exit with code 7. It skips a task whose
// latest run has not recorded its start, that was already ended since the last check, or that cannot
// run again because its device has no file.
func (r *randomKillsRun) endTask(how string) {
	r.Helper()
	id := r.allocIDs[r.random.IntN(len(r.allocIDs))]
	record := r.readTaskRecord(id)
	if r.recentlyEndedAllocs[id] || len(record.pids) == 0 {
		return
	}
	if _, err := os.Lstat(r.hiddenDeviceNode()); err == nil && r.kindByAlloc[id].name == killDevices.name {
		return
	}
	if how == "exit" {
		if err := os.WriteFile(r.allocPath(id, "data/record.end"), nil, 0o666); err != nil {
			r.Fatal(err)
		}
	} else {
		found := r.processes()[taskProcessKind(id)]
		if len(found) != 1 || innermostPID(found[0].PID) != record.pids[len(record.pids)-1] {
			r.Errorf("task of %s is gone: %v, the last run is %v", id, found, record.pids)
			return
		}
		if err := found[0].Signal(syscall.SIGKILL); err != nil {
			r.Errorf("task of %s is gone: %v", id, err)
			return
		}
	}
	r.recentKills[len(r.recentKills)-1] += fmt.Sprintf(" %s (%s)", id[:8], r.kindByAlloc[id].name)
	r.recentlyEndedAllocs[id] = true
	r.requestedExitCounts[id]++
}

// eventMessages returns the types and messages of the events of a task, which may have no state yet.
func eventMessages(state *api.TaskState) (messages []string) {
	if state == nil {
		return nil
	}
	for _, e := range state.Events {
		messages = append(messages, e.Type+": "+e.DisplayMessage)
	}
	return messages
}

// taskProcessKind returns the kind of the process of an allocation's task.
func taskProcessKind(allocID string) string { return allocID + "/" + killTask }

// taskRecord is what an allocation's task has recorded about its runs.
type taskRecord struct {
	pids              []string    // process ids of the runs, in the pid namespaces of the tasks
	lastOutputNumbers map[int]int // by run: the last number that the run wrote, if it exited by itself
	runsOverlapped    bool
}

func (r *randomKillsRun) readTaskRecord(id string) taskRecord {
	text, err := os.ReadFile(r.allocPath(id, "data/record"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		r.Fatal(err)
	}
	record := taskRecord{lastOutputNumbers: map[int]int{}}
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		switch words[0] {
		case "start":
			record.pids = append(record.pids, words[2])
		case "end":
			run, _ := strconv.Atoi(words[1])
			record.lastOutputNumbers[run], _ = strconv.Atoi(words[2])
		case "double":
			record.runsOverlapped = true
		}
	}
	return record
}

// checkTasks waits until all tasks run, and compares the agent's report with the records that the
// tasks have written.
func (r *randomKillsRun) checkTasks() {
	r.Helper()
	r.waitNoError("the node is as it should be", func() error {
		processes := r.processes()
		// The check waits for all plugins. Otherwise a task could exit while its plugin is down,
		// and the next check would expect an exit status that no plugin could observe.
		for _, kind := range r.required {
			if n := len(processes[kind]); n != 1 {
				return fmt.Errorf("%d processes %s", n, kind)
			}
		}
		list, _, err := r.client.Allocations().List(&api.QueryOptions{Params: map[string]string{"task_states": "true"}})
		if err != nil {
			return err
		}
		if len(list) != len(r.allocIDs) {
			return fmt.Errorf("%d allocations, want %d", len(list), len(r.allocIDs))
		}
		byKind := map[string][]*api.AllocationListStub{}
		for _, a := range list {
			kind := r.kindByAlloc[a.ID]
			byKind[kind.name] = append(byKind[kind.name], a)
			if err := r.checkAlloc(a, processes[taskProcessKind(a.ID)]); err != nil {
				return fmt.Errorf("%s, %s: %w", a.ID, kind.name, err)
			}
		}
		for name, allocs := range byKind {
			if check := r.kinds[name].check; check != nil {
				if err := check(r.killNode, allocs); err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
			}
		}
		return nil
	})
	for id := range r.recentlyEndedAllocs {
		r.keepersBeforeRun[id] = r.keepersBeforeCheck
	}
	r.keepersBeforeCheck = r.totalKillCounts["keeper"]
	r.recentlyEndedAllocs, r.killCounts, r.recentKills = map[string]bool{}, map[string]int{}, nil
}

func (r *randomKillsRun) checkAlloc(a *api.AllocationListStub, processes []osprocess.ID) error {
	record, state := r.readTaskRecord(a.ID), a.TaskStates[killTask]
	runs := len(record.pids)
	wanted := 1 + r.requestedExitCounts[a.ID] + len(r.interruptedRuns[a.ID])
	kind := r.kindByAlloc[a.ID]
	// Each kill of the plugin or of the agent can interrupt the start of one run, which is then
	// repeated.
	interruptions := r.killCounts[kind.plugin] + r.killCounts["agent"]
	for run := wanted - 1; slices.Contains(r.interruptedRuns[a.ID], run); run-- {
		interruptions--
	}
	for ; runs > wanted && r.recentlyEndedAllocs[a.ID] && interruptions > 0; interruptions-- {
		r.interruptedRuns[a.ID] = append(r.interruptedRuns[a.ID], wanted)
		wanted++
	}
	// A driver that is not made with package sdk cannot recover a task whose start was interrupted. If its plugin is killed
	// later, the agent ends the task, says that its exit status is unknown, and starts the next run. Each further kill of the
	// plugin can do the same to the next run.
	unknownEnds := 0
	if kind.foreign {
		unknownEnds = min(consecutiveUnknownEnds(state), r.killCounts[kind.plugin])
	}
	for ; runs > wanted && unknownEnds > 0; unknownEnds-- {
		r.interruptedRuns[a.ID] = append(r.interruptedRuns[a.ID], wanted)
		wanted++
	}
	switch {
	case record.runsOverlapped:
		r.Fatalf("%s: two processes of the task have run at the same time", a.ID)
	case runs > wanted:
		r.Fatalf("%s: %d runs after %d ends and %d starts that were interrupted: %v", a.ID, runs, r.requestedExitCounts[a.ID], len(r.interruptedRuns[a.ID]), eventMessages(state))
	case apiclient.HasTerminalClientStatus(a):
		r.Fatalf("%s: status %s: %s: %q", a.ID, a.ClientStatus, a.ClientDescription, eventMessages(state))
	case runs < wanted:
		return fmt.Errorf("%d runs, want %d", runs, wanted)
	case a.ClientStatus != api.AllocClientStatusRunning || state == nil || state.State != model.TaskRunning:
		return fmt.Errorf("status %s", a.ClientStatus)
	case int(state.Restarts) < r.requestedExitCounts[a.ID]: // the number of restarts includes starts that failed while the driver was unavailable
		return fmt.Errorf("%d restarts after %d ends", state.Restarts, r.requestedExitCounts[a.ID])
	case len(processes) != 1 || innermostPID(processes[0].PID) != record.pids[runs-1]:
		return fmt.Errorf("processes %v, the last run is %v", processes, record.pids[runs-1])
	}
	ended := runs - 1
	for slices.Contains(r.interruptedRuns[a.ID], ended) {
		ended-- // the agent has killed this run, and started another one
	}
	if ended > 0 {
		if err := r.checkExitStatus(a.ID, record.lastOutputNumbers[ended] > 0, state); err != nil {
			return err
		}
	}
	return r.checkOutput(a.ID, record)
}

// consecutiveUnknownEnds returns how many of the last ends of a task, without one in between whose exit status is known, have an
// event which says that their exit status is unknown. It counts the ends in the events that the agent keeps.
func consecutiveUnknownEnds(state *api.TaskState) int {
	ends, unknown := 0, 0
	for _, message := range slices.Backward(eventMessages(state)) {
		switch {
		case strings.HasPrefix(message, api.TaskStarted+":"):
			if unknown < ends {
				return unknown
			}
			ends++
		case ends > unknown && strings.Contains(message, "exit status unknown"):
			unknown++
		}
	}
	return unknown
}

// isLostExitCode reports whether the driver of a task has lost its exit code: the message has the code 0, without a message or
// with one of the driver.
func isLostExitCode(message string) bool {
	return message == "Exit Code: 0" || strings.HasPrefix(message, `Exit Code: 0, Exit Message: "Driver was unable to get the exit code`)
}

// checkExitStatus checks that the last exit of a task was reported with its exit status. The status
// can be unknown if the plugin was killed since the last check and the task was started before a
// keeper was killed, because the next keeper is not the parent of the task, and if a driver that is not made with package sdk
// has recovered the task. A driver that loses exit codes reports some of them as 0.
func (r *randomKillsRun) checkExitStatus(id string, exited bool, state *api.TaskState) error {
	kind := r.kindByAlloc[id]
	want := "Exit Code: 137, Signal: 9"
	switch {
	case exited:
		want = "Exit Code: 7"
	case kind.noSignal:
		want = "Exit Code: 137"
	}
	starts, restarted := 0, false
	for _, e := range slices.Backward(state.Events) {
		switch {
		case e.Type == api.TaskStarted:
			starts++
		case e.Type == api.TaskTerminated && starts < 2:
			recovered := kind.foreign && r.totalKillCounts[kind.plugin]+r.totalKillCounts["agent"] > 0
			lost := recovered && strings.Contains(e.DisplayMessage, "unknown") || kind.losesExitCodes && isLostExitCode(e.DisplayMessage)
			if e.DisplayMessage != want && !lost {
				return fmt.Errorf("the last end is %q, want %q: %q", e.DisplayMessage, want, eventMessages(state))
			}
			return nil
		case e.Type == api.TaskRestarting && starts < 2:
			restarted = true
		}
	}
	if slices.ContainsFunc(state.Events, func(e *api.TaskEvent) bool { return e.Type == api.TaskDriverFailure }) {
		return nil // events of failed starts have displaced the Terminated event
	}
	if !r.recentlyEndedAllocs[id] {
		return nil // an earlier check has seen the Terminated event, which later events have displaced
	}
	if restarted && kind.foreign && r.killCounts[kind.plugin] > 0 && consecutiveUnknownEnds(state) > 0 {
		return nil // a driver that is not made with package sdk does not know how a task has ended while its plugin was dead
	}
	if restarted && r.killCounts[kind.plugin] > 0 && r.keepersBeforeRun[id] < r.totalKillCounts["keeper"] {
		return nil
	}
	return fmt.Errorf("no event %q: %q", api.TaskTerminated, eventMessages(state))
}

// checkOutput checks that the output of each run is 1, 2, 3 …, and that it is complete for runs
// that exited by themselves.
func (r *randomKillsRun) checkOutput(id string, record taskRecord) error {
	text, err := os.ReadFile(r.allocPath(id, "logs/"+killTask+".stdout.0"))
	if err != nil {
		return err
	}
	run, count := 0, 0
	for line := range strings.Lines(string(text)) {
		var runNumber, i int
		if r.kindByAlloc[id].linePrefix {
			_, line, _ = strings.Cut(line, " stdout F ")
		}
		if _, err := fmt.Sscanf(line, "%d %d\n", &runNumber, &i); err != nil {
			if !strings.HasSuffix(line, "\n") {
				break // the task is writing this line
			}
			r.Fatalf("output of %s: line %q", id, line)
		}
		if runNumber != run {
			if last := record.lastOutputNumbers[run]; last > 0 && last != count {
				r.Fatalf("output of %s: run %d ends with %d, want %d", id, run, count, last)
			}
			run, count = runNumber, 0
		}
		if count++; i != count {
			r.Fatalf("output of %s, %s: run %d: %d in the place of %d", id, r.kindByAlloc[id].name, run, i, count)
		}
	}
	if run != len(record.pids) {
		return fmt.Errorf("output of run %d is missing", len(record.pids))
	}
	return nil
}

// stopAndCheck stops the jobs and the agent, and checks that the node leaves nothing behind.
func (r *randomKillsRun) stopAndCheck() {
	r.Helper()
	hooked := 0
	for _, kind := range r.kindByAlloc {
		if kind.name == killHook.name {
			hooked++
		}
	}
	for name := range r.kinds {
		r.purge(name)
	}
	checkKillLedger(r.killNode, hooked)
	r.end(syscall.SIGTERM)
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		r.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, r.dataDir()) {
			r.Errorf("a mount is left: %s", line)
		}
	}
	for _, engine := range []*dockertest.Engine{r.docker, r.podman} {
		if engine != nil {
			if left := engine.ContainerNames(r); len(left) > 0 {
				r.Errorf("containers are left: %v", left)
			}
		}
	}
}
