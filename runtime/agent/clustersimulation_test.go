package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/agent/localnode"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/clustertest"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/membership"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/protocol"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/replica"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/servers"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/wire"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// TestClusterSimulation is TestSimulation with agents as cluster nodes: the replica, the membership and the server pool are real,
// and the servers come from package clustertest. Beside TestSimulation's faults, servers are killed, connections are cut,
// messages are lost, late, repeated or stale, heartbeats are missed, the node is purged, and the servers restore snapshots.
//
//	make simulate
//	go test -run ClusterSimulation ./runtime/agent -seed 42
func TestClusterSimulation(t *testing.T) {
	runSimulations(t, 6, newServerSource)
}

// serverSource is three servers. The test is their scheduler and their operator.
type serverSource struct {
	*simulation
	*clustertest.Cluster
	jobCount int
	jobs     map[string]*api.Job // as registered last, by id
	waiting  []func()            // placements for when the node is ready
	snapshot *clustertest.Snapshot
	undo     []func() // each ends a fault; it may be called twice

	// The fields below record what the node may do. The record is made from the servers' state, and not from the node's.

	mu sync.Mutex
	// ids are the placed allocations.
	ids []string
	// mayEnd are allocations that the servers have stopped or did not have at some time.
	mayEnd map[string]bool
	// stoppedBefore are allocations that the servers had stopped, or did not have, when the agent started. takenOver has those of
	// their tasks, by allocation and task, that had a process then, also one that had exited: the agent takes it over, and
	// restarts it by the restart policy.
	stoppedBefore, takenOver map[string]bool
	// startedAgain are allocations that a restored snapshot has started again after the servers had stopped or removed them.
	startedAgain map[string]bool
	// reportsLost are allocations with states lost by the servers with a restored snapshot. A node disconnected at that time
	// cannot notice it.
	reportsLost map[string]bool
	// lastServerAllocs are the servers' allocations at the last checkHistory call.
	lastServerAllocs map[string]*api.Allocation
}

func newServerSource(t testing.TB, s *simulation) simAllocSource {
	c := &serverSource{
		simulation: s, jobs: make(map[string]*api.Job), mayEnd: make(map[string]bool), startedAgain: make(map[string]bool), reportsLost: make(map[string]bool), lastServerAllocs: make(map[string]*api.Allocation),
		Cluster: clustertest.StartCluster(t, 3, clustertest.Config{
			InMemory: true, HeartbeatTTL: 5 * time.Second, HeartbeatGrace: 5 * time.Second, FailoverHeartbeatTTL: 30 * time.Second,
		}),
	}
	s.node.NodeResources = &api.NodeResources{
		Cpu: api.NodeCpuResources{CpuShares: 4000, TotalCpuCores: 2, ReservableCpuCores: []uint16{0, 1}}, Memory: api.NodeMemoryResources{MemoryMB: 4096},
		Disk: api.NodeDiskResources{DiskMB: 10000}, MinDynamicPort: 20000, MaxDynamicPort: 32000,
	}
	s.host.onStart, s.host.onStop = c.checkStart, c.checkStop
	return c
}

func (*serverSource) storesJobs() bool { return false }

// connect connects the agent as clusternode.New and clusternode.Node.Run do.
func (c *serverSource) connect(g *simAgent, sync *localnode.AllocSync, emit func(string, *api.TaskEvent)) sourceConnection {
	c.noteAgentStart()
	logger, region := hclog.NewNullLogger(), "global"
	agentStore := &killableStore{c.store, c.simulation, g}
	var addrs []string
	for _, s := range c.Servers() {
		addrs = append(addrs, s.Addr())
	}
	var member *membership.Member
	pool := servers.New(servers.Config{
		Region: region, Logger: logger,
		Dial: func(ctx context.Context, addr string) (*wire.Session, error) {
			if err := g.err(); err != nil {
				return nil, err
			}
			return c.Dial(ctx, addr)
		},
	}, addrs)
	newMember := func() (err error) {
		member, err = membership.New(context.Background(), membership.Config{
			Region: region, NodeID: c.node.ID, Pool: pool, Store: agentStore, Logger: logger,
		})
		return err
	}
	for newMember() != nil { // an agent that cannot store its secret exits, and is started again
	}
	rep := replica.New(replica.Config{
		Region: region, NodeID: c.node.ID, Pool: pool, Member: member, Store: agentStore, Logger: logger,
		OnAllocsChanged: sync.NotifyAllocsChanged,
	})
	events := replica.Events{
		OnReconnected:     func(id string) { emit(id, model.EventReconnected()) },
		OnServersRestored: member.RegisterAgain,
	}
	return sourceConnection{
		reporter: rep, awaitNewStart: rep.AwaitNewStart,
		run: func(_, untilReported context.Context) {
			runConnection(untilReported, g.died, pool, member, rep, events)
		},
		sendLastStates: func() {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			if g.err() == nil {
				_ = rep.SendStates(ctx) // the next agent sends what the servers do not accept
			}
		},
	}
}

