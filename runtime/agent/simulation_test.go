package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/hclspec/block"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/endurance"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/agent/localnode"
	"github.com/nomad-lite/nomad-lite/runtime/core/allocrunner"
	"github.com/nomad-lite/nomad-lite/runtime/core/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/core/noderunner"
	"github.com/nomad-lite/nomad-lite/runtime/core/record"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskenv"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskrunner"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/allocdir"
	"github.com/nomad-lite/nomad-lite/runtime/node/hooks/builtinhooks"
	"github.com/nomad-lite/nomad-lite/runtime/node/orphans"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// TestSimulation runs agents under virtual time with one store and simulated processes. The scheduler, AllocSync, runners and
// lifecycle are real; the driver is simulated. Jobs are registered and stopped, plugins and agents are killed, and store changes
// are rejected.
//
//	make simulate
//	go test -run Simulation ./runtime/agent -seed 42
func TestSimulation(t *testing.T) {
	runSimulations(t, 20, func(_ testing.TB, s *simulation) simAllocSource { return &schedulerSource{s} })
}

// runSimulations runs simulations with agents that get their allocations from newSource's source. sample is the number of
// simulations without a long run.
func runSimulations(t *testing.T, sample int, newSource newSourceFunc) {
	if testing.Short() {
		sample /= 3
	}
	run := endurance.Start(t, endurance.Config{Sample: sample, SampleSeed: 1, Unit: "simulations", Load: "a simulation per core"})
	run.EachParallel(func(seed uint64) error {
		err := simulate(t, seed, newSource)
		run.Add(1)
		return err
	})
}

// newSourceFunc returns the source of a simulation's allocations. It is called once, in the simulation's bubble.
type newSourceFunc func(testing.TB, *simulation) simAllocSource

// simAllocSource assigns a simulation's allocations. It outlives the agents.
type simAllocSource interface {
	// connect returns a starting agent's connection. emit adds an event to an allocation's tasks.
	connect(g *simAgent, sync *localnode.AllocSync, emit func(allocID string, e *api.TaskEvent)) sourceConnection
	// storesJobs reports whether the store has all allocations' jobs.
	storesJobs() bool
	register(context.Context, *api.Job)
	deregister(ctx context.Context, jobID string)
	purge(ctx context.Context, jobID string)
	stopAlloc(context.Context)
	// actionCount returns a simulation's random number of actions.
	actionCount() int
	// disturb makes a random source fault. It returns false if it has made none.
	disturb() bool
	// changeWithoutAgent makes a random change while no agent runs, or none.
	changeWithoutAgent(context.Context)
	// endFaults ends all source faults.
	endFaults()
	// checkHistory checks what must not have changed since its last call.
	checkHistory()
	// checkAtEnd checks what holds a long time after endFaults.
	checkAtEnd()
}

// sourceConnection is what connects one agent with the source of its allocations.
type sourceConnection struct {
	reporter interface {
		ApplyAllocReports(context.Context, ...model.AllocReport) (index uint64, err error)
	}
	awaitNewStart taskrunner.AwaitNewStartFunc // see allocrunner.Config
	// run is called once. ctx ends when the agent ends, and untilReported when all its runners have returned.
	run func(ctx, untilReported context.Context)
	// sendLastStates is called when an agent shuts down and all its runners have returned.
	sendLastStates func()
}

// schedulerSource is a single machine's scheduler, a new one for each agent.
type schedulerSource struct{ *simulation }

func (s *schedulerSource) connect(g *simAgent, sync *localnode.AllocSync, _ func(string, *api.TaskEvent)) sourceConnection {
	g.scheduler = scheduler.New(scheduler.Config{
		Store:  &killableStore{s.store, s.simulation, g},
		NodeID: s.node.ID,
		HostEnv: scheduler.Env{
			NewID: s.newID, IsPortFree: func(scheduler.HostPort) bool { return true }, RandIntN: func(int) int { return 0 }, Now: time.Now,
		},
		Logger:                 hclog.NewNullLogger(),
		OnDesiredAllocsChanged: sync.NotifyAllocsChanged,
	})
	return sourceConnection{
		reporter: g.scheduler, run: func(ctx, _ context.Context) { g.scheduler.Run(ctx) }, sendLastStates: func() {},
	}
}

