package replica_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/clustertest"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/membership"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/protocol"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/replica"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/servers"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/wire"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

const nodeID = "5844aeb0-068a-191b-2651-846e6d798aa4"

// node is a cluster node with allocations that start and end as soon as they must. It has all parts of an agent that talk to
// servers.
type node struct {
	t       *testing.T
	cluster *clustertest.Cluster
	store   *store.Store

	mu          sync.Mutex
	starts      map[string]int
	stops       map[string]int
	reconnected []string
}

// startNode starts a node, joins it to the cluster, and waits until it is ready.
func startNode(t *testing.T, c *clustertest.Cluster) *node {
	t.Helper()
	s, err := store.OpenMemory(store.Config{Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	_, err = s.Update(t.Context(), func(tx *store.Txn) error {
		tx.PutNodeWithStorageEvents(&api.Node{
			ID: nodeID, Name: "one", Datacenter: "dc1", NodePool: "default",
			Attributes: map[string]string{"nomad.version": "2.0.0", "kernel.name": "linux", "driver.mock": "1"},
			Drivers:    map[string]*api.DriverInfo{"mock": {Detected: true, Healthy: true}},
			NodeResources: &api.NodeResources{
				Cpu: api.NodeCpuResources{CpuShares: 4000, TotalCpuCores: 2, ReservableCpuCores: []uint16{0, 1}}, Memory: api.NodeMemoryResources{MemoryMB: 4096},
				Disk: api.NodeDiskResources{DiskMB: 10000}, Networks: []*api.NetworkResource{{Mode: "host", Device: "eth0", IP: "10.0.0.2", CIDR: "10.0.0.2/32"}},
				MinDynamicPort: 20000, MaxDynamicPort: 32000,
			},
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	n := &node{t: t, cluster: c, store: s, starts: make(map[string]int), stops: make(map[string]int)}
	n.startAgent()
	n.waitStatus("ready")
	return n
}

// startAgent runs an agent's parts until the returned function is called, or until the test ends.
func (n *node) startAgent() (stop func()) {
	n.t.Helper()
	logger := hclog.NewNullLogger()
	var addrs []string
	for _, s := range n.cluster.Servers() {
		addrs = append(addrs, s.Addr())
	}
	dialer := wire.Dialer{Logger: logger}
	pool := servers.New(servers.Config{Region: "global", Dial: dialer.Dial, Logger: logger}, addrs)
	member, err := membership.New(n.t.Context(), membership.Config{
		Region: "global", NodeID: nodeID, Pool: pool, Store: n.store, Logger: logger,
	})
	if err != nil {
		n.t.Fatal(err)
	}
	changed := make(chan struct{}, 1)
	rep := replica.New(replica.Config{
		Region: "global", NodeID: nodeID, Pool: pool, Member: member, Store: n.store, Logger: logger,
		OnAllocsChanged: func() {
			wait.Notify(changed)
		},
	})
	events := replica.Events{
		OnServersRestored: member.RegisterAgain,
		OnReconnected:     func(id string) { n.mu.Lock(); defer n.mu.Unlock(); n.reconnected = append(n.reconnected, id) },
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { pool.Run(ctx, wire.Methods{}, member.Beat) })
	running.Go(func() { member.Run(ctx, rep.ReportStates) })
	running.Go(func() { rep.Run(ctx, events) })
	running.Go(func() {
		for {
			n.runAllocs(ctx, rep)
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	})
	stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	n.t.Cleanup(stop)
	return stop
}

// runAllocs starts and ends allocations as the store wants it.
func (n *node) runAllocs(ctx context.Context, rep *replica.Replica) {
	snapshot := n.store.Snapshot()
	for _, a := range scheduler.DesiredAllocs(snapshot.Reader) {
		report := model.AllocReport{AllocID: a.ID, ClientStatus: "running", TaskStates: map[string]*api.TaskState{"t": {State: "running", StartedAt: time.Now()}}}
		n.mu.Lock()
		switch {
		case snapshot.AllocationEnded(a.ID) || !a.ServerTerminalStatus() && a.ClientStatus == "running":
			n.mu.Unlock()
			continue
		case a.ServerTerminalStatus():
			n.stops[a.ID]++
			report.ClientStatus, report.TasksAndHooksEnded, report.TaskStates["t"].State = "complete", true, "dead"
		default:
			n.starts[a.ID]++
		}
		n.mu.Unlock()
		if _, err := rep.ApplyAllocReports(ctx, report); err != nil && ctx.Err() == nil {
			n.t.Error(err)
		}
	}
}

func (n *node) waitStatus(status string) {
	n.t.Helper()
	if _, err := n.cluster.WaitNode(n.t.Context(), nodeID, func(found clustertest.Node) bool { return found.Status == status }); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) waitAlloc(id, clientStatus string) {
	n.t.Helper()
	_, err := n.cluster.WaitAlloc(n.t.Context(), id, func(a protocol.Allocation) bool { return a.ClientStatus == clientStatus })
	if err != nil {
		n.t.Fatal(err)
	}
}

// check checks how often an allocation was started and stopped.
func (n *node) check(id string, starts, stops int) {
	n.t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.starts[id] != starts || n.stops[id] != stops {
		n.t.Errorf("allocation %s was started %d times and stopped %d times, want %d and %d", id, n.starts[id], n.stops[id], starts, stops)
	}
}

func newJob(lostAfter time.Duration) *api.Job {
	job := api.NewServiceJob("web", "web", "global", 50)
	task := api.NewTask("t", "mock")
	group := api.NewTaskGroup("g", 1).AddTask(task)
	if lostAfter > 0 {
		group.Disconnect = &api.DisconnectStrategy{LostAfter: &lostAfter}
	}
	return job.AddTaskGroup(group)
}

func TestNodeRunsWhatServersAssign(t *testing.T) {
	for name, profile := range map[string]clustertest.Profile{"2.0": clustertest.Version20, "1.10": clustertest.Version110, "1.6": clustertest.Version16} {
		t.Run(name, func(t *testing.T) {
			c := clustertest.StartCluster(t, 1, clustertest.Config{Profile: profile})
			n := startNode(t, c)
			id := c.PlaceAlloc(nodeID, newJob(0), "g")
			n.waitAlloc(id, "running")
			c.StopAlloc(id)
			n.waitAlloc(id, "complete")
			n.check(id, 1, 1)
		})
	}
}

func TestDisconnectedNodeIsReadyAgainAndItsAllocationContinues(t *testing.T) {
	c := clustertest.StartCluster(t, 1, clustertest.Config{HeartbeatTTL: time.Second})
	n := startNode(t, c)
	id := c.PlaceAlloc(nodeID, newJob(time.Hour), "g")
	n.waitAlloc(id, "running")
	c.MissHeartbeat(nodeID)
	n.waitStatus("disconnected")
	n.waitStatus("ready")
	n.waitAlloc(id, "running")
	n.check(id, 1, 0)
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.reconnected) != 1 || n.reconnected[0] != id {
		t.Errorf("reconnected allocations %q, want %s", n.reconnected, id)
	}
}

func TestAllocationOfANodeThatWasDownIsStopped(t *testing.T) {
	c := clustertest.StartCluster(t, 1, clustertest.Config{HeartbeatTTL: time.Second})
	n := startNode(t, c)
	id := c.PlaceAlloc(nodeID, newJob(0), "g")
	n.waitAlloc(id, "running")
	c.MissHeartbeat(nodeID)
	n.waitStatus("ready")
	n.waitAlloc(id, "complete")
	n.check(id, 1, 1)
}

func TestNodeMovesToAnotherServerWhenTheLeaderIsKilled(t *testing.T) {
	c := clustertest.StartCluster(t, 3, clustertest.Config{HeartbeatTTL: time.Second})
	n := startNode(t, c)
	first := c.PlaceAlloc(nodeID, newJob(0), "g")
	n.waitAlloc(first, "running")
	killed := c.Leader()
	killed.Kill()
	c.SetLeader(c.Servers()[1])
	second := c.PlaceAlloc(nodeID, newJob(0), "g")
	n.waitAlloc(second, "running")
	n.check(first, 1, 0)
	n.check(second, 1, 0)
}

func TestPurgedNodeRegistersAgain(t *testing.T) {
	c := clustertest.StartCluster(t, 1, clustertest.Config{HeartbeatTTL: time.Second})
	n := startNode(t, c)
	id := c.PlaceAlloc(nodeID, newJob(0), "g")
	n.waitAlloc(id, "running")
	c.PurgeNode(nodeID)
	n.waitStatus("ready")
	second := c.PlaceAlloc(nodeID, newJob(0), "g")
	n.waitAlloc(second, "running")
}

func TestAgentThatIsReplacedReportsNothingTwice(t *testing.T) {
	c := clustertest.StartCluster(t, 1, clustertest.Config{HeartbeatTTL: time.Second})
	n := startNode(t, c)
	id := c.PlaceAlloc(nodeID, newJob(0), "g")
	n.waitAlloc(id, "running")
	reports := len(c.Calls(protocol.MethodUpdateAllocs))
	c.Servers()[0].DropConnections()
	stop := n.startAgent()
	registrations := len(c.Calls(protocol.MethodRegisterNode))
	if err := c.WaitCalls(t.Context(), protocol.MethodRegisterNode, registrations+1); err != nil {
		t.Fatal(err)
	}
	stop()
	if got := len(c.Calls(protocol.MethodUpdateAllocs)); got != reports {
		t.Errorf("%d calls with states that the servers have", got-reports)
	}
	n.check(id, 1, 0)
}
