package systemtest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
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
	execdriver "github.com/nomad-lite/nomad-lite/builtin/exec"
	"github.com/nomad-lite/nomad-lite/builtin/java"
	"github.com/nomad-lite/nomad-lite/builtin/qemu"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/allocdir"
)

// TaskReport is the answer of a killable agent to the command "states".
type TaskReport struct {
	TasksWithProcess int   // number of tasks that have a process
	StateFileWrites  int64 // number of writes to the state file
	AllocByID        map[string]*api.Allocation
}

// TaskCounts is the answer of a killable agent to the command "counts", which is cheap also with thousands of tasks.
type TaskCounts struct {
	WithProcess int // number of tasks that have a process
	Running     int // number of tasks whose state is running
}

// RunningTaskCount returns the number of tasks whose state is running.
func (t TaskReport) RunningTaskCount() (n int) {
	for _, alloc := range t.AllocByID {
		for _, s := range alloc.TaskStates {
			if s.State == model.TaskRunning {
				n++
			}
		}
	}
	return n
}

// KillableAgent is an agent in a process of its own that a test controls by commands on its standard input, and kills.
type KillableAgent struct {
	t             testing.TB
	Cmd           *exec.Cmd
	CommandInput  io.WriteCloser
	AnswerDecoder *json.Decoder
}

// StartKillableAgent starts program, a test binary, as a killable agent. dataAndPluginDirs are the agent's data
// directory and, if it has plugins, its plugin directory.
func StartKillableAgent(t testing.TB, program string, dataAndPluginDirs ...string) *KillableAgent {
	t.Helper()
	cmd := exec.Command(program, dataAndPluginDirs...)
	cmd.Args[0] = "mortal-agent"
	cmd.Stderr = os.Stderr
	return StartKillableAgentCommand(t, cmd)
}

// StartKillableAgentCommand starts cmd, an agent that reads commands from its standard input and writes answers as
// JSON.
func StartKillableAgentCommand(t testing.TB, cmd *exec.Cmd) *KillableAgent {
	t.Helper()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return &KillableAgent{t: t, Cmd: cmd, CommandInput: in, AnswerDecoder: json.NewDecoder(out)}
}

// SendCommand sends a command to the agent, and decodes the answer unless answer is nil.
func (k *KillableAgent) SendCommand(command string, answer any) {
	k.t.Helper()
	if _, err := fmt.Fprintln(k.CommandInput, command); err != nil {
		k.t.Fatal(err)
	}
	if answer == nil {
		return
	}
	if err := k.AnswerDecoder.Decode(answer); err != nil {
		k.t.Fatalf("%s: %v", command, err)
	}
}

// RegisterJobs registers the jobs with these texts. It writes each text to a job file in jobFileDir.
func (k *KillableAgent) RegisterJobs(jobFileDir string, jobTexts ...string) {
	k.t.Helper()
	file := filepath.Join(jobFileDir, "job.nomad.hcl")
	for _, text := range jobTexts {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			k.t.Fatal(err)
		}
		k.SendCommand("run "+file, new(string))
	}
}

// WaitTaskReport requests reports from the agent until accept returns true for one, and returns that report.
func (k *KillableAgent) WaitTaskReport(description string, accept func(TaskReport) bool) TaskReport {
	k.t.Helper()
	var v TaskReport
	for deadline := time.Now().Add(WaitTimeout); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		v = TaskReport{}
		k.SendCommand("states", &v)
		if accept(v) {
			return v
		}
	}
	text, _ := json.MarshalIndent(v, "", " ")
	k.t.Fatalf("%s: not within %v: %s", description, WaitTimeout, text)
	return v
}

// WaitTaskCounts waits until the agent reports taskCount running tasks, each with a process.
func (k *KillableAgent) WaitTaskCounts(taskCount int) {
	k.t.Helper()
	want := TaskCounts{WithProcess: taskCount, Running: taskCount}
	var counts TaskCounts
	for deadline := time.Now().Add(WaitTimeout); counts != want; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			k.t.Fatalf("%+v after %v, want %+v", counts, WaitTimeout, want)
		}
		k.SendCommand("counts", &counts)
	}
}

// KillAndWait kills the agent with SIGKILL, and waits for its exit.
func (k *KillableAgent) KillAndWait() {
	_ = k.Cmd.Process.Kill()
	_ = k.Cmd.Wait()
}

