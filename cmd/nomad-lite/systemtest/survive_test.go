package systemtest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
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

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	execdriver "github.com/nomad-lite/nomad-lite/builtin/exec"
	"github.com/nomad-lite/nomad-lite/builtin/java"
	"github.com/nomad-lite/nomad-lite/builtin/qemu"
	"github.com/nomad-lite/nomad-lite/builtin/rawexec"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/agentconfig"
	"github.com/nomad-lite/nomad-lite/plugins/catalog"
	"github.com/nomad-lite/nomad-lite/plugins/process"
	"github.com/nomad-lite/nomad-lite/runtime/agent"
	"github.com/nomad-lite/nomad-lite/runtime/allocdir"
	"github.com/nomad-lite/nomad-lite/runtime/allocrunner"
	"github.com/nomad-lite/nomad-lite/runtime/hookplugin"
	"github.com/nomad-lite/nomad-lite/runtime/jobspec"
	"github.com/nomad-lite/nomad-lite/runtime/localnode"
	"github.com/nomad-lite/nomad-lite/runtime/model"
	"github.com/nomad-lite/nomad-lite/runtime/noderunner"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/state"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// serveKillableAgent is an agent that executes commands from its standard input, until it is
// killed. Its second argument is the directory of its external plugins: plugins named -driver are
// drivers, the others are hooks, and hooks named -warn have on_error warn.
func serveKillableAgent() {
	if err := runKillableAgent(os.Args[1], os.Args[2:]...); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func runKillableAgent(dir string, programs ...string) error {
	config := catalog.Config{Builtins: []catalog.Builtin{{Name: rawexec.Name, Config: map[string]any{"enabled": true}}}}
	var hookRules []hookplugin.Rule
	if len(programs) > 0 {
		config.Dir = programs[0]
		files, err := os.ReadDir(config.Dir)
		if err != nil {
			return err
		}
		for _, f := range files {
			config.Blocks = append(config.Blocks, catalog.PluginBlock{Name: f.Name()})
			if strings.HasSuffix(f.Name(), "-driver") {
				continue
			}
			hookRules = append(hookRules, hookplugin.Rule{Name: f.Name(), WarnOnError: strings.HasSuffix(f.Name(), "-warn")})
		}
	}
	plugins, err := catalog.New(config)
	if err != nil {
		return err
	}
	level := hclog.Warn
	if os.Getenv("MORTAL_DEBUG") != "" {
		level = hclog.Trace
	}
	ctx, end := context.WithCancelCause(context.Background())
	defer end(nil)
	a, err := agent.Open(ctx, agent.Config{
		DataDir:         dir,
		Node:            localnode.Settings{CPU: 100_000, MemoryMB: 1_000_000, DiskMB: 1_000_000},
		Plugins:         plugins,
		Hooks:           hookRules,
		FindTaskProcess: agentconfig.TaskProcessFromState,
		GC:              noderunner.GC{MaxAllocs: 10_000, DiskUsage: 100, InodeUsage: 100}, // prevents the garbage collection of allocations that a test checks
		Logger:          hclog.New(&hclog.LoggerOptions{Level: level, Output: os.Stderr}),
	})
	if err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		a.Run(ctx)
		close(ended)
	}()
	answer := json.NewEncoder(os.Stdout)
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		verb, arg, _ := strings.Cut(lines.Text(), " ")
		switch verb {
		case "run":
			<-a.Node().Registered()
			text, err := os.ReadFile(arg)
			if err != nil {
				return err
			}
			file, diags := jobspec.Parse(jobspec.Source{Name: arg, Text: text})
			if diags.HasErrors() {
				return diags
			}
			model.Canonicalize(file.Job)
			if _, err := a.Scheduler().Register(ctx, file.Job, scheduler.RegisterOptions{}); err != nil {
				return err
			}
			err = answer.Encode("ok")
			if err != nil {
				return err
			}
		case "states":
			states := map[string]*api.Allocation{}
			owned := 0
			for _, alloc := range a.Store().Snapshot().Allocations(nil, "") {
				states[alloc.ID] = &api.Allocation{ID: alloc.ID, Name: alloc.Name, JobID: alloc.JobID, ClientStatus: alloc.ClientStatus, TaskStates: alloc.TaskStates}
				if runner := a.Alloc(alloc.ID); runner != nil {
					owned += len(runner.PluginsLeftRunning())
				}
			}
			if err := answer.Encode(taskReport{owned, a.Store().Commits(), states}); err != nil {
				return err
			}
		case "leave":
			end(allocrunner.ErrShutdown)
		case "stop":
			end(nil)
		default:
			if err := answer.Encode(killableAgentCommands[verb](ctx, a, arg)); err != nil {
				return err
			}
		}
		if ctx.Err() != nil {
			break
		}
	}
	end(nil) // the test is over, so it does not matter how the agent shuts down
	<-ended
	return a.Close()
}