func (s *schedulerSource) register(ctx context.Context, job *api.Job) {
	model.Canonicalize(job)
	if model.Validate(job, model.JobLimits{}) == nil {
		_, _ = s.agent.scheduler.RegisterAndEvaluateJob(ctx, job, scheduler.RegisterOptions{})
	}
}

func (s *schedulerSource) deregister(ctx context.Context, jobID string) {
	_, _ = s.agent.scheduler.DeregisterJob(ctx, scheduler.JobKey{Namespace: "default", ID: jobID}, scheduler.DeregisterOptions{})
}

func (s *schedulerSource) purge(ctx context.Context, jobID string) {
	_, _ = s.agent.scheduler.DeregisterJob(ctx, scheduler.JobKey{Namespace: "default", ID: jobID}, scheduler.DeregisterOptions{Purge: true})
}

func (s *schedulerSource) stopAlloc(ctx context.Context) {
	if allocs := s.store.Snapshot().Allocations(nil, ""); len(allocs) > 0 {
		_, _ = s.agent.scheduler.StopAndReplaceAlloc(ctx, allocs[s.rand.IntN(len(allocs))].ID, scheduler.StopOptions{})
	}
}

func (*schedulerSource) storesJobs() bool                   { return true }
func (s *schedulerSource) actionCount() int                 { return 15 + s.rand.IntN(15) }
func (*schedulerSource) disturb() bool                      { return false }
func (*schedulerSource) changeWithoutAgent(context.Context) {}
func (*schedulerSource) endFaults()                         {}
func (*schedulerSource) checkHistory()                      {}
func (*schedulerSource) checkAtEnd()                        {}

// simulation is one run.
type simulation struct {
	rand   *rand.Rand // chooses the actions
	dir    string
	store  *store.Store
	host   *simulatedHost
	node   *api.Node
	source simAllocSource

	mu            sync.Mutex
	faultRand     *rand.Rand // random source for ids and rejected changes
	faultsEnabled bool
	lastAllocs    map[string]*api.Allocation
	newLives      map[string]bool             // allocations possibly removed by the agent, assigned again by the source
	hookStates    map[string]record.HookState // stored hook states, by allocation and task

	killTimes []int64 // times at which agents and plugins were killed

	agent *simAgent
}

// simAgent is a simulated agent, from its start to its end.
type simAgent struct {
	died      chan struct{}
	end       context.CancelCauseFunc
	runningWG sync.WaitGroup
	scheduler *scheduler.Scheduler // nil if the allocations come from servers

	mu            sync.Mutex // locked before simulation.mu
	pendingWrites []func()
	hookStates    map[string]record.HookState // hook states put by this agent's tasks
}