// runConnection runs an agent's server connections until ctx ends. When the agent is killed, its connections are cut before its
// goroutines end.
func runConnection(ctx context.Context, died <-chan struct{}, pool *servers.Pool, member *membership.Member, rep *replica.Replica, events replica.Events) {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { pool.Run(ctx, wire.Methods{}, member.Beat) })
	running.Go(func() { member.Run(ctx, rep.ReportStates) })
	running.Go(func() { rep.Run(ctx, events) })
	running.Go(func() {
		select {
		case <-died:
			pool.CloseSessions()
		case <-ctx.Done():
		}
	})
}

// isReady reports whether the servers place allocations on the node.
func (c *serverSource) isReady() bool {
	n, _ := c.Node(c.node.ID)
	return n.Status == api.NodeStatusReady
}

// allocs returns the servers' allocations, in the order in which they were placed.
func (c *serverSource) allocs() (found []protocol.Allocation) {
	c.mu.Lock()
	ids := slices.Clone(c.ids)
	c.mu.Unlock()
	for _, id := range ids {
		if a, known := c.Alloc(id); known {
			found = append(found, a)
		}
	}
	return found
}

// placeWaiting makes the waiting placements, if the node is ready.
func (c *serverSource) placeWaiting() {
	if !c.isReady() {
		return
	}
	for _, place := range c.waiting {
		place()
	}
	c.waiting = nil
}

// place places a job's allocation, as soon as the node is ready.
func (c *serverSource) place(job *api.Job, previous string) {
	c.waiting = append(c.waiting, func() {
		if c.jobs[*job.ID] != nil { // else it was purged
			c.placeNow(job, previous)
		}
	})
	c.placeWaiting()
}

func (c *serverSource) placeNow(job *api.Job, previous string) {
	id := c.Place(clustertest.Placement{NodeID: c.node.ID, Job: job, Group: "g", Previous: previous})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ids = append(c.ids, id)
}

// register registers a job with a new id, and places its allocations.
func (c *serverSource) register(_ context.Context, job *api.Job) {
	c.jobCount++
	job.ID = new(fmt.Sprintf("%s-%d", *job.ID, c.jobCount))
	switch c.rand.IntN(4) {
	case 0:
		job.TaskGroups[0].Disconnect = &api.DisconnectStrategy{LostAfter: new([]time.Duration{20 * time.Second, time.Hour}[c.rand.IntN(2)])}
	case 1:
		job.TaskGroups[0].Disconnect = &api.DisconnectStrategy{StopOnClientAfter: new(15 * time.Second)}
	}
	c.jobs[*job.ID] = job
	for range max(1, *job.TaskGroups[0].Count) {
		c.place(job, "")
	}
}

// allocsOf returns the allocations of the jobs registered under an id.
func (c *serverSource) allocsOf(jobID string) []protocol.Allocation {
	return slices.DeleteFunc(c.allocs(), func(a protocol.Allocation) bool { return !strings.HasPrefix(a.JobID, jobID+"-") })
}

func (c *serverSource) deregister(_ context.Context, jobID string) {
	for _, a := range c.allocsOf(jobID) {
		c.StopAlloc(a.ID)
	}
}

func (c *serverSource) purge(_ context.Context, jobID string) {
	for _, a := range c.allocsOf(jobID) {
		c.PurgeJob("default", a.JobID)
	}
	maps.DeleteFunc(c.jobs, func(id string, _ *api.Job) bool { return strings.HasPrefix(id, jobID+"-") })
}

// stopAlloc stops an allocation, and replaces it on this node or elsewhere.
func (c *serverSource) stopAlloc(context.Context) {
	all := c.allocs()
	if len(all) == 0 {
		return
	}
	a := all[c.rand.IntN(len(all))]
	if a.ServerTerminalStatus() {
		return
	}
	c.StopAlloc(a.ID)
	if job := c.jobs[a.JobID]; job != nil && c.rand.IntN(2) == 0 {
		c.place(job, a.ID)
	}
}

