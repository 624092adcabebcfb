package schedtest

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// AllocTimes has the times at which a simulated allocation changes its state. An allocation with the zero value starts
// at once, is healthy at once, and runs until it is stopped, which takes no time.
type AllocTimes struct {
	// StartDuration is the time until the allocation runs.
	StartDuration time.Duration
	// TimeToHealth is the time between the start and the report of the health. With Unhealthy the allocation is reported as
	// unhealthy.
	TimeToHealth time.Duration
	Unhealthy    bool
	// Run is how long the allocation runs; zero means until it is stopped. With Fail the allocation fails at the end of
	// this time.
	Run       time.Duration
	FailAtEnd bool
	// StopDuration is how long a stop takes.
	StopDuration time.Duration
	// EndDelay is the time between the report of a terminal status and the end of the allocation.
	EndDelay time.Duration
}

// Node simulates the allocations of a node.
type Node struct {
	Store     scheduler.Store
	Scheduler *scheduler.Scheduler
	// AllocTimes returns the times of an allocation. If it is nil, all allocations have the zero value.
	AllocTimes func(*api.Allocation) AllocTimes
	mu         sync.Mutex // guards Scheduler once the node runs

	// Now returns the wall clock time. Nil means time.Now.
	Now func() time.Time

	// OnAllocStarted and OnAllocEnded are called when an allocation starts its first task and
	// when it has ended. They may be nil.
	OnAllocStarted, OnAllocEnded func(*api.Allocation)
}

// NewNode returns a node with the given memory and a healthy driver "mock".
func NewNode(memoryMB int) *api.Node {
	return &api.Node{
		ID: "node", Name: "box", Datacenter: "dc1", NodePool: api.NodePoolDefault,
		Attributes: map[string]string{
			"kernel.name":               "linux",
			"nomad.version":             "2.0.6-dev",
			"memory.totalbytes":         mebibytesText(memoryMB),
			"unique.network.ip-address": "10.0.0.1",
		},
		Drivers:               map[string]*api.DriverInfo{"mock": {Detected: true, Healthy: true}},
		SchedulingEligibility: api.NodeSchedulingEligible,
		Status:                "ready",
	}
}

// Use sets the scheduler to which the node reports.
func (n *Node) Use(s *scheduler.Scheduler) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.Scheduler = s
}

func (n *Node) now() time.Time {
	if n.Now != nil {
		return n.Now()
	}
	return time.Now()
}

func (n *Node) scheduler() *scheduler.Scheduler {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.Scheduler
}

// simulatedAlloc simulates an allocation.
type simulatedAlloc struct {
	node         *Node
	id           string
	allocChanged chan struct{} // receives a value when the allocation has changed

	deploymentID     string    // the deployment to which the reported health applies
	healthCheckStart time.Time // start of the health check for the current deployment
}

// Run runs the desired allocations until ctx ends.
func (n *Node) Run(ctx context.Context) {
	var runningWG sync.WaitGroup
	defer runningWG.Wait()
	actors := make(map[string]*simulatedAlloc)
	for {
		state, changed := n.Store.Snapshot(), store.NewWatchSet()
		state.TableIndex(changed, store.Allocations)
		for _, a := range scheduler.DesiredAllocs(state.Reader) {
			if act := actors[a.ID]; act != nil {
				act.notify()
			} else if !state.AllocationEnded(a.ID) {
				act = &simulatedAlloc{node: n, id: a.ID, allocChanged: make(chan struct{}, 1)}
				actors[a.ID] = act
				runningWG.Go(func() { act.run(ctx, a) })
			}
		}
		for id, act := range actors {
			if state.Allocation(nil, id) == nil {
				act.notify()
			}
		}
		if changed.WatchCtx(ctx) != nil {
			return
		}
	}
}

func (a *simulatedAlloc) notify() {
	select {
	case a.allocChanged <- struct{}{}:
	default:
	}
}

