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

	"github.com/nomad-lite/nomad-lite/builtin/rawexec"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/agentsocket"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/endurance"
	"github.com/nomad-lite/nomad-lite/internal/slowtest"
	"github.com/nomad-lite/nomad-lite/plugins/process"
	"github.com/nomad-lite/nomad-lite/runtime/model"
)

const randomKillsConfig = `
data_dir   = %q
plugin_dir = %q
log_level  = "debug"
ports {
  http = 0
}
client {
  cpu_total_compute        = 1000000
  memory_total_mb          = 1000000
  gc_disk_usage_threshold  = 100
  gc_inode_usage_threshold = 100
}
plugin "raw_exec" {
  config {
    enabled = true
  }
}
plugin "exec-driver" {
  config {
    enabled = true
  }
}
`

// randomKillsGroupHCL is the task group of one driver. Its task holds an exclusive lock, records the
// start of each run and each requested exit, and counts on its standard output.
const randomKillsGroupHCL = `
  group %[1]q {
    count = %[2]d
    restart {
      attempts = 1000000
      interval = "24h"
      delay    = "0s"
    }
    reschedule {
      attempts  = 0
      unlimited = false
    }
    ephemeral_disk {
      size = 50
    }
    task "count" {
      logs {
        max_files     = 4
        max_file_size = 10
      }
      driver = %[1]q
      config {
        command = "/bin/bash"
        args    = ["-c", <<-EOT
          record=%[3]s/$NOMAD_ALLOC_ID
          exec 9>>$record.lock
          flock -n 9 || { echo double >>$record; exit 99; }
          run=1
          [ -e $record ] && while read word _; do [ $word = start ] && run=$((run+1)); done <$record
          echo "start $run $$" >>$record
          exec 3<> <(:)
          while :; do
            echo $run $((++i))
            [ -e $record.end ] && { rm $record.end; echo "end $run $i" >>$record; exit 7; }
            read -t 0.2 -u 3
          done
        EOT
        ]
      }
      resources {
        cpu    = 20
        memory = 20
      }
    }
  }
`

// killWaitTimeout is longer than the longest delay before a plugin is restarted.
const killWaitTimeout = 2 * systemtest.WaitTimeout

// randomKillsRun is one run of TestRandomKills.
type randomKillsRun struct {
	*testing.T
	random        *rand.Rand // random choices of the current iteration
	taskCount     int        // number of tasks, half of them of each driver
	dir           string     // directory of all files of the test run
	taskRecordDir string     // directory in which the tasks record their runs, one file per allocation
	configFile    string
	log           *os.File
	client        *api.Client
	agent         *exec.Cmd

	allocIDs            []string          // ids of the allocations, sorted by name
	driverByAlloc       map[string]string // driver by allocation
	requestedExitCounts map[string]int    // number of exits that the test has caused, by allocation id
	recentlyEndedAllocs map[string]bool   // allocations whose task the test has killed or stopped since the last check
	interruptedRuns     map[string][]int  // by allocation id: numbers of the runs that were repeated because the plugin or the agent was killed during their start
	killCounts          map[string]int    // number of kills since the last check, by kind of process
	lastKeeperKill      time.Time         // time at which a keeper was last killed
	recentKills         []string          // times and kinds of the kills since the last check
}

// TestRandomKills kills random pairs of the processes of a node while its tasks start and
// exit. It checks that no task, no exit status and no line of output is lost or duplicated,
// and that the node leaves nothing behind.
//
//	make test-kills
func TestRandomKills(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to have cgroups and task directories like an agent's")
	}
	if endurance.CurrentMode() == endurance.Sample {
		slowtest.Skip(t, "kills pairs of processes, and waits for the tasks after each")
	}
	t.Parallel()
	taskCount := 100
	if endurance.CurrentMode() == endurance.Sample {
		taskCount = 12
	}
	run := endurance.Start(t, endurance.Config{Sample: 3, Unit: "pairs of kills", Load: fmt.Sprintf("%d tasks", taskCount)})
	r := newRandomKillsRun(t, taskCount)
	r.startAgent()
	r.registerJob()
	r.checkTasks()
	run.Each(func(seed uint64) error {
		r.random = rand.New(rand.NewPCG(seed, 0))
		pairs := 3 + r.random.IntN(10)
		for range pairs {
			r.killVictimPair()
			r.sleepRandomly(2 * time.Second)
		}
		r.checkTasks()
		run.Add(pairs)
		return nil
	})
	r.stopAndCheck()
}