// disturb makes a change that only servers make, or a server or network fault.
func (c *serverSource) disturb() bool {
	c.placeWaiting()
	if c.rand.IntN(2) == 0 {
		return false
	}
	all := c.Servers()
	server := all[c.rand.IntN(len(all))]
	switch n := c.rand.IntN(24); {
	case n < 9:
		c.injectFault()
	case n < 10:
		server.Kill()
		c.undo = append(c.undo, func() { _ = server.Restart() }) // it can run again
	case n < 11:
		_ = server.Restart()
	case n < 13:
		c.SetLeader([]*clustertest.Server{server, nil}[c.rand.IntN(2)])
	case n < 14:
		server.DropConnections()
	case n < 17:
		c.partition([]time.Duration{3 * time.Second, 30 * time.Second, 90 * time.Second}[c.rand.IntN(3)])
	case n < 18:
		if _, known := c.Node(c.node.ID); known {
			c.MissHeartbeat(c.node.ID)
		}
	case n < 19:
		c.noteStopped()
		for _, a := range c.allocs() {
			c.newLives[a.ID] = true // the node may remove it, and the servers list it again
		}
		c.PurgeNode(c.node.ID)
	case n < 20:
		c.noteStopped()
		c.GC()
	case n < 21:
		c.updateJob()
	case n < 22:
		c.reschedule()
	case c.snapshot == nil:
		c.snapshot = c.Snapshot()
	default:
		c.restoreSnapshot()
	}
	return true
}

func (c *serverSource) actionCount() int { return 60 + c.rand.IntN(40) }

// changeWithoutAgent stops an allocation, and ends processes, so that the next agent has tasks that it must not start.
func (c *serverSource) changeWithoutAgent(ctx context.Context) {
	if c.rand.IntN(2) == 0 {
		c.stopAlloc(ctx)
	}
	for range c.rand.IntN(3) {
		c.killProcess()
	}
}

// partition lets no connection between the node and the servers be open for a time.
func (c *serverSource) partition(d time.Duration) {
	for _, s := range c.Servers() {
		s.RejectConnections(true, nil)
	}
	end := sync.OnceFunc(func() {
		for _, s := range c.Servers() {
			s.RejectConnections(false, nil)
		}
	})
	time.AfterFunc(d, end)
	c.undo = append(c.undo, end)
}

// injectFault makes a method's next calls fail, or their answers late or stale.
func (c *serverSource) injectFault() {
	method := []string{
		protocol.MethodRegisterNode, protocol.MethodUpdateNodeStatus, protocol.MethodGetClientAllocs, protocol.MethodGetClientAllocs,
		protocol.MethodGetAllocs, protocol.MethodGetAllocs, protocol.MethodUpdateAllocs, protocol.MethodUpdateAllocs,
	}[c.rand.IntN(8)]
	fault := clustertest.Fault{Method: method, Times: 1 + c.rand.IntN(4)}
	isRead := method == protocol.MethodGetClientAllocs || method == protocol.MethodGetAllocs
	switch n := c.rand.IntN(8); {
	case isRead && n < 3:
		fault.Match = func(call clustertest.Call) bool { return call.Request["AllowStale"] == true }
		fault.Edit = c.staleAnswer(method)
	case n < 3:
		fault.Cut = []clustertest.CutPoint{clustertest.CutBeforeExecution, clustertest.CutBeforeResponse}[c.rand.IntN(2)]
	case isRead && n < 4:
		fault.Cut = []clustertest.CutPoint{clustertest.CutWithinResponse, clustertest.CutAfterResponse}[c.rand.IntN(2)]
	case n < 5:
		fault.Error, fault.Execute = "rpc error: EOF", c.rand.IntN(2) == 0
	case n < 6:
		fault.Error = "No cluster leader"
	case n < 7:
		fault.Delay = time.Duration(c.rand.IntN(10000)) * time.Millisecond
	default:
		hold := make(chan struct{})
		end := sync.OnceFunc(func() { close(hold) })
		time.AfterFunc(time.Duration(c.rand.IntN(30))*time.Second, end)
		c.undo = append(c.undo, end)
		fault.HoldResponse = hold
	}
	c.undo = append(c.undo, c.Inject(fault))
}

