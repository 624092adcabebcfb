package faults

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest/programs"
	"github.com/nomad-lite/nomad-lite/internal/failpoint"
	"github.com/nomad-lite/nomad-lite/internal/netns"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/host/helperdir"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// bystanderJob is a job that the faults must not affect. FindDataDirProcesses finds its process by the variable NODE.
const bystanderJob = `
job "bystander" {
  group "g" {
    task "bystander" {
      driver       = %q
      kill_timeout = "200ms" # with the driver exec, sleep is the first process of a pid namespace, and ignores the signal
      env {
        NODE = %q
      }
      config {
        command = "/bin/sleep"
        args    = ["1000"]
      }
      resources {
        cpu    = 20
        memory = 64 # the driver exec starts tasks by this program, which needs more with the race detector
      }
    }
  }
}
`

// lifecycleJob is the job whose lifecycle is tested. Its task takes an exclusive lock, writes a
// history of its runs, counts on its standard output, and fails once in its first run if the test
// requests it. It can be killed between any two of its commands: it only appends to files, and no
// child process inherits the lock. A hook plugin that is done after its first Prestart writes a
// ledger of the hook points of each allocation.
const lifecycleJob = `
job "life" {
  group "g" {
    meta {
      lite_hook_dying = jsonencode({ ledger = "%[2]s.%[3]s", done = true })
    }
    update {
      max_parallel = 0
    }
    restart {
      attempts = 1000
      delay    = "50ms"
      mode     = "fail"
    }
    network {
      mode = %[5]q
    }
    %[6]s
    task "life" {
      driver         = %[4]q
      kill_signal    = "SIGTERM"
      kill_timeout   = "%[1]s"
      shutdown_delay = "30ms"
      %[7]s
      env {
        NODE    = %[9]q
        DIARY   = "%[2]s"
        VERSION = "%[3]s"
      }
      config {
        command = "/bin/sh"
        args    = ["-c", <<-EOT
          exec 9>>$DIARY.lock
          flock -n 9 || { echo "double $NOMAD_ALLOC_ID" >>$DIARY; exit 99; }
          data=$NOMAD_ALLOC_DIR/data
          echo >>$data/runs
          run=0
          while read x; do run=$((run+1)); done <$data/runs
          if [ -d /volume ]; then echo $run >>/volume/$NOMAD_ALLOC_ID || exit 98; fi
          echo "start $NOMAD_ALLOC_ID $run $$" >>$DIARY
          trap 'sleep 0.05 9>&-; echo "term $NOMAD_ALLOC_ID" >>$DIARY; exit 0' TERM
          i=0
          while :; do
            i=$((i+1))
            echo $run $i
            if [ -e $DIARY.fail -a ! -e $data/failed ]; then
              echo "fail $NOMAD_ALLOC_ID $i" >>$DIARY
              : >$data/failed
              exit 7
            fi
            sleep 0.05 9>&-
          done
        EOT
        ]
        %[8]s
      }
      resources {
        cpu    = 20
        memory = 64
      }
    }
  }
}
`

// faultNode is a node into which a test injects a fault.
type faultNode struct {
	*testing.T
	fault          fault
	random         *rand.Rand // chooses when the agents are killed that the fault kills while they start
	dir, dataDir   string
	runHistoryFile string
	logFile        *os.File // log file of the agents

	agent            *systemtest.KillableAgent // the current agent
	agentRestarted   bool
	volumeCreated    bool          // an agent has reported that the volume is ready, and its deletion was not requested
	faultInjected    chan struct{} // closed when the fault was injected
	injectorDone     chan struct{} // closed when the injector has finished, or the agent has exited without the fault
	unrelatedProcess *exec.Cmd
	servers          *assigningServers // assign the allocations of the node; nil if its agent schedules for itself

	lastAllocs         map[string]*api.Allocation // allocations as last seen
	finalRunCounts     map[string]int             // number of runs of each allocation that has become terminal
	bystanderProcesses []osprocess.ID
}

