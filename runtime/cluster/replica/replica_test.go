package replica

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/protocol"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/wire"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

const nodeID = "5844aeb0-068a-191b-2651-846e6d798aa4"

// fakeServers are the servers of a cluster with one node. Their answers can be stale, incomplete or errors, as chance decides.
type fakeServers struct {
	random *rand.Rand // nil: no answer is wrong

	mu        sync.Mutex
	index     uint64
	allocs    map[string]*protocol.Allocation // as the servers assign them
	earlier   map[string]*protocol.Allocation // the version before, which a lagging server has
	status    map[string]*protocol.AllocStatus
	changed   chan struct{}
	isBehind  bool // the leader alone has the latest versions
	isDown    bool // no call succeeds
	isPurged  bool // the servers do not have the node
	refuses   bool // the servers take no states until the next heartbeat
	beats     int
	reports   int // accepted calls with states
	lastAlive time.Time
	// unrequested is in all answers with allocations; nil means none.
	unrequested *protocol.Allocation
	// afterList is called once after the next list; nil means nothing.
	afterList func()
}

func newFakeServers(random *rand.Rand) *fakeServers {
	return &fakeServers{
		random: random, index: 10, changed: make(chan struct{}), lastAlive: time.Now(),
		allocs: make(map[string]*protocol.Allocation), earlier: make(map[string]*protocol.Allocation), status: make(map[string]*protocol.AllocStatus),
	}
}

// change changes the state of the servers.
func (f *fakeServers) change(do func(index uint64)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.index++
	do(f.index)
	close(f.changed)
	f.changed = make(chan struct{})
}

// place assigns a new allocation to the node.
func (f *fakeServers) place(job *api.Job) string {
	id := ""
	f.change(func(index uint64) {
		id = fmt.Sprintf("%08x-0000-0000-0000-%012x", index, index)
		f.allocs[id] = &protocol.Allocation{
			Allocation: api.Allocation{
				ID: id, Name: "j.g[0]", Namespace: "default", JobID: *job.ID, Job: job, TaskGroup: "g", NodeID: nodeID,
				DesiredStatus: api.AllocDesiredStatusRun, ClientStatus: api.AllocClientStatusPending,
				AllocatedResources: &api.AllocatedResources{}, CreateIndex: index, ModifyIndex: index, AllocModifyIndex: index,
				Metrics: &api.AllocationMetric{NodesEvaluated: 1},
			},
			SignedIdentities: map[string]string{"t": "jwt"},
		}
	})
	return id
}

// edit changes an allocation, as a server does: the node sees a higher index.
func (f *fakeServers) edit(id string, do func(*protocol.Allocation)) {
	f.change(func(index uint64) {
		f.earlier[id] = f.allocs[id]
		next := *f.allocs[id]
		do(&next)
		next.AllocModifyIndex, next.ModifyIndex = index, index
		f.allocs[id] = &next
	})
}

// chance reports whether something with the given probability happens.
func (f *fakeServers) chance(probability float64) bool {
	return f.random != nil && f.random.Float64() < probability
}

func (f *fakeServers) Call(ctx context.Context, method string, request, response any) error {
	return f.CallBlocking(ctx, 0, method, request, response)
}

func (f *fakeServers) CallBlocking(ctx context.Context, block time.Duration, method string, request, response any) error {
	if err := wait.Sleep(ctx, time.Millisecond); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.isDown || f.chance(0.05) {
		return errors.New("connection reset")
	}
	switch r := request.(type) {
	case *protocol.GetClientAllocsRequest:
		return f.listAllocs(ctx, block, r, response.(*protocol.GetClientAllocsResponse))
	case *protocol.GetAllocsRequest:
		out := response.(*protocol.GetAllocsResponse)
		if err := f.awaitChange(ctx, cmp.Or(r.MaxQueryTime, 5*time.Minute), r.MinQueryIndex); err != nil {
			return err
		}
		out.Index = f.index
		for _, id := range r.AllocIDs {
			if a := f.allocs[id]; a != nil && !f.chance(0.1) {
				copied := *a
				if e := f.earlier[id]; e != nil && r.AllowStale && (f.isBehind || f.chance(0.1)) {
					copied = *e // from a lagging server
				}
				out.Allocs = append(out.Allocs, &copied)
			}
		}
		if f.unrequested != nil {
			out.Allocs = append(out.Allocs, f.unrequested)
		}
		if f.random != nil {
			f.random.Shuffle(len(out.Allocs), func(i, k int) { out.Allocs[i], out.Allocs[k] = out.Allocs[k], out.Allocs[i] })
		}
		return nil
	case *protocol.UpdateAllocsRequest:
		switch {
		case len(r.Alloc) == 0:
			return wire.ServerError("must update at least one allocation")
		case f.isPurged:
			return wire.ServerError("node " + nodeID + " not found")
		case f.refuses:
			return wire.ServerError("node is not allowed to update allocs while in status disconnected")
		}
		f.reports++
		f.index++
		for _, a := range r.Alloc {
			f.status[a.ID] = a
			if known := f.allocs[a.ID]; known != nil {
				next := *known
				next.ClientStatus = a.ClientStatus
				f.allocs[a.ID] = &next
			}
		}
		close(f.changed)
		f.changed = make(chan struct{})
		if f.chance(0.1) {
			return errors.New("connection reset after the change was made")
		}
		return nil
	}
	return fmt.Errorf("unexpected method %s", method)
}

