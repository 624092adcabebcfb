package scheduler_test

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/endurance"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler/schedtest"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// TestSimulation makes random requests, store faults, clock steps and scheduler restarts under virtual time. It checks
// invariants after each store change, and the final state after a quiet time. A repeated simulation prints its transcript.
//
//	make simulate
//	go test -run Simulation ./runtime/scheduler -seed 42
func TestSimulation(t *testing.T) {
	var out *os.File
	if endurance.CurrentMode() == endurance.Repeat {
		out = os.Stderr
	}
	sample := 150
	if testing.Short() {
		sample = 15
	}
	run := endurance.Start(t, endurance.Config{Sample: sample, SampleSeed: 1, Unit: "simulations", Load: "a simulation per core"})
	run.EachParallel(func(seed uint64) error {
		err := simulate(t, seed, out)
		run.Add(1)
		return err
	})
}

// simulation runs random requests against a scheduler and a simulated node.
type simulation struct {
	rand      *rand.Rand // chooses the actions
	faultRand *rand.Rand // selects failing changes at random
	store     *schedtest.FaultyStore
	scheduler *scheduler.Scheduler
	node      *schedtest.SimulatedNode

	mu                sync.Mutex
	faultsEnabled     bool
	startedAllocs     map[string]*api.Allocation // started and not ended
	clock             *wallClock
	env               scheduler.Env
	deploymentStarts  map[string]time.Time // each deployment's start, by the monotonic clock
	cronLaunches      []time.Time          // the periodic job's launches, by the monotonic clock
	cronChildren      map[uint64]bool      // the periodic job's children by CreateIndex
	mayExceedDeadline map[string]bool      // deployments that may have exceeded their deadline
	terminalStatuses  map[string]string    // terminal client status by allocation
	placedCanaries    map[string]bool      // ids of allocations placed as canaries
	preempted         map[string]bool      // ids of preempted allocations
	errs              []error
}

// simulate runs a seed's simulation, and returns the first errors.
func simulate(t *testing.T, seed uint64, out *os.File) (err error) {
	synctest.Test(t, func(t *testing.T) {
		s := &simulation{
			rand:              rand.New(rand.NewPCG(seed, 0)),
			faultRand:         rand.New(rand.NewPCG(seed, 1)),
			store:             schedtest.NewFaultyStoreWithNode(t, nodeWithWidgets()),
			startedAllocs:     make(map[string]*api.Allocation),
			terminalStatuses:  make(map[string]string),
			placedCanaries:    make(map[string]bool),
			preempted:         make(map[string]bool),
			clock:             newWallClock(),
			env:               newTestEnv(),
			deploymentStarts:  make(map[string]time.Time),
			cronChildren:      make(map[uint64]bool),
			mayExceedDeadline: make(map[string]bool),
		}
		s.env.Now, s.env.MonotonicUptime = s.clock.Now, s.clock.Uptime
		s.scheduler = scheduler.New(scheduler.Config{NodeID: "node", Store: s.store, HostEnv: s.env, Logger: hclog.NewNullLogger()})
		s.node = &schedtest.SimulatedNode{Store: s.store, Scheduler: s.scheduler, BehaviourOf: envAllocTimes, Now: s.clock.Now, BeforeAllocStarts: s.checkStart, BeforeAllocEndedReport: s.recordEnd}
		var transcript *schedtest.StoreTranscript
		if out != nil {
			transcript = schedtest.StartStoreTranscript(s.store)
		}
		note := s.store.OnCommit
		s.store.OnCommit = func(state *store.Snapshot) {
			if note != nil {
				note(state)
			}
			s.checkInvariants(state)
		}
		s.store.InjectFault = s.randomFault

		ctx, cancel := context.WithCancel(t.Context())
		var loopsWG sync.WaitGroup
		loopsWG.Go(func() { s.node.Run(ctx) })
		generation, end := context.WithCancel(ctx)
		var schedulerWG sync.WaitGroup
		schedulerWG.Go(func() { s.scheduler.Run(generation) })
		cron := cronJob()
		model.Canonicalize(cron)
		if _, err := s.scheduler.RegisterAndEvaluateJob(ctx, cron, scheduler.RegisterOptions{}); err != nil {
			t.Error(err)
		}
		s.mu.Lock()
		s.faultsEnabled = true
		s.mu.Unlock()
		for range 20 + s.rand.IntN(20) {
			s.requestAtRandom(ctx, transcript)
			time.Sleep(time.Duration(s.rand.IntN(40)) * time.Second)
			if s.rand.IntN(20) == 0 {
				// A new scheduler continues with the stored state.
				end()
				schedulerWG.Wait()
				if s.rand.IntN(2) == 0 {
					s.stepClock(transcript)
				}
				s.mu.Lock()
				for id := range s.deploymentStarts {
					s.mayExceedDeadline[id] = true // a deployment's deadline may pass if the clock is set between the two schedulers
				}
				s.mu.Unlock()
				s.scheduler = scheduler.New(scheduler.Config{NodeID: "node", Store: s.store, HostEnv: s.env, Logger: hclog.NewNullLogger()})
				s.node.SetScheduler(s.scheduler)
				generation, end = context.WithCancel(ctx)
				schedulerWG.Go(func() { s.scheduler.Run(generation) })
			}
		}
		s.mu.Lock()
		s.faultsEnabled = false
		s.mu.Unlock()
		rest := time.Now()
		time.Sleep(3 * time.Hour)
		s.checkLaunchesSince(rest)
		if _, err := s.scheduler.DeregisterJob(ctx, scheduler.JobKey{Namespace: "default", ID: "cron"}, scheduler.DeregisterOptions{}); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		s.checkQuiescentState()
		s.checkEvaluationPlacesNothing(ctx)
		end()
		cancel()
		schedulerWG.Wait()
		loopsWG.Wait()
		err = errors.Join(s.errs...)
		if out != nil {
			fmt.Fprintln(out, transcript)
		}
	})
	return err
}