func newFaultNode(t *testing.T, f fault) *faultNode {
	t.Helper()
	dir, err := os.MkdirTemp("", "faults")
	if err != nil {
		t.Fatal(err)
	}
	n := &faultNode{
		T: t, fault: f, random: rand.New(rand.NewPCG(rand.Uint64(), 0)), dir: dir, dataDir: filepath.Join(dir, "data"), runHistoryFile: filepath.Join(dir, "history", "diary"),
		faultInjected: make(chan struct{}), lastAllocs: map[string]*api.Allocation{}, finalRunCounts: map[string]int{},
	}
	if err := errors.Join(os.Mkdir(n.pluginDir(), 0o755), os.Mkdir(n.networkDir(), 0o755), os.Mkdir(n.historyDir(), 0o755), f.in.chown(n.historyDir()), f.in.chown(n.networkDir()), f.in.chown(dir)); err != nil {
		t.Fatal(err)
	}
	if err := n.installHook("dying-hook", "dying"); err != nil {
		t.Fatal(err)
	}
	if f.inCluster {
		n.servers = startAssigningServers(t)
	}
	if f.externalDriver {
		if err := linkProgram("shell-driver", filepath.Join(n.pluginDir(), "shell-driver")); err != nil {
			t.Fatal(err)
		}
	}
	if f.victim.fillsDisk {
		if err := errors.Join(os.Mkdir(n.dataDir, 0o711), tmpfsDisk(n.dataDir).mount(f.in)); err != nil {
			t.Fatal(err)
		}
	}
	if f.hasVolumes() {
		if err := n.installVolumePlugin(); err != nil {
			t.Fatal(err)
		}
	}
	if n.logFile, err = os.Create(filepath.Join(dir, "log")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("agents said:\n%s", n.readLog())
		}
		n.logFile.Close()
		systemtest.AssertDataDirProcessesExit(t, n.dataDir)
		if err := f.in.remove(dir); err != nil {
			t.Error(err)
		}
	})
	return n
}

// installHook installs a hook plugin under a name.
func (n *faultNode) installHook(program, name string) error {
	path := filepath.Join(n.dir, program)
	if err := linkProgram(program, path); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	program = path
	return os.WriteFile(filepath.Join(n.pluginDir(), name), fmt.Appendf(nil, "#!/bin/sh\nexec %s %s\n", program, name), 0o755)
}

// networkDir returns the directory with the networks of the external driver.
func (n *faultNode) networkDir() string { return filepath.Join(n.dir, "networks") }

// historyDir is apart from the data directory, because it is a volume that tasks can write.
func (n *faultNode) historyDir() string { return filepath.Dir(n.runHistoryFile) }

func (n *faultNode) pluginDir() string { return filepath.Join(n.dir, "plugins") }

// readLog returns the log of all agents of the node.
func (n *faultNode) readLog() string {
	text, err := os.ReadFile(n.logFile.Name())
	if err != nil {
		n.Error(err)
	}
	return string(text)
}