// awaitChange blocks until the index is higher than minIndex, for block at most. The caller must hold f.mu.
func (f *fakeServers) awaitChange(ctx context.Context, block time.Duration, minIndex uint64) error {
	timeout := time.After(block)
	for f.index <= minIndex && block > 0 {
		changed := f.changed
		f.mu.Unlock()
		over := false
		select {
		case <-changed:
		case <-timeout:
			over = true
		case <-ctx.Done():
		}
		f.mu.Lock()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if over {
			break
		}
	}
	return nil
}

func (f *fakeServers) listAllocs(ctx context.Context, block time.Duration, r *protocol.GetClientAllocsRequest, out *protocol.GetClientAllocsResponse) error {
	if err := f.awaitChange(ctx, block, r.MinQueryIndex); err != nil {
		return err
	}
	out.Index, out.Allocs = f.index, make(map[string]uint64)
	for id, a := range f.allocs {
		if f.isPurged {
			break
		}
		out.Allocs[id] = a.AllocModifyIndex
	}
	if f.chance(0.05) {
		out.Index-- // a lagging server
	}
	if do := f.afterList; do != nil {
		f.afterList = nil
		f.mu.Unlock()
		do()
		f.mu.Lock()
	}
	return nil
}

func (f *fakeServers) WaitRetry(ctx context.Context, max time.Duration) error {
	return wait.Sleep(ctx, max)
}

var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

func (f *fakeServers) Registered() <-chan struct{} { return closed }
func (f *fakeServers) Token() string               { return "jwt" }
func (f *fakeServers) Secret() string              { return "secret" }

func (f *fakeServers) CredentialsRejected() bool { return false }

func (f *fakeServers) LastContact() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.isDown {
		f.lastAlive = time.Now()
	}
	return f.lastAlive
}

func (f *fakeServers) Beat() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.beats++
	f.refuses, f.isPurged = false, false
}

func (f *fakeServers) ConfirmRegistered(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.isDown {
		return errors.New("connection refused")
	}
	if f.isPurged {
		return wire.ServerError("node not found")
	}
	return nil
}

func newJob(id string) *api.Job {
	return &api.Job{
		ID: new(id), Namespace: new("default"), Version: new(uint64(0)), JobModifyIndex: new(uint64(1)), CreateIndex: new(uint64(1)), Type: new("service"),
		TaskGroups: []*api.TaskGroup{{Name: new("g"), Tasks: []*api.Task{{Name: "t", Driver: "mock"}}}},
	}
}

// fakeRunner runs the store's allocations as a node runner does: those that must run get running, those that must stop end.
type fakeRunner struct {
	store       *store.Store
	running     map[string]bool
	starts      map[string]int
	reconnected []string
}

// step makes one change for each allocation, and reports it.
func (r *fakeRunner) step(t *testing.T, replica *Replica) {
	snapshot := r.store.Snapshot()
	for _, a := range scheduler.DesiredAllocs(snapshot.Reader) {
		report := model.AllocReport{AllocID: a.ID}
		switch {
		case snapshot.AllocationEnded(a.ID):
			continue
		case a.ServerTerminalStatus():
			delete(r.running, a.ID)
			report.ClientStatus, report.TasksAndHooksEnded = api.AllocClientStatusComplete, true
			report.TaskStates = map[string]*api.TaskState{"t": {State: "dead"}}
		case !r.running[a.ID]:
			r.running[a.ID] = true
			r.starts[a.ID]++
			report.ClientStatus = api.AllocClientStatusRunning
			report.TaskStates = map[string]*api.TaskState{"t": {State: "running"}}
		default:
			continue
		}
		if _, err := replica.ApplyAllocReports(t.Context(), report); err != nil {
			t.Error(err)
		}
	}
}