// taskReport is the response of a killable agent to the command "states".
type taskReport struct {
	Owned   int   // tasks with a process
	Commits int64 // writes of the state
	Allocs  map[string]*api.Allocation
}

// runningTaskCount returns the number of tasks with the state running.
func (v taskReport) runningTaskCount() (n int) {
	for _, alloc := range v.Allocs {
		for _, s := range alloc.TaskStates {
			if s.State == model.TaskRunning {
				n++
			}
		}
	}
	return n
}

// killableAgent is an agent in a process of its own, which a test can kill.
type killableAgent struct {
	t   testing.TB
	cmd *exec.Cmd
	in  io.WriteCloser
	out *json.Decoder
}

func startKillableAgent(t testing.TB, program string, args ...string) *killableAgent {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Args[0] = "mortal-agent"
	cmd.Stderr = os.Stderr
	return launchKillableAgent(t, cmd)
}

// launchKillableAgent starts an agent that takes commands on its standard input.
func launchKillableAgent(t testing.TB, cmd *exec.Cmd) *killableAgent {
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
	return &killableAgent{t: t, cmd: cmd, in: in, out: json.NewDecoder(out)}
}

func (m *killableAgent) ask(what string, answer any) {
	m.t.Helper()
	if _, err := fmt.Fprintln(m.in, what); err != nil {
		m.t.Fatal(err)
	}
	if answer == nil {
		return
	}
	if err := m.out.Decode(answer); err != nil {
		m.t.Fatalf("%s: %v", what, err)
	}
}

// registerJobs registers jobs, which are given as the text of job files.
func (m *killableAgent) registerJobs(dir string, jobs ...string) {
	m.t.Helper()
	file := filepath.Join(dir, "job.nomad.hcl")
	for _, text := range jobs {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			m.t.Fatal(err)
		}
		m.ask("run "+file, new(string))
	}
}

// waitTaskReport requests reports from the agent until ok accepts one, and returns it.
func (m *killableAgent) waitTaskReport(what string, ok func(taskReport) bool) taskReport {
	m.t.Helper()
	var v taskReport
	for deadline := time.Now().Add(waitTimeout); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		v = taskReport{}
		m.ask("states", &v)
		if ok(v) {
			return v
		}
	}
	text, _ := json.MarshalIndent(v, "", " ")
	m.t.Fatalf("%s: not within %v: %s", what, waitTimeout, text)
	return v
}

func (m *killableAgent) kill() {
	_ = m.cmd.Process.Kill()
	_ = m.cmd.Wait()
}

func (m *killableAgent) end(how string) {
	m.t.Helper()
	m.ask(how, nil)
	m.in.Close()
	if err := m.cmd.Wait(); err != nil {
		m.t.Errorf("%s: %v", how, err)
	}
}

// nodeProcess is one process of a node.
type nodeProcess struct {
	process.ID
	kind string // "keeper", "log-collector", "plugin", "on-demand-plugin", "dying-hook", "shell-driver", "volume-plugin", or "ALLOC/TASK" for a task
}

// onDemandPluginKind is the kind of the plugin processes of exec, java and qemu. An agent starts them for their
// fingerprints, and stops them at a time that does not depend on the test.
const onDemandPluginKind = "on-demand-plugin"

// findNodeProcesses returns the processes that have the data directory in their environment. It skips
// the child processes of tasks.
func findNodeProcesses(data string) (found []nodeProcess) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		environ, err := process.ReadEnv(pid)
		if err != nil || !bytes.Contains(environ, []byte(data)) {
			continue
		}
		p, err := process.LookupID(pid)
		if err != nil {
			continue
		}
		// A process has no arguments for a moment while it executes a program, and while it exits.
		var args []byte
		for len(args) == 0 && p.Alive() {
			args, _ = os.ReadFile("/proc/" + e.Name() + "/cmdline") // an error is that the process has exited
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
				kind = onDemandPluginKind
			}
		} else if name := filepath.Base(argv[0]); strings.HasSuffix(name, "-hook") || strings.HasSuffix(name, "-driver") {
			kind = name
		} else if bytes.Contains(environ, []byte("\x00DHV_OPERATION=")) {
			kind = volumePluginKind
		} else if sid, _, _ := syscall.Syscall(syscall.SYS_GETSID, uintptr(pid), 0, 0); int(sid) != pid {
			continue // a child of a task
		}
		found = append(found, nodeProcess{p, kind})
	}
	return found
}