// runJobLifecycle runs the job through all steps of its lifecycle, and returns the failpoints that
// the agents have hit.
func (n *faultNode) runJobLifecycle() []string {
	n.unrelatedProcess = exec.Command("/bin/sleep", "1000") // a process in the process group of the agent, which the agent must not kill
	if err := n.unrelatedProcess.Start(); err != nil {
		n.Fatal(err)
	}
	defer func() {
		if err := n.unrelatedProcess.Process.Signal(syscall.Signal(0)); err != nil {
			n.Errorf("I11: a stranger's process: %v", err)
		}
		_ = n.unrelatedProcess.Process.Kill()
		_ = n.unrelatedProcess.Wait()
	}()
	n.startAgent()
	n.startBystander()
	if n.fault.hasVolumes() {
		n.registerHistoryVolume()
	}
	n.do("arm "+fmt.Sprint(n.fault.failpointName()), new(string))
	if n.fault.hasVolumes() {
		n.createVolume()
	}

	n.registerJob(n.jobSpec("1s", "one"))
	n.waitAllocReport("it runs", n.jobIsRunning(func(a *api.Allocation) bool { return true }))
	n.do("exec "+n.findOnlyAllocOfJob("life"), new(string))
	n.checkRunningAlloc(n.findOnlyAllocOfJob("life"))

	if err := os.WriteFile(n.runHistoryFile+".fail", nil, 0o644); err != nil {
		n.Fatal(err)
	}
	n.waitAllocReport("it runs again", n.jobIsRunning(func(a *api.Allocation) bool { return n.readRunHistory(a.ID).ranAfterFailure }))
	if err := os.Remove(n.runHistoryFile + ".fail"); err != nil {
		n.Fatal(err)
	}
	first := n.findOnlyAllocOfJob("life")
	n.checkRunningAlloc(first)

	n.registerJob(n.jobSpec("2s", "one"))
	n.waitAllocReport("it is updated", n.jobIsRunning(func(a *api.Allocation) bool { return *a.Job.Version == 1 }))
	if second := n.findOnlyAllocOfJob("life"); second != first {
		n.Errorf("the update in place has replaced %s by %s", first, second)
	}
	n.checkRunningAlloc(first)

	n.registerJob(n.jobSpec("2s", "two"))
	n.waitAllocReport("it is replaced", n.jobIsRunning(func(a *api.Allocation) bool { return a.ID != first && n.allocIsComplete(first) }))
	second := n.findOnlyAllocOfJob("life")
	n.checkRunningAlloc(second)

	if n.servers != nil {
		n.waitAllocReport("the servers have its states", n.servers.haveStates)
	}

	n.purgeJob("life")
	n.waitAllocReport("it is gone", func(s programs.AllocReport) bool {
		dirs, err := os.ReadDir(filepath.Join(n.dataDir, "alloc"))
		networks, networkErr := os.ReadDir(n.networkDir())
		return errors.Join(err, networkErr) == nil && len(dirs) == 1 && len(networks) == 0 && len(s.AllocIDsWithRunnerRecords) == 1 && s.FindAlloc("life", func(*api.Allocation) bool { return true }) == nil
	})
	if n.fault.hasVolumes() {
		n.deleteVolume(first, second)
	}
	reached := map[string]bool{}
	n.do("reached", &reached)
	n.checkNoNamespaces()
	n.checkBystander()
	n.agent.SendExitCommandAndWait("stop")
	n.checkNoLeftovers()
	n.checkHookCalls("one")
	n.checkHookCalls("two")
	var failpoints []string
	for m := range reached {
		failpoints = append(failpoints, m)
	}
	return failpoints
}

// checkNoNamespaces checks that no network namespace of an allocation is left.
func (n *faultNode) checkNoNamespaces() {
	n.Helper()
	for id := range n.lastAllocs {
		if _, err := os.Lstat(netns.Path(id)); !errors.Is(err, os.ErrNotExist) {
			n.Errorf("the network namespace of %s is left: %v", id, err)
		}
	}
}

// startBystander starts the bystander job.
func (n *faultNode) startBystander() {
	n.Helper()
	n.registerJob(fmt.Sprintf(bystanderJob, n.fault.driverName(), n.dataDir))
	n.waitAllocReport("the bystander runs", func(s programs.AllocReport) bool {
		a := s.FindAlloc("bystander", allTasksRunning)
		if a == nil {
			return false
		}
		n.bystanderProcesses = n.processesByKind()[a.ID+"/bystander"]
		return len(n.bystanderProcesses) == 1
	})
}

func (n *faultNode) jobSpec(killTimeout, version string) string {
	groupBlocks, taskBlocks, config := "", "", ""
	if n.fault.hasVolumes() {
		groupBlocks, taskBlocks, config = groupVolumeBlocks, fmt.Sprintf(taskVolumeBlocks, n.historyDir()), `pid_mode = "host"`
	}
	return fmt.Sprintf(lifecycleJob, killTimeout, n.runHistoryFile, version, n.fault.driverName(), n.fault.networkMode(), groupBlocks, taskBlocks, config, n.dataDir)
}

func (f fault) failpointName() string {
	if f.step < 0 {
		return ""
	}
	return fmt.Sprint(f.step, " ", f.phase)
}

