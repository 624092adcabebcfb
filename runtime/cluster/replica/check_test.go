package replica

import (
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/cluster/protocol"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/wire"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// lies are changes after which the node must reject an allocation, with a part of the error, which names the field.
var lies = map[string]struct {
	tell func(*protocol.Allocation)
	want string
}{
	"a path as id":                 {func(a *protocol.Allocation) { a.ID = "../../../../../../etc/nomad-lite-x12" }, "ID"},
	"an id without hyphens":        {func(a *protocol.Allocation) { a.ID = strings.ReplaceAll(a.ID, "-", "") }, "ID"},
	"another node":                 {func(a *protocol.Allocation) { a.NodeID = "b" }, "NodeID"},
	"no job":                       {func(a *protocol.Allocation) { a.Job = nil }, "Job"},
	"a job without id":             {func(a *protocol.Allocation) { a.Job.ID = nil }, "JobID"},
	"another job":                  {func(a *protocol.Allocation) { a.JobID = "b" }, "JobID"},
	"another namespace":            {func(a *protocol.Allocation) { a.Namespace = "b" }, "Namespace"},
	"an unknown group":             {func(a *protocol.Allocation) { a.TaskGroup = "b" }, "TaskGroup"},
	"a null group":                 {func(a *protocol.Allocation) { a.Job.TaskGroups = append(a.Job.TaskGroups, nil) }, "Job.TaskGroups[1]"},
	"a null task":                  {func(a *protocol.Allocation) { a.Job.TaskGroups[0].Tasks[0] = nil }, "Job.TaskGroups[0].Tasks[0]"},
	"a null volume":                {func(a *protocol.Allocation) { a.Job.TaskGroups[0].Volumes = map[string]*api.VolumeRequest{"v": nil} }, "Volumes[v]"},
	"a null state":                 {func(a *protocol.Allocation) { a.TaskStates = map[string]*api.TaskState{"t": nil} }, "TaskStates[t]"},
	"a group without name":         {func(a *protocol.Allocation) { a.Job.TaskGroups[0].Name = nil }, "TaskGroup"},
	"a task outside of its parent": {func(a *protocol.Allocation) { a.Job.TaskGroups[0].Tasks[0].Name = "../x" }, "slashes"},
	"an identity outside of its directory": {func(a *protocol.Allocation) {
		a.Job.TaskGroups[0].Tasks[0].Identities = []*api.WorkloadIdentity{{Name: "../../x", File: true}}
	}, "Identity"},
	"a template outside of its directory": {func(a *protocol.Allocation) {
		a.Job.TaskGroups[0].Tasks[0].Templates = []*api.Template{{EmbeddedTmpl: new("x"), DestPath: new("../../../x")}}
	}, "escapes"},
	"an unknown volume": {func(a *protocol.Allocation) {
		a.Job.TaskGroups[0].Tasks[0].VolumeMounts = []*api.VolumeMount{{Volume: new("v"), Destination: new("/x")}}
	}, "olume"},
	"a negative timeout": {func(a *protocol.Allocation) { a.Job.TaskGroups[0].Tasks[0].KillTimeout = new(-time.Hour) }, "KillTimeout"},
	"no resources":       {func(a *protocol.Allocation) { a.AllocatedResources = nil }, "AllocatedResources"},
	"a null task resource": {func(a *protocol.Allocation) {
		a.AllocatedResources.Tasks = map[string]*api.AllocatedTaskResources{"t": nil}
	}, "AllocatedResources.Tasks[t]"},
	"negative memory": {func(a *protocol.Allocation) {
		a.AllocatedResources.Tasks = map[string]*api.AllocatedTaskResources{"t": {Memory: api.AllocatedMemoryResources{MemoryMB: -1}}}
	}, "AllocatedResources"},
	"a negative disk": {func(a *protocol.Allocation) { a.AllocatedResources.Shared.DiskMB = -1 }, "DiskMB"},
	"a port that does not exist": {func(a *protocol.Allocation) {
		a.AllocatedResources.Shared.Networks = []*api.NetworkResource{{DynamicPorts: []api.Port{{Label: "p", Value: 1 << 16}}}}
	}, "port"},
	"an unknown desired status": {func(a *protocol.Allocation) { a.DesiredStatus = "paused" }, "DesiredStatus"},
	"an unknown client status":  {func(a *protocol.Allocation) { a.ClientStatus = "" }, "ClientStatus"},
}

func TestAllocationsThatCannotRunAreRejected(t *testing.T) {
	for name, lie := range lies {
		t.Run(name, func(t *testing.T) {
			servers := newFakeServers(nil)
			id := servers.place(newJob("web"))
			r := New(Config{NodeID: nodeID})
			if err := r.checkAlloc(servers.allocs[id], nil); err != nil {
				t.Fatalf("without the lie: %v", err)
			}
			lie.tell(servers.allocs[id])
			if err := r.checkAlloc(servers.allocs[id], nil); err == nil || !strings.Contains(err.Error(), lie.want) {
				t.Errorf("got %v, want an error about %q", err, lie.want)
			}
		})
	}
}

// A job can have parts that depend on its servers' configuration and licence.
func TestAllocationsOfOtherServersAreAccepted(t *testing.T) {
	servers := newFakeServers(nil)
	job := newJob("web")
	job.Priority, job.NodePool, job.Multiregion = new(32000), new("gpu"), &api.Multiregion{}
	job.TaskGroups[0].Tasks[0].Resources = &api.Resources{NUMA: &api.NUMAResource{Affinity: "require"}}
	id := servers.place(job)
	if err := New(Config{NodeID: nodeID}).checkAlloc(servers.allocs[id], nil); err != nil {
		t.Error(err)
	}
}

// A rejected allocation fails at the servers, and does not keep others from running. A running one continues as it was.
func TestRejectedAllocationDoesNotAffectOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers := newFakeServers(nil)
		n := newTestNode(t, servers)
		running := servers.place(newJob("running"))
		n.settle()
		rejected := servers.place(newJob("rejected"))
		servers.edit(rejected, func(a *protocol.Allocation) { a.NodeID = "b" })
		servers.edit(running, func(a *protocol.Allocation) { a.TaskGroup = "b" })
		later := servers.place(newJob("later"))
		n.settle()
		if got := maps.Clone(n.runner.running); len(got) != 2 || !got[running] || !got[later] || n.runner.starts[running] != 1 {
			t.Errorf("allocations %v run, want %s and %s", got, running, later)
		}
		if got := servers.status[rejected]; got == nil || got.ClientStatus != api.AllocClientStatusFailed || !strings.Contains(got.ClientDescription, "NodeID") {
			t.Errorf("the servers have %+v of the rejected allocation", got)
		}
		if got := servers.status[running]; got == nil || got.ClientStatus != api.AllocClientStatusRunning {
			t.Errorf("the servers have %+v of the running allocation", got)
		}
		servers.edit(running, func(a *protocol.Allocation) { a.TaskGroup = "g"; a.DesiredStatus = api.AllocDesiredStatusStop })
		servers.edit(rejected, func(a *protocol.Allocation) { a.NodeID, a.ClientStatus = nodeID, api.AllocClientStatusPending })
		n.settle()
		if got := maps.Clone(n.runner.running); got[running] || !got[rejected] {
			t.Errorf("after the servers have corrected the allocations, %v run", got)
		}
	})
}

