package faults

import (
	"errors"
	"fmt"
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

	execdriver "github.com/nomad-lite/nomad-lite/builtin/exec"
	"github.com/nomad-lite/nomad-lite/builtin/rawexec"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/agentsocket"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest/programs"
	"github.com/nomad-lite/nomad-lite/internal/endurance"
	"github.com/nomad-lite/nomad-lite/internal/slowtest"
	"github.com/nomad-lite/nomad-lite/plugins/driver/drivertest"
)

const interruptedStartsConfig = `
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
  gc_max_allocs            = 100000
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
plugin "wire-driver" {
}
`

// interruptedStartsGroupHCL is a group of tasks that may run once. A task records its start and its end, and exits with a
// code that differs between the tasks.
const interruptedStartsGroupHCL = `
  group %[1]q {
    count = %[2]d
    restart {
      attempts = 0
      mode     = "fail"
    }
    reschedule {
      attempts  = 0
      unlimited = false
    }
    ephemeral_disk {
      size = 10
    }
    task "run" {
      logs {
        max_files     = 1
        max_file_size = 1
      }
      driver = %[1]q
      config {
        %[3]s
      }
      resources {
        cpu    = 1
        memory = 64
      }
    }
  }
`

const interruptedStartsScript = `<<-EOT
          record=$NOMAD_ALLOC_DIR/data/record
          echo start >>$record
          sleep 0.$((NOMAD_ALLOC_INDEX % 5))
          echo end >>$record
          exit $((NOMAD_ALLOC_INDEX % 7))
        EOT
`

// startKind is a driver whose starts are interrupted.
type startKind struct {
	driver string
	plugin string // kind of the processes of its plugin, see systemtest.NodeProcess
	config string
}

var shellConfig = "command = \"/bin/sh\"\n        args    = [\"-c\", " + interruptedStartsScript + "        ]"

var startKinds = []startKind{
	{rawexec.Name, "plugin", shellConfig},
	{execdriver.Name, systemtest.OnDemandPluginKind, shellConfig},
	{"external_exec", "exec-driver", shellConfig},
	{drivertest.Plain.DriverName(), "wire-driver", "script = " + interruptedStartsScript}, // not made with package sdk,
}

// interruptedStartsRun is one run of TestInterruptedStarts.
type interruptedStartsRun struct {
	*testing.T
	dir        string
	configFile string
	log        *os.File
	client     *api.Client
	agent      *exec.Cmd
	repeats    bool // the agent has the planted defect

	allocs  int            // number of allocations
	unknown map[string]int // numbers of allocations whose exit status is unknown, by driver
	failed  map[string]int // numbers of allocations whose start has failed, by driver
}

// TestInterruptedStarts kills the processes of a node at random moments while tasks start and exit that may run only once.
// It compares the agent's report with what the tasks have recorded: no task runs twice, none is lost, and each exit
// status is right, or unknown with an event that says so.
//
//	make test-starts
func TestInterruptedStarts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, for the driver exec")
	}
	t.Parallel()
	tasks := 25
	if endurance.CurrentMode() == endurance.Sample {
		tasks = 4
	}
	run := endurance.Start(t, endurance.Config{Sample: 2, Unit: "allocations", Load: fmt.Sprintf("%d tasks of each of %d drivers at once", tasks, len(startKinds))})
	r := newInterruptedStartsRun(t, false)
	r.startAgent()
	run.Each(func(seed uint64) error {
		before := r.allocs
		err := r.iterate(seed, tasks)
		run.Add(r.allocs - before)
		return err
	})
	t.Logf("%d allocations; exit status unknown: %v; start failed: %v", r.allocs, r.unknown, r.failed)
	r.end(syscall.SIGTERM)
}

// TestInterruptedStartsFindRepeatedStarts runs the test above against an agent that repeats interrupted starts. On a machine
// that does nothing else the test finds it within a minute.
func TestInterruptedStartsFindRepeatedStarts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, for the driver exec")
	}
	slowtest.Skip(t, "kills processes for up to some minutes")
	t.Parallel()
	r := newInterruptedStartsRun(t, true)
	r.startAgent()
	var err error
	start := time.Now()
	for seed := uint64(1); err == nil && r.allocs < 1200; seed++ {
		err = r.iterate(seed, 10)
	}
	if !errors.Is(err, errRanTwice) {
		t.Errorf("the defect was not found: %v", err)
	}
	t.Logf("found after %v and %d allocations: %v", time.Since(start).Round(time.Second), r.allocs, err)
	r.end(syscall.SIGTERM)
}