// startAgent starts the first agent, or the next agent after a fault.
func (n *faultNode) startAgent(env ...string) {
	n.Helper()
	tell, tellIn, err := os.Pipe()
	if err != nil {
		n.Fatal(err)
	}
	goOnOut, goOn, err := os.Pipe()
	if err != nil {
		n.Fatal(err)
	}
	cmd := n.fault.in.newCommand("faulty-agent", n.dataDir, n.pluginDir())
	cmd.Stderr = n.logFile
	cmd.Env = append(cmd.Environ(), env...)
	if n.servers != nil {
		cmd.Env = append(cmd.Env, programs.ServersEnv+"="+n.servers.addr)
	}
	cmd.ExtraFiles = []*os.File{tellIn, goOnOut}
	n.agent = systemtest.StartKillableAgentCommand(n.T, cmd)
	tellIn.Close()
	goOnOut.Close()
	process := cmd.Process
	watched := make(chan struct{})
	n.injectorDone = watched
	go func() {
		defer close(watched)
		defer tell.Close()
		defer goOn.Close()
		if _, err := io.ReadFull(tell, make([]byte, 1)); err != nil {
			return // the agent has exited
		}
		n.injectFault(process)
		close(n.faultInjected)
		_, _ = goOn.WriteString("!") // the agent can be dead
	}()
	n.Cleanup(func() {
		_ = process.Kill() // the test can have failed
		<-watched
	})
}

// injectFault kills the victims: first the agent, so that it does not see the other processes exit,
// then the tasks, so that they do not exit because the reader of their pipe has exited.
func (n *faultNode) injectFault(agent *os.Process) {
	if n.fault.victim.killsAgent {
		_ = agent.Kill()
	}
	if n.fault.victim.name == systemtest.VolumePluginVictim {
		n.waitVolumePluginBlocked()
	}
	killed := n.killAllVictims()
	needed := !n.fault.victim.killsAgent && !n.fault.victim.removesSocketDir
	// A process is found by its environment, which is empty for a short time during exec.
	for deadline := time.Now().Add(systemtest.WaitTimeout); needed && len(killed) == 0 && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
		killed = n.killAllVictims()
	}
	if n.fault.victim.removesSocketDir {
		// A running agent recreates the directory at once, so the removal can fail because the
		// directory is not empty.
		if err := os.RemoveAll(helperdir.SocketDir(n.dataDir)); err != nil && !errors.Is(err, syscall.ENOTEMPTY) {
			n.Error(err)
		}
	}
	if next := n.fault.victim.secondVictimKind; next != "" {
		n.killNextProcess(next, killed)
	}
	if needed && len(killed) == 0 {
		n.Errorf("there is no %s at this moment", n.fault.victim.name)
	}
}

// killAllVictims kills all existing processes of the victims, and returns them.
func (n *faultNode) killAllVictims() map[osprocess.ID]bool {
	killed := map[osprocess.ID]bool{}
	processes := systemtest.FindDataDirProcesses(n.dataDir)
	slices.SortStableFunc(processes, func(p, q systemtest.DataDirProcess) int {
		switch {
		case isTaskProcessKind(p.Kind) == isTaskProcessKind(q.Kind):
			return 0
		case isTaskProcessKind(p.Kind):
			return -1
		}
		return 1
	})
	for _, p := range processes {
		if n.fault.victim.killsProcessKind(n.fault.victimKind(p.Kind)) {
			_ = p.Signal(syscall.SIGKILL)
			killed[p.ID] = true
		}
	}
	return killed
}

// killNextProcess waits for a process of a kind that is not in killed, and kills it. A failpoint
// blocks one goroutine of the agent; other goroutines can have started the process since
// the first kill.
func (n *faultNode) killNextProcess(kind string, killed map[osprocess.ID]bool) {
	for deadline := time.Now().Add(systemtest.WaitTimeout); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		found := false
		for _, p := range systemtest.FindDataDirProcesses(n.dataDir) {
			if n.fault.victimKind(p.Kind) == kind && !killed[p.ID] {
				found = true
				_ = p.Signal(syscall.SIGKILL)
			}
		}
		if found {
			return
		}
	}
	n.Errorf("there is no second %s", kind)
}

