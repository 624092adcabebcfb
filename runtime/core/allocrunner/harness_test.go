package allocrunner

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/hclspec/block"
	"github.com/nomad-lite/nomad-lite/runtime/core/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskenv"
	"github.com/nomad-lite/nomad-lite/runtime/core/tasksteps/transitioncheck"
	"github.com/nomad-lite/nomad-lite/runtime/job/jobspec"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/allocdir"
	"github.com/nomad-lite/nomad-lite/runtime/node/hooks/builtinhooks"
	"github.com/nomad-lite/nomad-lite/runtime/node/services/servicestest"
)

var nullLogger = hclog.NewNullLogger()

const testAllocID = "11111111-2222-3333-4444-555555555555"

// parseJob parses a job with tasks for the fake driver.
func parseJob(t testing.TB, text string) *api.Job {
	t.Helper()
	file, diags := jobspec.Parse(jobspec.ParseInput{DiagnosticFileName: "job.nomad.hcl", Text: []byte(text)})
	if diags.HasErrors() {
		t.Fatalf("parse job: %v\n%s", diags, text)
	}
	model.Canonicalize(file.Job)
	return file.Job
}

// newAllocation returns an allocation for a job's first group.
func newAllocation(job *api.Job) *api.Allocation {
	group := job.TaskGroups[0]
	alloc := &api.Allocation{
		ID:            testAllocID,
		Name:          fmt.Sprintf("%s.%s[0]", *job.ID, *group.Name),
		Namespace:     "default",
		NodeID:        "node-id",
		NodeName:      "node-name",
		JobID:         *job.ID,
		Job:           job,
		TaskGroup:     *group.Name,
		DesiredStatus: api.AllocDesiredStatusRun,
		ClientStatus:  api.AllocClientStatusPending,
		CreateTime:    time.Now().UnixNano(),
		AllocatedResources: &api.AllocatedResources{
			Tasks: make(map[string]*api.AllocatedTaskResources),
		},
	}
	for _, t := range group.Tasks {
		alloc.AllocatedResources.Tasks[t.Name] = &api.AllocatedTaskResources{
			Cpu:    api.AllocatedCpuResources{CpuShares: int64(*t.Resources.CPU)},
			Memory: api.AllocatedMemoryResources{MemoryMB: int64(*t.Resources.MemoryMB)},
		}
	}
	return alloc
}

// harness runs one allocation with its own fake processes.
type harness struct {
	*Runner
	t         *testing.T
	drivers   *fakeDrivers
	logs      *fakeLogs
	startTime time.Time

	allocDirRoot string

	cancel context.CancelCauseFunc // cancels Run's context

	mu              sync.Mutex
	reportedUpdates []model.AllocReport
}

// machineConfig is what a test's machine gives to allocations.
type machineConfig = builtinhooks.MachineConfig

// testConfig configures a runner and its machine.
type testConfig struct {
	Config
	machineConfig
}

// withMachine returns the runner's configuration with its machine.
func (c *testConfig) withMachine() Config {
	c.Machine = builtinhooks.NewMachine(c.machineConfig)
	if c.Store == nil {
		c.Store = &memoryStore{}
	}
	return c.Config
}

// Dir returns the allocation's directory.
func (h *harness) Dir() *allocdir.Dir {
	dir, err := allocdir.New(h.allocDirRoot, h.Alloc().ID)
	if err != nil {
		h.t.Fatal(err)
	}
	return dir
}

// startHarness runs a job's allocation inside a synctest bubble. mangle may change the configuration. The runner is
// stopped when the test ends, if not before.
func startHarness(t *testing.T, job *api.Job, mangle func(*testConfig)) *harness {
	t.Helper()
	h := &harness{t: t, drivers: newFakeDrivers(), logs: newFakeLogs(), startTime: time.Now()}
	c := testConfig{Config: Config{
		Alloc: newAllocation(job),
		Node: taskenv.Node{NodeFacts: model.NodeFacts{
			ID: "node-id", Name: "node-name", Datacenter: "dc1", Region: "global", Pool: "default",
			Attributes: map[string]string{"kernel.name": "linux"},
		}},
		Drivers: h.drivers, EncodeTaskConfig: block.EncodeConfig,
		ReportStatus: h.report,
		Logger:       nullLogger,
	}, machineConfig: machineConfig{
		LogCollector: h.logs,
		Services:     new(servicestest.Registry),
		AllocDirRoot: t.TempDir() + "/allocs",
	}}
	if mangle != nil {
		mangle(&c)
	}
	h.allocDirRoot = c.AllocDirRoot
	r, err := New(c.withMachine())
	if err != nil {
		t.Fatal(err)
	}
	h.Runner = r
	ctx, cancel := context.WithCancelCause(context.Background())
	h.cancel = cancel
	go r.Run(ctx)
	t.Cleanup(func() {
		r.ForceKill()
		h.wait()
		cancel(nil)
		if err := r.Destroy(context.Background()); err != nil {
			t.Error(err)
		}
		if alive := h.drivers.aliveTasks(); len(alive) > 0 && context.Cause(ctx) != ErrShutdown {
			t.Errorf("processes left: %v", alive)
		}
		checkTransitions(t, r)
	})
	return h
}