// envAllocTimes returns an allocation's times, encoded in the job's environment variables.
func envAllocTimes(a *api.Allocation) schedtest.SimulatedAllocBehaviour {
	env := a.Job.TaskGroups[0].Tasks[0].Env
	seconds := func(name string) time.Duration {
		n, _ := strconv.Atoi(env[name])
		return time.Duration(n) * time.Second
	}
	// Allocations change at different times, so that each seed has one event order.
	h := fnv.New32a()
	h.Write([]byte(a.ID))
	jitter := time.Duration(h.Sum32()%1e6) * time.Microsecond
	return schedtest.SimulatedAllocBehaviour{
		StartDuration: seconds("start") + jitter, TimeToHealthReport: seconds("healthy") + jitter/3, ReportsUnhealthy: env["sick"] == "1",
		RunDuration: seconds("run"), FailsAfterRunDuration: env["fail"] == "1", StopDuration: seconds("stop") + jitter, DelayFromTerminalToEndedReport: seconds("linger") + jitter/7,
	}
}

func (s *simulation) randomFault() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.faultsEnabled && s.faultRand.IntN(30) == 0 {
		return schedtest.ErrFault
	}
	return nil
}

func (s *simulation) addError(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.errs) < 5 {
		s.errs = append(s.errs, fmt.Errorf(format, args...))
	}
}

// checkStart checks that no other allocation with the same name runs (except a canary beside an ordinary allocation), and the
// node has enough resources.
func (s *simulation) checkStart(a *api.Allocation) {
	s.mu.Lock()
	s.startedAllocs[a.ID] = a
	memory, beside, ports, devices := 0, 0, make(map[int]string), make(map[string]string)
	var problems []string
	for _, id := range slices.Sorted(maps.Keys(s.startedAllocs)) {
		b := s.startedAllocs[id]
		memory += *b.Resources.MemoryMB
		for _, port := range b.AllocatedResources.Shared.Ports {
			if other := ports[port.Value]; other != "" {
				problems = append(problems, fmt.Sprintf("%s and %s both have port %d", other, b.Name, port.Value))
			}
			ports[port.Value] = b.Name
		}
		for _, d := range b.AllocatedResources.Tasks["t"].Devices {
			for _, id := range d.DeviceIDs {
				if other := devices[id]; other != "" {
					problems = append(problems, fmt.Sprintf("%s and %s both have device %s", other, b.Name, id))
				}
				devices[id] = b.Name
			}
		}
		if b.ID != a.ID && b.Name == a.Name && b.JobID == a.JobID {
			if beside++; beside > 1 || !s.placedCanaries[b.ID] && !s.placedCanaries[a.ID] {
				problems = append(problems, fmt.Sprintf("%s is started while %s is at work", a.Name, b.ID))
			}
		}
	}
	s.mu.Unlock()
	if memory > 1000 {
		problems = append(problems, fmt.Sprintf("%d MB are used when %s %s starts: %v", memory, a.Name, a.ID, s.runningAllocs()))
	}
	for _, p := range problems {
		s.addError("%s", p)
	}
}