func newInterruptedStartsRun(t *testing.T, repeats bool) *interruptedStartsRun {
	t.Helper()
	r := &interruptedStartsRun{T: t, dir: systemtest.NewNodeDir(t), repeats: repeats, unknown: map[string]int{}, failed: map[string]int{}}
	r.configFile = filepath.Join(r.dir, "agent.hcl")
	plugins := filepath.Join(r.dir, "plugins")
	err := errors.Join(os.Chmod(r.dir, 0o755), os.Mkdir(plugins, 0o755))
	for program, args := range map[string]string{"exec-driver": "", "wire-driver": string(drivertest.Plain)} {
		path, lookErr := exec.LookPath(program)
		err = errors.Join(err, lookErr, os.WriteFile(filepath.Join(plugins, program), fmt.Appendf(nil, "#!/bin/sh\nexec %s %s\n", path, args), 0o755))
	}
	err = errors.Join(err, os.WriteFile(r.configFile, fmt.Appendf(nil, interruptedStartsConfig, r.dataDir(), plugins), 0o644))
	if err != nil {
		t.Fatal(err)
	}
	if r.log, err = os.Create(filepath.Join(r.dir, "log")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			kept := filepath.Join(os.TempDir(), "interrupted-starts.log")
			text, _ := os.ReadFile(r.log.Name())
			if err := os.WriteFile(kept, text, 0o600); err != nil {
				t.Error(err)
			}
			t.Logf("the log of the agents is in %s", kept)
		}
		for _, p := range systemtest.FindNodeProcesses(r.dataDir()) {
			_ = p.Signal(syscall.SIGKILL) // the keeper waits for plugins that a failed test has left
		}
		r.log.Close()
	})
	if r.client, err = api.NewClient(&api.Config{Address: "unix://" + filepath.Join(r.dataDir(), agentsocket.FileName)}); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *interruptedStartsRun) dataDir() string { return filepath.Join(r.dir, "data") }

// startAgent starts an agent and does not wait until it is ready.
func (r *interruptedStartsRun) startAgent() {
	r.Helper()
	r.agent = exec.Command("nomad-lite", "agent", "-config", r.configFile)
	r.agent.Stdout, r.agent.Stderr = r.log, r.log
	if r.repeats {
		r.agent.Env = append(os.Environ(), programs.RepeatStartsEnvVar+"=1")
	}
	if err := r.agent.Start(); err != nil {
		r.Fatal(err)
	}
	process := r.agent.Process
	r.Cleanup(func() { _ = process.Kill() })
}

// end sends a signal to the agent and waits until it has exited.
func (r *interruptedStartsRun) end(signal syscall.Signal) {
	r.Helper()
	if err := r.agent.Process.Signal(signal); err != nil {
		r.Errorf("agent has ended before it was told to: %v", err)
	}
	_ = r.agent.Wait() // the error is the signal
}

// iterate registers a job, kills processes while its tasks start and end, and checks its tasks.
func (r *interruptedStartsRun) iterate(seed uint64, tasks int) error {
	random := rand.New(rand.NewPCG(seed, 0))
	pause := func(most time.Duration) { time.Sleep(time.Duration(random.Int64N(int64(most)))) }
	id := fmt.Sprintf("starts-%d", seed)
	text := fmt.Sprintf("job %q {\n  type = \"batch\"\n", id)
	for _, kind := range startKinds {
		text += fmt.Sprintf(interruptedStartsGroupHCL, kind.driver, tasks, kind.config)
	}
	if err := r.wait("the job is registered", func() error {
		job, err := r.client.Jobs().ParseHCL(text+"}\n", true)
		if err == nil {
			_, _, err = r.client.Jobs().Register(job, nil)
		}
		return err
	}); err != nil {
		return err
	}
	for range 1 + random.IntN(4) {
		pause(300 * time.Millisecond)
		r.kill(random, pause)
	}
	if err := r.wait("all tasks have ended", func() error { return r.allEnded(id, tasks*len(startKinds)) }); err != nil {
		return err
	}
	list, _, err := r.client.Jobs().Allocations(id, true, nil)
	if err != nil {
		return err
	}
	for _, a := range list {
		r.allocs++
		if err := r.check(a); err != nil {
			return fmt.Errorf("allocation %s, driver %s: %w", a.ID, a.TaskGroup, err)
		}
	}
	return r.wait("the job is purged", func() error {
		if _, _, err := r.client.Jobs().Deregister(id, true, nil); err != nil {
			return err
		}
		return r.client.System().GarbageCollect()
	})
}