// testNode is a node with a store, on which replicas run one after the other.
type testNode struct {
	restores int // OnServersRestored calls
	t        *testing.T
	servers  *fakeServers
	store    *store.Store
	runner   *fakeRunner
	replica  *Replica
	stop     func()
}

func newTestNode(t *testing.T, servers *fakeServers) *testNode {
	t.Helper()
	s, err := store.OpenMemory(store.Config{Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	n := &testNode{t: t, servers: servers, store: s, runner: &fakeRunner{store: s, running: make(map[string]bool), starts: make(map[string]int)}}
	n.startAgent()
	t.Cleanup(func() { n.stop(); s.Close() })
	return n
}

// startAgent runs a Replica, as a new agent does.
func (n *testNode) startAgent() {
	n.replica = New(Config{
		Region: "global", NodeID: nodeID, Pool: n.servers, Member: n.servers, Store: n.store, OnAllocsChanged: func() {}, Logger: hclog.NewNullLogger(),
	})
	events := Events{
		OnReconnected:     func(id string) { n.runner.reconnected = append(n.runner.reconnected, id) },
		OnServersRestored: func() { n.restores++ },
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	replica := n.replica
	running.Go(func() { replica.Run(ctx, events) })
	n.stop = func() { cancel(); running.Wait() }
}

// settle lets everything that follows from earlier changes happen.
func (n *testNode) settle() {
	for range 40 {
		time.Sleep(3 * time.Second)
		synctest.Wait()
		n.runner.step(n.t, n.replica)
	}
	time.Sleep(time.Minute)
	synctest.Wait()
}

// check compares the node's allocations and reports with the servers'.
func (n *testNode) check() {
	n.t.Helper()
	snapshot := n.store.Snapshot()
	n.servers.mu.Lock()
	defer n.servers.mu.Unlock()
	stored := make(map[string]*api.Allocation)
	for _, a := range snapshot.Allocations(nil, "") {
		stored[a.ID] = a
	}
	if got, want := slices.Sorted(maps.Keys(stored)), slices.Sorted(maps.Keys(n.servers.allocs)); !slices.Equal(got, want) {
		n.t.Errorf("the store has allocations %q, the servers %q", got, want)
	}
	for id, want := range n.servers.allocs {
		got := stored[id]
		if got == nil {
			continue
		}
		if got.DesiredStatus != want.DesiredStatus || *got.Job.Version != *want.Job.Version {
			n.t.Errorf("allocation %s: desired %s of version %d, servers have %s of version %d", id, got.DesiredStatus, *got.Job.Version, want.DesiredStatus, *want.Job.Version)
		}
		if n.runner.running[id] != (want.DesiredStatus == api.AllocDesiredStatusRun) {
			n.t.Errorf("allocation %s: running is %v, and the servers want %s", id, n.runner.running[id], want.DesiredStatus)
		}
		if n.runner.starts[id] > 1 {
			n.t.Errorf("allocation %s was started %d times", id, n.runner.starts[id])
		}
		reported := n.servers.status[id]
		if reported == nil || reported.ClientStatus != got.ClientStatus || reported.TaskStates["t"] == nil || reported.TaskStates["t"].State != got.TaskStates["t"].State {
			n.t.Errorf("allocation %s is %s, the servers have %+v", id, got.ClientStatus, reported)
		}
	}
	for id := range n.runner.running {
		if n.servers.allocs[id] == nil {
			n.t.Errorf("allocation %s runs, and the servers do not have it", id)
		}
	}
	for _, prefix := range []string{"cluster_alloc/", "cluster_reported/"} {
		for _, name := range snapshot.AgentRecordNames(prefix) {
			if stored[strings.TrimPrefix(name, prefix)] == nil {
				n.t.Errorf("record %s of an allocation that was removed", name)
			}
		}
	}
}

// reportEnd reports the end of an allocation, as its runner does.
func (n *testNode) reportEnd(id, clientStatus string) {
	n.t.Helper()
	if _, err := n.replica.ApplyAllocReports(n.t.Context(), model.AllocReport{
		AllocID: id, ClientStatus: clientStatus, TaskStates: map[string]*api.TaskState{"t": {State: "dead"}}, TasksAndHooksEnded: true,
	}); err != nil {
		n.t.Fatal(err)
	}
}

// A starting agent does not start again what the servers have stopped meanwhile, also if the stopped version reaches its runner
// late.
func TestNewStartWaitsForTheServersAndTheStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers := newFakeServers(nil)
		n := newTestNode(t, servers)
		runs, stops := servers.place(newJob("job0")), servers.place(newJob("job1"))
		n.settle()
		n.stop()
		servers.isDown = true
		servers.edit(stops, func(a *protocol.Allocation) { a.DesiredStatus = api.AllocDesiredStatusStop })
		n.startAgent()
		ctx, cancel := context.WithCancel(t.Context())
		errByAlloc := make(map[string]chan error)
		waits := make(chan string, 2)
		for _, id := range []string{runs, stops} {
			result := make(chan error, 1)
			errByAlloc[id] = result
			go func() { result <- n.replica.AwaitNewStart(ctx, id, func(string, *api.TaskEvent) { waits <- id }) }()
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(waits) != 2 || len(errByAlloc[runs]) != 0 {
			t.Errorf("without servers %d of 2 starts wait", len(waits))
		}
		servers.mu.Lock()
		servers.isDown = false
		servers.mu.Unlock()
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(errByAlloc[runs]) != 1 || len(errByAlloc[stops]) != 0 {
			t.Errorf("with servers %d and %d starts are decided, want 1 and 0", len(errByAlloc[runs]), len(errByAlloc[stops]))
		}
		cancel() // the runner has got the stopped version
		if err := <-errByAlloc[runs]; err != nil {
			t.Error(err)
		}
		if err := <-errByAlloc[stops]; !errors.Is(err, context.Canceled) {
			t.Errorf("the start of a stopped allocation returned %v", err)
		}
	})
}

// After a node has removed an allocation, it shows no running task, whatever state has reached the servers before they gave it
// up.
func TestRemovedAllocationThatTheServersLostHasNoRunningTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers := newFakeServers(nil)
		id := servers.place(newJob("job0"))
		servers.edit(id, func(a *protocol.Allocation) {
			a.DesiredStatus, a.ClientStatus = api.AllocDesiredStatusStop, api.AllocClientStatusLost
			a.TaskStates = map[string]*api.TaskState{"t": {State: "running", StartedAt: time.Now(), Events: []*api.TaskEvent{{Type: api.TaskStarted}}}}
		})
		n := newTestNode(t, servers)
		n.settle()
		a := n.store.Snapshot().Allocation(nil, id)
		if a == nil || n.runner.starts[id] > 0 {
			t.Fatalf("the node has %v after %d starts", a, n.runner.starts[id])
		}
		if task := a.TaskStates["t"]; a.ClientStatus != api.AllocClientStatusLost || task.State != "dead" || task.FinishedAt.IsZero() || len(task.Events) != 1 {
			t.Errorf("the node has %s, %+v", a.ClientStatus, task)
		}
	})
}