// simulate runs a seed's simulation, and returns the first violations of an invariant.
func simulate(t *testing.T, seed uint64, newSource newSourceFunc) (violations error) {
	// A file system in memory is faster, and the state need not be durable.
	base := ""
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		base = "/dev/shm"
	}
	dir, err := os.MkdirTemp(base, "simulation")
	if err != nil {
		return err
	}
	defer func() {
		if err := allocdir.UnmountAndRemoveOwnDir(dir); err != nil {
			t.Error(err)
		}
	}()
	synctest.Test(t, func(t *testing.T) {
		s := &simulation{
			rand:       rand.New(rand.NewPCG(seed, 0)),
			faultRand:  rand.New(rand.NewPCG(seed, 1)),
			dir:        dir,
			host:       newSimulatedHost(),
			lastAllocs: make(map[string]*api.Allocation),
			newLives:   make(map[string]bool),
			hookStates: make(map[string]record.HookState),
			node: &api.Node{
				ID: "5844aeb0-068a-191b-2651-846e6d798aa4", Name: "n", Datacenter: "dc1", NodePool: "default", Status: api.NodeStatusReady,
				SchedulingEligibility: api.NodeSchedulingEligible, Attributes: map[string]string{"kernel.name": "linux", "nomad.version": "2.0.0"},
				Drivers: map[string]*api.DriverInfo{"sim": {Detected: true, Healthy: true}},
			},
		}
		s.source = newSource(t, s)
		if s.store, err = store.Open(t.Context(), store.Config{StateFilePath: filepath.Join(dir, "state.db"), Logger: hclog.NewNullLogger()}); err != nil {
			t.Error(err)
			return
		}
		if err := os.Mkdir(filepath.Join(dir, "alloc"), 0o711); err != nil {
			t.Error(err)
		}
		s.start()
		s.setFaultsDisabled(false)
		for range s.source.actionCount() {
			s.randomAction(t.Context())
			// The pauses are short, so that actions overlap.
			time.Sleep(time.Duration(s.rand.IntN([]int{100, 1000, 8000}[s.rand.IntN(3)])) * time.Millisecond)
			s.checkHistory()
		}
		s.setFaultsDisabled(true)
		s.source.endFaults()
		time.Sleep(2 * time.Minute)
		s.checkHistory()
		s.checkProcesses()
		s.source.checkAtEnd()
		for i := range 3 {
			s.source.purge(t.Context(), "job"+strconv.Itoa(i))
		}
		time.Sleep(time.Minute)
		s.checkNothingLeftBehind()
		s.kill()
		if err := s.store.Close(); err != nil {
			t.Error(err)
		}
		violations = errors.Join(s.host.violations...)
	})
	return violations
}

func (s *simulation) setFaultsDisabled(all bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faultsEnabled = !all
}

// start starts an agent with the current store and processes.
func (s *simulation) start() {
	g := &simAgent{died: make(chan struct{})}
	s.mu.Lock()
	g.hookStates = maps.Clone(s.hookStates)
	s.mu.Unlock()
	logger := hclog.NewNullLogger()
	r := localnode.NewAllocSync(s.store, s.source.storesJobs(), logger)
	var nodes *noderunner.Runner
	connection := s.source.connect(g, r, func(allocID string, e *api.TaskEvent) {
		if runner := nodes.AllocRunner(allocID); runner != nil {
			runner.EmitEvent("", e)
		}
	})
	up := &simAgentDrivers{simulatedHost: s.host, agentDied: g.died}
	allocs := filepath.Join(s.dir, "alloc")
	nodes = noderunner.New(noderunner.Config{
		Source: r,
		AllocRunnerTemplate: allocrunner.Config{
			Node:             taskenv.Node{NodeFacts: model.NodeFacts{ID: s.node.ID, Name: "n", Datacenter: "dc1"}},
			Drivers:          up,
			EncodeTaskConfig: block.EncodeConfig,
			Machine:          builtinhooks.NewMachine(builtinhooks.MachineConfig{LogCollector: nopLogCollector{}, AllocDirRoot: allocs, Services: s.store}),
			Store:            &killableRunnerStore{s, g},
			EarlierRecords:   localnode.TaskRecordReader{Store: s.store},
			AwaitNewStart:    connection.awaitNewStart,
			Limits:           allocrunner.Limits{StatsSampleInterval: 24 * time.Hour},
			HookFactory:      simHooks{s, g},
			Logger:           logger,
		},
		AllocDirRoot: allocs,
		GCLimits:     noderunner.GCLimits{MaxDiskUsagePercent: 101, MaxInodeUsagePercent: 101},
		Logger:       logger,
	})
	ctx, end := context.WithCancelCause(context.Background())
	g.end = end
	(&orphans.Cleaner{Store: s.store, AllocDirRoot: allocs, Logger: logger}).DestroyOrAdoptOrphans(ctx, up, nil)
	if _, err := s.store.Update(ctx, func(tx *store.Txn) error { node := *s.node; tx.PutNodeWithStorageEvents(&node); return nil }); err != nil {
		s.host.addViolation("node: %v", err)
	}
	reporting, endReports := context.WithCancel(context.WithoutCancel(ctx))
	var reportsWG sync.WaitGroup
	reportsWG.Go(func() { r.Run(reporting, connection.reporter) })
	untilReported, disconnect := context.WithCancel(context.WithoutCancel(ctx))
	g.runningWG.Go(func() { connection.run(ctx, untilReported) })
	g.runningWG.Go(func() {
		nodes.Run(ctx)
		endReports()
		reportsWG.Wait()
		connection.sendLastStates()
		disconnect()
	})
	s.agent = g
}