// kill kills processes of one to three kinds at almost the same time, and starts the next agent.
func (r *interruptedStartsRun) kill(random *rand.Rand, pause func(time.Duration)) {
	r.Helper()
	kinds := []string{"agent", "agent", "agent", "keeper", "log-collector"}
	for _, kind := range startKinds {
		kinds = append(kinds, kind.plugin)
	}
	random.Shuffle(len(kinds), func(i, k int) { kinds[i], kinds[k] = kinds[k], kinds[i] })
	down := false
	for _, kind := range kinds[:1+random.IntN(3)] {
		if kind == "agent" {
			if !down {
				r.end(syscall.SIGKILL)
			}
			down = true
		} else {
			for _, p := range systemtest.GroupProcessesByKind(systemtest.FindNodeProcesses(r.dataDir()))[kind] {
				_ = p.Signal(syscall.SIGKILL) // an error means that the process has exited
			}
		}
		pause(20 * time.Millisecond)
	}
	if down {
		r.startAgent()
	}
}

// wait calls look until it returns nil.
func (r *interruptedStartsRun) wait(what string, look func() error) error {
	var err error
	for deadline := time.Now().Add(killWaitTimeout); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if err = look(); err == nil {
			return nil
		}
	}
	return fmt.Errorf("%s: not within %v: %w", what, killWaitTimeout, err)
}

func (r *interruptedStartsRun) allEnded(job string, count int) error {
	list, _, err := r.client.Jobs().Allocations(job, true, nil)
	if err != nil {
		return err
	}
	if len(list) != count {
		return fmt.Errorf("%d allocations, want %d", len(list), count)
	}
	for _, a := range list {
		if !apiclient.HasTerminalStatus(a) {
			return fmt.Errorf("allocation %s, driver %s: status %s, events %v", a.ID, a.TaskGroup, a.ClientStatus, a.TaskStates["run"])
		}
	}
	return nil
}

var errRanTwice = errors.New("the task has run twice")

// check compares an ended task with its record.
func (r *interruptedStartsRun) check(a *api.AllocationListStub) error {
	text, err := os.ReadFile(filepath.Join(r.dataDir(), "alloc", a.ID, "alloc", "data", "record"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	starts, ends := strings.Count(string(text), "start\n"), strings.Count(string(text), "end\n")
	state := a.TaskStates["run"]
	if state == nil {
		return errors.New("no task state")
	}
	var messages []string
	for _, e := range state.Events {
		messages = append(messages, e.Type+": "+e.DisplayMessage)
	}
	has := func(text string) bool {
		return slices.ContainsFunc(messages, func(m string) bool { return strings.Contains(m, text) })
	}
	index := a.Name[strings.LastIndexByte(a.Name, '[')+1 : len(a.Name)-1]
	var n int
	if _, err := fmt.Sscan(index, &n); err != nil {
		return err
	}
	switch {
	case starts > 1:
		return fmt.Errorf("%w: %q, events %q", errRanTwice, text, messages)
	case has("exit status unknown"), has("exit code of a recovered task is unknown"):
		r.unknown[a.TaskGroup]++
		return nil
	case starts == 0 && has(api.TaskDriverFailure):
		r.failed[a.TaskGroup]++
		return nil
	case starts == 0:
		return fmt.Errorf("the task has not run: events %q", messages)
	case ends == 0 || !has(fmt.Sprintf("%s: Exit Code: %d", api.TaskTerminated, n%7)):
		return fmt.Errorf("record %q, want exit code %d: events %q", text, n%7, messages)
	}
	return nil
}