// do sends a command to the agent. If the agent exits before it has answered, do starts the next
// agent and sends the command to it.
func (n *faultNode) do(what string, answer any) {
	n.Helper()
	for {
		_, err := fmt.Fprintln(n.agent.CommandInput, what)
		if err == nil {
			err = n.agent.AnswerDecoder.Decode(answer)
		}
		if err == nil {
			return
		}
		<-n.injectorDone // an injector that still runs would kill the next agent, too
		_ = n.agent.Cmd.Wait()
		if !n.fault.victim.killsAgent || n.agentRestarted {
			n.Fatalf("%s: the agent has ended: %v, %v", what, err, n.agent.Cmd.ProcessState)
		}
		n.restartAgent()
	}
}

func (n *faultNode) randomDuration(limit time.Duration) time.Duration {
	return time.Duration(n.random.Int64N(int64(limit)))
}

// restartAgent starts an agent after the fault has killed the previous one. For some victims it
// first starts and kills another agent.
func (n *faultNode) restartAgent() {
	n.Helper()
	n.agentRestarted = true
	v := n.fault.victim
	if v.fillsDisk {
		if err := tmpfsDisk(n.dataDir).fill(); err != nil {
			n.Fatal(err)
		}
	}
	if v.killsNextAgent || v.fillsDisk {
		n.startAgent()
		delay := 200*time.Millisecond + n.randomDuration(1300*time.Millisecond) // time for the start of the agent, and a random time in which it runs its allocations
		if v.killsNextAgent {
			delay = n.randomDuration(300 * time.Millisecond)
		}
		time.Sleep(delay)
		n.agent.KillAndWait()
		<-n.injectorDone
		n.Logf("an agent was killed %v after its start", delay)
	}
	if v.fillsDisk {
		if err := tmpfsDisk(n.dataDir).makeRoom(); err != nil {
			n.Fatal(err)
		}
	}
	n.startAgent()
}

func (n *faultNode) purgeJob(id string) {
	n.Helper()
	if n.servers != nil {
		n.servers.PurgeJob(api.DefaultNamespace, id)
		return
	}
	n.do("purge "+id, new(string))
}

func (n *faultNode) registerJob(job string) {
	n.Helper()
	if n.servers != nil {
		n.servers.register(n.T, job)
		return
	}
	file := filepath.Join(n.dir, "job.nomad.hcl")
	if err := os.WriteFile(file, []byte(job), 0o644); err != nil {
		n.Fatal(err)
	}
	n.do("run "+file, new(string))
}

// waitAllocReport requests reports from the agent until ok accepts one.
func (n *faultNode) waitAllocReport(what string, ok func(programs.AllocReport) bool) {
	n.Helper()
	var s programs.AllocReport
	for deadline := time.Now().Add(systemtest.WaitTimeout); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		s = programs.AllocReport{}
		n.do("look", &s)
		n.checkAllocReport(s)
		if ok(s) {
			return
		}
	}
	text, _ := json.MarshalIndent(s, "", " ")
	history, _ := os.ReadFile(n.runHistoryFile)
	dirs, _ := filepath.Glob(filepath.Join(n.dataDir, "alloc", "*"))
	n.Fatalf("I2: %s: not within %v: %s\n%s\ndirectories %v", what, systemtest.WaitTimeout, text, history, dirs)
}

// jobIsRunning returns a condition for waitAllocReport: an allocation of the job that ok accepts is
// running, and its task has exactly one process.
func (n *faultNode) jobIsRunning(ok func(*api.Allocation) bool) func(programs.AllocReport) bool {
	return func(s programs.AllocReport) bool {
		a := s.FindAlloc("life", allTasksRunning)
		return a != nil && ok(a) && n.readRunHistory(a.ID).lastRunIsOnlyProcess(n.processesByKind()[a.ID+"/life"])
	}
}