// runningAllocs returns a text describing the running allocations.
func (s *simulation) runningAllocs() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []string
	for _, a := range s.startedAllocs {
		list = append(list, fmt.Sprintf("%s %s v%d %d MB", a.Name, a.ID[:8], *a.Job.Version, *a.Resources.MemoryMB))
	}
	slices.Sort(list)
	return list
}

func (s *simulation) recordEnd(a *api.Allocation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.startedAllocs, a.ID)
}

// requestAtRandom makes one random request or clock step.
func (s *simulation) requestAtRandom(ctx context.Context, transcript *schedtest.StoreTranscript) {
	if s.rand.IntN(8) == 0 {
		s.stepClock(transcript)
		if s.rand.IntN(3) > 0 {
			s.scheduler.RequestClockCheck()
		}
		return
	}
	id := "job" + strconv.Itoa(s.rand.IntN(3))
	key := scheduler.JobKey{Namespace: "default", ID: id}
	var requestText string
	var err error
	switch n := s.rand.IntN(21); {
	case n < 9:
		requestText = "register"
		job := s.job(id)
		model.Canonicalize(job)
		if err = model.Validate(job, model.JobLimits{}); err == nil {
			_, err = s.scheduler.RegisterAndEvaluateJob(ctx, job, scheduler.RegisterOptions{})
		}
	case n < 10:
		requestText = "stop"
		_, err = s.scheduler.DeregisterJob(ctx, key, scheduler.DeregisterOptions{Purge: s.rand.IntN(2) == 0})
	case n < 11:
		requestText = "change devices"
		err = s.changeDevices(ctx)
	case n < 12:
		requestText = "evaluate"
		_, err = s.scheduler.EvaluateJob(ctx, key, s.rand.IntN(2) == 0)
	case n < 13:
		requestText = "scale"
		_, err = s.scheduler.ScaleGroup(ctx, key, scheduler.ScaleRequest{Group: "g", Count: new(int64(s.rand.IntN(5)))})
	case n < 14:
		requestText = "revert"
		_, err = s.scheduler.RevertToVersion(ctx, key, uint64(s.rand.IntN(4)), nil)
	case n < 15:
		requestText = "collect"
		_, err = s.scheduler.DeleteUnneededRecordsOfAnyAge(ctx)
	case n < 17:
		requestText, err = s.stopRandomAlloc(ctx)
	case n < 18:
		requestText = "change preemption"
		err = s.changePreemption(ctx)
	default:
		requestText, err = s.changeDeploymentAtRandom(ctx, key)
	}
	if transcript != nil {
		transcript.AddTestComment("%s %s: %v", requestText, id, err)
	}
	var requestErr *scheduler.RequestError
	if err != nil && !errors.As(err, &requestErr) && !errors.Is(err, schedtest.ErrFault) {
		s.addError("%s %s: %v", requestText, id, err)
	}
}

// changePreemption changes at random which types of jobs can preempt allocations.
func (s *simulation) changePreemption(ctx context.Context) error {
	_, err := s.scheduler.UpdateConfig(ctx, func(stored *api.SchedulerConfiguration) (*api.SchedulerConfiguration, error) {
		next, random := *stored, func() bool { return s.rand.IntN(2) == 0 }
		next.PreemptionConfig = api.PreemptionConfig{SystemSchedulerEnabled: random(), SysBatchSchedulerEnabled: random(), BatchSchedulerEnabled: random(), ServiceSchedulerEnabled: random()}
		return &next, nil
	})
	return err
}