func newRandomKillsRun(t *testing.T, taskCount int) *randomKillsRun {
	t.Helper()
	dir := systemtest.NewNodeDir(t)
	r := &randomKillsRun{
		T: t, taskCount: taskCount, dir: dir, taskRecordDir: filepath.Join(dir, "records"), configFile: filepath.Join(dir, "agent.hcl"),
		driverByAlloc: map[string]string{}, requestedExitCounts: map[string]int{}, recentlyEndedAllocs: map[string]bool{}, interruptedRuns: map[string][]int{}, killCounts: map[string]int{},
	}
	plugins := filepath.Join(dir, "plugins")
	for _, d := range []string{r.taskRecordDir, plugins} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	program, err := exec.LookPath("exec-driver")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(plugins, "exec-driver"), fmt.Appendf(nil, "#!/bin/sh\nexec %s\n", program), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(r.configFile, fmt.Appendf(nil, randomKillsConfig, r.dataDir(), plugins), 0o644); err != nil {
		t.Fatal(err)
	}
	if r.log, err = os.Create(filepath.Join(dir, "log")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			r.keepLog()
			for _, p := range systemtest.FindNodeProcesses(r.dataDir()) {
				_ = p.Signal(syscall.SIGKILL) // after a failure the processes of the node do not exit by themselves
			}
		}
		r.log.Close()
	})
	r.client, err = api.NewClient(&api.Config{Address: "unix://" + filepath.Join(r.dataDir(), agentsocket.FileName)})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *randomKillsRun) dataDir() string { return filepath.Join(r.dir, "data") }

// keepLog prints the end of the log and keeps the whole log in the temporary directory.
func (r *randomKillsRun) keepLog() {
	text, err := os.ReadFile(r.log.Name())
	if err != nil {
		r.Error(err)
		return
	}
	kept := filepath.Join(os.TempDir(), "random-kills.log")
	if err := os.WriteFile(kept, text, 0o600); err != nil {
		r.Error(err)
	}
	r.Logf("the log of the agents is in %s; since the last check: %s", kept, strings.Join(r.recentKills, ", "))
}

// startAgent starts an agent and does not wait until it is ready.
func (r *randomKillsRun) startAgent() {
	r.Helper()
	r.agent = exec.Command("nomad-lite", "agent", "-config", r.configFile)
	r.agent.Stdout, r.agent.Stderr = r.log, r.log
	if err := r.agent.Start(); err != nil {
		r.Fatal(err)
	}
	process := r.agent.Process
	r.Cleanup(func() { _ = process.Kill() })
}

// end sends a signal to the agent and waits until the agent exits.
func (r *randomKillsRun) end(signal syscall.Signal) {
	r.Helper()
	if err := r.agent.Process.Signal(signal); err != nil {
		r.Errorf("agent has ended before it was told to: %v", err)
	}
	err := r.agent.Wait()
	if status := (*exec.ExitError)(nil); errors.As(err, &status) && status.Sys().(syscall.WaitStatus).Signal() == signal {
		return // the signal was SIGKILL, or arrived before the agent handled signals
	}
	if err != nil {
		r.Errorf("agent, ended by %v: %v", signal, err)
	}
}

func (r *randomKillsRun) sleepRandomly(most time.Duration) {
	time.Sleep(time.Duration(r.random.Int64N(int64(most))))
}

// registerJob registers the job and collects its allocations.
func (r *randomKillsRun) registerJob() {
	r.Helper()
	text := "job \"many\" {\n"
	for _, driver := range []string{rawexec.Name, "external_exec"} {
		text += fmt.Sprintf(randomKillsGroupHCL, driver, r.taskCount/2, r.taskRecordDir)
	}
	r.waitNoError("the agent answers", func() error {
		_, err := r.client.Status().Leader()
		return err
	})
	job, err := r.client.Jobs().ParseHCL(text+"}\n", true)
	if err == nil {
		_, _, err = r.client.Jobs().Register(job, nil)
	}
	if err != nil {
		r.Fatal(err)
	}
	r.waitNoError("all tasks are placed", func() error {
		list, _, err := r.client.Jobs().Allocations("many", false, nil)
		if err != nil {
			return err
		}
		if len(list) != r.taskCount {
			return fmt.Errorf("%d allocations", len(list))
		}
		slices.SortFunc(list, func(a, b *api.AllocationListStub) int { return strings.Compare(a.Name, b.Name) })
		for _, a := range list {
			r.allocIDs = append(r.allocIDs, a.ID)
			r.driverByAlloc[a.ID] = a.TaskGroup
		}
		return nil
	})
}

// waitNoError calls look repeatedly until it returns nil.
func (r *randomKillsRun) waitNoError(what string, look func() error) {
	r.Helper()
	var err error
	for deadline := time.Now().Add(killWaitTimeout); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if err = look(); err == nil {
			return
		}
	}
	r.Fatalf("%s: not within %v: %v", what, killWaitTimeout, err)
}