// findOnlyAllocOfJob returns the id of the only allocation of a job that has the desired status run.
func (n *faultNode) findOnlyAllocOfJob(job string) string {
	n.Helper()
	var ids []string
	for id, a := range n.lastAllocs {
		if a.JobID == job && a.DesiredStatus == api.AllocDesiredStatusRun {
			ids = append(ids, id)
		}
	}
	if len(ids) != 1 {
		n.Fatalf("allocations of job %s: %v", job, ids)
	}
	return ids[0]
}

func (n *faultNode) processesByKind() map[string][]osprocess.ID {
	return systemtest.GroupProcessesByKind(systemtest.FindDataDirProcesses(n.dataDir))
}

func (n *faultNode) allocIsComplete(id string) bool {
	return n.lastAllocs[id].ClientStatus == api.AllocClientStatusComplete && len(n.processesByKind()[id+"/life"]) == 0
}

// checkAllocReport checks that the report is a possible successor of the previous report.
func (n *faultNode) checkAllocReport(s programs.AllocReport) {
	n.Helper()
	for _, a := range s.Allocs {
		was := n.lastAllocs[a.ID]
		n.lastAllocs[a.ID] = a
		if a.ClientTerminalStatus() {
			if _, counted := n.finalRunCounts[a.ID]; !counted {
				n.finalRunCounts[a.ID] = len(n.readRunHistory(a.ID).runPIDs)
			}
		}
		if was == nil {
			continue
		}
		if was.ClientTerminalStatus() && a.ClientStatus != was.ClientStatus || was.ServerTerminalStatus() && !a.ServerTerminalStatus() {
			n.Errorf("I9: %s was %s, %s, is %s, %s", a.ID, was.DesiredStatus, was.ClientStatus, a.DesiredStatus, a.ClientStatus)
		}
		for task, state := range a.TaskStates {
			if before := was.TaskStates[task]; before != nil && !onlyAppendsEvents(before.Events, state.Events) {
				n.Errorf("I7: events of %s were %v, are %v at the times %v", a.ID, systemtest.EventTypesWithoutLimitWarnings(before.Events), systemtest.EventTypesWithoutLimitWarnings(state.Events), eventTimes(state.Events))
			}
		}
	}
}

// onlyAppendsEvents reports whether the events in now are the events in before and later ones,
// sorted by time. A task keeps only its newest ten events. A driver sets the time of its own
// events, which the agent receives later, so they can be out of order.
func onlyAppendsEvents(before, now []*api.TaskEvent) bool {
	own := slices.DeleteFunc(slices.Clone(now), func(e *api.TaskEvent) bool { return e.Type == api.TaskDriverMessage })
	if !slices.IsSortedFunc(own, func(a, b *api.TaskEvent) int { return int(a.Time - b.Time) }) {
		return false
	}
	at := 0
	if len(now) == 10 {
		at = slices.IndexFunc(before, func(e *api.TaskEvent) bool { return e.Time == now[0].Time })
	}
	if at < 0 || len(before)-at > len(now) {
		return at < 0
	}
	for i, e := range before[at:] {
		if e.Type != now[i].Type || e.Time != now[i].Time {
			return false
		}
	}
	return true
}

// runHistory is the history of the runs of an allocation's task.
type runHistory struct {
	runPIDs         []int // process ids of the runs
	run             int   // number of the last run
	firstRunFailed  bool
	ranAfterFailure bool // the task was run again after the failure of its first run
	runsOverlapped  bool
}

func (n *faultNode) readRunHistory(id string) (d runHistory) {
	text, err := os.ReadFile(n.runHistoryFile)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		n.Error(err)
	}
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if words[1] != id {
			continue
		}
		switch words[0] {
		case "start":
			d.run, _ = strconv.Atoi(words[2])
			pid, _ := strconv.Atoi(words[3])
			d.runPIDs = append(d.runPIDs, pid)
			d.ranAfterFailure = d.firstRunFailed
		case "fail":
			d.firstRunFailed = true
		case "double":
			d.runsOverlapped = true
		}
	}
	return d
}

// lastRunIsOnlyProcess reports whether the process of the last run is the only one in processes.
func (r runHistory) lastRunIsOnlyProcess(processes []osprocess.ID) bool {
	return len(processes) == 1 && len(r.runPIDs) > 0 && processes[0].PID == r.runPIDs[len(r.runPIDs)-1]
}