// run simulates an allocation from start to end.
func (a *simulatedAlloc) run(ctx context.Context, alloc *api.Allocation) {
	times := AllocTimes{}
	if a.node.AllocTimes != nil {
		times = a.node.AllocTimes(alloc)
	}
	status := api.AllocClientStatusComplete
	if !alloc.ServerTerminalStatus() && alloc.ClientStatus == api.AllocClientStatusPending {
		if a.node.OnAllocStarted != nil {
			a.node.OnAllocStarted(alloc)
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
	a.report(ctx, scheduler.AllocReport{ClientStatus: status, ClientDescription: text,
		TaskStates: map[string]*api.TaskState{"t": {State: "dead", Failed: status == api.AllocClientStatusFailed, FinishedAt: now}}})
	a.sleep(ctx, times.EndDelay)
	if a.node.OnAllocEnded != nil && ctx.Err() == nil {
		a.node.OnAllocEnded(alloc)
	}
	a.report(ctx, scheduler.AllocReport{TasksEnded: true})
}

// simulateTasks simulates the tasks and returns the final client status.
func (a *simulatedAlloc) simulateTasks(ctx context.Context, times AllocTimes) string {
	if a.waitUntil(ctx, time.Now().Add(times.StartDuration), nil) {
		return a.simulateStop(ctx, times)
	}
	start := time.Now()
	a.report(ctx, scheduler.AllocReport{ClientStatus: api.AllocClientStatusRunning, ClientDescription: "Tasks are running",
		TaskStates: map[string]*api.TaskState{"t": {State: "running", StartedAt: a.node.now()}}})
	end := time.Time{}
	if times.Run > 0 {
		end = start.Add(times.Run)
	}
	if a.waitUntil(ctx, end, func(alloc *api.Allocation) time.Duration { return a.reportHealth(ctx, alloc, times) }) {
		return a.simulateStop(ctx, times)
	}
	if times.FailAtEnd {
		return api.AllocClientStatusFailed
	}
	return api.AllocClientStatusComplete
}

func (a *simulatedAlloc) simulateStop(ctx context.Context, times AllocTimes) string {
	a.sleep(ctx, times.StopDuration)
	return api.AllocClientStatusComplete
}

// reportHealth reports the health of the allocation in its deployment when it is due, and
// returns the remaining time until then.
func (a *simulatedAlloc) reportHealth(ctx context.Context, alloc *api.Allocation, times AllocTimes) time.Duration {
	if alloc.DeploymentID == "" || alloc.DeploymentStatus != nil && alloc.DeploymentStatus.Healthy != nil {
		return 0
	}
	if a.deploymentID != alloc.DeploymentID {
		a.deploymentID, a.healthCheckStart = alloc.DeploymentID, time.Now()
	}
	if left := times.TimeToHealth - time.Since(a.healthCheckStart); left > 0 {
		return left
	}
	healthy := !times.Unhealthy
	a.report(ctx, scheduler.AllocReport{Healthy: &healthy, HealthyTime: a.node.now(), DeploymentID: alloc.DeploymentID})
	return 0
}

// waitUntil waits until the given time; zero means forever. It returns true early if the allocation must stop or ctx
// ends.
func (a *simulatedAlloc) waitUntil(ctx context.Context, end time.Time, check func(*api.Allocation) time.Duration) (stop bool) {
	for ctx.Err() == nil {
		alloc := a.node.Store.Snapshot().Allocation(nil, a.id)
		if alloc == nil || alloc.ServerTerminalStatus() {
			return true
		}
		wait := time.Duration(1 << 62)
		if !end.IsZero() {
			if wait = time.Until(end); wait <= 0 {
				return false
			}
		}
		if check != nil {
			if d := check(alloc); d > 0 {
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

// report sends a report to the scheduler and retries until it succeeds or ctx ends.
func (a *simulatedAlloc) report(ctx context.Context, r scheduler.AllocReport) {
	r.AllocID = a.id
	for ctx.Err() == nil {
		if _, err := a.node.scheduler().Report(ctx, r); err == nil {
			return
		}
		a.sleep(ctx, time.Second)
	}
}