// staleAnswer returns a change to a method's answers: a server behind the others answers as it would have before, in another
// order, and with an allocation twice.
func (c *serverSource) staleAnswer(method string) func(map[string]any) {
	calls := slices.DeleteFunc(c.Calls(method), func(call clustertest.Call) bool { return call.Response == nil })
	if len(calls) == 0 {
		return nil
	}
	earlier := calls[c.rand.IntN(len(calls))].Response
	return func(response map[string]any) {
		if method == protocol.MethodGetClientAllocs {
			clear(response)
			maps.Copy(response, earlier)
			return
		}
		allocs, _ := response["Allocs"].([]any)
		old, _ := earlier["Allocs"].([]any)
		for _, one := range old {
			for i, other := range allocs {
				if one.(map[string]any)["ID"] == other.(map[string]any)["ID"] {
					allocs[i] = one
				}
			}
		}
		allocs = slices.Clone(allocs)
		slices.Reverse(allocs)
		if len(allocs) > 0 {
			allocs = append(allocs, allocs[0])
		}
		response["Allocs"] = allocs
	}
}

// updateJob changes a job so that its allocations are updated in place.
func (c *serverSource) updateJob() {
	ids := slices.Sorted(maps.Keys(c.jobs))
	if len(ids) == 0 {
		return
	}
	job := c.jobs[ids[c.rand.IntN(len(ids))]]
	if !slices.ContainsFunc(c.allocs(), func(a protocol.Allocation) bool { return a.JobID == *job.ID }) {
		return // the servers may not have the job
	}
	for _, t := range job.TaskGroups[0].Tasks {
		t.KillTimeout = new(time.Duration(1+c.rand.IntN(10)) * time.Second)
	}
	c.UpdateJob(job)
}

// reschedule replaces a failed allocation.
func (c *serverSource) reschedule() {
	for _, a := range c.allocs() {
		if job := c.jobs[a.JobID]; job != nil && a.ClientStatus == api.AllocClientStatusFailed && a.NextAllocation == "" {
			c.place(job, a.ID)
			return
		}
	}
}

// restoreSnapshot makes the servers go back to an earlier state.
func (c *serverSource) restoreSnapshot() {
	c.noteStopped()
	before := c.allocs()
	c.Restore(c.snapshot)
	c.snapshot = nil
	c.noteStopped()
	after := c.allocs()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stoppedBefore = nil // the servers may have started again what they had stopped
	clear(c.lastServerAllocs)
	for _, id := range c.ids { // the node may have removed it, and the snapshot may not have the node, as after a purge
		c.newLives[id] = true
	}
	for id := range c.mayEnd {
		if !c.isStopped(id) {
			c.startedAgain[id] = true
		}
	}
	modified := make(map[string]uint64)
	for _, a := range before {
		modified[a.ID] = a.ModifyIndex
	}
	for _, a := range after { // also those that the servers had removed meanwhile
		if a.ModifyIndex != modified[a.ID] {
			c.reportsLost[a.ID] = true
		}
	}
}

func (c *serverSource) endFaults() {
	for _, undo := range c.undo {
		undo()
	}
	c.SetLeader(c.Servers()[0])
	time.Sleep(3 * time.Minute) // the node waits up to 30 seconds between failing calls
}

// isStopped reports whether the servers have stopped an allocation, or do not have it.
func (c *serverSource) isStopped(id string) bool {
	a, known := c.Alloc(id)
	return !known || a.ServerTerminalStatus()
}

// noteStopped notes the allocations that the node may stop from now on, whatever the servers do later.
func (c *serverSource) noteStopped() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range c.ids {
		if c.isStopped(id) {
			c.mayEnd[id] = true
		}
	}
}

// noteAgentStart notes the tasks not to be started by a newly started agent.
func (c *serverSource) noteAgentStart() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stoppedBefore, c.takenOver = make(map[string]bool), make(map[string]bool)
	for _, id := range c.ids {
		c.stoppedBefore[id] = c.isStopped(id)
	}
	for _, key := range c.host.tasksWithProcess() {
		c.takenOver[key] = true
	}
}

// checkStart checks that an agent starts no task if the servers had stopped its allocation before the agent was started: they may
// have started it elsewhere.
func (c *serverSource) checkStart(config *driver.TaskConfig) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stoppedBefore[config.AllocID] && !c.takenOver[config.AllocID+"/"+config.Name] && !strings.HasPrefix(config.Name, "poststop") {
		c.host.addViolation("I12: %s of %s is started, which the servers had stopped before the agent was started", config.Name, config.AllocID)
	}
}