// SendExitCommandAndWait sends a command that makes the agent exit, "leave" or "stop", and waits for the exit.
func (k *KillableAgent) SendExitCommandAndWait(leaveOrStop string) {
	k.t.Helper()
	k.SendCommand(leaveOrStop, nil)
	k.CommandInput.Close()
	if err := k.Cmd.Wait(); err != nil {
		k.t.Errorf("%s: %v", leaveOrStop, err)
	}
}

// DataDirProcess is a process that belongs to an agent's data directory.
type DataDirProcess struct {
	osprocess.ID
	Kind string // "keeper", "log-collector", "plugin", "on-demand-plugin", "dying-hook", "shell-driver", "executor", "volume-plugin", or "ALLOC/TASK" for a task
}

// OnDemandPluginKind is the kind of the plugin processes of exec, java and qemu. An agent starts them for their
// fingerprints, and stops them at times that a test cannot predict.
const OnDemandPluginKind = "on-demand-plugin"

// ExecutorKind is the kind of the processes by which Nomad's own drivers run their tasks. They outlive the plugin
// process.
const ExecutorKind = "executor"

// FindDataDirProcesses returns the processes whose environment contains the data directory. It leaves out child
// processes of tasks, and children of the node's own programs that have not executed their program yet.
func FindDataDirProcesses(dataDir string) (found []DataDirProcess) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		forked := hasNotExecutedSinceFork(pid) // read first: after its execve(2), the process has its own environment and arguments
		environ, err := osprocess.ReadEnv(pid)
		if err != nil || !bytes.Contains(environ, []byte(dataDir)) {
			continue
		}
		p, err := osprocess.LookupID(pid)
		if err != nil {
			continue
		}
		// /proc/PID/cmdline is empty for a short time while a process executes a program, and while it exits.
		var args []byte
		for len(args) == 0 && p.Alive() {
			args, _ = os.ReadFile("/proc/" + e.Name() + "/cmdline") // an error means that the process has exited
		}
		if !p.Alive() {
			continue
		}
		var allocID, taskName string
		for v := range bytes.SplitSeq(environ, []byte{0}) {
			if rest, ok := bytes.CutPrefix(v, []byte("NOMAD_ALLOC_ID=")); ok {
				allocID = string(rest)
			}
			if rest, ok := bytes.CutPrefix(v, []byte("NOMAD_TASK_NAME=")); ok {
				taskName = string(rest)
			}
		}
		kind := allocID + "/" + taskName
		if argv := strings.Split(string(args), "\x00"); argv[0] == "nomad-lite" {
			kind = argv[1]
			if kind == "plugin" && (argv[3] == execdriver.Name || argv[3] == java.Name || argv[3] == qemu.Name) {
				kind = OnDemandPluginKind
			}
		} else if name := filepath.Base(argv[0]); strings.HasSuffix(name, "-hook") || strings.HasSuffix(name, "-driver") || strings.HasSuffix(name, "-device") {
			kind = name
			if len(argv) > 1 && argv[1] == ExecutorKind {
				kind = ExecutorKind
			}
		} else if bytes.Contains(environ, []byte("\x00DHV_OPERATION=")) {
			kind = VolumePluginKind
		} else if sid, _, _ := syscall.Syscall(syscall.SYS_GETSID, uintptr(pid), 0, 0); int(sid) != pid {
			continue // a child of a task
		}
		if forked && kind != VolumePluginKind && kind != allocID+"/"+taskName {
			continue // a test that kills plugins would also kill a task that a plugin is starting
		}
		found = append(found, DataDirProcess{p, kind})
	}
	return found
}

// hasNotExecutedSinceFork reports whether a process has not executed a program since its fork, so that it has the
// environment and the arguments of its parent.
func hasNotExecutedSinceFork(pid int) bool {
	const flagsField, forkNoExec = 9, 0x40 // PF_FORKNOEXEC of linux/sched.h
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	const firstField = 3 // of the text after the name
	if err != nil || len(fields) <= flagsField-firstField {
		return false
	}
	flags, err := strconv.ParseUint(fields[flagsField-firstField], 10, 32)
	return err == nil && flags&forkNoExec != 0
}