// kill simulates kill -9 for the agent: it no longer writes or calls drivers.
func (s *simulation) kill() {
	close(s.agent.died)
	s.shutDownAgent()
}

func (s *simulation) killPlugin() {
	s.killTimes = append(s.killTimes, time.Now().UnixNano())
	s.host.killPlugin()
}

// shutDownAgent shuts the agent down. Its tasks continue to run.
func (s *simulation) shutDownAgent() {
	s.killTimes = append(s.killTimes, time.Now().UnixNano())
	s.agent.end(allocrunner.ErrShutdown)
	s.agent.runningWG.Wait()
}

func (s *simulation) newID() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	a, b := s.faultRand.Uint64(), s.faultRand.Uint64()
	return fmt.Sprintf("%08x-%04x-%04x-%04x-%012x", a>>32, a>>16&0xffff, a&0xffff, b>>48, b&0xffffffffffff)
}

// killableStore is one agent's store for the source of its allocations. It fails when the agent is dead.
type killableStore struct {
	*store.Store
	s *simulation
	g *simAgent
}

func (k *killableStore) Update(ctx context.Context, fn func(*store.Txn) error) (uint64, error) {
	k.s.mu.Lock()
	refused := k.s.faultsEnabled && k.s.faultRand.IntN(10) == 0
	k.s.mu.Unlock()
	if err := k.g.flushPendingWrites(); err != nil || refused {
		return 0, errAgentDead
	}
	return k.Store.Update(ctx, fn)
}

func (s *simAgent) err() error {
	select {
	case <-s.died:
		return errAgentDead
	default:
		return nil
	}
}

// killableRunnerStore is the store for one agent's runners. Async writes are lost if the agent dies before the next flush.
type killableRunnerStore struct {
	s *simulation
	g *simAgent
}

func (k *killableRunnerStore) PutTaskState(alloc, task string, s *api.TaskState, h state.Durability) state.WaitDurableFunc {
	return k.put(alloc, task, nil, h, func() error { return k.s.store.PutTaskState(alloc, task, s, state.DurabilitySync)() })
}

func (k *killableRunnerStore) PutTask(alloc, task string, l record.Fields, s *api.TaskState, h state.Durability) state.WaitDurableFunc {
	return k.put(alloc, task, &l, h, func() error { return k.s.store.PutTask(alloc, task, l, s, state.DurabilitySync)() })
}

func (k *killableRunnerStore) TaskHandle(alloc, task, startID string) (*driver.Handle, error) {
	return k.s.store.TaskHandle(alloc, task, startID)
}

func (k *killableRunnerStore) put(alloc, task string, l *record.Fields, h state.Durability, put func() error) state.WaitDurableFunc {
	key, g := alloc+"/"+task, k.g
	err := errAgentDead
	g.mu.Lock()
	if l != nil {
		g.hookStates[key] = l.HookStateByName["sim"]
	}
	g.pendingWrites = append(g.pendingWrites, func() {
		err = put()
		if l != nil {
			k.s.mu.Lock()
			defer k.s.mu.Unlock()
			k.s.hookStates[key] = l.HookStateByName["sim"]
		}
	})
	g.mu.Unlock()
	if h == state.DurabilityAsync {
		time.AfterFunc(50*time.Millisecond, func() { _ = g.flushPendingWrites() })
		return func() error { return nil } // async writes cannot fail
	}
	_ = g.flushPendingWrites() // if the flush fails, err stays errAgentDead
	return func() error { return err }
}