// checkStop checks that the node stops an allocation only if the servers have stopped it, or with stop_on_client_after. Tasks in
// a group with several tasks have other reasons to be stopped.
func (c *serverSource) checkStop(p *taskProcess) {
	a, known := c.Alloc(p.alloc)
	c.mu.Lock()
	defer c.mu.Unlock()
	if !known || a.ServerTerminalStatus() || c.mayEnd[p.alloc] || len(a.GetTaskGroup().Tasks) > 1 {
		return
	}
	var limit time.Duration
	if d := a.GetTaskGroup().Disconnect; d != nil && d.StopOnClientAfter != nil {
		limit = *d.StopOnClientAfter
	}
	if alone := c.longestTimeAlone(time.Now().Add(-maxStopDuration)); limit == 0 || alone < limit {
		c.host.addViolation("I13: %s of %s is stopped although the node was alone for %v at most, and the servers have not stopped it", p.task, a.Name, alone)
	}
}

// maxStopDuration is longer than a task stop takes. Meanwhile the node can reach the servers again.
const maxStopDuration = 30 * time.Second

// longestTimeAlone returns the longest time between two server answers to a registration or a heartbeat, and since the last one,
// among those that were not over at a time.
func (c *serverSource) longestTimeAlone(since time.Time) (longest time.Duration) {
	ends := []time.Time{time.Now()}
	for _, call := range c.Calls(protocol.MethodRegisterNode, protocol.MethodUpdateNodeStatus) {
		if call.Done() && call.Error == "" {
			ends = append(ends, call.Ended)
		}
	}
	slices.SortFunc(ends, time.Time.Compare)
	last := time.Time{} // the node was alone before the first answer
	for _, end := range ends {
		if end.After(since) {
			longest = max(longest, end.Sub(last))
		}
		last = end
	}
	return longest
}

// checkHistory checks that the servers have lost no task event.
func (c *serverSource) checkHistory() {
	for _, a := range c.allocs() {
		if was := c.lastServerAllocs[a.ID]; was != nil && !c.startedAgain[a.ID] {
			c.checkEvents(" at the servers", was, &a.Allocation)
		}
		c.lastServerAllocs[a.ID] = &a.Allocation
	}
}

// checkAtEnd checks that servers and node agree.
func (c *serverSource) checkAtEnd() {
	if !c.isReady() {
		c.host.addViolation("I14: the node is not ready")
	}
	var differences error
	for range 200 { // tasks that restart without end have events that the servers do not have yet
		differences = c.differences()
		if differences == nil {
			return
		}
		time.Sleep(300 * time.Millisecond)
	}
	c.host.addViolation("I14: %v", differences)
}

// differences returns how the allocations of the servers and the node differ.
func (c *serverSource) differences() (err error) {
	differ := func(format string, args ...any) { err = errors.Join(err, fmt.Errorf(format, args...)) }
	snapshot := c.store.Snapshot()
	known := make(map[string]bool)
	for _, a := range c.allocs() {
		known[a.ID] = true
		own := snapshot.Allocation(nil, a.ID)
		if own == nil && a.ClientTerminalStatus() {
			continue // after a node purge, the node has removed the allocation, and the servers list it again
		}
		if own == nil {
			differ("the node does not have %s, %s, %s", a.Name, a.DesiredStatus, a.ClientStatus)
			continue
		}
		if a.ServerTerminalStatus() && !snapshot.AllocationEnded(a.ID) {
			differ("%s is stopped at the servers and %s, %s on the node", a.Name, own.DesiredStatus, own.ClientStatus)
		}
		if c.reportsLost[a.ID] {
			continue
		}
		if a.ClientStatus != own.ClientStatus {
			differ("%s is %s at the servers and %s on the node", a.Name, a.ClientStatus, own.ClientStatus)
		}
		for name, is := range own.TaskStates {
			was := a.TaskStates[name]
			if a.ClientStatus == api.AllocClientStatusLost && is.State == model.TaskDead && (was == nil || was.State != model.TaskDead) {
				continue // the servers keep the last state they have received, and the node knows of no process
			}
			if was == nil || was.State != is.State || was.Failed != is.Failed || was.Restarts != is.Restarts || !slices.Equal(timedEvents(was.Events), timedEvents(is.Events)) {
				differ("%s of %s, which is %s, %s, is %+v at the servers and %+v on the node", name, a.Name, a.DesiredStatus, a.ClientStatus, was, is)
			}
		}
	}
	for _, own := range snapshot.Allocations(nil, "") {
		if !known[own.ID] {
			differ("the servers do not have %s, %s, %s", own.Name, own.DesiredStatus, own.ClientStatus)
		}
	}
	return err
}