// checkPreemption checks a stored allocation that was preempted: the job that has preempted it has a priority that is higher by at
// least ten, is of a type that could preempt since the last look, and names the allocation.
func (s *simulation) checkPreemption(state *store.Snapshot, a *api.Allocation) {
	if a.PreemptedByAllocation == "" {
		return
	}
	s.mu.Lock()
	_, checked := s.preempted[a.ID]
	s.preempted[a.ID] = true
	s.mu.Unlock()
	by := state.Allocation(nil, a.PreemptedByAllocation)
	if checked || by == nil {
		return
	}
	c := state.SchedulerConfig(nil).PreemptionConfig
	enabled := map[string]bool{
		api.JobTypeSystem: c.SystemSchedulerEnabled, api.JobTypeSysbatch: c.SysBatchSchedulerEnabled,
		api.JobTypeBatch: c.BatchSchedulerEnabled, api.JobTypeService: c.ServiceSchedulerEnabled,
	}
	priority := *by.Job.Priority
	if job := state.Job(nil, by.Namespace, by.JobID); job != nil {
		priority = max(priority, *job.Priority) // while canaries are not promoted, an allocation can have an older version than its plan's job
	}
	if !enabled[*by.Job.Type] || priority < *a.Job.Priority+10 || !slices.Contains(by.PreemptedAllocations, a.ID) || a.DesiredStatus != api.AllocDesiredStatusEvict {
		s.addError("%s of priority %d, %s, was preempted by %s of type %s and priority %d, which names %q; enabled %+v",
			a.Name, *a.Job.Priority, a.DesiredStatus, by.Name, *by.Job.Type, priority, by.PreemptedAllocations, c)
	}
}

// stepClock sets the clock forward or back, or suspends the machine.
func (s *simulation) stepClock(transcript *schedtest.StoreTranscript) {
	by := []time.Duration{2 * time.Second, 45 * time.Second, 10 * time.Minute, 3 * time.Hour, 365 * 24 * time.Hour}[s.rand.IntN(5)]
	if s.rand.IntN(2) == 0 {
		by = -by
	}
	s.clock.Step(by)
	if transcript != nil {
		transcript.AddTestComment("the clock is set by %s", by)
	}
}

const cronPeriod = 10 * time.Minute

// cronJob returns a periodic job with small resources.
func cronJob() *api.Job {
	task := &api.Task{Name: "t", Driver: "mock", Env: map[string]string{"run": "1"}, Resources: &api.Resources{MemoryMB: new(10)}}
	return &api.Job{
		ID: new("cron"), Type: new(api.JobTypeBatch),
		Periodic:   &api.PeriodicConfig{Enabled: new(true), Spec: new("*/10 * * * *")},
		TaskGroups: []*api.TaskGroup{{Name: new("g"), Count: new(1), Tasks: []*api.Task{task}}},
	}
}

// checkLaunchesSince checks that the periodic job was launched in each period.
func (s *simulation) checkLaunchesSince(start time.Time) {
	s.mu.Lock()
	last, n := start, 0
	longest := time.Duration(0)
	for _, at := range append(slices.Clone(s.cronLaunches), time.Now()) {
		if at.After(start) {
			longest = max(longest, at.Sub(last))
			last = at
			n++
		}
	}
	s.mu.Unlock()
	// An unreported step is noticed within a minute.
	if longest > cronPeriod+time.Minute {
		s.addError("%s without a launch of the periodic job, of %d launches", longest, n-1)
	}
}

func (s *simulation) stopRandomAlloc(ctx context.Context) (string, error) {
	allocs := s.store.Snapshot().Allocations(nil, "")
	if len(allocs) == 0 {
		return "stop nothing", nil
	}
	_, err := s.scheduler.StopAndReplaceAlloc(ctx, allocs[s.rand.IntN(len(allocs))].ID, scheduler.StopOptions{Reschedule: s.rand.IntN(2) == 0})
	return "stop alloc", err
}

func (s *simulation) changeDeploymentAtRandom(ctx context.Context, key scheduler.JobKey) (string, error) {
	d := s.store.Snapshot().LatestDeployment(nil, key.Namespace, key.ID)
	if d == nil {
		return "no deployment", nil
	}
	var err error
	switch s.rand.IntN(4) {
	case 0, 1:
		_, err = s.scheduler.PromoteDeployment(ctx, d.ID, nil)
		return "promote", err
	case 2:
		_, err = s.scheduler.FailDeployment(ctx, d.ID)
		return "fail deployment", err
	default:
		_, err = s.scheduler.PauseOrResumeDeployment(ctx, d.ID, d.Status != api.DeploymentStatusPaused)
		return "pause", err
	}
}