// assertNodeExited asserts that all processes of a node exit.
func assertNodeExited(t testing.TB, data string) {
	t.Helper()
	left := findNodeProcesses(data)
	for deadline := time.Now().Add(waitTimeout); len(left) > 0 && time.Now().Before(deadline); left = findNodeProcesses(data) {
		time.Sleep(5 * time.Millisecond)
	}
	for _, p := range left {
		t.Errorf("I3: %s is left behind: %d", p.kind, p.PID)
		_ = p.Signal(syscall.SIGKILL)
	}
}

func groupProcessesByKind(processes []nodeProcess) map[string][]process.ID {
	all := map[string][]process.ID{}
	for _, p := range processes {
		all[p.kind] = append(all[p.kind], p.ID)
	}
	return all
}

const manyTasksJob = `
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

const endingJob = `
job %q {
  type = "batch"
  group "g" {
    count = 3
    restart {
      attempts = 0
      mode     = "fail"
    }
    reschedule {
      attempts  = 0
      unlimited = false
    }
    task "wait" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "while [ ! -e %s ]; do sleep 0.02; done; exit 4"]
      }
      resources {
        cpu    = 20
        memory = 10
      }
    }
    task "after" {
      driver = "raw_exec"
      lifecycle { hook = "poststop" }
      config {
        command = "/bin/true"
      }
      resources {
        cpu    = 20
        memory = 10
      }
    }
  }
}
`

const lifecycleStagesJob = `
job "stages" {
  group "g" {
    task "before" {
      driver = "raw_exec"
      lifecycle { hook = "prestart" }
      config { command = "/bin/true" }
      resources {
        cpu    = 20
        memory = 10
      }
    }
    task "side" {
      driver = "raw_exec"
      lifecycle {
        hook    = "prestart"
        sidecar = true
      }
      config {
        command = "/bin/sleep"
        args    = ["1000"]
      }
      resources {
        cpu    = 20
        memory = 10
      }
    }
    task "main" {
      driver = "raw_exec"
      config {
        command = "/bin/sleep"
        args    = ["1000"]
      }
      resources {
        cpu    = 20
        memory = 10
      }
    }
  }
}
`

// copyBinaryAsOtherBuild creates a copy of this program that counts as another build, and returns its
// path.
func copyBinaryAsOtherBuild(t testing.TB) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "another")
	// The file is written while no child is started: a child that inherits the file while it is
	// open for writing makes its execution fail with ETXTBSY.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, append(b, "another build"...), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// nodeFailure is a failure of a node: its agent exits, and other processes are killed.
type nodeFailure struct {
	name             string
	victimKinds      []string // victims besides the agent
	gracefulShutdown bool     // the agent is stopped in order, and not killed
	upgradesAgent    bool     // the next agent is another build of the program
}

var helperProcessKinds = []string{"keeper", "log-collector", "plugin"}

// TestTasksSurviveDeaths injects one failure after the other into a node with services. Tasks exit
// while no agent runs, and the test checks the report of the next agent.
func TestTasksSurviveDeaths(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to have task directories like an agent's")
	}
	for _, test := range []struct {
		name     string
		services int
		deaths   []nodeFailure
	}{
		{"of a hundred", 100, []nodeFailure{
			{name: "agent"},
			{name: "agent and collector", victimKinds: []string{"log-collector"}},
			{name: "agent in good order", gracefulShutdown: true},
			{name: "agent and plugin", victimKinds: []string{"plugin"}},
			{name: "agent, and the next one is another build", upgradesAgent: true},
		}},
		// The keeper is killed in a test of its own, because without it the exit of a task whose
		// plugin is killed later is not recorded.
		{"with the keeper", 3, []nodeFailure{{name: "agent and keeper", victimKinds: []string{"keeper"}}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			testTasksSurvive(t, test.services, test.deaths)
		})
	}
}

func testTasksSurvive(t *testing.T, services int, deaths []nodeFailure) {
	dir := newNodeDir(t)
	data, program := filepath.Join(dir, "data"), "/proc/self/exe"
	m := startKillableAgent(t, program, data)
	m.registerJobs(dir, fmt.Sprintf(manyTasksJob, services), lifecycleStagesJob)
	stay := services + 2 // the count includes the two running tasks of lifecycleStagesJob
	killed := map[string]bool{}
	for round, death := range deaths {
		ends, flag := fmt.Sprint("ends-", round), filepath.Join(dir, fmt.Sprint("go-", round))
		m.registerJobs(dir, fmt.Sprintf(endingJob, ends, flag))
		before := m.waitTaskReport("all tasks run", func(v taskReport) bool {
			return v.Owned == stay+3 && v.runningTaskCount() == stay+3 && taskIsDead(v, "stages", "before")
		})
		processes := groupProcessesByKind(findNodeProcesses(data))

		if death.gracefulShutdown {
			m.end("leave")
		} else {
			m.kill()
		}
		for _, kind := range death.victimKinds {
			for _, p := range processes[kind] {
				if err := p.Signal(syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
			}
		}
		var victimAllocID string
		for id, alloc := range before.Allocs {
			if alloc.JobID == "many" && !killed[id] {
				victimAllocID = id
			}
		}
		killed[victimAllocID] = true
		if err := processes[victimAllocID+"/loop"][0].Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(flag, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		time.Sleep(200 * time.Millisecond)

		if death.upgradesAgent {
			program = copyBinaryAsOtherBuild(t)
		}
		begin := time.Now()
		m = startKillableAgent(t, program, data)
		after := m.waitTaskReport("all is as it should be", func(v taskReport) bool {
			return v.Owned == stay && v.runningTaskCount() == stay && taskIsDead(v, ends, "after") && v.Allocs[victimAllocID].TaskStates["loop"].Restarts == 1
		})
		t.Logf("%s: all tasks owned after %v", death.name, time.Since(begin))
		now := groupProcessesByKind(findNodeProcesses(data))
		several := func(kind string) bool { return len(now[kind]) != 1 }
		// A keeper or log collector of the old build exits when its successor has taken over.
		for limit := time.Now().Add(waitTimeout); slices.ContainsFunc(helperProcessKinds, several) && time.Now().Before(limit); {
			time.Sleep(10 * time.Millisecond)
			now = groupProcessesByKind(findNodeProcesses(data))
		}
		if len(after.Allocs) != len(before.Allocs) {
			t.Errorf("%s: %d allocations, before %d", death.name, len(after.Allocs), len(before.Allocs))
		}
		for kind, was := range processes {
			id, task, isTask := strings.Cut(kind, "/")
			if !isTask || before.Allocs[id].JobID == ends {
				continue
			}
			is, events := now[kind], after.Allocs[id].TaskStates[task].Events
			switch {
			case len(is) != 1:
				t.Errorf("%s: %s has processes %v", death.name, kind, is)
			case id == victimAllocID:
				want := "[Received Task Setup Started Terminated Restarting Started]"
				if got := fmt.Sprint(eventTypes(events)); got != want || events[3].DisplayMessage != "Exit Code: 137, Signal: 9" {
					t.Errorf("%s: killed task: %s, %q", death.name, got, events[min(3, len(events)-1)].DisplayMessage)
				}
			case is[0] != was[0]:
				t.Errorf("%s: %s is process %v, was %v", death.name, kind, is, was)
			case fmt.Sprint(eventTypes(events)) != fmt.Sprint(eventTypes(before.Allocs[id].TaskStates[task].Events)):
				t.Errorf("%s: %s has new events: %v", death.name, kind, eventTypes(events))
			}
		}
		var logFiles []string
		for id, alloc := range after.Allocs {
			want := api.AllocClientStatusRunning
			switch {
			case alloc.JobID == ends:
				want = api.AllocClientStatusFailed
				events := alloc.TaskStates["wait"].Events
				if got := fmt.Sprint(eventTypes(events)); got != "[Received Task Setup Started Terminated Not Restarting]" || events[3].DisplayMessage != "Exit Code: 4" {
					t.Errorf("%s: task that ended: %s, %q", death.name, got, events[min(3, len(events)-1)].DisplayMessage)
				}
			case strings.HasPrefix(alloc.JobID, "ends"):
				want = api.AllocClientStatusFailed
			case alloc.JobID == "many" && !killed[id]:
				logFiles = append(logFiles, filepath.Join(data, "alloc", id, "alloc", "logs", "loop.stdout.0"))
			}
			if alloc.ClientStatus != want {
				t.Errorf("%s: allocation %s is %s, want %s", death.name, alloc.Name, alloc.ClientStatus, want)
			}
		}
		assertConsecutiveOutput(t, logFiles)
		for _, kind := range helperProcessKinds {
			if len(now[kind]) != 1 {
				t.Fatalf("%s: %s is %v, was %v", death.name, kind, now[kind], processes[kind])
			}
			survives := !slices.Contains(death.victimKinds, kind) && (!death.upgradesAgent || kind == "keeper")
			if survives != (now[kind][0] == processes[kind][0]) {
				t.Errorf("%s: %s is %v, was %v", death.name, kind, now[kind], processes[kind])
			}
			if !death.upgradesAgent {
				continue
			}
			file, err := os.Open(program)
			if err != nil {
				t.Fatal(err)
			}
			if same, err := now[kind][0].SameExecutable(file); !same || err != nil {
				t.Errorf("%s is not of the new build: %v", kind, err)
			}
			file.Close()
		}
	}
	m.end("stop")
}

// newNodeDir returns a directory for a node. At the end of the test it checks that the node leaves
// nothing behind.
func newNodeDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "survive")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		assertNodeExited(t, filepath.Join(dir, "data"))
		if err := allocdir.RemoveAllocDir(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// TestTaskWithUnstoredHandle removes the handle of a running task from the state. The result is
// the same as if the agent had been killed before it could store the handle.
func TestTaskWithUnstoredHandle(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to have task directories like an agent's")
	}
	for _, victim := range []string{"", "plugin"} {
		t.Run("victim "+victim, func(t *testing.T) {
			t.Parallel()
			dir := newNodeDir(t)
			data := filepath.Join(dir, "data")
			m := startKillableAgent(t, "/proc/self/exe", data)
			m.registerJobs(dir, fmt.Sprintf(manyTasksJob, 1))
			runs := func(v taskReport) bool { return v.Owned == 1 && v.runningTaskCount() == 1 }
			before := m.waitTaskReport("the task runs", runs)
			m.kill()
			processes := groupProcessesByKind(findNodeProcesses(data))
			for _, p := range processes[victim] {
				_ = p.Signal(syscall.SIGKILL)
			}

			s, err := store.Open(store.Config{Path: filepath.Join(data, "state.db"), Logger: hclog.NewNullLogger()})
			if err != nil {
				t.Fatal(err)
			}
			id := ""
			for id = range before.Allocs {
			}
			local, _, err := s.Snapshot().TaskLocalState(id, "loop")
			if err != nil {
				t.Fatal(err)
			}
			status, err := s.Snapshot().TaskState(id, "loop")
			if err != nil {
				t.Fatal(err)
			}
			local.Handle = nil
			status.State, status.Events = model.TaskPending, status.Events[:2]
			if err := errors.Join(s.PutTask(id, "loop", local, status, state.DurabilitySync)(), s.Close()); err != nil {
				t.Fatal(err)
			}

			m = startKillableAgent(t, "/proc/self/exe", data)
			after := m.waitTaskReport("the task runs again", func(v taskReport) bool {
				return runs(v) && len(v.Allocs[id].TaskStates["loop"].Events) > 2
			})
			if got := fmt.Sprint(eventTypes(after.Allocs[id].TaskStates["loop"].Events)); got != "[Received Task Setup Started]" {
				t.Errorf("events %s", got)
			}
			kind := id + "/loop"
			if now := groupProcessesByKind(findNodeProcesses(data))[kind]; len(now) != 1 || now[0] == processes[kind][0] {
				t.Errorf("processes %v, before %v", now, processes[kind])
			}
			m.end("stop")
		})
	}
}

// taskIsDead reports whether the named task is dead in all allocations of a job.
func taskIsDead(v taskReport, job, task string) bool {
	found := false
	for _, alloc := range v.Allocs {
		if alloc.JobID == job {
			found = true
			if s := alloc.TaskStates[task]; s == nil || s.State != model.TaskDead {
				return false
			}
		}
	}
	return found
}

func eventTypes(events []*api.TaskEvent) (list []string) {
	for _, e := range events {
		list = append(list, e.Type)
	}
	return list
}

// eventTimes returns the times of events, in nanoseconds since the Unix epoch.
func eventTimes(events []*api.TaskEvent) (list []int64) {
	for _, e := range events {
		list = append(list, e.Time)
	}
	return list
}

// assertConsecutiveOutput asserts that each file of task output has the lines 1, 2, 3 … and still
// grows.
func assertConsecutiveOutput(t *testing.T, files []string) {
	t.Helper()
	read := func(file string) (lines int) {
		text, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, os.ErrNotExist) { // the task may not have written its first output yet
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if lines++; line != fmt.Sprintln(lines) {
				t.Fatalf("%s: line %d is %q", file, lines, line)
			}
		}
		return lines
	}
	begin := map[string]int{}
	for _, file := range files {
		begin[file] = read(file)
	}
	deadline := time.Now().Add(waitTimeout)
	for file, lines := range begin {
		for read(file) < lines+2 {
			if time.Now().After(deadline) {
				t.Fatalf("%s: the output does not grow", file)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}