// checkTransitions replays each task's recorded transitions.
func checkTransitions(t *testing.T, r *Runner) {
	t.Helper()
	for task, list := range r.TransitionsByTask() {
		if err := transitioncheck.Check(list); err != nil {
			t.Errorf("task %q: %v", task, err)
		}
	}
}

func (h *harness) report(u model.AllocReport) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reportedUpdates = append(h.reportedUpdates, u)
}

// advance sleeps for d, and then waits until all goroutines are blocked.
func (h *harness) advance(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// wait waits until Run has returned. It has a timeout because synctest does not detect a deadlock while
// hooks wake up every second.
func (h *harness) wait() {
	h.t.Helper()
	select {
	case <-h.Done():
		synctest.Wait()
	case <-time.After(2 * time.Hour):
		h.t.Fatalf("the allocation does not end\n%s", h.transcript())
	}
}

func (h *harness) lastUpdate() model.AllocReport {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.reportedUpdates[len(h.reportedUpdates)-1]
}

// transcript returns the history of the allocation and each task. If the allocation changes several times at the same
// time, it contains only the last change.
func (h *harness) transcript() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var b strings.Builder
	fmt.Fprintln(&b, "alloc")
	said := ""
	for i, u := range h.reportedUpdates {
		if i+1 < len(h.reportedUpdates) && h.reportedUpdates[i+1].Time.Equal(u.Time) {
			continue
		}
		if text := u.ClientStatus + ", " + u.ClientDescription; text != said {
			fmt.Fprintf(&b, "  %-6s %s\n", h.at(u.Time), text)
			said = text
		}
	}
	last := h.reportedUpdates[len(h.reportedUpdates)-1]
	for _, t := range h.tasks.taskSet {
		h.describeTask(&b, t.Name(), last.TaskStates[t.Name()])
	}
	if calls := append(h.drivers.recordedCalls("StopTask"), h.drivers.recordedCalls("SignalTask")...); len(calls) > 0 {
		fmt.Fprintf(&b, "driver\n  %s\n", strings.Join(calls, "\n  "))
	}
	return b.String()
}

func (h *harness) describeTask(b *strings.Builder, name string, s *api.TaskState) {
	facts := []string{s.State}
	if s.Failed {
		facts = append(facts, "failed")
	}
	if s.Restarts > 0 {
		facts = append(facts, fmt.Sprintf("restarts %d", s.Restarts))
	}
	if !s.StartedAt.IsZero() {
		facts = append(facts, "started "+h.at(s.StartedAt))
	}
	if !s.FinishedAt.IsZero() {
		facts = append(facts, "finished "+h.at(s.FinishedAt))
	}
	fmt.Fprintf(b, "%s (%s)\n", name, strings.Join(facts, ", "))
	for _, e := range s.Events {
		text := strings.TrimRight(e.DisplayMessage, "\n")
		fmt.Fprintf(b, "  %-6s %s: %s\n", h.at(time.Unix(0, e.Time)), e.Type, strings.ReplaceAll(text, "\n", "\n         "))
	}
}

func (h *harness) at(t time.Time) string {
	return "+" + t.Sub(h.startTime).Round(time.Millisecond).String()
}

// taskEventTypes returns the types of a task's events.
func (h *harness) taskEventTypes(task string) []string {
	t, ok := h.tasks.findByName(task)
	if !ok {
		h.t.Fatalf("no task %q", task)
	}
	var eventTypes []string
	for _, e := range t.State().Events {
		eventTypes = append(eventTypes, e.Type)
	}
	return eventTypes
}

func (h *harness) taskState(task string) *api.TaskState {
	t, ok := h.tasks.findByName(task)
	if !ok {
		h.t.Fatalf("no task %q", task)
	}
	return t.State()
}

// fixedHookFactory is a HookFactory with fixed hooks.
type fixedHookFactory struct {
	alloc []hooks.Hook
	task  []hooks.Hook
}

func (f fixedHookFactory) NewAllocHooks(*api.Allocation, hooks.AttachTarget) []hooks.OrderedHook {
	return newHookEntries(f.alloc)
}
func (f fixedHookFactory) NewTaskHooks(*api.Allocation, *api.Task, hooks.AttachTarget) []hooks.OrderedHook {
	return newHookEntries(f.task)
}

func (fixedHookFactory) PluginLaunchWaiterOrNil(*api.Allocation) func(context.Context, func(*api.TaskEvent)) {
	return nil
}

func newHookEntries(list []hooks.Hook) (ordered []hooks.OrderedHook) {
	for _, h := range list {
		ordered = append(ordered, hooks.OrderedHook{Order: hooks.OrderPlugin, Hook: h})
	}
	return ordered
}