// The servers learn about a rejected allocation, also if they refuse the first report, or lose it with a restored snapshot.
func TestRejectionIsReportedUntilTheServersHaveIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers := newFakeServers(nil)
		n := newTestNode(t, servers)
		n.settle()
		servers.refuses = true
		rejected := servers.place(newJob("rejected"))
		servers.edit(rejected, func(a *protocol.Allocation) { a.NodeID = "b" })
		restore := servers.snapshot()
		n.settle()
		servers.mu.Lock()
		servers.refuses = false
		servers.mu.Unlock()
		check := func(when string) {
			t.Helper()
			time.Sleep(2 * time.Minute) // none of the node's calls blocks longer
			synctest.Wait()
			servers.mu.Lock()
			defer servers.mu.Unlock()
			if got := servers.status[rejected]; got == nil || got.ClientStatus != api.AllocClientStatusFailed {
				t.Errorf("%s, the servers have %+v of the rejected allocation", when, got)
			}
			servers.status[rejected] = nil
		}
		check("after a refused report")
		for range 10 {
			servers.place(newJob("other"))
		}
		n.settle()
		restore()
		check("after a restore")
	})
}

// A server sends an allocation without a request from the node.
func TestAllocationsThatWereNotRequestedAreIgnored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers := newFakeServers(nil)
		servers.unrequested = &protocol.Allocation{Allocation: api.Allocation{ID: "unrequested", NodeID: nodeID}}
		n := newTestNode(t, servers)
		servers.place(newJob("web"))
		n.settle()
		n.check()
		if got := servers.status["unrequested"]; got != nil {
			t.Errorf("the node has reported %+v", got)
		}
	})
}

// The groups differ in two jobs with one version.
func TestJobsWithOneVersionAreNotMixedUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers := newFakeServers(nil)
		n := newTestNode(t, servers)
		servers.place(newJob("web"))
		n.settle()
		other := newJob("web")
		other.TaskGroups[0].Name = new("other")
		id := servers.place(other)
		servers.edit(id, func(a *protocol.Allocation) { a.TaskGroup = "other" })
		n.settle()
		if a := n.store.Snapshot().Allocation(nil, id); a == nil || a.GetTaskGroup() == nil {
			t.Errorf("the store has %+v, want an allocation with its group", a)
		}
	})
}

// An allocation in any message is rejected or can be stored and reported.
func FuzzAllocs(f *testing.F) {
	servers := newFakeServers(nil)
	id := servers.place(newJob("web"))
	a := servers.allocs[id]
	a.AllocatedResources.Tasks = map[string]*api.AllocatedTaskResources{"t": {Networks: []*api.NetworkResource{{DynamicPorts: []api.Port{{Label: "p", Value: 80}}}}}}
	a.TaskStates = map[string]*api.TaskState{"t": {State: "running"}}
	seed, err := wire.EncodeBytes(&protocol.GetAllocsResponse{Allocs: []*protocol.Allocation{a}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Fuzz(func(t *testing.T, message []byte) {
		var response protocol.GetAllocsResponse
		if wire.DecodeBytes(message, &response) != nil {
			return
		}
		s, err := store.OpenMemory(store.Config{Logger: hclog.NewNullLogger()})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		r := New(Config{NodeID: nodeID, Store: s, Member: servers, Logger: hclog.NewNullLogger()})
		for _, a := range response.Allocs {
			if a == nil || r.checkAlloc(a, nil) != nil {
				continue
			}
			if _, err := s.Update(t.Context(), func(tx *store.Txn) error {
				r.putAlloc(tx, jobsOfAllocs(tx), a, "")
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			stored := s.Snapshot().Allocation(nil, a.ID)
			if _, err := wire.EncodeBytes(newAllocStatus(stored, nodeID)); err != nil {
				t.Errorf("the state of %+v cannot be sent: %v", stored, err)
			}
			r.expiredAllocs(time.Now())
		}
	})
}