// checkRunningAlloc asserts the invariants of an allocation whose task runs. It retries after a
// violation, because the history, the events and the output cannot be read atomically.
func (n *faultNode) checkRunningAlloc(id string) {
	n.Helper()
	var violations []error
	defer func() {
		for _, err := range violations {
			n.Error(err)
		}
	}()
	n.waitAllocReport("all of its life is known", func(programs.AllocReport) bool {
		violations = n.findInvariantViolations(id)
		return len(violations) == 0
	})
}

// findInvariantViolations returns the violations of the invariants in the events and runs of an allocation.
func (n *faultNode) findInvariantViolations(id string) (violations []error) {
	d, state := n.readRunHistory(id), n.lastAllocs[id].TaskStates["life"]
	say := func(format string, values ...any) {
		violations = append(violations, fmt.Errorf(format, values...))
	}
	count := map[string]int{}
	for _, e := range state.Events {
		count[e.Type]++
		if e.Type != api.TaskTerminated {
			continue
		}
		// A task that executes its program while injectFault lists the processes is not killed, and has no reader of its output
		// when all others are.
		endsWithReaders := n.fault.victim.name == "all" && e.DisplayMessage == "Exit Code: 141, Signal: 13"
		if m := e.DisplayMessage; m != "Exit Code: 7" && !(n.fault.killsTasks() && m == "Exit Code: 137, Signal: 9") && !endsWithReaders {
			say("I4: %s has ended with %q", id, m)
		}
	}
	if d.runsOverlapped {
		say("I1: two of %s have run at once", id)
	}
	if (n.fault.victim.makesDriverUnavailable() || n.fault.victim.fillsDisk) && len(state.Events) == 10 {
		return violations // the task has dropped its oldest events, so the events cannot be counted
	}
	started, ended, lost, running := 0, 0, 0, false
	for _, e := range state.Events {
		isLost := e.Type == model.TaskRestoreFailed || strings.HasPrefix(e.DisplayMessage, "exit status unknown")
		switch {
		case e.Type == api.TaskStarted:
			started++
			running = true
		case isLost || e.Type == api.TaskTerminated:
			if isLost {
				lost++
				if !running {
					started++ // an interrupted start, which counts as executed
				}
			}
			ended++
			running = false
		}
	}
	// An event without a run is possible if the task is killed before it writes its history. A run without an event is not:
	// an interrupted start is adopted, or has the event of its end.
	least := 0
	if n.fault.killsTasks() {
		least = -1
	}
	if unseen := len(d.runPIDs) - started; unseen < least || unseen > 0 {
		say("I4: %d runs of which there is no event, %d to 0 may be: %v", unseen, least, systemtest.EventTypesWithoutLimitWarnings(state.Events))
	}
	if ended != started-1 {
		say("I4: %d ends of %d starts: %v", ended, started, systemtest.EventTypesWithoutLimitWarnings(state.Events))
	}
	if lost > 0 && n.fault.victim.name != "all" && n.fault.victim.name != "keeper and plugin within a second" {
		say("I4: an end is not known: %v", systemtest.EventTypesWithoutLimitWarnings(state.Events))
	}
	setups := 1 + n.fault.randomKillCount()
	if n.fault.victim.killsAgent && n.fault.step <= failpoint.StepPrestart {
		setups++
	}
	if c := count[api.TaskSetup]; c < 1 || c > setups {
		say("I6: the directory was set up %d times: %v", count[api.TaskSetup], systemtest.EventTypesWithoutLimitWarnings(state.Events))
	}
	if err := n.checkOutput(id, d.run); err != nil {
		say("I5: output of %s: %w", id, err)
	}
	return violations
}

