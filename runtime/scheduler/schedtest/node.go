package schedtest

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// SimulatedAllocBehaviour has the phase durations for a simulated allocation. An allocation with the zero value starts at once,
// is healthy at once, runs until it is stopped, and then stops at once.
type SimulatedAllocBehaviour struct {
	// StartDuration is the time until the allocation runs.
	StartDuration time.Duration
	// TimeToHealthReport is the time from the allocation's start to its health report. With ReportsUnhealthy, the allocation is
	// reported unhealthy.
	TimeToHealthReport time.Duration
	ReportsUnhealthy   bool
	// RunDuration is how long the allocation runs; zero means until it is stopped. With FailsAfterRunDuration, the
	// allocation then fails. Otherwise it completes.
	RunDuration           time.Duration
	FailsAfterRunDuration bool
	// StopDuration is how long a stop takes.
	StopDuration time.Duration
	// DelayFromTerminalToEndedReport is the time from the terminal status report until the allocation ends.
	DelayFromTerminalToEndedReport time.Duration
}

// SimulatedNode runs a scheduler's desired allocations as simulations, and reports their states to the scheduler.
type SimulatedNode struct {
	Store     scheduler.Store
	Scheduler *scheduler.Scheduler
	// BehaviourOf returns an allocation's times. If it is nil, all allocations have the zero value.
	BehaviourOf func(*api.Allocation) SimulatedAllocBehaviour
	schedulerMu sync.Mutex // guards Scheduler while Run runs

	// Now returns the wall clock time. Nil means time.Now.
	Now func() time.Time

	// BeforeAllocStarts is called before an allocation starts its tasks, and BeforeAllocEndedReport before the node reports its
	// end. They may be nil.
	BeforeAllocStarts, BeforeAllocEndedReport func(*api.Allocation)
}

// NewReadyNodeWithMockDriver returns a ready node's record with the given memory and a healthy driver "mock".
func NewReadyNodeWithMockDriver(memoryMB int) *api.Node {
	return &api.Node{
		ID: "node", Name: "box", Datacenter: "dc1", NodePool: api.NodePoolDefault,
		Attributes: map[string]string{
			"kernel.name":               "linux",
			"nomad.version":             "2.0.6-dev",
			"memory.totalbytes":         mebibytesInBytes(memoryMB),
			"unique.network.ip-address": "10.0.0.1",
		},
		Drivers:               map[string]*api.DriverInfo{"mock": {Detected: true, Healthy: true}},
		SchedulingEligibility: api.NodeSchedulingEligible,
		Status:                "ready",
	}
}

// SetScheduler sets the scheduler for the node's reports.
func (n *SimulatedNode) SetScheduler(s *scheduler.Scheduler) {
	n.schedulerMu.Lock()
	defer n.schedulerMu.Unlock()
	n.Scheduler = s
}

func (n *SimulatedNode) now() time.Time {
	if n.Now != nil {
		return n.Now()
	}
	return time.Now()
}

func (n *SimulatedNode) scheduler() *scheduler.Scheduler {
	n.schedulerMu.Lock()
	defer n.schedulerMu.Unlock()
	return n.Scheduler
}

// simulatedAlloc simulates one allocation's tasks.
type simulatedAlloc struct {
	node         *SimulatedNode
	allocID      string
	allocChanged chan struct{} // receives a value when the allocation has changed

	healthCheckDeploymentID string    // the reported health's deployment
	healthCheckStart        time.Time // when the current deployment's health check started
}

// Run runs the desired allocations until ctx ends.
func (n *SimulatedNode) Run(ctx context.Context) {
	var runningWG sync.WaitGroup
	defer runningWG.Wait()
	actors := make(map[string]*simulatedAlloc)
	for {
		state, changed := n.Store.Snapshot(), store.NewWatchSet()
		state.LatestTableIndex(changed, store.Allocations)
		for _, a := range scheduler.DesiredAllocs(state.Reader) {
			if act := actors[a.ID]; act != nil {
				act.notifyAllocChanged()
			} else if !state.AllocationEnded(a.ID) && (a.ServerTerminalStatus() || havePreemptedAllocsEnded(state, a)) {
				act = &simulatedAlloc{node: n, allocID: a.ID, allocChanged: make(chan struct{}, 1)}
				actors[a.ID] = act
				runningWG.Go(func() { act.simulateAndReport(ctx, a) })
			}
		}
		for id, act := range actors {
			if state.Allocation(nil, id) == nil {
				act.notifyAllocChanged()
			}
		}
		if changed.WatchCtx(ctx) != nil {
			return
		}
	}
}

// havePreemptedAllocsEnded reports whether the allocations have ended that were preempted for an allocation.
func havePreemptedAllocsEnded(state *store.Snapshot, a *api.Allocation) bool {
	return !slices.ContainsFunc(a.PreemptedAllocations, func(id string) bool {
		return state.Allocation(nil, id) != nil && !state.AllocationEnded(id)
	})
}

func (a *simulatedAlloc) notifyAllocChanged() {
	wait.Notify(a.allocChanged)
}