// Servers learn that a failed allocation's tasks are dead, although the node has removed it before it could report it.
func TestFailedAllocationOfALostStateHasNoRunningTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers := newFakeServers(nil)
		id := servers.place(newJob("job0"))
		servers.edit(id, func(a *protocol.Allocation) {
			a.ClientStatus = api.AllocClientStatusFailed
			a.TaskStates = map[string]*api.TaskState{"t": {State: "running", StartedAt: time.Now(), Events: []*api.TaskEvent{{Type: api.TaskStarted}}}}
		})
		n := newTestNode(t, servers)
		n.settle()
		servers.mu.Lock()
		defer servers.mu.Unlock()
		sent := servers.status[id]
		if sent == nil || sent.ClientStatus != api.AllocClientStatusFailed || sent.TaskStates["t"].State != "dead" || len(sent.TaskStates["t"].Events) != 1 || n.runner.starts[id] > 0 {
			t.Errorf("the servers have %+v after %d starts", sent, n.runner.starts[id])
		}
	})
}

// A node ends a removed allocation at the servers, and keeps their events.
func TestStoppedAllocationOfALostStateKeepsItsEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers := newFakeServers(nil)
		id := servers.place(newJob("job0"))
		servers.edit(id, func(a *protocol.Allocation) {
			a.DesiredStatus, a.ClientStatus = api.AllocDesiredStatusStop, api.AllocClientStatusRunning
			a.TaskStates = map[string]*api.TaskState{"t": {State: "running", StartedAt: time.Now(), Events: []*api.TaskEvent{{Type: api.TaskStarted}}}}
		})
		n := newTestNode(t, servers)
		n.settle()
		servers.mu.Lock()
		defer servers.mu.Unlock()
		sent := servers.status[id]
		if sent == nil || sent.ClientStatus != api.AllocClientStatusComplete || n.runner.starts[id] > 0 {
			t.Fatalf("the servers have %+v after %d starts", sent, n.runner.starts[id])
		}
		if task := sent.TaskStates["t"]; task.State != "dead" || task.FinishedAt.IsZero() || len(task.Events) != 1 {
			t.Errorf("the servers have the state %+v", task)
		}
	})
}