// victimKinds are the kinds of processes that the test kills. "stop" is an orderly shutdown of the
// agent, and "exit" is an exit of a task by itself.
var victimKinds = []string{"agent", "stop", "plugin", "exec-driver", "keeper", "log-collector", "task", "exit"}

// killVictimPair kills two victims shortly after each other. If one of them was the agent, it
// starts the next agent.
func (r *randomKillsRun) killVictimPair() {
	r.Helper()
	first := victimKinds[r.random.IntN(len(victimKinds))]
	second := victimKinds[r.random.IntN(len(victimKinds))]
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
		processes, want := systemtest.GroupProcessesByKind(systemtest.FindNodeProcesses(r.dataDir())), 2*(len(r.allocIDs)-len(r.recentlyEndedAllocs))
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

// killVictim kills a victim of the kind, if there is one.
func (r *randomKillsRun) killVictim(kind string) {
	r.Helper()
	r.recentKills = append(r.recentKills, fmt.Sprint(time.Now().Format("15:04:05.000 "), kind))
	switch kind {
	case "agent":
		r.killCounts[kind]++
		r.end(syscall.SIGKILL)
	case "stop":
		r.end(syscall.SIGTERM)
	case "task", "exit":
		r.endTask(kind)
	default:
		for _, p := range systemtest.GroupProcessesByKind(systemtest.FindNodeProcesses(r.dataDir()))[kind] {
			_ = p.Signal(syscall.SIGKILL) // an error means that the process has exited
			r.killCounts[kind]++
			if kind == "keeper" {
				r.lastKeeperKill = time.Now()
			}
		}
	}
}

// endTask kills the process of a random task, or makes it exit with code 7. It skips a task whose
// latest run has not recorded its start, or that was already ended since the last check.
func (r *randomKillsRun) endTask(how string) {
	r.Helper()
	id := r.allocIDs[r.random.IntN(len(r.allocIDs))]
	record := r.readTaskRecord(id)
	if r.recentlyEndedAllocs[id] || len(record.pids) == 0 {
		return
	}
	if how == "exit" {
		if err := os.WriteFile(filepath.Join(r.taskRecordDir, id+".end"), nil, 0o644); err != nil {
			r.Fatal(err)
		}
	} else {
		p, err := process.LookupID(record.pids[len(record.pids)-1])
		if err == nil {
			err = p.Signal(syscall.SIGKILL)
		}
		if err != nil {
			r.Errorf("task of %s is gone: %v", id, err)
			return
		}
	}
	r.recentKills[len(r.recentKills)-1] += " " + id[:8]
	r.recentlyEndedAllocs[id] = true
	r.requestedExitCounts[id]++
}

// taskRecord is what an allocation's task has recorded about its runs.
type taskRecord struct {
	pids              []int       // process ids of the runs
	lastOutputNumbers map[int]int // by run: the last number that the run wrote, if it exited by itself
	runsOverlapped    bool
}

func (r *randomKillsRun) readTaskRecord(id string) taskRecord {
	text, err := os.ReadFile(filepath.Join(r.taskRecordDir, id))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		r.Fatal(err)
	}
	record := taskRecord{lastOutputNumbers: map[int]int{}}
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		switch words[0] {
		case "start":
			pid, _ := strconv.Atoi(words[2])
			record.pids = append(record.pids, pid)
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
		processes := systemtest.GroupProcessesByKind(systemtest.FindNodeProcesses(r.dataDir()))
		// The check waits for all plugins. Otherwise a task could exit while its plugin is down,
		// and the next check would expect an exit status that no plugin could observe.
		for _, kind := range []string{"keeper", "log-collector", "plugin", "exec-driver"} {
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
		for _, a := range list {
			if err := r.checkAlloc(a, processes[a.ID+"/count"]); err != nil {
				return fmt.Errorf("%s, driver %s: %w", a.ID, r.driverByAlloc[a.ID], err)
			}
		}
		return nil
	})
	r.recentlyEndedAllocs, r.killCounts, r.recentKills = map[string]bool{}, map[string]int{}, nil
}