// simulateAndReport runs the allocation from start to end.
func (a *simulatedAlloc) simulateAndReport(ctx context.Context, alloc *api.Allocation) {
	times := SimulatedAllocBehaviour{}
	if a.node.BehaviourOf != nil {
		times = a.node.BehaviourOf(alloc)
	}
	status := api.AllocClientStatusComplete
	if !alloc.ServerTerminalStatus() && alloc.ClientStatus == api.AllocClientStatusPending {
		if a.node.BeforeAllocStarts != nil {
			a.node.BeforeAllocStarts(alloc)
		}
		status = a.simulateTasks(ctx, times)
	}
	if ctx.Err() != nil {
		return
	}
	now := a.node.now()
	text := "All tasks have completed"
	if status == api.AllocClientStatusFailed {
		text = "Failed tasks"
	}
	a.sendReportWithRetry(ctx, model.AllocReport{ClientStatus: status, ClientDescription: text,
		TaskStates: map[string]*api.TaskState{"t": {State: "dead", Failed: status == api.AllocClientStatusFailed, FinishedAt: now}}})
	a.sleep(ctx, times.DelayFromTerminalToEndedReport)
	if a.node.BeforeAllocEndedReport != nil && ctx.Err() == nil {
		a.node.BeforeAllocEndedReport(alloc)
	}
	a.sendReportWithRetry(ctx, model.AllocReport{TasksAndHooksEnded: true})
}

// simulateTasks simulates the tasks and returns the final client status.
func (a *simulatedAlloc) simulateTasks(ctx context.Context, behaviour SimulatedAllocBehaviour) (clientStatus string) {
	if a.waitForTimeOrStop(ctx, time.Now().Add(behaviour.StartDuration), nil) {
		return a.simulateStop(ctx, behaviour)
	}
	start := time.Now()
	a.sendReportWithRetry(ctx, model.AllocReport{ClientStatus: api.AllocClientStatusRunning, ClientDescription: "Tasks are running",
		TaskStates: map[string]*api.TaskState{"t": {State: "running", StartedAt: a.node.now()}}})
	end := time.Time{}
	if behaviour.RunDuration > 0 {
		end = start.Add(behaviour.RunDuration)
	}
	if a.waitForTimeOrStop(ctx, end, func(alloc *api.Allocation) time.Duration { return a.reportHealthIfDue(ctx, alloc, behaviour) }) {
		return a.simulateStop(ctx, behaviour)
	}
	if behaviour.FailsAfterRunDuration {
		return api.AllocClientStatusFailed
	}
	return api.AllocClientStatusComplete
}

func (a *simulatedAlloc) simulateStop(ctx context.Context, behaviour SimulatedAllocBehaviour) (clientStatus string) {
	a.sleep(ctx, behaviour.StopDuration)
	return api.AllocClientStatusComplete
}

// reportHealthIfDue reports the allocation's deployment health if TimeToHealthReport has passed. Otherwise it returns the
// remaining time.
func (a *simulatedAlloc) reportHealthIfDue(ctx context.Context, alloc *api.Allocation, behaviour SimulatedAllocBehaviour) (untilReport time.Duration) {
	if alloc.DeploymentID == "" || alloc.DeploymentStatus != nil && alloc.DeploymentStatus.Healthy != nil {
		return 0
	}
	if a.healthCheckDeploymentID != alloc.DeploymentID {
		a.healthCheckDeploymentID, a.healthCheckStart = alloc.DeploymentID, time.Now()
	}
	if left := behaviour.TimeToHealthReport - time.Since(a.healthCheckStart); left > 0 {
		return left
	}
	a.sendReportWithRetry(ctx, model.AllocReport{Health: &model.DeploymentHealth{
		DeploymentID: alloc.DeploymentID, Healthy: !behaviour.ReportsUnhealthy, DecidedAt: a.node.now()}})
	return 0
}

// waitForTimeOrStop blocks until the time end; zero means forever. It returns true earlier if the allocation must stop or
// ctx ends. It calls checkReturningNextDelay at the start, after each change of the allocation, and after the delay
// that the last call has returned.
func (a *simulatedAlloc) waitForTimeOrStop(ctx context.Context, end time.Time, checkReturningNextDelay func(*api.Allocation) time.Duration) (stoppedOrCtxDone bool) {
	for ctx.Err() == nil {
		alloc := a.node.Store.Snapshot().Allocation(nil, a.allocID)
		if alloc == nil || alloc.ServerTerminalStatus() {
			return true
		}
		wait := time.Duration(1 << 62)
		if !end.IsZero() {
			if wait = time.Until(end); wait <= 0 {
				return false
			}
		}
		if checkReturningNextDelay != nil {
			if d := checkReturningNextDelay(alloc); d > 0 {
				wait = min(wait, d)
			}
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-a.allocChanged:
		case <-ctx.Done():
		}
		timer.Stop()
	}
	return true
}

func (a *simulatedAlloc) sleep(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// sendReportWithRetry sends a report to the scheduler and retries until it succeeds or ctx ends.
func (a *simulatedAlloc) sendReportWithRetry(ctx context.Context, r model.AllocReport) {
	r.AllocID = a.allocID
	for ctx.Err() == nil {
		if _, err := a.node.scheduler().ApplyAllocReports(ctx, r); err == nil {
			return
		}
		a.sleep(ctx, time.Second)
	}
}