// A lagging server has an earlier report about an allocation, with the same index.
func TestStatesOfALostAllocationAreThoseOfTheLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers := newFakeServers(nil)
		id := servers.place(newJob("job0"))
		servers.edit(id, func(a *protocol.Allocation) {
			a.DesiredStatus, a.ClientStatus = api.AllocDesiredStatusStop, api.AllocClientStatusComplete
			a.TaskStates = map[string]*api.TaskState{"t": {State: "dead", Events: []*api.TaskEvent{{Type: api.TaskStarted}, {Type: api.TaskKilled}}}}
		})
		behind := *servers.allocs[id]
		behind.ClientStatus = api.AllocClientStatusRunning
		behind.TaskStates = map[string]*api.TaskState{"t": {State: "running", Events: []*api.TaskEvent{{Type: api.TaskStarted}}}}
		servers.earlier[id], servers.isBehind = &behind, true
		n := newTestNode(t, servers)
		n.settle()
		a := n.store.Snapshot().Allocation(nil, id)
		if a == nil || a.ClientStatus != api.AllocClientStatusComplete || len(a.TaskStates["t"].Events) != 2 {
			t.Errorf("the node has %+v", a)
		}
	})
}

// A node without an allocation's state starts it as a new one, whatever states the servers show. It keeps the events.
func TestRunningAllocationOfALostStateStartsAsNew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers := newFakeServers(nil)
		id := servers.place(newJob("job0"))
		servers.edit(id, func(a *protocol.Allocation) {
			a.ClientStatus = api.AllocClientStatusRunning
			a.TaskStates = map[string]*api.TaskState{"t": {State: "running", StartedAt: time.Now(), Events: []*api.TaskEvent{{Type: api.TaskStarted}}}}
		})
		n := newTestNode(t, servers)
		time.Sleep(time.Minute)
		synctest.Wait()
		a := n.store.Snapshot().Allocation(nil, id)
		if a == nil || a.ClientStatus != api.AllocClientStatusPending {
			t.Fatalf("the node has %+v, want a pending allocation", a)
		}
		if task := a.TaskStates["t"]; task.State != "pending" || !task.StartedAt.IsZero() || len(task.Events) != 1 {
			t.Errorf("the task has the state %+v, want a pending one with its event", task)
		}
	})
}

// TestReplicaFollowsTheServers makes random changes at the servers and at the node, with wrong answers, lost connections and
// replaced agents, and compares both ends afterwards.
func TestReplicaFollowsTheServers(t *testing.T) {
	for seed := range uint64(200) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				random := rand.New(rand.NewPCG(seed, 0))
				servers := newFakeServers(rand.New(rand.NewPCG(seed, 1)))
				n := newTestNode(t, servers)
				for range 60 {
					n.changeAnything(random)
					time.Sleep(time.Duration(random.IntN(3000)) * time.Millisecond)
					synctest.Wait()
					n.runner.step(t, n.replica)
				}
				servers.mu.Lock()
				servers.isDown, servers.random = false, nil
				servers.mu.Unlock()
				n.settle()
				n.check()
			})
		})
	}
}

// changeAnything makes one random change.
func (n *testNode) changeAnything(random *rand.Rand) {
	f := n.servers
	f.mu.Lock()
	ids := slices.Sorted(maps.Keys(f.allocs))
	f.mu.Unlock()
	anyID := func() string { return ids[random.IntN(len(ids))] }
	switch c := random.IntN(12); {
	case c < 3 || len(ids) == 0:
		f.place(newJob(fmt.Sprint("job", random.IntN(3))))
	case c < 5:
		f.edit(anyID(), func(a *protocol.Allocation) { a.DesiredStatus = api.AllocDesiredStatusStop })
	case c == 5:
		f.edit(anyID(), func(a *protocol.Allocation) {
			job := *a.Job
			job.Version, job.JobModifyIndex = new(*job.Version+1), new(*job.JobModifyIndex+1)
			a.Job = &job
		})
	case c == 6:
		id := anyID()
		f.change(func(uint64) { delete(f.allocs, id) })
	case c == 7:
		n.stop()
		n.startAgent()
	case c == 8:
		f.mu.Lock()
		f.isDown = !f.isDown
		f.mu.Unlock()
	case c == 9:
		f.mu.Lock()
		f.refuses = true
		f.mu.Unlock()
	case c == 10:
		f.edit(anyID(), func(a *protocol.Allocation) { a.ClientStatus = api.AllocClientStatusUnknown })
	case c == 11:
		n.replica.ReportStates()
	}
}