// flushPendingWrites makes the pending writes.
func (s *simAgent) flushPendingWrites() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.err(); err != nil {
		return err
	}
	for _, put := range s.pendingWrites {
		put()
	}
	s.pendingWrites = nil
	return nil
}

// randomAction makes one random action.
func (s *simulation) randomAction(ctx context.Context) {
	if s.source.disturb() {
		return
	}
	id := "job" + strconv.Itoa(s.rand.IntN(3))
	switch n := s.rand.IntN(20); {
	case n < 7:
		s.source.register(ctx, s.job(id))
	case n < 9:
		s.source.purge(ctx, id)
	case n < 10:
		s.source.deregister(ctx, id)
	case n < 11:
		s.source.stopAlloc(ctx)
	case n < 13:
		s.killPlugin()
	case n < 17:
		s.kill()
		if s.rand.IntN(3) == 0 {
			s.killPlugin()
		}
		s.source.changeWithoutAgent(ctx)
		time.Sleep(time.Duration(s.rand.IntN(2000)) * time.Millisecond)
		s.start()
	case n < 18:
		s.shutDownAgent()
		s.start()
	default:
		s.killProcess()
	}
}

// killProcess kills a task's process.
func (s *simulation) killProcess() {
	if processes := s.host.runningProcesses(); len(processes) > 0 {
		slices.SortFunc(processes, func(a, b *taskProcess) int { return len(a.id) - len(b.id) })
		processes[s.rand.IntN(len(processes))].exit(driver.ExitResult{ExitCode: 137, Signal: 9})
	}
}

// job returns a random job.
func (s *simulation) job(id string) *api.Job {
	r := s.rand
	task := func(name string, lifecycle *api.TaskLifecycle, runs ...string) *api.Task {
		return &api.Task{
			Name: name, Driver: "sim", Lifecycle: lifecycle, Config: map[string]any{},
			Env: map[string]string{
				"start": []string{"0", "0.3", "2"}[r.IntN(3)], "stop": []string{"0", "0.5", "3"}[r.IntN(3)],
				"run": runs[r.IntN(len(runs))], "code": strconv.Itoa(r.IntN(2)), "listens": []string{"", "yes"}[r.IntN(2)],
			},
			Resources:     &api.Resources{CPU: new(1), MemoryMB: new(10)},
			ShutdownDelay: []time.Duration{0, 0, time.Second}[r.IntN(3)],
		}
	}
	kind := map[string]string{"job0": "service", "job1": "service", "job2": "batch"}[id]
	group := &api.TaskGroup{
		Name: new("g"), Count: new(r.IntN(3)), Tasks: []*api.Task{task("main", nil, "0", "5", "20")},
		RestartPolicy: &api.RestartPolicy{
			Attempts: new(r.IntN(3)), Delay: new(time.Duration(r.IntN(3)) * time.Second),
			Interval: new(10 * time.Second), Mode: new([]string{"fail", "delay"}[r.IntN(2)]),
		},
		ReschedulePolicy: &api.ReschedulePolicy{
			Attempts: new(r.IntN(2)), Interval: new(time.Hour), Delay: new(5 * time.Second),
			DelayFunction: new("constant"), MaxDelay: new(time.Minute), Unlimited: new(false),
		},
	}
	for _, stage := range []api.TaskLifecycle{{Hook: "prestart"}, {Hook: "prestart", Sidecar: true}, {Hook: "poststop"}} {
		if r.IntN(3) == 0 {
			t := task(stage.Hook+strconv.FormatBool(stage.Sidecar), &stage, "0.5", "2")
			if stage.Hook == "poststop" {
				t.Env["code"] = "0" // with another exit code the task might be restarted without end
			}
			group.Tasks = append(group.Tasks, t)
		}
	}
	return &api.Job{ID: &id, Type: &kind, TaskGroups: []*api.TaskGroup{group}}
}

// simHooks returns a hook for each task. The hook is done after its second call.
type simHooks struct {
	s *simulation
	g *simAgent
}