// AssertDataDirProcessesExit waits until all processes of a data directory have exited. After a timeout it fails the
// test and kills them.
func AssertDataDirProcessesExit(t testing.TB, dataDir string) {
	t.Helper()
	left := FindDataDirProcesses(dataDir)
	for began := time.Now(); len(left) > 0 && time.Since(began) < WaitTimeout; left = FindDataDirProcesses(dataDir) {
		sleepBetweenChecks(began, 5*time.Millisecond)
	}
	for _, p := range left {
		t.Errorf("I3: %s is left behind: %d", p.Kind, p.PID)
		_ = p.Signal(syscall.SIGKILL)
	}
}

// GroupProcessesByKind returns a map from the kind to the processes of that kind.
func GroupProcessesByKind(processes []DataDirProcess) map[string][]osprocess.ID {
	all := map[string][]osprocess.ID{}
	for _, p := range processes {
		all[p.Kind] = append(all[p.Kind], p.ID)
	}
	return all
}

// ManyTasksJob is the format of a job file whose tasks write increasing numbers. Its only verb is the count of the
// group.
const ManyTasksJob = `
job "many" {
  group "g" {
    count = %d
    restart {
      attempts = 3
      delay    = "0s"
    }
    task "loop" {
      driver = "raw_exec"
      config {
        command = "/bin/bash"
        args    = ["-c", "exec 3<> <(:); while :; do echo $((++i)); read -t 0.1 -u 3; done"]
      }
      resources {
        cpu    = 20
        memory = 10
      }
    }
  }
}
`

// CopyBinaryAsOtherBuild creates a copy of this program with other content, which agents take for another build, and
// returns its path.
func CopyBinaryAsOtherBuild(t testing.TB) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "another")
	// The lock prevents that a child process is started during the write. A child that inherits the descriptor would
	// make the execution of the file fail with ETXTBSY.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, append(b, "another build"...), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// NewLeakCheckedAgentDir returns a directory for an agent. At the end of the test it checks that the agent's processes
// have exited, and removes the directory.
func NewLeakCheckedAgentDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "survive")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		AssertDataDirProcessesExit(t, filepath.Join(dir, "data"))
		if err := allocdir.UnmountAndRemoveOwnDir(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// EventTypesWithoutLimitWarnings returns the types of the events, without those for which IsUnenforcedLimitEvent is
// true.
func EventTypesWithoutLimitWarnings(events []*api.TaskEvent) (list []string) {
	for _, e := range events {
		if !IsUnenforcedLimitEvent(e) {
			list = append(list, e.Type)
		}
	}
	return list
}

// IsUnenforcedLimitEvent reports whether the driver emitted the event because it cannot enforce a limit of the task.
// Drivers of an agent that is not root emit such events, before or after the event Started.
func IsUnenforcedLimitEvent(e *api.TaskEvent) bool {
	return e.Type == api.TaskDriverMessage && strings.Contains(e.DisplayMessage, " limit not enforced here: ")
}

// PIDsOfAlloc returns the PIDs of the processes that have the ID of an allocation in their environment or in their
// command line.
func PIDsOfAlloc(t *testing.T, allocID string) (found []int) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		environ, _ := osprocess.ReadEnv(pid)
		args, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if bytes.Contains(environ, []byte("NOMAD_ALLOC_ID="+allocID)) || bytes.Contains(args, []byte(allocID)) {
			found = append(found, pid)
		}
	}
	return found
}

// OnlyTaskOfJob returns the allocation of a job and the state of its only task, or nil if there is none.
func (t TaskReport) OnlyTaskOfJob(jobID string) (alloc *api.Allocation, task *api.TaskState) {
	for _, a := range t.AllocByID {
		if a.JobID == jobID {
			for _, s := range a.TaskStates {
				return a, s
			}
		}
	}
	return nil, nil
}

// HasEventText reports whether the message of an event of a task contains a text.
func HasEventText(s *api.TaskState, text string) bool {
	return s != nil && slices.ContainsFunc(s.Events, func(e *api.TaskEvent) bool { return strings.Contains(e.DisplayMessage, text) })
}

const (
	FaultVolumeName   = "data"  // dynamic host volume that a plugin creates
	HistoryVolumeName = "diary" // registered host volume that contains the history of the runs
	VolumePluginKind  = "volume-plugin"

	VolumePluginVictim = "volume plugin"
)