func TestPurgeDoesNotEndAllocationsBeforeTheNodeIsRegisteredAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers := newFakeServers(nil)
		n := newTestNode(t, servers)
		id := servers.place(newJob("web"))
		n.settle()
		servers.change(func(uint64) { servers.isPurged = true })
		n.settle() // the first empty list wakes the membership, which registers the node again
		if !n.runner.running[id] {
			t.Error("the allocation was ended by the empty list of a purged node")
		}
		n.check()
	})
}

// A list from servers without the node does not count for a node registered again.
func TestListFromBeforeTheRegistrationEndsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers := newFakeServers(nil)
		n := newTestNode(t, servers)
		id := servers.place(newJob("web"))
		n.settle()
		servers.change(func(uint64) {
			servers.isPurged = true
			servers.afterList = servers.Beat
		})
		n.settle()
		if !n.runner.running[id] || n.runner.starts[id] != 1 {
			t.Error("the allocation was ended by the list of servers that did not have the node")
		}
		n.check()
	})
}

func TestStopOnClientAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers := newFakeServers(nil)
		n := newTestNode(t, servers)
		limited, unlimited := newJob("limited"), newJob("unlimited")
		limited.TaskGroups[0].Disconnect = &api.DisconnectStrategy{StopOnClientAfter: new(5 * time.Minute)}
		stops, runs := servers.place(limited), servers.place(unlimited)
		n.settle()
		servers.mu.Lock()
		servers.isDown = true
		servers.mu.Unlock()
		time.Sleep(4 * time.Minute)
		n.runner.step(t, n.replica)
		if !n.runner.running[stops] {
			t.Error("stopped too early")
		}
		n.stop() // the limit holds over the agent's end
		n.startAgent()
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		servers.mu.Lock()
		servers.isDown = false
		servers.mu.Unlock()
		// The servers are back while the allocation's tasks still end.
		servers.edit(stops, func(a *protocol.Allocation) { a.ClientStatus = api.AllocClientStatusUnknown })
		time.Sleep(time.Minute)
		synctest.Wait()
		n.settle()
		if !n.runner.running[runs] {
			t.Error("an allocation without a limit was stopped")
		}
		if n.runner.running[stops] || n.runner.starts[stops] != 1 {
			t.Error("the allocation was started again after the node had stopped it")
		}
		// The servers do not replace a complete allocation.
		if got := servers.status[stops]; got.ClientStatus != api.AllocClientStatusFailed || got.ClientDescription != stoppedByNode {
			t.Errorf("the servers have %s, %s", got.ClientStatus, got.ClientDescription)
		}
	})
}

func TestAllocationThatEndsBeforeItsDeploymentIsUnhealthy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers := newFakeServers(nil)
		n := newTestNode(t, servers)
		id := servers.place(newJob("web"))
		n.settle()
		n.reportEnd(id, api.AllocClientStatusFailed)
		// The servers add the allocation to a deployment before they know about its failure.
		servers.edit(id, func(a *protocol.Allocation) { a.DeploymentID = "deployment" })
		n.settle()
		if got := servers.status[id].DeploymentStatus; got == nil || got.Healthy == nil || *got.Healthy {
			t.Errorf("the health is %+v, want unhealthy", got)
		}
	})
}

// snapshot returns a function that makes the servers go back to their present state.
func (f *fakeServers) snapshot() (restore func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	index, allocs, status := f.index, maps.Clone(f.allocs), maps.Clone(f.status)
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.index, f.allocs, f.status = index, maps.Clone(allocs), maps.Clone(status) // it ends no blocked call
	}
}

// Servers restored between a list and the call for its allocations do not reach the index the call waits for.
func TestServersGoBackBetweenTwoCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers := newFakeServers(nil)
		n := newTestNode(t, servers)
		n.settle()
		n.stop()
		kept := servers.place(newJob("kept"))
		restore := servers.snapshot()
		servers.place(newJob("later"))
		servers.afterList = restore
		n.startAgent()
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if n.store.Snapshot().Allocation(nil, kept) == nil {
			t.Error("the node waits for an allocation that the servers no longer have")
		}
	})
}

