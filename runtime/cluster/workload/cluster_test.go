package workload_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/cluster/clustertest"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/membership"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/registrations"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/replica"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/servers"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/wire"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/workload"
	"github.com/nomad-lite/nomad-lite/runtime/node/hooks/builtinhooks"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/identity"
)

const nodeID = "5844aeb0-068a-191b-2651-846e6d798aa4"

// node is a cluster node that runs no tasks.
type node struct {
	store         *store.Store
	registrations *registrations.Registrations
	identities    *workload.Identities
	data          *workload.Data
	alloc         *api.Allocation // placed by the cluster
}

// startNode starts a node, joins it to the cluster, and places a job with a named identity on it.
func startNode(t *testing.T, c *clustertest.Cluster) *node {
	t.Helper()
	logger := hclog.NewNullLogger()
	s, err := store.OpenMemory(store.Config{Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	_, err = s.Update(t.Context(), func(tx *store.Txn) error {
		tx.PutNodeWithStorageEvents(&api.Node{
			ID: nodeID, Name: "one", Datacenter: "dc1", NodePool: "default", Attributes: map[string]string{"nomad.version": "2.0.0", "driver.mock": "1"},
			Drivers: map[string]*api.DriverInfo{"mock": {Detected: true, Healthy: true}},
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
	var addrs []string
	for _, server := range c.Servers() {
		addrs = append(addrs, server.Addr())
	}
	dialer := wire.Dialer{Logger: logger}
	pool := servers.New(servers.Config{Region: "global", Dial: dialer.Dial, Logger: logger}, addrs)
	member, err := membership.New(t.Context(), membership.Config{Region: "global", NodeID: nodeID, Pool: pool, Store: s, Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	pulled := make(chan struct{}, 100)
	rep := replica.New(replica.Config{Region: "global", NodeID: nodeID, Pool: pool, Member: member, Store: s, Logger: logger, OnAllocsChanged: func() { pulled <- struct{}{} }})
	n := &node{
		store:         s,
		registrations: registrations.New(registrations.Config{Region: "global", NodeID: nodeID, Pool: pool, Member: member, Store: s, Logger: logger}),
		identities: workload.NewIdentities(workload.IdentitiesConfig{
			Region: "global", Pool: pool, NodeToken: member.Token, Store: s, Records: identity.NewIssuer(identity.Config{Store: s}), Logger: logger,
		}),
		data: workload.NewData(workload.DataConfig{Region: "global", Pool: pool, Registered: member.Registered(), Store: s, Logger: logger}),
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { pool.Run(ctx, wire.Methods{}, member.Beat) })
	running.Go(func() { member.Run(ctx, rep.ReportStates) })
	running.Go(func() { rep.Run(ctx, replica.Events{}) })
	running.Go(func() { n.registrations.Run(ctx, nil) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
		n.data.Close()
	})
	if _, err := c.WaitNode(t.Context(), nodeID, func(found clustertest.Node) bool { return found.Status == "ready" }); err != nil {
		t.Fatal(err)
	}
	job := api.NewServiceJob("web", "web", "global", 50)
	task := api.NewTask("t", "mock")
	task.Identities = []*api.WorkloadIdentity{{Name: "extra", Audience: []string{"example.com"}, File: true, TTL: time.Hour}}
	id := c.Place(clustertest.Placement{NodeID: nodeID, Job: job.AddTaskGroup(api.NewTaskGroup("g", 1).AddTask(task)), Group: "g", Force: true})
	for n.alloc = nil; n.alloc == nil; n.alloc = s.Snapshot().Allocation(nil, id) {
		<-pulled
	}
	return n
}

func (n *node) workload() identity.Workload { return identity.NewWorkload(n.alloc, "t") }

func TestNamedIdentityOfServers(t *testing.T) {
	for name, c := range map[string]struct {
		profile  clustertest.Profile
		rejected bool
	}{"2.0": {clustertest.Version20, false}, "1.10": {clustertest.Version110, false}, "1.6": {clustertest.Version16, true}} {
		t.Run(name, func(t *testing.T) {
			n := startNode(t, clustertest.StartCluster(t, 1, clustertest.Config{Profile: c.profile}))
			err := n.identities.IssueAllocTokens(t.Context(), n.alloc)
			token := n.identities.StoredTokensByIdentity(n.alloc.ID, "t")["extra"]
			if c.rejected {
				if !errors.Is(err, builtinhooks.ErrIdentityRejected) || token != nil {
					t.Errorf("token %v, error %v, want a rejection", token, err)
				}
				return
			}
			if err != nil || token == nil || token.JWT == "" || time.Until(token.ExpiresAt) < time.Minute {
				t.Errorf("token %+v, error %v", token, err)
			}
		})
	}
}

// The cluster fails the test if a node's token is used for a variable.
func TestVariableAndServiceOfServers(t *testing.T) {
	cluster := clustertest.StartCluster(t, 3, clustertest.Config{AccessControl: true})
	cluster.PutVariable("default", "nomad/jobs/web", map[string]string{"k": "one"})
	cluster.PutVariable("default", "other", map[string]string{"k": "secret"})
	n := startNode(t, cluster)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ws := store.NewWatchSet()
	v, index, err := n.data.Variable(ctx, ws, n.workload(), "", "nomad/jobs/web")
	if err != nil || v.Items["k"] != "one" {
		t.Fatalf("variable %v, error %v", v, err)
	}
	if _, _, err := n.data.Variable(ctx, store.NewWatchSet(), n.workload(), "", "other"); err == nil {
		t.Error("a task has read a variable that it may not read")
	}
	cluster.Leader().Kill() // the next servers have the change
	cluster.SetLeader(cluster.Servers()[1])
	cluster.PutVariable("default", "nomad/jobs/web", map[string]string{"k": "two"})
	if err := ws.WatchCtx(ctx); err != nil {
		t.Fatal(err)
	}
	v, newIndex, err := n.data.Variable(ctx, store.NewWatchSet(), n.workload(), "", "nomad/jobs/web")
	if err != nil || v.Items["k"] != "two" || newIndex <= index {
		t.Errorf("variable %v at %d after %d, error %v", v, newIndex, index, err)
	}

	ws = store.NewWatchSet()
	if list, _, err := n.data.Services(ctx, ws, n.workload(), "web"); err != nil || len(list) > 0 {
		t.Fatalf("services %v, error %v", list, err)
	}
	registration := &api.ServiceRegistration{
		ID: "_nomad-task-web", ServiceName: "web", Namespace: "default", NodeID: nodeID, Datacenter: "dc1", JobID: "web", AllocID: n.alloc.ID, Address: "10.0.0.2", Port: 80,
	}
	if err := n.registrations.PutAndRemoveServices([]*api.ServiceRegistration{registration}, nil); err != nil {
		t.Fatal(err)
	}
	if err := ws.WatchCtx(ctx); err != nil {
		t.Fatal(err)
	}
	ws = store.NewWatchSet()
	if list, _, err := n.data.Services(ctx, ws, n.workload(), "web"); err != nil || len(list) != 1 || list[0].Port != 80 {
		t.Errorf("services %v, error %v", list, err)
	}
	if err := n.registrations.PutAndRemoveServices(nil, []*api.ServiceRegistration{registration}); err != nil {
		t.Fatal(err)
	}
	if err := ws.WatchCtx(ctx); err != nil {
		t.Fatal(err)
	}
	if list, _, err := n.data.Services(ctx, store.NewWatchSet(), n.workload(), "web"); err != nil || len(list) > 0 {
		t.Errorf("services %v, error %v after the removal", list, err)
	}
}