// job returns a random job. All jobs with one id have the same type, because RegisterAndEvaluateJob rejects a type change.
func (s *simulation) job(id string) *api.Job {
	r := s.rand
	kind := map[string]string{"job0": api.JobTypeService, "job1": api.JobTypeService, "job2": api.JobTypeBatch}[id]
	if id == "job2" {
		switch s.rand.IntN(8) {
		case 0:
			id, kind = "job3", api.JobTypeSystem
		case 1:
			id, kind = "job4", api.JobTypeSysbatch
		}
	}
	env := map[string]string{
		"start": strconv.Itoa(r.IntN(5)), "healthy": strconv.Itoa(r.IntN(15)),
		"stop": strconv.Itoa(r.IntN(10)), "linger": strconv.Itoa(r.IntN(10)),
	}
	if r.IntN(4) == 0 || kind == api.JobTypeBatch || kind == api.JobTypeSysbatch {
		env["run"] = strconv.Itoa(1 + r.IntN(100))
	}
	// A completed service allocation is not replaced before the next evaluation.
	if r.IntN(3) == 0 || kind == api.JobTypeService {
		env["fail"] = "1"
	}
	if r.IntN(8) == 0 {
		env["sick"] = "1"
	}
	task := &api.Task{Name: "t", Driver: "mock", Env: env, Resources: &api.Resources{MemoryMB: new(50 + 50*r.IntN(4))}}
	group := &api.TaskGroup{Name: new("g"), Count: new(r.IntN(5)), Tasks: []*api.Task{task}}
	job := &api.Job{ID: &id, Type: &kind, Priority: new(20 + 5*r.IntN(8)), TaskGroups: []*api.TaskGroup{group}}
	if r.IntN(3) == 0 {
		task.Resources.Devices = []*api.RequestedDevice{{Name: []string{"widget", "acme/widget/large"}[r.IntN(2)], Count: new(uint64(1 + r.IntN(2)))}}
	}
	switch r.IntN(4) {
	case 0:
		group.Networks = []*api.NetworkResource{{DynamicPorts: []api.Port{{Label: "a"}}}}
	case 1:
		group.Networks = []*api.NetworkResource{{ReservedPorts: []api.Port{{Label: "a", Value: 8000 + r.IntN(2)}}}}
	}
	if kind == api.JobTypeSystem {
		group.Count = new(r.IntN(2))
	}
	if kind == api.JobTypeService {
		group.Update = &api.UpdateStrategy{
			MaxParallel: new(r.IntN(3)), MinHealthyTime: new(time.Second),
			HealthyDeadline: new(time.Minute), ProgressDeadline: new(2 * time.Minute), AutoRevert: new(r.IntN(2) == 0),
		}
		if *group.Update.MaxParallel > 0 && r.IntN(2) == 0 {
			group.Update.Canary = new(1 + r.IntN(2))
			group.Update.AutoPromote = new(r.IntN(2) == 0)
		}
	}
	if kind == api.JobTypeService || kind == api.JobTypeBatch {
		group.ReschedulePolicy = &api.ReschedulePolicy{
			Attempts: new(r.IntN(3)), Interval: new(time.Hour), Delay: new(5 * time.Second),
			DelayFunction: new([]string{"constant", "exponential", "fibonacci"}[r.IntN(3)]), MaxDelay: new(time.Minute), Unlimited: new(false),
		}
	}
	return job
}

// nodeWithWidgets returns a node with devices.
func nodeWithWidgets() *api.Node {
	node := schedtest.NewReadyNodeWithMockDriver(1000)
	group := func(name string, ids ...string) *api.NodeDeviceResource {
		g := &api.NodeDeviceResource{Vendor: "acme", Type: "widget", Name: name}
		for _, id := range ids {
			g.Instances = append(g.Instances, &api.NodeDevice{ID: id, Healthy: true})
		}
		return g
	}
	node.NodeResources = &api.NodeResources{Devices: []*api.NodeDeviceResource{group("large", "a", "b"), group("small", "c", "d", "e")}}
	return node
}

// changeDevices makes a random set of devices unhealthy.
func (s *simulation) changeDevices(ctx context.Context) error {
	_, err := s.store.Update(ctx, func(tx *store.Txn) error {
		node := *tx.Node(nil, "node")
		node.NodeResources = nodeWithWidgets().NodeResources
		for _, g := range node.NodeResources.Devices {
			for _, d := range g.Instances {
				d.Healthy = s.rand.IntN(3) > 0
			}
		}
		tx.PutNodeWithStorageEvents(&node)
		return nil
	})
	if err == nil {
		s.scheduler.RetryBlockedEvals()
	}
	return err
}