func (r *randomKillsRun) checkAlloc(a *api.AllocationListStub, processes []process.ID) error {
	record, state := r.readTaskRecord(a.ID), a.TaskStates["count"]
	runs := len(record.pids)
	wanted := 1 + r.requestedExitCounts[a.ID] + len(r.interruptedRuns[a.ID])
	// Each kill of the plugin or of the agent can interrupt the start of one run, which is then
	// repeated.
	interruptions := r.killCounts[r.pluginProcessKind(a.ID)] + r.killCounts["agent"]
	for run := wanted - 1; slices.Contains(r.interruptedRuns[a.ID], run); run-- {
		interruptions--
	}
	for ; runs > wanted && r.recentlyEndedAllocs[a.ID] && interruptions > 0; interruptions-- {
		r.interruptedRuns[a.ID] = append(r.interruptedRuns[a.ID], wanted)
		wanted++
	}
	switch {
	case record.runsOverlapped:
		r.Fatalf("%s: two processes of the task have run at the same time", a.ID)
	case runs > wanted:
		r.Fatalf("%s: %d runs after %d ends and %d starts that were interrupted: %v", a.ID, runs, r.requestedExitCounts[a.ID], len(r.interruptedRuns[a.ID]), state)
	case apiclient.HasTerminalStatus(a):
		r.Fatalf("%s: status %s: %s", a.ID, a.ClientStatus, a.ClientDescription)
	case runs < wanted:
		return fmt.Errorf("%d runs, want %d", runs, wanted)
	case a.ClientStatus != api.AllocClientStatusRunning || state == nil || state.State != model.TaskRunning:
		return fmt.Errorf("status %s", a.ClientStatus)
	case int(state.Restarts) < r.requestedExitCounts[a.ID]: // the number of restarts includes starts that failed while the driver was unavailable
		return fmt.Errorf("%d restarts after %d ends", state.Restarts, r.requestedExitCounts[a.ID])
	case len(processes) != 1 || processes[0].PID != record.pids[runs-1]:
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

// pluginProcessKind returns the kind of the plugin process that serves the driver of an allocation.
func (r *randomKillsRun) pluginProcessKind(id string) string {
	if r.driverByAlloc[id] == rawexec.Name {
		return "plugin"
	}
	return "exec-driver"
}

// checkExitStatus checks that the last exit of a task was reported with its exit status. The status
// can be unknown if the plugin was killed since the last check and the task was started before a
// keeper was killed, because the next keeper is not the parent of the task.
func (r *randomKillsRun) checkExitStatus(id string, exited bool, state *api.TaskState) error {
	want := "Exit Code: 137, Signal: 9"
	if exited {
		want = "Exit Code: 7"
	}
	starts := 0
	var runStartTime time.Time // start of the run that has ended; zero if the task has dropped that event
	restarted := false
	for _, e := range slices.Backward(state.Events) {
		switch {
		case e.Type == api.TaskStarted:
			if starts++; starts == 2 {
				runStartTime = time.Unix(0, e.Time)
			}
		case e.Type == api.TaskTerminated && starts < 2:
			if e.DisplayMessage != want {
				return fmt.Errorf("the last end is %q, want %q", e.DisplayMessage, want)
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
	if restarted && r.killCounts[r.pluginProcessKind(id)] > 0 && runStartTime.Before(r.lastKeeperKill) {
		return nil
	}
	return fmt.Errorf("no event %q: %v", api.TaskTerminated, systemtest.EventTypes(state.Events))
}

// checkOutput checks that the output of each run is 1, 2, 3 …, and that it is complete for runs
// that exited by themselves.
func (r *randomKillsRun) checkOutput(id string, record taskRecord) error {
	text, err := os.ReadFile(filepath.Join(r.dataDir(), "alloc", id, "alloc", "logs", "count.stdout.0"))
	if err != nil {
		return err
	}
	run, count := 0, 0
	for line := range strings.Lines(string(text)) {
		var runNumber, i int
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
			r.Fatalf("output of %s: run %d: %d in the place of %d", id, run, i, count)
		}
	}
	if run != len(record.pids) {
		return fmt.Errorf("output of run %d is missing", len(record.pids))
	}
	return nil
}

// stopAndCheck stops the job and the agent, and checks that the node leaves nothing behind.
func (r *randomKillsRun) stopAndCheck() {
	r.Helper()
	r.waitNoError("the job is stopped", func() error {
		_, _, err := r.client.Jobs().Deregister("many", true, nil)
		return err
	})
	r.waitNoError("its allocations are removed", func() error {
		if err := r.client.System().GarbageCollect(); err != nil {
			return err
		}
		dirs, err := os.ReadDir(filepath.Join(r.dataDir(), "alloc"))
		if err != nil || len(dirs) > 0 {
			return fmt.Errorf("%d directories, %w", len(dirs), err)
		}
		return nil
	})
	r.end(syscall.SIGTERM)
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		r.Fatal(err)
	}
	if strings.Contains(string(mounts), r.dataDir()) {
		r.Errorf("mounts are left:\n%s", mounts)
	}
	for _, id := range r.allocIDs {
		groups, _ := filepath.Glob("/sys/fs/cgroup/*/nomad/" + id + ".*")
		scopes, _ := filepath.Glob("/sys/fs/cgroup/nomad.slice/*/" + id + ".*")
		if len(groups)+len(scopes) > 0 {
			r.Errorf("cgroups of %s are left: %v", id, append(groups, scopes...))
		}
	}
}
