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
	"github.com/moby/moby/client"

	"github.com/nomad-lite/nomad-lite/builtin/docker/dockertest"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/agentsocket"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest/programs"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/endurance"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
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
`

// interruptedStartsRun is one run of TestInterruptedStarts.
type interruptedStartsRun struct {
	*testing.T
	kinds  []startKind
	dir    string
	log    *os.File // log of the agents since the start of the iteration
	client *api.Client
	agent  *exec.Cmd
	engine *dockertest.Engine // of the driver docker; nil without one

	engineAskedAt  time.Time // when restartHungEngine last asked the engine
	engineRestarts int
	repeats        bool // the agent has the planted defect
	batchOnly      bool // each job is a batch job

	shift int            // see startScript
	kills map[string]int // numbers of kills in the current iteration, by the kinds of processes

	// outlivedKeeper has the kinds of plugin processes that are no children of the keeper when the iteration starts, because an
	// earlier keeper has started them. The kernel gives their orphans to another process than the keeper.
	outlivedKeeper map[string]bool

	allocs  map[string]int // numbers of allocations, by driver
	unknown map[string]int // numbers of allocations whose exit status is unknown, by driver
	lost    map[string]int // numbers of allocations whose exit code the driver has reported as 0, by driver
}

// TestInterruptedStarts kills the processes of a node at random moments while tasks start and exit that may run only once.
// It compares the agent's report with what the tasks have recorded: no task runs twice, none is lost, and each exit
// status is right, or unknown with an event that says so.
//
//	make test-starts
func TestInterruptedStarts(t *testing.T) {
	t.Parallel()
	kinds := sampleStartKinds(4)
	if slowtest.Enabled() || endurance.CurrentMode() != endurance.Sample {
		kinds = dockerStartKinds()
	}
	testInterruptedStarts(t, kinds, false)
}

// TestInterruptedStartsOnPodman is TestInterruptedStarts with drivers whose tasks are containers of podman.
func TestInterruptedStartsOnPodman(t *testing.T) {
	if endurance.CurrentMode() == endurance.Sample {
		t.Skip("is a long test only: the service of podman can hang after some iterations")
	}
	if _, err := exec.LookPath("podman"); err != nil {
		t.Skip("install podman: ", err)
	}
	testInterruptedStarts(t, podmanStartKinds(), false)
}

func testInterruptedStarts(t *testing.T, kinds []startKind, batchOnly bool) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, for the driver exec")
	}
	tasks := 0
	for _, kind := range kinds {
		tasks += kind.count
	}
	run := endurance.Start(t, endurance.Config{Sample: 2, Unit: "allocations", Load: fmt.Sprintf("up to %d tasks at once", tasks)})
	r := newInterruptedStartsRun(t, kinds, false)
	r.batchOnly = batchOnly
	r.startAgent()
	run.Each(func(seed uint64) error {
		before := maps.Clone(r.allocs)
		err := r.iterate(seed)
		for driver, n := range r.allocs {
			run.AddKind(driver, n-before[driver])
		}
		return err
	})
	t.Logf("allocations: %v; exit status unknown: %v; exit code lost by the driver: %v; restarts of a hung engine: %d", r.allocs, r.unknown, r.lost, r.engineRestarts)
	r.end(syscall.SIGTERM)
}

// restartHungEngine restarts the container engine if it does not list its containers within ten seconds. The service of podman
// 4.3 hangs for ever after some iterations. It asks at most every 15 seconds.
func (r *interruptedStartsRun) restartHungEngine() error {
	const askInterval, answerTimeout = 15 * time.Second, 10 * time.Second
	if r.engine == nil || time.Since(r.engineAskedAt) < askInterval {
		return nil
	}
	r.engineAskedAt = time.Now()
	ctx, cancel := context.WithTimeout(r.Context(), answerTimeout)
	defer cancel()
	if _, err := r.engine.ContainerList(ctx, client.ContainerListOptions{All: true}); err == nil || ctx.Err() == nil {
		return nil
	}
	r.engineRestarts++
	r.engine.Stop(r.T, syscall.SIGKILL)
	return r.engine.TryStartProcess()
}

// TestInterruptedStartsFindRepeatedStarts runs the test above against an agent that repeats interrupted starts. On a machine
// that does nothing else the test finds it within a minute.
func TestInterruptedStartsFindRepeatedStarts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, for the driver exec")
	}
	slowtest.Skip(t, "kills processes for up to some minutes")
	t.Parallel()
	r := newInterruptedStartsRun(t, sampleStartKinds(10), true)
	r.startAgent()
	var err error
	start := time.Now()
	for seed := uint64(1); err == nil && seed <= 30; seed++ {
		err = r.iterate(seed)
	}
	if !errors.Is(err, errRanTwice) {
		t.Errorf("the defect was not found: %v", err)
	}
	t.Logf("found after %v and the allocations %v: %v", time.Since(start).Round(time.Second), r.allocs, err)
	r.end(syscall.SIGTERM)
}

// newInterruptedStartsRun prepares a node for the kinds. It leaves out the kinds whose programs the machine does not have.
func newInterruptedStartsRun(t *testing.T, kinds []startKind, repeats bool) *interruptedStartsRun {
	t.Helper()
	r := &interruptedStartsRun{T: t, dir: systemtest.NewLeakCheckedAgentDir(t), repeats: repeats, allocs: map[string]int{}, unknown: map[string]int{}, lost: map[string]int{}}
	err := errors.Join(os.Chmod(r.dir, 0o755), os.Mkdir(r.pluginDir(), 0o755), os.Mkdir(r.configDir(), 0o755),
		r.addConfig("agent", interruptedStartsConfig, r.dataDir(), r.pluginDir()))
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range kinds {
		if kind.install != nil {
			err = kind.install(r)
		}
		switch {
		case errors.Is(err, exec.ErrNotFound), errors.Is(err, os.ErrNotExist):
			t.Logf("without the driver %s: %v", kind.driver, err)
		case err != nil:
			t.Fatal(err)
		default:
			r.kinds = append(r.kinds, kind)
		}
	}
	if r.log, err = os.OpenFile(filepath.Join(r.dir, "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600); err != nil {
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
		for _, p := range systemtest.FindDataDirProcesses(r.dataDir()) {
			_ = p.Signal(syscall.SIGKILL) // the keeper waits for plugins that a failed test has left
		}
		r.log.Close()
	})
	if r.client, err = api.NewClient(&api.Config{Address: "unix://" + filepath.Join(r.dataDir(), agentsocket.FileName)}); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *interruptedStartsRun) pluginDir() string { return filepath.Join(r.dir, "plugins") }
func (r *interruptedStartsRun) configDir() string { return filepath.Join(r.dir, "config") }

// addConfig adds a file to the configuration of the agents.
func (r *interruptedStartsRun) addConfig(name, format string, values ...any) error {
	return os.WriteFile(filepath.Join(r.configDir(), name+".hcl"), fmt.Appendf(nil, format, values...), 0o600)
}

func (r *interruptedStartsRun) dataDir() string { return filepath.Join(r.dir, "data") }

// startAgent starts an agent and does not wait until it is ready.
func (r *interruptedStartsRun) startAgent() {
	r.Helper()
	r.agent = exec.Command("nomad-lite", "agent", "-config", r.configDir())
	r.agent.Dir = r.dir // the executors of some drivers write a file into the working directory
	r.agent.Stdout, r.agent.Stderr = r.log, r.log
	if r.repeats {
		r.agent.Env = append(os.Environ(), programs.RepeatStartsEnvVar+"=1")
	}
	startAgentProcess(r.T, r.agent)
}

// end sends a signal to the agent and waits until it has exited.
func (r *interruptedStartsRun) end(signal syscall.Signal) {
	r.Helper()
	endAgentProcess(r.T, r.agent, signal)
}

// iterate registers a job, kills processes while its tasks start and end, and checks its tasks.
func (r *interruptedStartsRun) iterate(seed uint64) error {
	if err := r.log.Truncate(0); err != nil {
		return err
	}
	r.kills, r.shift = map[string]int{}, int(seed%35)
	r.outlivedKeeper = r.findOutlivedKeepers()
	random := rand.New(rand.NewPCG(seed, 0))
	pause := func(most time.Duration) { time.Sleep(time.Duration(random.Int64N(int64(most)))) }
	id := fmt.Sprintf("starts-%d", seed)
	job := api.NewBatchJob(id, id, api.GlobalRegion, 50)
	if !r.batchOnly && random.IntN(2) == 0 {
		job = api.NewServiceJob(id, id, api.GlobalRegion, 50)
		job.Update = &api.UpdateStrategy{MaxParallel: new(0)} // a deployment would fail with the first task that ends
	}
	for _, i := range random.Perm(len(r.kinds)) {
		job.AddTaskGroup(r.kinds[i].newGroup(r.shift))
	}
	if err := r.wait("the job is registered", func() error {
		_, _, err := r.client.Jobs().Register(job, nil)
		return err
	}); err != nil {
		return err
	}
	for range 1 + random.IntN(4) {
		pause(300 * time.Millisecond)
		r.kill(random, pause)
	}
	if err := r.wait("all tasks have ended", func() error { return errors.Join(r.restartHungEngine(), r.allEnded(job)) }); err != nil {
		return errors.Join(err, r.listLiving(id))
	}
	list, _, err := r.client.Jobs().Allocations(id, true, nil)
	if err != nil {
		return err
	}
	for _, a := range list {
		r.allocs[a.TaskGroup]++
		kind := r.kinds[slices.IndexFunc(r.kinds, func(k startKind) bool { return k.driver == a.TaskGroup })]
		if err := r.check(kind, a); err != nil {
			return fmt.Errorf("allocation %s, driver %s, kills %v: %w", a.ID, a.TaskGroup, r.kills, err)
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
	plugins := map[string]bool{}
	for _, kind := range r.kinds {
		plugins[kind.process] = true
	}
	kinds := append([]string{"agent", "agent", "agent", "keeper", "log-collector"}, slices.Sorted(maps.Keys(plugins))...)
	random.Shuffle(len(kinds), func(i, k int) { kinds[i], kinds[k] = kinds[k], kinds[i] })
	down := false
	for _, kind := range kinds[:1+random.IntN(3)] {
		r.kills[kind]++
		if kind == "agent" {
			if !down {
				r.end(syscall.SIGKILL)
			}
			down = true
		} else {
			for _, p := range systemtest.GroupProcessesByKind(systemtest.FindDataDirProcesses(r.dataDir()))[kind] {
				_ = p.Signal(syscall.SIGKILL) // an error means that the process has exited
			}
		}
		pause(20 * time.Millisecond)
	}
	if down {
		r.startAgent()
	}
}

// findOutlivedKeepers returns the kinds of plugin processes that were started by an earlier keeper than the present one.
func (r *interruptedStartsRun) findOutlivedKeepers() map[string]bool {
	kinds := map[string]bool{}
	processes := systemtest.GroupProcessesByKind(systemtest.FindDataDirProcesses(r.dataDir()))
	for _, kind := range r.kinds {
		for _, p := range processes[kind.process] {
			stat, err := osprocess.ReadStat(p.PID)
			isChild := func(keeper osprocess.ID) bool { return keeper.PID == stat.PPID }
			if err == nil && !slices.ContainsFunc(processes["keeper"], isChild) {
				kinds[kind.process] = true
			}
		}
	}
	return kinds
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

// allEnded returns an error if tasks of a job have not ended. It requests only the numbers of allocations, because the agent
// needs its time for the tasks.
func (r *interruptedStartsRun) allEnded(job *api.Job) error {
	summary, _, err := r.client.Jobs().Summary(*job.ID, nil)
	if err != nil {
		return err
	}
	for _, group := range job.TaskGroups {
		s := summary.Summary[*group.Name]
		if s.Complete+s.Failed+s.Lost != *group.Count {
			return fmt.Errorf("driver %s: %+v, want %d ended tasks", *group.Name, s, *group.Count)
		}
	}
	return nil
}

// listLiving returns an error that describes the tasks of a job that have not ended.
func (r *interruptedStartsRun) listLiving(job string) error {
	list, _, err := r.client.Jobs().Allocations(job, true, nil)
	for _, a := range list {
		if !apiclient.HasTerminalClientStatus(a) {
			err = errors.Join(err, fmt.Errorf("allocation %s, driver %s: status %s, events %v", a.ID, a.TaskGroup, a.ClientStatus, a.TaskStates["run"]))
		}
	}
	return err
}

var errRanTwice = errors.New("the task has run twice")

// check compares an ended task with its record.
func (r *interruptedStartsRun) check(kind startKind, a *api.AllocationListStub) error {
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
		if !r.mayBeUnknown(kind) {
			return fmt.Errorf("the exit status is unknown, although the plugin and its keeper were not both killed: record %q, events %q", text, messages)
		}
		return nil
	case starts == 0:
		return fmt.Errorf("the task has not run: events %q", messages)
	case ends > 0 && kind.losesExitCodes && exitCode(n, r.shift) != 0 && has(api.TaskTerminated+": Exit Code: 0"):
		r.lost[a.TaskGroup]++
	case ends == 0 || !has(fmt.Sprintf("%s: Exit Code: %d", api.TaskTerminated, exitCode(n, r.shift))):
		return fmt.Errorf("record %q, want exit code %d: events %q", text, exitCode(n, r.shift), messages)
	}
	return nil
}

// mayBeUnknown reports whether the kills of the iteration explain an unknown exit status: the parent of the processes of a task is
// its plugin process, and then the keeper that has started the plugin process. The engine of docker has all exit statuses.
func (r *interruptedStartsRun) mayBeUnknown(kind startKind) bool {
	switch {
	case kind.unmarked:
		return true
	case kind.driver == "docker":
		return false
	}
	cgroupV2, _ := osprocess.OwnCgroup() // without cgroups v2, the keeper does not know to which task a process belonged
	return r.kills[kind.process] > 0 && (r.kills["keeper"] > 0 || r.outlivedKeeper[kind.process] || cgroupV2 == "")
}