// checkInvariants checks invariants after each store change.
func (s *simulation) checkInvariants(state *store.Snapshot) {
	wanted := make(map[string]int)
	canaries := make(map[string]int)
	names := make(map[string]int)
	for _, a := range state.Allocations(nil, "") {
		s.checkStatus(a)
		s.checkPreemption(state, a)
		if model.AllocTerminal(a) {
			continue
		}
		if a.DeploymentStatus != nil && a.DeploymentStatus.Canary {
			canaries[a.JobID]++
			continue
		}
		wanted[a.JobID]++
		if names[a.JobID+a.Name]++; names[a.JobID+a.Name] > 1 {
			s.addError("two of %s are wanted", a.Name)
		}
	}
	s.checkTimes(state)
	for _, job := range state.Jobs(nil, store.AnyNamespace, "") {
		if job.Periodic != nil {
			continue // a periodic job has no allocations itself
		}
		limit := *job.TaskGroups[0].Count
		if *job.Stop {
			limit = 0
		}
		if n := wanted[*job.ID]; n > limit {
			s.addError("%d of job %s are wanted, more than %d", n, *job.ID, limit)
		}
		if u := job.TaskGroups[0].Update; canaries[*job.ID] > 0 && (u == nil || canaries[*job.ID] > *u.Canary) {
			s.addError("%d canaries of job %s", canaries[*job.ID], *job.ID)
		}
	}
}

// checkTimes records launches, and checks that no deployment fails before its progress deadline, even if the clock is set
// during the deployment.
func (s *simulation) checkTimes(state *store.Snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for _, job := range state.Jobs(nil, store.AnyNamespace, "") {
		// After the clock was set back, a child job can have an earlier child's name. The create index distinguishes them.
		if job.ParentID != nil && *job.ParentID == "cron" && !s.cronChildren[*job.CreateIndex] {
			s.cronChildren[*job.CreateIndex] = true
			s.cronLaunches = append(s.cronLaunches, now)
		}
	}
	for _, d := range state.Deployments(nil, "") {
		if _, known := s.deploymentStarts[d.ID]; !known {
			s.deploymentStarts[d.ID] = now
		}
		if d.StatusDescription == model.DeploymentFailedProgressDeadline && !s.mayExceedDeadline[d.ID] {
			s.mayExceedDeadline[d.ID] = true
			if took := now.Sub(s.deploymentStarts[d.ID]); took < 2*time.Minute-time.Second {
				s.errs = append(s.errs, fmt.Errorf("deployment %s ran out of time after %s", d.ID, took))
			}
		}
	}
}

// checkStatus checks that an allocation with a terminal status keeps it.
func (s *simulation) checkStatus(a *api.Allocation) {
	s.mu.Lock()
	before := s.terminalStatuses[a.ID]
	s.placedCanaries[a.ID] = s.placedCanaries[a.ID] || a.DeploymentStatus != nil && a.DeploymentStatus.Canary
	if a.ClientTerminalStatus() {
		s.terminalStatuses[a.ID] = a.ClientStatus
	}
	if a.ServerTerminalStatus() {
		s.terminalStatuses["stop "+a.ID] = "stop"
	}
	stopped := s.terminalStatuses["stop "+a.ID]
	s.mu.Unlock()
	if before != "" && before != a.ClientStatus {
		s.addError("%s went from %s to %s", a.Name, before, a.ClientStatus)
	}
	if stopped != "" && !a.ServerTerminalStatus() {
		s.addError("%s is wanted again after it was stopped", a.Name)
	}
}