func (h simHooks) NewAllocHooks(*api.Allocation, hooks.AttachTarget) []hooks.OrderedHook {
	return nil
}
func (h simHooks) PluginLaunchWaiterOrNil(*api.Allocation) func(context.Context, func(*api.TaskEvent)) {
	return nil
}
func (h simHooks) NewTaskHooks(a *api.Allocation, t *api.Task, _ hooks.AttachTarget) []hooks.OrderedHook {
	return []hooks.OrderedHook{{Order: hooks.OrderPlugin, Hook: &simHook{s: h.s, g: h.g, key: a.ID + "/" + t.Name}}}
}

type simHook struct {
	hooks.BuiltinHookDefaults
	s   *simulation
	g   *simAgent
	key string
}

func (*simHook) Name() string { return "sim" }

// Prestart checks that the hook gets its stored state, and is not called again when it is done.
func (h *simHook) Prestart(_ context.Context, req hook.TaskPrestartRequest) (hook.TaskPrestartResponse, error) {
	h.g.mu.Lock()
	stored := h.g.hookStates[h.key]
	h.g.mu.Unlock()
	said := req.PreviousState["said"]
	if stored.PrestartDone || said != stored.Data["said"] {
		h.s.host.addViolation("I6: the hook of %s is told %q, stored is %+v", h.key, said, stored)
	}
	return hook.TaskPrestartResponse{State: map[string]string{"said": said + "x"}, Done: said != ""}, nil
}

// checkHistory compares each stored allocation with its state at the last checkHistory call. It reports forbidden changes: to a
// terminal status, and to stored events.
func (s *simulation) checkHistory() {
	synctest.Wait()
	for _, a := range s.store.Snapshot().Allocations(nil, "") {
		was := s.lastAllocs[a.ID]
		s.lastAllocs[a.ID] = a
		if was == nil || s.newLives[a.ID] {
			continue
		}
		if was.ClientTerminalStatus() && a.ClientStatus != was.ClientStatus {
			s.host.addViolation("I9: %s went from %s to %s", a.Name, was.ClientStatus, a.ClientStatus)
		}
		for name := range a.TaskStates {
			s.checkStartDelay(a, name)
		}
		s.checkEvents("", was, a)
	}
	s.source.checkHistory()
}

// checkEvents reports an allocation's missing earlier events. where says in which record, empty in the store.
func (s *simulation) checkEvents(where string, was, a *api.Allocation) {
	for name, state := range a.TaskStates {
		if before := was.TaskStates[name]; before != nil && !continuesHistory(before.Events, state.Events) {
			s.host.addViolation("I7: events%s of %s %s were %v, are %v", where, a.Name, name, timedEvents(before.Events), timedEvents(state.Events))
		}
	}
}

// timedEvents lists the event types with their times in seconds since the virtual time's start.
func timedEvents(events []*api.TaskEvent) (list []string) {
	start := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) // start time in package synctest
	for _, e := range events {
		list = append(list, fmt.Sprintf("%s at %v", e.Type, time.Unix(0, e.Time).Sub(start)))
	}
	return list
}

func eventTypes(events []*api.TaskEvent) (list []string) {
	for _, e := range events {
		list = append(list, e.Type)
	}
	return list
}

// continuesHistory reports whether now has before's events in the same order, followed by new ones. The oldest events may be
// missing.
func continuesHistory(before, now []*api.TaskEvent) bool {
	if !slices.IsSortedFunc(now, func(a, b *api.TaskEvent) int { return int(a.Time - b.Time) }) {
		return false
	}
	for len(before) > 0 && len(now) == 10 && (before[0].Type != now[0].Type || before[0].Time != now[0].Time) {
		before = before[1:]
	}
	return len(before) <= len(now) && slices.EqualFunc(before, now[:len(before)], func(a, b *api.TaskEvent) bool {
		return a.Type == b.Type && a.Time == b.Time
	})
}