// checkOutput returns an error unless the output of each run is 1, 2, 3 …, and the newest output is
// of the run with the number last.
func (n *faultNode) checkOutput(id string, last int) error {
	text, err := os.ReadFile(filepath.Join(n.dataDir, "alloc", id, "alloc", "logs", "life.stdout.0"))
	if err != nil {
		return err
	}
	run, next := 0, 1
	for line := range strings.Lines(string(text)) {
		var r, i int
		if _, err := fmt.Sscanf(line, "%d %d\n", &r, &i); err != nil {
			return fmt.Errorf("line %q", line)
		}
		if r != run || i == 1 && n.fault.victim.fillsDisk { // on a full disk a run cannot store its number, so the next run has the same one
			run, next = r, 1
		}
		if i != next {
			return fmt.Errorf("run %d: %d in the place of %d", r, i, next)
		}
		next++
	}
	if run != last {
		return fmt.Errorf("the last run is %d of %d", run, last)
	}
	return nil
}

// checkBystander asserts that nothing has happened to the bystander job.
func (n *faultNode) checkBystander() {
	n.Helper()
	if n.fault.victim.name == "all" {
		return
	}
	id := n.findOnlyAllocOfJob("bystander")
	if is := n.processesByKind()[id+"/bystander"]; !slices.Equal(is, n.bystanderProcesses) {
		n.Errorf("I10: the bystander is %v, was %v", is, n.bystanderProcesses)
	}
	started := false
	events := systemtest.EventTypesWithoutLimitWarnings(slices.DeleteFunc(slices.Clone(n.lastAllocs[id].TaskStates["bystander"].Events), func(e *api.TaskEvent) bool {
		started = started || e.Type == api.TaskStarted
		// On a busy machine, the driver may not be ready when the job is registered.
		mayWait := !started || n.fault.victim.makesDriverUnavailable()
		return systemtest.IsUnenforcedLimitEvent(e) || mayWait && e.Type == api.TaskDriverMessage
	}))
	if got := fmt.Sprint(events); got != "[Received Task Setup Started]" {
		n.Errorf("I10: events of the bystander: %s", got)
	}
}

// checkHookCalls asserts that the hook was called for an allocation once at each hook point that it
// reported as done, and at the cleanup points with the state that the earlier calls returned.
func (n *faultNode) checkHookCalls(version string) {
	n.Helper()
	ledger, err := os.ReadFile(n.runHistoryFile + "." + version)
	if err != nil {
		n.Error(err)
	}
	count := map[string]int{}
	for line := range strings.Lines(string(ledger)) {
		count[strings.TrimSuffix(line, "\n")]++
	}
	most := 1
	if s := n.fault.step; s == failpoint.StepTaskDir || s == failpoint.StepVolumeMounts || s == failpoint.StepPrestart || n.fault.canHitAnytime() {
		most = 2 // the agent can be killed before the first answer is on disk, because the writes of consecutive hooks share a commit
	}
	most += n.fault.randomKillCount()
	if called := count["prestart x"]; called < 1 || called > most || count["prestart xx"] > 0 {
		n.Errorf("I6: a hook that is done after Prestart was called %d times of %s:\n%s", called, version, ledger)
	}
	for _, cleanup := range []string{"stop x", "postrun", "destroy"} {
		if count[cleanup] == 0 {
			n.Errorf("I3: the hook was not told %q of %s:\n%s", cleanup, version, ledger)
		}
	}
}

// checkNoLeftovers asserts that ended allocations leave nothing behind.
func (n *faultNode) checkNoLeftovers() {
	n.Helper()
	for id, runs := range n.finalRunCounts {
		if now := len(n.readRunHistory(id).runPIDs); now != runs {
			n.Errorf("I2: %s has ended, and was started again: %d runs, then %d", id, runs, now)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		n.Fatal(err)
	}
	for id, a := range n.lastAllocs {
		groups, _ := filepath.Glob("/sys/fs/cgroup/*/nomad/" + id + ".*")
		scopes, _ := filepath.Glob("/sys/fs/cgroup/nomad.slice/*/" + id + ".*")
		if len(groups)+len(scopes) > 0 {
			n.Errorf("I3: cgroups of %s are left: %v", id, append(groups, scopes...))
		}
		if a.JobID == "life" && bytes.Contains(mounts, []byte(id)) {
			n.Errorf("I3: mounts of %s are left", id)
		}
	}
}