// checkQuiescentState checks the state reached after a long time without requests.
func (s *simulation) checkQuiescentState() {
	state := s.store.Snapshot()
	for _, job := range state.Jobs(nil, store.AnyNamespace, "") {
		key := scheduler.JobKeyOf(job)
		var liveCount, failedCount, completeCount int
		for _, a := range state.AllocationsByJob(nil, key.Namespace, key.ID) {
			switch {
			case !model.AllocTerminal(a):
				liveCount++
				if a.ClientStatus == api.AllocClientStatusPending {
					s.addError("%s never started", a.Name)
				}
			case !state.AllocationEnded(a.ID):
				s.addError("%s never ended", a.Name)
			case a.DesiredTransition.ShouldDisableMigrationPlacement() && a.NextAllocation == "":
				completeCount++ // a request has stopped the allocation without a replacement
			case a.DesiredStatus == api.AllocDesiredStatusRun && a.ClientStatus == api.AllocClientStatusFailed && a.NextAllocation == "":
				failedCount++
			case a.DesiredStatus == api.AllocDesiredStatusRun && a.ClientStatus == api.AllocClientStatusComplete:
				completeCount++
			}
		}
		blocked := false
		for _, e := range state.EvaluationsByJob(nil, key.Namespace, key.ID) {
			blocked = blocked || e.Status == api.EvalStatusBlocked
			if e.Status == api.EvalStatusPending {
				s.addError("evaluation %s (%s) of job %s was never processed", e.ID, e.TriggeredBy, key.ID)
			}
		}
		held := false
		if d := state.LatestDeployment(nil, key.Namespace, key.ID); d != nil {
			held = model.DeploymentActive(d) || d.Status == api.DeploymentStatusFailed
			if s.isStuck(d, state) {
				s.addError("deployment of job %s is still running: %s", key.ID, d.StatusDescription)
			}
		}
		// A completed system allocation is replaced only by the next evaluation.
		ends := *job.Type == api.JobTypeSystem && job.TaskGroups[0].Tasks[0].Env["run"] != ""
		if count := *job.TaskGroups[0].Count; job.Periodic == nil && !ends && !*job.Stop && !blocked && !held && liveCount+failedCount+completeCount < count {
			s.addError("job %s has %d of %d, %d failed, %d done", key.ID, liveCount, count, failedCount, completeCount)
		}
		if want := model.JobStatus(job, state.AllocationsByJob(nil, key.Namespace, key.ID), state.EvaluationsByJob(nil, key.Namespace, key.ID), state.DeploymentsByJob(nil, key.Namespace, key.ID)); *job.Status != want && len(state.EvaluationsByJob(nil, key.Namespace, key.ID)) > 0 {
			s.addError("job %s is %s, should be %s", key.ID, *job.Status, want)
		}
	}
}

// checkEvaluationPlacesNothing checks that another evaluation for each job places nothing: the allocations of blocked
// evaluations do not fit.
func (s *simulation) checkEvaluationPlacesNothing(ctx context.Context) {
	state := s.store.Snapshot()
	for _, job := range state.Jobs(nil, store.AnyNamespace, "") {
		if *job.Type == api.JobTypeSystem || job.Periodic != nil {
			continue // each evaluation for a system job replaces completed allocations
		}
		key := scheduler.JobKeyOf(job)
		if _, err := s.scheduler.EvaluateJob(ctx, key, false); err != nil {
			s.addError("evaluate %s: %v", key.ID, err)
		}
		for _, e := range s.store.Snapshot().EvaluationsByJob(nil, key.Namespace, key.ID) {
			if e.Status == api.EvalStatusPending {
				s.addError("another look at job %s waits until %s", key.ID, e.WaitUntil)
			}
		}
		if before, after := len(state.AllocationsByJob(nil, key.Namespace, key.ID)), len(s.store.Snapshot().AllocationsByJob(nil, key.Namespace, key.ID)); before != after {
			s.addError("another look at job %s places %d", key.ID, after-before)
		}
	}
}

// isStuck reports whether a running deployment makes no progress although it waits neither for a promotion nor for
// resources.
func (s *simulation) isStuck(d *api.Deployment, state *store.Snapshot) bool {
	if d.Status != api.DeploymentStatusRunning {
		return false
	}
	job := state.Job(nil, d.Namespace, d.JobID)
	for name, g := range d.TaskGroups {
		// The description of a resumed deployment does not mention a needed promotion, so the job's update block decides.
		group := model.FindGroup(job, name)
		byHand := group != nil && (group.Update == nil || group.Update.AutoPromote == nil || !*group.Update.AutoPromote)
		if g.PlacedAllocs == 0 && g.DesiredTotal > 0 || g.DesiredCanaries > 0 && !g.Promoted && byHand {
			return false
		}
	}
	return true
}