func TestServersGoBackToAnEarlierState(t *testing.T) {
	for _, test := range []struct {
		name    string
		restore func(n *testNode, restore func())
	}{
		{"while the node is connected", func(_ *testNode, restore func()) { restore() }},
		{"while no agent runs", func(n *testNode, restore func()) {
			n.stop()
			restore()
			n.startAgent()
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				servers := newFakeServers(nil)
				n := newTestNode(t, servers)
				kept, ends := servers.place(newJob("kept")), servers.place(newJob("ends"))
				n.settle()
				restore := servers.snapshot()
				for range 100 {
					servers.edit(kept, func(a *protocol.Allocation) { a.DesiredDescription = "changed" })
				}
				later := servers.place(newJob("later"))
				n.reportEnd(ends, api.AllocClientStatusComplete)
				n.settle()
				test.restore(n, restore)
				time.Sleep(2 * time.Minute) // none of the node's calls blocks longer
				synctest.Wait()
				n.runner.step(t, n.replica)
				if n.restores == 0 {
					t.Error("the other parts of the agent do not learn of the restore")
				}
				if n.runner.running[later] {
					t.Error("an allocation runs that the servers no longer have")
				}
				if got := servers.status[ends].ClientStatus; got != api.AllocClientStatusComplete {
					t.Errorf("the servers have %s", got)
				}
				servers.edit(kept, func(a *protocol.Allocation) { a.DesiredStatus = api.AllocDesiredStatusStop })
				time.Sleep(10 * time.Second)
				synctest.Wait()
				n.runner.step(t, n.replica)
				if n.runner.running[kept] {
					t.Error("the node ignores a change whose index is lower than earlier ones")
				}
			})
		})
	}
}

// The agent is replaced while it removes an allocation, and restored servers have it as before.
func TestServersGoBackDuringTheRemovalOfAnAllocation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers := newFakeServers(nil)
		n := newTestNode(t, servers)
		id := servers.place(newJob("web"))
		n.settle()
		restore := servers.snapshot()
		servers.change(func(uint64) { delete(servers.allocs, id) })
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if a := n.store.Snapshot().Allocation(nil, id); a == nil || !a.ServerTerminalStatus() {
			t.Fatalf("the node has %+v, want an allocation that is stopped", a)
		}
		n.stop()
		restore()
		n.startAgent()
		n.settle()
		if !n.runner.running[id] {
			t.Error("the node does not run an allocation that the servers have again")
		}
		n.check()
	})
}

// Changes by other nodes can give restored servers a higher index than before, after one list with a lower index.
func TestServersGoBackAndHaveAHigherIndexSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers := newFakeServers(nil)
		n := newTestNode(t, servers)
		id := servers.place(newJob("web"))
		n.settle()
		restore := servers.snapshot()
		n.reportEnd(id, api.AllocClientStatusComplete)
		n.settle()
		restore()
		servers.mu.Lock()
		servers.afterList = func() {
			for range 200 {
				servers.change(func(uint64) {})
			}
		}
		servers.mu.Unlock()
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		servers.mu.Lock()
		defer servers.mu.Unlock()
		if got := servers.status[id].ClientStatus; got != api.AllocClientStatusComplete {
			t.Errorf("the servers have %s", got)
		}
	})
}

// A call with a lost connection can be executed after the next one. The next one's states are sent again.
func TestLateReportIsCorrected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers := newFakeServers(nil)
		n := newTestNode(t, servers)
		id := servers.place(newJob("job0"))
		n.settle()
		servers.mu.Lock()
		late := servers.status[id]
		servers.isDown = true
		servers.mu.Unlock()
		n.reportEnd(id, api.AllocClientStatusComplete)
		n.settle()
		servers.mu.Lock()
		servers.isDown = false
		servers.mu.Unlock()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		servers.mu.Lock()
		if got := servers.status[id].ClientStatus; got != api.AllocClientStatusComplete {
			t.Errorf("the servers have %s", got)
		}
		servers.status[id] = late
		sent := servers.reports
		servers.mu.Unlock()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		servers.mu.Lock()
		defer servers.mu.Unlock()
		if got := servers.status[id].ClientStatus; got != api.AllocClientStatusComplete || servers.reports != sent+1 {
			t.Errorf("after the late call, the servers have %s, and %d more calls", got, servers.reports-sent)
		}
	})
}

