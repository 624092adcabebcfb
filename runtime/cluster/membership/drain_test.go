package membership

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/cluster/clustertest"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/protocol"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/servers"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/wire"
)

// drainFixture is a registered node with one allocation.
type drainFixture struct {
	t       *testing.T
	cluster *clustertest.Cluster
	member  *Member
	pool    *servers.Pool
	allocID string
}

func newDrainFixture(t *testing.T) *drainFixture {
	t.Helper()
	f := &drainFixture{t: t, cluster: clustertest.StartCluster(t, 1, clustertest.Config{})}
	s := newStoreWithNode(t)
	logger := hclog.NewNullLogger()
	dialer := wire.Dialer{Logger: logger}
	f.pool = servers.New(servers.Config{Region: region, Dial: dialer.Dial, Logger: logger}, []string{f.cluster.Servers()[0].Addr()})
	var err error
	if f.member, err = New(t.Context(), Config{Region: region, NodeID: nodeID, Pool: f.pool, Store: s, Logger: logger}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { f.pool.Run(ctx, wire.Methods{}, nil) })
	running.Go(func() { f.member.Run(ctx, nil) })
	t.Cleanup(func() { cancel(); running.Wait() })
	if _, err := f.cluster.WaitNode(t.Context(), nodeID, func(n clustertest.Node) bool { return n.Status == "ready" }); err != nil {
		t.Fatal(err)
	}
	group := api.NewTaskGroup("g", 1).AddTask(api.NewTask("t", "mock"))
	f.allocID = f.cluster.Place(clustertest.Placement{NodeID: nodeID, Job: api.NewServiceJob("j", "j", region, 50).AddTaskGroup(group), Group: "g", Force: true})
	return f
}

// start starts a drain, and returns a channel that receives its result.
func (f *drainFixture) start(ctx context.Context, s protocol.DrainStrategy) <-chan error {
	result := make(chan error, 1)
	go func() { result <- f.member.Drain(ctx, s) }()
	return result
}

// waitBlocked waits until the drain has begun, and one of the node's calls blocks until the drain ends.
func (f *drainFixture) waitBlocked() {
	f.t.Helper()
	_, err := f.cluster.WaitNode(f.t.Context(), nodeID, func(n clustertest.Node) bool { return n.Draining && n.SchedulingEligibility == "ineligible" })
	if err := errors.Join(err, f.cluster.WaitReceived(f.t.Context(), protocol.MethodGetNode, 2)); err != nil {
		f.t.Fatal(err)
	}
}

func (f *drainFixture) call(method string, request any) {
	f.t.Helper()
	if err := f.pool.Call(f.t.Context(), method, request, &protocol.WriteMeta{}); err != nil {
		f.t.Fatal(err)
	}
}

func TestDrainReturnsWhenServersHaveDrained(t *testing.T) {
	f := newDrainFixture(t)
	f.cluster.Inject(clustertest.Fault{Method: protocol.MethodUpdateNodeDrain, Error: "No cluster leader"})
	f.cluster.Inject(clustertest.Fault{Method: protocol.MethodGetNode, Cut: clustertest.CutBeforeResponse})
	result := f.start(t.Context(), protocol.DrainStrategy{Deadline: time.Hour})
	f.waitBlocked()
	select {
	case err := <-result:
		t.Fatalf("Drain returns %v while an allocation runs", err)
	default:
	}
	f.call(protocol.MethodUpdateAllocs, &protocol.UpdateAllocsRequest{
		Alloc:        []*protocol.AllocStatus{{ID: f.allocID, NodeID: nodeID, ClientStatus: "complete"}},
		WriteOptions: f.member.writeOptions(identity),
	})
	if err := <-result; err != nil {
		t.Error(err)
	}
}

func TestDrainThatDoesNotComplete(t *testing.T) {
	cause := errors.New("the wait is over")
	for _, test := range []struct {
		name string
		end  func(f *drainFixture, cancel context.CancelCauseFunc)
		want error
	}{
		{"an operator cancels the drain", func(f *drainFixture, _ context.CancelCauseFunc) {
			f.call(protocol.MethodUpdateNodeDrain, &protocol.UpdateNodeDrainRequest{NodeID: nodeID, WriteOptions: f.member.writeOptions(identity)})
		}, ErrDrainCanceled},
		{"the context ends", func(_ *drainFixture, cancel context.CancelCauseFunc) { cancel(cause) }, cause},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := newDrainFixture(t)
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			result := f.start(ctx, protocol.DrainStrategy{Deadline: time.Hour})
			f.waitBlocked()
			test.end(f, cancel)
			if err := <-result; !errors.Is(err, test.want) {
				t.Errorf("error %v, want %v", err, test.want)
			}
		})
	}
}

func TestRefusedDrainIsNotRepeated(t *testing.T) {
	f := newDrainFixture(t)
	f.cluster.Inject(clustertest.Fault{Method: protocol.MethodUpdateNodeDrain, Error: "Permission denied", Times: clustertest.Always})
	err := f.member.Drain(t.Context(), protocol.DrainStrategy{Deadline: time.Hour})
	if calls := f.cluster.Calls(protocol.MethodUpdateNodeDrain); err == nil || !strings.Contains(err.Error(), "Permission denied") || len(calls) != 1 {
		t.Errorf("error %v after %d calls", err, len(calls))
	}
}