// checkProcesses checks the processes after a long time without actions: each running task has exactly
// one process, and no other process runs.
func (s *simulation) checkProcesses() {
	living := make(map[string]int)
	for _, p := range s.host.runningProcesses() {
		living[p.alloc+"/"+p.task]++
	}
	snapshot := s.store.Snapshot()
	for _, a := range snapshot.Allocations(nil, "") {
		for name, state := range a.TaskStates {
			key := a.ID + "/" + name
			want := 0
			if state.State == model.TaskRunning {
				want = 1
			}
			if living[key] != want {
				s.host.addViolation("I2: %s of %s is %s, and has %d processes: %v", name, a.Name, state.State, living[key], eventTypes(state.Events))
			}
			delete(living, key)
		}
		s.checkLastExit(a)
		over := a.ClientTerminalStatus() || a.ServerTerminalStatus()
		if over != snapshot.AllocationEnded(a.ID) {
			s.host.addViolation("I2: %s is %s, %s, and ended is %v", a.Name, a.DesiredStatus, a.ClientStatus, !over)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(living)) {
		s.host.addViolation("I3: %s runs, and nobody knows of it", key)
	}
}

// checkLastExit checks that a task's exit status is its last process's.
func (s *simulation) checkLastExit(a *api.Allocation) {
	if s.newLives[a.ID] && a.ClientTerminalStatus() {
		return // the node may have removed it, and has the servers' states again, which may lack the last ones
	}
	for name, state := range a.TaskStates {
		last := ""
		var exit *api.TaskEvent
		for _, e := range state.Events {
			switch e.Type {
			case api.TaskStarted, model.TaskRestoreFailed:
				last = e.Type
			case api.TaskTerminated:
				last, exit = e.Type, e
			}
		}
		p := s.host.newestProcess(a.ID + "/" + name)
		if last != api.TaskTerminated || strings.Contains(exit.DisplayMessage, "exit status unknown") || p != nil && p.isAbandoned {
			continue
		}
		if p == nil || p.alive() || p.result.ExitCode != exit.ExitCode || p.result.Signal != exit.Signal {
			s.host.addViolation("I4: %s of %s, %s: %s, has the event %q, and its last process %+v", name, a.Name, a.ClientStatus, a.ClientDescription, exit.DisplayMessage, p)
		}
	}
}

// checkStartDelay checks that a start takes no longer than the driver needs if no agent or plugin was killed: a start waits for
// other tasks' recovery only after a plugin died.
func (s *simulation) checkStartDelay(a *api.Allocation, task string) {
	const maxStartDelay = 15 * time.Second // StartTask takes at most two seconds, and there may be a pause before it
	events := a.TaskStates[task].Events
	for i := 1; i < len(events); i++ {
		from, to := events[i-1], events[i]
		if from.Type != api.TaskSetup || to.Type != api.TaskStarted || to.Time-from.Time <= int64(maxStartDelay) {
			continue
		}
		if !slices.ContainsFunc(s.killTimes, func(k int64) bool { return from.Time <= k && k <= to.Time }) {
			s.host.addViolation("I2: the start of %s of %s took %v", task, a.Name, time.Duration(to.Time-from.Time))
		}
	}
}

// checkNothingLeftBehind checks that no allocation, record or process remains after all jobs were purged.
func (s *simulation) checkNothingLeftBehind() {
	if living := s.host.runningProcesses(); len(living) > 0 {
		s.host.addViolation("I3: %d processes are left", len(living))
	}
	if dirs, err := os.ReadDir(filepath.Join(s.dir, "alloc")); err != nil || len(dirs) > 0 {
		s.host.addViolation("I3: %d directories are left, %v", len(dirs), err)
	}
	snapshot := s.store.Snapshot()
	facts := slices.DeleteFunc(snapshot.AgentRecordNames(""), func(name string) bool {
		return name == state.ClusterMembershipName || name == state.ClusterReportIndexName
	})
	if ids := snapshot.AllocIDsWithLocalRecords(); len(ids)+len(facts) > 0 {
		s.host.addViolation("I3: records are left: %v %v", ids, facts)
	}
}