// If restored servers have changed an allocation since, its index is higher than all before, and only its status shows that they
// have lost a report.
func TestServersThatHaveLostAReportGetItAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers := newFakeServers(nil)
		n := newTestNode(t, servers)
		id := servers.place(newJob("job0"))
		n.settle()
		n.reportEnd(id, api.AllocClientStatusComplete)
		n.settle()
		n.stop()
		servers.mu.Lock()
		servers.status[id] = nil
		servers.mu.Unlock()
		servers.edit(id, func(a *protocol.Allocation) {
			a.DesiredStatus, a.ClientStatus = api.AllocDesiredStatusStop, api.AllocClientStatusLost
		})
		n.startAgent()
		n.settle()
		servers.mu.Lock()
		defer servers.mu.Unlock()
		if sent := servers.status[id]; sent == nil || sent.ClientStatus != api.AllocClientStatusComplete {
			t.Errorf("the servers have %+v", sent)
		}
	})
}

func TestAllocationThatIsStoppedBeforeItIsKnownIsNotRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers := newFakeServers(nil)
		n := newTestNode(t, servers)
		n.stop()
		id := servers.place(newJob("web"))
		servers.edit(id, func(a *protocol.Allocation) { a.DesiredStatus = api.AllocDesiredStatusStop })
		n.startAgent()
		time.Sleep(time.Minute)
		synctest.Wait()
		if !n.store.Snapshot().AllocationEnded(id) {
			t.Error("the allocation has not ended at once")
		}
		if got := servers.status[id]; got == nil || got.ClientStatus != api.AllocClientStatusComplete || got.TaskStates["t"].State != "dead" {
			t.Errorf("the servers have %+v", got)
		}
	})
}

func TestAllocationOfUnsupportedPartsFailsWithTheRemedy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers := newFakeServers(nil)
		n := newTestNode(t, servers)
		job := newJob("storage")
		task := job.TaskGroups[0].Tasks[0]
		task.CSIPluginConfig = &api.TaskCSIPluginConfig{ID: "disks", Type: api.CSIPluginTypeNode}
		task.Identities = []*api.WorkloadIdentity{{Name: "vault", ExtraClaims: []string{"unit"}}} // signed by servers
		id := servers.place(job)
		n.settle()
		if n.runner.starts[id] > 0 || !n.store.Snapshot().AllocationEnded(id) {
			t.Error("the allocation was started, or has not ended")
		}
		got := servers.status[id]
		if got == nil || got.ClientStatus != api.AllocClientStatusFailed || !got.TaskStates["t"].Failed {
			t.Fatalf("the servers have %+v", got)
		}
		want := `a CSI plugin is not supported by this build of nomad-lite: add constraint { attribute = "${attr.nomad-lite.version}"`
		if events := got.TaskStates["t"].Events; len(events) != 1 || !strings.HasPrefix(events[0].DisplayMessage, want) {
			t.Errorf("events %+v, want one with %s", events, want)
		}
	})
}

func TestAllocationsOfOneJobShareIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers := newFakeServers(nil)
		n := newTestNode(t, servers)
		for range 3 {
			servers.place(newJob("web")) // each message has its own copy of the job
			n.settle()
		}
		jobs := make(map[*api.Job]bool)
		for _, a := range n.store.Snapshot().Allocations(nil, "") {
			jobs[a.Job] = true
		}
		if len(jobs) != 1 {
			t.Errorf("three allocations have %d jobs", len(jobs))
		}
	})
}

func TestSendStatesDoesNotWaitForTheirTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers := newFakeServers(nil)
		n := newTestNode(t, servers)
		id := servers.place(newJob("web"))
		n.settle()
		states := map[string]*api.TaskState{"t": {State: "running", Restarts: 1}}
		if _, err := n.replica.ApplyAllocReports(t.Context(), model.AllocReport{AllocID: id, TaskStates: states}); err != nil {
			t.Fatal(err)
		}
		if err := n.replica.SendStates(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := servers.status[id].TaskStates["t"].Restarts; got != 1 {
			t.Errorf("the servers know %d restarts, want 1", got)
		}
	})
}

func TestUnchangedStatesAreSentOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers := newFakeServers(nil)
		n := newTestNode(t, servers)
		id := servers.place(newJob("web"))
		n.settle()
		sent := servers.reports
		n.stop()
		n.startAgent()
		servers.edit(id, func(a *protocol.Allocation) { a.DesiredDescription = "a new version of the job" })
		n.settle()
		if servers.reports != sent {
			t.Errorf("%d calls with states that the servers have", servers.reports-sent)
		}
		n.replica.ReportStates()
		n.settle()
		if servers.reports != sent+1 || servers.beats != 1 {
			t.Errorf("after a reconnect: %d calls with states and %d heartbeats, want one each", servers.reports-sent, servers.beats)
		}
		n.check()
	})
}
