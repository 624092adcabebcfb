package schedtest

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// AllocTimes has the durations of a simulated allocation. The zero value starts at once,
// is healthy at once, and runs until it is stopped, which takes no time.
type AllocTimes struct {
	// Start is the time until the allocation runs.
	Start time.Duration
	// Healthy is the time from then on until its health is known. With Sick the
	// allocation is unhealthy.
	Healthy time.Duration
	Sick    bool
	// Run is how long the allocation runs; zero means until it is stopped. With
	// Fail it fails at the end.
	Run  time.Duration
	Fail bool
	// Stop is how long a stop takes.
	Stop time.Duration
	// Linger is the time between a terminal status and the end of the allocation.
	Linger time.Duration
}

// Node simulates the allocations of a node.
type Node struct {
	Store     scheduler.Store
	Scheduler *scheduler.Scheduler
	// AllocTimes returns the durations of an allocation. Nil means the zero value for all.
	AllocTimes func(*api.Allocation) AllocTimes
	mu         sync.Mutex // guards Scheduler once the node runs

	// Now returns the wall clock time. Nil means time.Now.
	Now func() time.Time

	// Started and Ended are called when an allocation starts its first task and
	// when it has ended. They may be nil.
	Started, Ended func(*api.Allocation)
}

// NewNode returns a node with the given memory and a healthy driver "mock".
func NewNode(memoryMB int) *api.Node {
	return &api.Node{
		ID: "node", Name: "box", Datacenter: "dc1", NodePool: api.NodePoolDefault,
		Attributes: map[string]string{
			"kernel.name":               "linux",
			"nomad.version":             "2.0.6-dev",
			"memory.totalbytes":         bytesText(memoryMB),
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

// actor simulates an allocation.
type actor struct {
	node *Node
	id   string
	wake chan struct{} // holds a tick when the allocation has changed

	deployment string    // the deployment whose health is reported
	since      time.Time // start of the health check for this deployment
}

// Run runs the desired allocations until ctx ends.
func (n *Node) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	actors := make(map[string]*actor)
	for {
		state, changed := n.Store.Snapshot(), store.NewWatchSet()
		state.TableIndex(changed, store.Allocations)
		for _, a := range scheduler.Desired(state.Reader) {
			if act := actors[a.ID]; act != nil {
				act.tick()
			} else if !state.AllocationEnded(a.ID) {
				act = &actor{node: n, id: a.ID, wake: make(chan struct{}, 1)}
				actors[a.ID] = act
				running.Go(func() { act.run(ctx, a) })
			}
		}
		for id, act := range actors {
			if state.Allocation(nil, id) == nil {
				act.tick()
			}
		}
		if changed.WatchCtx(ctx) != nil {
			return
		}
	}
}

func (a *actor) tick() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// run simulates an allocation from start to end.
func (a *actor) run(ctx context.Context, alloc *api.Allocation) {
	life := AllocTimes{}
	if a.node.AllocTimes != nil {
		life = a.node.AllocTimes(alloc)
	}
	status := api.AllocClientStatusComplete
	if !alloc.ServerTerminalStatus() && alloc.ClientStatus == api.AllocClientStatusPending {
		if a.node.Started != nil {
			a.node.Started(alloc)
		}
		status = a.live(ctx, life)
	}
	if ctx.Err() != nil {
		return
	}
	now := a.node.now()
	text := "All tasks have completed"
	if status == api.AllocClientStatusFailed {
		text = "Failed tasks"
	}
	a.report(ctx, scheduler.Report{ClientStatus: status, ClientDescription: text,
		TaskStates: map[string]*api.TaskState{"t": {State: "dead", Failed: status == api.AllocClientStatusFailed, FinishedAt: now}}})
	a.sleep(ctx, life.Linger)
	if a.node.Ended != nil && ctx.Err() == nil {
		a.node.Ended(alloc)
	}
	a.report(ctx, scheduler.Report{Ended: true})
}

// live simulates the tasks and returns the final client status.
func (a *actor) live(ctx context.Context, life AllocTimes) string {
	if a.until(ctx, time.Now().Add(life.Start), nil) {
		return a.stopped(ctx, life)
	}
	start := time.Now()
	a.report(ctx, scheduler.Report{ClientStatus: api.AllocClientStatusRunning, ClientDescription: "Tasks are running",
		TaskStates: map[string]*api.TaskState{"t": {State: "running", StartedAt: a.node.now()}}})
	end := time.Time{}
	if life.Run > 0 {
		end = start.Add(life.Run)
	}
	if a.until(ctx, end, func(alloc *api.Allocation) time.Duration { return a.health(ctx, alloc, life) }) {
		return a.stopped(ctx, life)
	}
	if life.Fail {
		return api.AllocClientStatusFailed
	}
	return api.AllocClientStatusComplete
}

func (a *actor) stopped(ctx context.Context, life AllocTimes) string {
	a.sleep(ctx, life.Stop)
	return api.AllocClientStatusComplete
}

// health reports the health of the allocation in its deployment when it is due, and
// returns the remaining time until then.
func (a *actor) health(ctx context.Context, alloc *api.Allocation, life AllocTimes) time.Duration {
	if alloc.DeploymentID == "" || alloc.DeploymentStatus != nil && alloc.DeploymentStatus.Healthy != nil {
		return 0
	}
	if a.deployment != alloc.DeploymentID {
		a.deployment, a.since = alloc.DeploymentID, time.Now()
	}
	if left := life.Healthy - time.Since(a.since); left > 0 {
		return left
	}
	healthy := !life.Sick
	a.report(ctx, scheduler.Report{Healthy: &healthy, HealthyTime: a.node.now(), DeploymentID: alloc.DeploymentID})
	return 0
}

// until waits until the end time, where zero means forever. It returns true early
// if the allocation must stop or ctx ends.
func (a *actor) until(ctx context.Context, end time.Time, check func(*api.Allocation) time.Duration) (stop bool) {
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
		case <-a.wake:
		case <-ctx.Done():
		}
		timer.Stop()
	}
	return true
}

func (a *actor) sleep(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// report sends a report to the scheduler and retries until it succeeds or ctx ends.
func (a *actor) report(ctx context.Context, r scheduler.Report) {
	r.AllocID = a.id
	for ctx.Err() == nil {
		if _, err := a.node.scheduler().Report(ctx, r); err == nil {
			return
		}
		a.sleep(ctx, time.Second)
	}
}
